"""JSON Schema of pods that mesh makes: ``kubernetes:`` with ``image:`` or ``groups:`` in cluster.yaml."""

from __future__ import annotations

from mesh.config import podcode, podspec
from mesh.config.shapes import SCALAR, TEXT, Schema, about, any_of, items, keyed, matching


def made_pods_schema() -> Schema:
    """Return the shape of ``kubernetes:`` with pods that mesh makes."""
    count: Schema = {"type": "integer", "minimum": 1, "maximum": podspec.PODS_MAX}
    many: Schema = {**count, "minimum": 2, "maximum": podspec.PODS_MAX + 1}
    values: Schema = {"type": "object", "additionalProperties": SCALAR}
    fields: Schema = {"type": "object"}
    span: Schema = {"type": ["string", "number"]}
    shapes: dict[str, Schema] = {
        "context": about("of kubeconfig (default: its current one)", SCALAR),
        "namespace": about("of the pods (default: the context's)", SCALAR),
        "nodes": about("how many pods (1)", count),
        "slices": about("parts with as many pods each (1)", count),
        "image": about("an image with Python 3.8 or later", SCALAR),
        "resources": about("quantities, or requests: and limits:", fields),
        "hold": about("how long idle pods wait for the next command (10m)", span),
        "start_timeout": about("time for all pods to run; else all are deleted (10m)", span),
        "switchboard_from": about("how many pods make one stream carry those of all (64)", many),
        "gang": about("binds all pods to nodes at once, or none (none)", {"enum": list(podspec.GANGS)}),
        "queue": about("of the gang's scheduler", SCALAR),
        "source": about("where pods get the workspace without a client", source_schema()),
        "node_selector": about("labels of the nodes", values),
        "tolerations": about("as in a pod spec", items(fields)),
        "volumes": about("claim, host_path, empty_dir, secret, config_map or nfs; path, read_only", items(fields)),
        "shm": about("size of /dev/shm", SCALAR),
        "service_account": about("the service account whose token the pods get", SCALAR),
        "priority_class": about("of the pods", SCALAR),
        "image_pull_secrets": about("Secrets with the registry's credentials", items(SCALAR)),
        "labels": about("more labels of the pods", values),
        "annotations": about("annotations of the pods", values),
        "env": about("variables of the container", values),
        "pod": about("more fields of the pod spec, merged last", fields),
    }
    group = keyed(podspec.GROUP_KEYS, shapes)
    names = matching(f"[a-z0-9]([-a-z0-9]{{0,{podspec.GROUP_NAME_CHARACTERS - 2}}}[a-z0-9])?")
    groups: Schema = {"type": "object", "minProperties": 1, "propertyNames": names, "additionalProperties": group}
    shapes["groups"] = about("pods that are made in several ways, by group; a key replaces that beside groups:", groups)
    return {**keyed(podspec.MADE_KEYS, shapes), "anyOf": [{"required": ["image"]}, {"required": ["groups"]}]}


def source_schema() -> Schema:
    """Return the shape of ``source:`` of pods."""
    secret = about("a Secret with username and password, or ssh-privatekey and known_hosts", TEXT)
    ref = about("a commit, tag or branch (the default branch)", SCALAR)
    shapes = {podcode.GIT: about("a URL of git, without a password", TEXT), "ref": ref, "secret": secret}
    return any_of({"enum": [podcode.CONFIG_MAP]}, keyed(podcode.GIT_KEYS, shapes, [podcode.GIT]))
