"""JSON Schemas of mesh.yaml and cluster.yaml, for editors. The keys, patterns and limits are those of the readers.

A value that a reader takes is valid by the schema. The reader refuses more, such as a file that is not there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from mesh.config import (
    clusters,
    gpushare,
    kubernetes,
    modules,
    notify,
    podschema,
    ports,
    programpart,
    project,
    readers,
    slurm,
    spares,
    tpu,
    tpuspec,
    ways,
)
from mesh.config.hosts import USER
from mesh.config.settings import DURATION
from mesh.config.shapes import (
    FLAG,
    NOTHING,
    SCALAR,
    SECONDS,
    TEXT,
    Schema,
    about,
    any_of,
    items,
    keyed,
    matching,
    texts,
)
from mesh.core.cluster import LONGEST_KEEP, HostKeys
from mesh.core.tpu import Pricing, Provision, Recreate

DIALECT = "http://json-schema.org/draft-07/schema#"  # the newest one that editors' YAML support reads whole


def size() -> Schema:
    # A pattern of JSON Schema has no flag for lower case.
    pattern = r"\s*" + project.SIZE.pattern.replace("B|[KMGT]B", "[Bb]|[KkMmGgTt][Bb]") + r"\s*"
    return any_of({"type": "number", "minimum": 0}, matching(pattern))


COMMAND_SHAPES: Mapping[str, Schema] = {
    "run": about("shell text", TEXT),
    "unless": about("shell text; where it succeeds, the command is skipped", TEXT),
    "sudo": about("as root, by sudo", FLAG),
}
ENTRY_SHAPES: Mapping[str, Schema] = {
    "run": about("shell text", TEXT),
    "inputs": about("paths and patterns; unchanged: the entry is skipped", items(TEXT, least=1)),
}
NOTIFY_SHAPES: Mapping[str, Schema] = {
    "on": about("the ends that it is for (end: any)", items({"enum": list(notify.MOMENTS)})),
    "command": about("words, with {state}, {verdict} and the like", items(TEXT, least=1)),
    "url_env": about("the variable that holds the address of a webhook", TEXT),
}


def section_shapes() -> dict[str, Schema]:
    """Return the shape of the section of each module."""
    shapes: dict[str, Schema] = {
        **dict.fromkeys((*modules.DOCKER_KEYS, *modules.PYTHON_KEYS, *modules.CONDA_KEYS, *modules.MOUNT_KEYS), SCALAR),
        **dict.fromkeys((*modules.SSH_KEYS, *modules.IDENTITY_KEYS), SCALAR),
        **dict.fromkeys(("mounts", "mount_dirs", "env_vars", "flags"), texts()),
        **dict.fromkeys(("manage", "accept_tos"), FLAG),
        "engine": {"enum": list(modules.ENGINES)},
    }
    cache = {key: FLAG if key in modules.CACHE_FLAGS else SCALAR for key in modules.CACHE_KEYS}
    shapes["cache"] = keyed(modules.CACHE_KEYS, cache)
    shapes["extra_mounts"] = items(keyed(modules.MOUNT_KEYS, shapes))
    shapes["identities"] = items(keyed(modules.IDENTITY_KEYS, shapes, ["private_key"]))
    python = keyed(modules.PYTHON_KEYS, shapes)
    return {
        "ssh": about("keys by which the hosts reach each other", any_of(keyed(modules.SSH_KEYS, shapes), NOTHING)),
        "gcsfuse": about("buckets that are mounted on every host", keyed(modules.GCSFUSE_KEYS, shapes)),
        "uv": about("the environment of the command, by uv", any_of(python, NOTHING)),
        "venv": about("the environment of the command, by venv and pip", any_of(python, NOTHING)),
        "conda": about("the environment of the command, by conda", keyed(modules.CONDA_KEYS, shapes)),
        "docker": about("the image of the command", keyed(modules.DOCKER_KEYS, {**shapes, "env": texts()}, ["image"])),
    }


def environment_schema() -> Schema:
    """Return the shape of ``env:`` where it names an environment."""
    sections: dict[str, Schema] = {name: {"type": "object"} for name in modules.ENVIRONMENTS}
    alone: Schema = {**keyed(modules.ENVIRONMENTS, sections), "minProperties": 1, "maxProperties": 1}
    return any_of({"enum": list(modules.ENVIRONMENTS)}, alone)


def project_shapes() -> dict[str, Schema]:
    """Return the shape of each key of mesh.yaml."""
    command = any_of(TEXT, keyed(project.COMMAND_KEYS, COMMAND_SHAPES, ["run"]))
    entry = any_of(TEXT, keyed(project.ENTRY_KEYS, ENTRY_SHAPES, ["run"]))
    message = keyed(notify.ENTRY_KEYS, NOTIFY_SHAPES)
    message["oneOf"] = [{"required": ["command"]}, {"required": ["url_env"]}]
    notification = any_of({"enum": list(notify.SHORTS)}, message)
    variables: Schema = {
        "type": "object",
        "propertyNames": matching(project.VARIABLE.pattern),
        "additionalProperties": SCALAR,
    }
    node: Mapping[str, Schema] = {
        "on": about("names or ranges of hosts", any_of(TEXT, items(TEXT))),
        "gpus": about("for each node", {"type": "integer", "minimum": 0, "maximum": programpart.GPUS_LIMIT}),
        "python": about("the interpreter on the hosts (python3)", TEXT),
        "env": about("variables of these nodes", {"type": "object", "additionalProperties": SCALAR}),
    }
    return {
        "commands": about("once per machine, by `mesh setup CLUSTER`", any_of(items(command), NOTHING)),
        "ignore": about("files that are not sent, by git's rules", texts()),
        "include_git": about("send .git as well", FLAG),
        "keep_tree": about("keep the contents of each run's workspace here, for mesh replay", FLAG),
        "prerun": about("before each run, in one bash session per host", any_of(items(entry), NOTHING)),
        "env": about(
            "variables for every rank, or its environment: uv, venv, conda, docker",
            any_of(variables, environment_schema(), NOTHING),
        ),
        "modules": about("what prepares hosts, in order", any_of(items({"enum": list(modules.SECTIONS)}), NOTHING)),
        **section_shapes(),
        "pass": about("patterns of your variables that ranks get", texts()),
        "secret": about("patterns of your variables that ranks get, with masked values", texts()),
        "program": about(
            "where nodes of programs run, by label",
            any_of({"type": "object", "additionalProperties": keyed(programpart.LABEL_KEYS, node)}, NOTHING),
        ),
        "gpu_share": about(
            "resources by which pods share GPUs",
            any_of(keyed(gpushare.KEYS, dict.fromkeys(gpushare.KEYS, TEXT)), NOTHING),
        ),
        "notify": about("at the end of a run", any_of(notification, items(notification), NOTHING)),
        "workspace": about("another directory to send, relative to this file", TEXT),
        "default": about("the cluster of commands that name none; MESH_CLUSTER wins over it", TEXT),
        "grace": about("seconds from SIGTERM to SIGKILL (10)", SECONDS),
        "hang_watch": about(
            "seconds without output after which stacks are taken (300 on a terminal); 0: never", SECONDS
        ),
        "spool": about("output that may wait on a host's disk (10 GB)", size()),
        "logs": about("your disk for the logs of one run (10 GB)", size()),
    }


PORT: Schema = {
    "anyOf": [{"type": "integer", "minimum": 1, "maximum": 65535}, {"type": "string", "pattern": "^[0-9]{1,5}$"}]
}
USER_NAME = matching(USER.pattern)


def tpu_schema() -> Schema:
    """Return the shape of ``tpu:`` of a cluster."""
    texts = {kind: matching(shape.pattern) for kind, (shape, _) in tpu.SHAPES.items()}
    shapes: dict[str, Schema] = {
        "name": about("this TPU alone", texts["name"]),
        "prefix": about("this TPU, else NAME-0, NAME-1, ..., one slice each", texts["name"]),
        "project": about("the project (default: gcloud's)", texts["project"]),
        "zone": about("the zone (default: gcloud's)", texts["zone"]),
        "internal_ip": about("connect by internal addresses (auto)", {"enum": [*tpu.INTERNAL_IP, True, False]}),
        "iap": about("through Google's Identity-Aware Proxy", FLAG),
    }
    named = {**keyed(tpu.KEYS, shapes), "oneOf": [{"required": ["name"]}, {"required": ["prefix"]}]}
    return any_of(named, made_schema())


def made_schema() -> Schema:
    """Return the shape of ``tpu:`` of a cluster that `mesh up` makes."""
    several: Schema = items(SCALAR)
    pairs: Schema = {"type": "object", "additionalProperties": SCALAR}
    time: Schema = any_of(SECONDS, matching(DURATION.pattern))
    shapes: dict[str, Schema] = {
        "name": about("how the names of machines begin", SCALAR),
        "accelerator": about("the type, as v6e-32", matching(tpuspec.ACCELERATOR.pattern)),
        "zone": about("the zone (default: gcloud's)", matching(tpu.SHAPES["zone"][0].pattern)),
        "project": about("the project (default: gcloud's)", matching(tpu.SHAPES["project"][0].pattern)),
        "pricing": about("the terms (ondemand)", {"enum": [one.value for one in Pricing]}),
        "startup_script": about("a script, or its path", SCALAR),
        "zones": about("tried in order", any_of(SCALAR, items(SCALAR, least=1))),
        "slices": about("how many TPUs", any_of({"type": "integer", "minimum": 1}, matching("[0-9]+"))),
        "external_ips": about("false: internal addresses alone", FLAG),
        "autocheckpoint": about("as gcloud has it", FLAG),
        "internal_ip": about("connect by internal addresses (auto)", {"enum": [*tpu.INTERNAL_IP, True, False]}),
        "iap": about("through Google's Identity-Aware Proxy", FLAG),
        **{key: about("the software of the machines", SCALAR) for key in ("version", "runtime")},
        **{key: {"enum": [one.value for one in Provision]} for key in ("allocation_mode", "provision")},
        **dict.fromkeys(("tags", "flags", "scopes", "data_disks"), several),
        **dict.fromkeys(("labels", "metadata"), pairs),
        **dict.fromkeys(("reservation", "network", "subnetwork", "service_account", "description"), SCALAR),
        **dict.fromkeys(("user", "identity_file", "num_workers"), SCALAR),
        **dict.fromkeys(("valid_for", "make_for", "unreachable_for", "repair_for"), time),
        "recreate": about(
            "when other machines are requested after a loss (wait)", {"enum": [one.value for one in Recreate]}
        ),
        "probe": about("HOST[:PORT] of an SSH server elsewhere, for unreachable_for", SCALAR),
        "ips": {"type": "array"},
    }
    empty = {key: any_of(shape, NOTHING) for key, shape in shapes.items()}
    keys = [key for key in tpuspec.KEYS if key != "keep"]  # which is for job files
    return keyed(keys, {**empty, "accelerator": shapes["accelerator"]}, ["accelerator"])


def host_schema() -> Schema:
    """Return the shape of an item of ``hosts:``."""
    shapes: dict[str, Schema] = {
        "host": about("an address, a name, a range or a Host of ssh_config", TEXT),
        "port": PORT,
        "user": USER_NAME,
        "internal_ip": about("by which the other hosts reach it", TEXT),
        "identity_file": about("a private key", TEXT),
    }
    return any_of(TEXT, keyed(clusters.HOST_KEYS, shapes, ["host"]))


def kubernetes_schema() -> Schema:
    """Return the shape of ``kubernetes:`` of a cluster."""
    name = matching(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
    shapes: dict[str, Schema] = {
        "context": about("of kubeconfig (default: its current one)", TEXT),
        "namespace": about("of the pods (default: the context's)", name),
        "selector": about("labels of pods that are there, as app=trainer,tier=gpu", TEXT),
        "container": about("of each pod (default: the only one)", name),
        "order": about("index, or name: how pods become ranks", {"enum": list(kubernetes.ORDERS)}),
    }
    return any_of(keyed(kubernetes.EXISTING_KEYS, shapes, ["selector"]), podschema.made_pods_schema())


def slurm_schema() -> Schema:
    """Return the shape of ``slurm:`` of a cluster."""
    span: Schema = {"type": ["string", "number"]}
    shapes: dict[str, Schema] = {
        "nodes": about("how many nodes", any_of({"type": "integer", "minimum": 1}, matching("[0-9]+"))),
        "cpus_per_task": about("as sbatch has it", any_of({"type": "integer", "minimum": 1}, matching("[0-9]+"))),
        "gpus_per_node": about("a number, as 8 or a100:8", any_of(SCALAR, matching(slurm.GPUS.pattern))),
        "mem": about("memory of each node, as 64G", any_of(SCALAR, matching(slurm.MEMORY.pattern))),
        "time": about("the limit: 30 (minutes), 2:00:00 or 1-12:00:00", SCALAR),
        "comment": about("your comment, behind mesh's own", SCALAR),
        "exclusive": about("no other job on these nodes", FLAG),
        "extra": about("words for sbatch", texts()),
        "hold": about("how long an idle allocation waits for the next command (10m)", span),
        "start_timeout": about("time to begin; else it is cancelled (1h)", span),
        "warn": about("a signal for every rank before the end, as SIGUSR1 60s", TEXT),
        "local": about("mesh's directory on each node, which goes with the allocation", FLAG),
        "reach": about("how nodes are reached (switchboard)", {"enum": [slurm.SWITCHBOARD, slurm.SSH]}),
        "jobid": about("an allocation that is there, as 12345", SCALAR),
        **{key: about("as sbatch has it", SCALAR) for key in slurm.TEXTS},
    }
    made = keyed(slurm.MADE_KEYS, shapes)
    return any_of(
        {**made, "anyOf": [{"required": ["nodes"]}, {"required": ["nodelist"]}]},
        keyed(slurm.EXISTING_KEYS, shapes, ["jobid"]),
    )


def cluster_shapes() -> dict[str, Schema]:
    """Return the shape of each key of a cluster."""
    hosts = about("rank 0 first: names, addresses, user@host:port, ranges as tpu-[0-3]", items(host_schema(), least=1))
    slices = items(keyed(clusters.SLICE_KEYS, {"hosts": hosts}, ["hosts"]), least=1)
    backends: Schema = {"enum": [ways.SSH, ways.COMMAND]}
    return {
        "user": about("who logs in (default: as ssh has it)", USER_NAME),
        "identity_file": about("a private key (default: as ssh finds them)", TEXT),
        "hosts": hosts,
        "port": about("of every host (default: as ssh has it)", PORT),
        "gateway": about("one jump host for all, [user@]host[:port]", TEXT),
        "python": about("the interpreter on the hosts (python3)", TEXT),
        "remote_dir": about("mesh's directory on the hosts (~/.mesh)", TEXT),
        "workspace_links": about("a workspace on a host may be a symbolic link", FLAG),
        "password_env": about("the variable that holds the password", TEXT),
        "host_keys": about("accept-new, or strict: refuse unknown hosts", {"enum": [kind.value for kind in HostKeys]}),
        "devices": about("files that one run at a time may hold", any_of(items(matching("/.*")), NOTHING)),
        "slices": about("hosts that are made and lost together", slices),
        "interface": about("the network interface of NCCL and gloo", matching(r"[^\s/]+")),
        ports.KEY: about("TCP ports of the nodes of programs, as 40000-40100", matching(ports.RANGE.pattern)),
        spares.KEY: about(
            "hosts at the end of the list that have no ranks until one moves there", {"type": "integer", "minimum": 0}
        ),
        tpu.KEY: about("hosts of a Cloud TPU, by its name", tpu_schema()),
        kubernetes.KEY: about("pods of Kubernetes", kubernetes_schema()),
        slurm.KEY: about("nodes of an allocation of Slurm", slurm_schema()),
        "keep": about("seconds that connections wait for the next command", {**SECONDS, "maximum": int(LONGEST_KEEP)}),
        "backend": about("how hosts are reached (ssh)", backends),
        "command": about("the words that reach a host, as [docker, exec, -i, '{name}']", items(TEXT, least=1)),
    }


def cluster_schema() -> Schema:
    """Return the shape of one cluster."""
    is_command: Schema = {"properties": {"backend": {"const": ways.COMMAND}}, "required": ["backend"]}
    return {
        **keyed(clusters.CLUSTER_KEYS, cluster_shapes()),
        "oneOf": [{"required": [key]} for key in ("hosts", "slices", tpu.KEY, kubernetes.KEY, slurm.KEY)],
        "if": is_command,
        "then": {"required": ["command"]},
        "else": {"not": {"required": ["command"]}},
    }


def of_project() -> Schema:
    """Return the JSON Schema of mesh.yaml."""
    shape = keyed(project.KEYS, project_shapes())
    return {"$schema": DIALECT, "title": "mesh.yaml", **shape, "type": ["object", "null"]}


def of_clusters() -> Schema:
    """Return the JSON Schema of cluster.yaml."""
    built_in = "|".join([*(f"{name}$" for name in readers.RESERVED), *readers.BEGINNINGS])
    return {
        "$schema": DIALECT,
        "title": "cluster.yaml",
        "type": ["object", "null"],
        "propertyNames": {"not": {"pattern": f"^({built_in})"}},
        "additionalProperties": cluster_schema(),
    }


SCHEMAS = {"mesh.yaml": of_project, "cluster.yaml": of_clusters}


def text(name: str) -> str:
    """Return the schema of a file as JSON. name: a key of SCHEMAS"""
    return json.dumps(SCHEMAS[name](), indent=1) + "\n"
