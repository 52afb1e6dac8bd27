"""The objects of a declared job, whose pods begin a run by themselves. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from msgspec import Struct

from mesh.hosts.kubernetes import code, gang, render
from mesh.hosts.kubernetes.render import CLUSTER, FULL_CLUSTER, FULL_USER, USER, Made, Object, safe

JOB = "mesh/job"  # a label of all objects of a job: the name of its root
ROOT_UID = "declared"  # stands for the root in names: nobody but the job itself owns its pods
PLAN_DIR, SECRET_DIR = "/run/mesh-plan", "/run/mesh-job"
PLAN, PROGRAM, KEY, VARIABLES = "plan.json", "program", "key", "variables"  # files there
SLICE = "slice"  # the replicated job of a JobSet
FINISHED_S = 600  # that the objects of an ended job stay
JOBSET_LABELS = "jobset.sigs.k8s.io"
INDEXED, JOBSET = "job", "jobset"
KINDS = (INDEXED, JOBSET)


class Declared(Struct, frozen=True, kw_only=True):
    """A declared job."""

    made: Made
    plan: Mapping[str, object]  # of the run, as mesh/agent/declared/plan.py reads it
    kind: str = INDEXED  # one of KINDS
    slices: int = 1  # of a JobSet, in which all of its pods are started together
    retries: int = 0  # of all pods together; with a JobSet alone

    @property
    def name(self) -> str:
        """The name of the Job or JobSet."""
        return self.made.root_name

    @property
    def first_pod(self) -> str:
        """The name by which the pods reach the first one."""
        return f"{self.name}-0.{self.name}" if self.kind == INDEXED else f"{self.name}-{SLICE}-0-0.{self.name}"


def secret_name(made: Made) -> str:
    """Return the name of the Secret of a cluster's declared jobs."""
    return f"{made.root_name}-job"


def secret_object(made: Made, key: str, program: bytes, variables: Mapping[str, str]) -> Object:
    """Return that Secret. key: as PEM; program: that begins the run; variables: of ranks, with their values"""
    values = {KEY: key.encode(), PROGRAM: program, VARIABLES: json.dumps(dict(variables)).encode()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name(made), "labels": {CLUSTER: safe(made.cluster)}},
        "data": {name: base64.b64encode(value).decode() for name, value in values.items()},
    }


def job_objects(declared: Declared) -> list[Object]:
    """Return the objects of a job in the order in which they are made. None holds a secret."""
    made, name = declared.made, declared.name
    plan = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _meta(declared, f"{name}-plan"),
        "data": {PLAN: json.dumps(declared.plan)},
    }
    found: list[Object] = [plan]
    if made.source.archive:
        meta = _meta(declared, render.archive_name(made, ROOT_UID))
        found.append(code.config_map_object(meta, made.source.archive))
    if made.source.template.gang:
        meta = _meta(declared, render.gang_name(made, ROOT_UID))
        found.append(gang.pod_group_object(meta, made.source.nodes, made.source.template.queue))
    if declared.kind == JOBSET:
        return [*found, _job_set(declared)]
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {JOB: name}}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": _meta(declared, name), "spec": spec}
    job = _job(declared, made.source.nodes)
    job["spec"]["ttlSecondsAfterFinished"] = FINISHED_S
    return [*found, service, {"apiVersion": "batch/v1", "kind": "Job", "metadata": _meta(declared, name), **job}]


def _job_set(declared: Declared) -> Object:
    slices = declared.slices
    replicated = {"name": SLICE, "replicas": slices, "template": _job(declared, declared.made.source.nodes // slices)}
    return {
        "apiVersion": f"{render.JOBSET_GROUP}/v1alpha2",
        "kind": "JobSet",
        "metadata": _meta(declared, declared.name),
        "spec": {
            "network": {
                "enableDNSHostnames": True,
                "subdomain": declared.name,
                "publishNotReadyAddresses": True,
            },
            "failurePolicy": {"maxRestarts": declared.retries},
            "ttlSecondsAfterFinished": FINISHED_S,
            "replicatedJobs": [replicated],
        },
    }


def _job(declared: Declared, pods: int) -> dict[str, dict[str, object]]:
    """Return a Job without its name, of so many pods that run together."""
    return {
        "spec": {
            "completionMode": "Indexed",
            "completions": pods,
            "parallelism": pods,
            "backoffLimit": 0,  # one pod alone cannot take part in a run again
            "template": pod_template(declared),
        }
    }


def pod_template(declared: Declared) -> Object:
    """Return the pods of a job. Each one needs its number in JOB_COMPLETION_INDEX, which Kubernetes sets."""
    made, template = declared.made, declared.made.source.template
    annotations = gang.annotations_of(template.gang, render.gang_name(made, ROOT_UID))
    meta = {
        "labels": {**template.labels, **_labels(declared), USER: safe(made.user)},
        "annotations": {**template.annotations, **annotations, FULL_CLUSTER: made.cluster, FULL_USER: made.user},
    }
    spec = dict(render.pod_spec(made, template, ROOT_UID))
    (container,) = _objects(spec["containers"])
    missing = f"there is no Secret {secret_name(made)}: mesh pods secret {made.cluster}"
    words = _words(container["command"])
    command = [*words, "", f"{SECRET_DIR}/{PROGRAM}", f"{PLAN_DIR}/{PLAN}", SECRET_DIR, missing]
    plan: Object = {"name": "plan", "configMap": {"name": f"{declared.name}-plan"}}
    # Without `optional` a pod waits for the Secret for ever. The holder ends with the command that makes it.
    secret: Object = {
        "name": "job",
        "secret": {"secretName": secret_name(made), "defaultMode": 0o444, "optional": True},
    }
    mounts = [
        *_objects(container["volumeMounts"]),
        {"name": "plan", "mountPath": PLAN_DIR, "readOnly": True},
        {"name": "job", "mountPath": SECRET_DIR, "readOnly": True},
    ]
    whole = {
        **container,
        "command": command,
        "env": [*_objects(container.get("env", [])), *_variables(declared)],
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    spec |= {"containers": [whole], "volumes": [*_objects(spec["volumes"]), plan, secret]}
    if declared.kind == INDEXED:
        spec["subdomain"] = declared.name
    return {"metadata": meta, "spec": render.merged(spec, template.pod)}


def _variables(declared: Declared) -> list[Object]:
    fields = {"MESH_POD_NAME": "metadata.name", "MESH_POD_ADDRESS": "status.podIP"}
    if declared.kind == JOBSET:
        fields["MESH_POD_SLICE"] = f"metadata.labels['{JOBSET_LABELS}/job-index']"
        fields["MESH_POD_ATTEMPT"] = f"metadata.labels['{JOBSET_LABELS}/restart-attempt']"
    of_pod: list[Object] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()
    ]
    return [*of_pod, {"name": "MESH_FIRST_POD", "value": declared.first_pod}]


def _meta(declared: Declared, name: str) -> Object:
    about = {FULL_CLUSTER: declared.made.cluster, FULL_USER: declared.made.user}
    return {"name": name, "labels": _labels(declared), "annotations": about}


def _labels(declared: Declared) -> Mapping[str, str]:
    # Pods alone have the label USER as well: ConfigMaps with it are roots of pods that mesh has made.
    return {CLUSTER: safe(declared.made.cluster), JOB: declared.name}


def _objects(value: object) -> list[Object]:
    assert isinstance(value, list)
    return value


def _words(value: object) -> list[str]:
    assert isinstance(value, list)
    return value
