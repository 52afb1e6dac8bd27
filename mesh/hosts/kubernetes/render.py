"""The objects of pods that mesh makes. Pure: a description in, objects out."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from mesh.config.podspec import NAME_CHARACTERS, MadePods, PodTemplate, Volume
from mesh.hosts.kubernetes import code, gang

CLUSTER, USER, ROOT, INDEX = "mesh/cluster", "mesh/user", "mesh/root", "mesh/index"  # labels
GROUP, HOST = "mesh/group", "mesh/host"  # labels of pods in groups
MARK = "mesh/mark"  # an annotation of the root, chosen before it has a UID
TEMPLATE, UNTIL, FULL_CLUSTER, FULL_USER = "mesh/template", "mesh/until", "mesh/cluster-name", "mesh/user-name"
NODES, HOLD, START = "mesh/nodes", "mesh/hold", "mesh/start-timeout"  # annotations of the root, as its maker had them
CONTAINER = "main"
SWITCHBOARD = "switchboard"  # a volume
PROGRAM, KEY = "program", "key"  # the files there
SWITCHBOARD_DIR = "/run/mesh-switchboard"  # as in backends/pods/switched.py
REMOTE_DIR = "/mesh"  # a volume: the root may be read-only, and the user may have no home
ENDING_S = 40  # from SIGTERM to SIGKILL of a pod, in which ranks are ended
NAME_PART_CHARACTERS = 40  # of a root's name; pods add a suffix and an index
_UNSAFE = re.compile(r"[^a-z0-9]+")
HOLDER = Path(__file__).with_name("holder.py")
JOBSET_GROUP = "jobset.x-k8s.io"
APPLIES = ("get", "list", "watch", "create", "patch", "delete")  # verbs of kubectl apply and delete
Object = Mapping[str, object]


class Made(Struct, frozen=True, kw_only=True):
    """Pods of one cluster of one user."""

    cluster: str  # its name in cluster.yaml
    user: str
    source: MadePods
    python: str = "python3"
    until: float = 0.0  # seconds since the epoch before which the pods stay; 0: `hold` decides

    mark: str = ""  # of the root, by which its maker finds it again

    @property
    def root_name(self) -> str:
        """The name of the object that all pods belong to."""
        return root_name(self.cluster, self.user)

    @property
    def has_switchboard(self) -> bool:
        """True if one exec carries the streams of all pods."""
        return self.source.nodes >= self.source.switchboard_from

    @property
    def digest(self) -> str:
        """A number for the template, by which pods of another one are found."""
        source = self.source
        parts = (source.template, source.nodes, source.hold, self.python, *((SWITCHBOARD,) * self.has_switchboard))
        parts += source.groups
        data = msgspec.json.encode(parts, order="sorted") + source.archive
        return hashlib.sha256(data).hexdigest()[:16]


def safe(text: str, characters: int = NAME_CHARACTERS) -> str:
    """Return a text as a label value or a part of a name; a number marks one that was changed.

    >>> safe("team"), safe("My Cluster!")
    ('team', 'my-cluster-0b4e192d')
    """
    found = _UNSAFE.sub("-", text.lower()).strip("-")
    if found == text and len(found) <= characters:
        return found
    return f"{found[: characters - 9].rstrip('-') or 'x'}-{zlib.crc32(text.encode()):08x}"


def root_name(cluster: str, user: str) -> str:
    """Return the name of the root of a cluster of a user.

    >>> root_name("gpus", "ana")
    'mesh-gpus-ana'
    """
    return f"mesh-{safe(f'{safe(cluster)}-{safe(user)}', NAME_PART_CHARACTERS)}"


def root_object(made: Made) -> Object:
    """Return the ConfigMap that all pods belong to, so that its deletion deletes them."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": made.root_name,
            "labels": {CLUSTER: safe(made.cluster), USER: safe(made.user)},
            "annotations": {
                FULL_CLUSTER: made.cluster,
                FULL_USER: made.user,
                TEMPLATE: made.digest,
                UNTIL: f"{made.until:.0f}",
                NODES: str(made.source.nodes),
                HOLD: f"{made.source.hold:g}",
                START: f"{made.source.start_timeout:g}",
                **({MARK: made.mark} if made.mark else {}),
            },
        },
    }


def secret_object(made: Made, root_uid: str, key: str = "", program: bytes = b"") -> Object:
    """Return the Secret with the key of the switchboard, as PEM, and its program; empty ones are for people.

    root_uid: of the root object
    """
    values = {KEY: key.encode(), PROGRAM: program}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": secret_name(made, root_uid),
            "labels": {CLUSTER: safe(made.cluster), USER: safe(made.user), ROOT: root_uid},
            "ownerReferences": [_owner(made, root_uid)],
        },
        "data": {name: base64.b64encode(value).decode() for name, value in values.items()},
    }


def _owner(made: Made, root_uid: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": made.root_name, "uid": root_uid}


def pod_object(made: Made, index: int, root_uid: str) -> Object:
    """Return one pod. root_uid: of the root object"""
    template, host = made.source.group_at(index)[0].template, host_labels(made.source, index)
    labels = {CLUSTER: safe(made.cluster), USER: safe(made.user), ROOT: root_uid, INDEX: str(index)}
    spec = pod_spec(made, template, root_uid)
    if host:
        labels |= host
        spec = {**spec, "hostname": host[HOST]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(made, index, root_uid),
            "labels": {**template.labels, **labels},
            "annotations": {
                **template.annotations,
                **gang.annotations_of(template.gang, gang_name(made, root_uid)),
                FULL_CLUSTER: made.cluster,
                FULL_USER: made.user,
            },
            "ownerReferences": [_owner(made, root_uid)],
        },
        "spec": merged(spec, template.pod),
    }


def host_labels(source: MadePods, index: int) -> Mapping[str, str]:
    """Return the labels with a pod's group and the name of its host; {} for a pod that is in no group.

    index: among all pods
    """
    group, number = source.group_at(index)
    return {GROUP: group.name, HOST: f"{group.name}-{number}"} if group.name else {}


def gang_objects(made: Made, root_uid: str) -> list[Object]:
    """Return the objects by which pods are a gang, which are made before them. root_uid: of the root object"""
    template = made.source.template
    if not template.gang:
        return []
    meta = {
        "name": gang_name(made, root_uid),
        "labels": {CLUSTER: safe(made.cluster), USER: safe(made.user), ROOT: root_uid},
        "ownerReferences": [_owner(made, root_uid)],
    }
    return [gang.pod_group_object(meta, made.source.nodes, template.queue)]


def archive_objects(made: Made, root_uid: str) -> list[Object]:
    """Return the ConfigMap with the workspace, which is made before the pods that get it from there."""
    if not made.source.archive:
        return []
    meta = {
        "name": archive_name(made, root_uid),
        "labels": {ROOT: root_uid},  # it is no root: it lacks the labels by which those are found
        "ownerReferences": [_owner(made, root_uid)],
    }
    return [code.config_map_object(meta, made.source.archive)]


def pod_name(made: Made, index: int, root_uid: str) -> str:
    """Return the name of a pod. Pods of an earlier root, which may still end, have other names."""
    host = host_labels(made.source, index).get(HOST, str(index))
    return f"{_prefix(made, root_uid)}-{host}" if root_uid else f"{made.root_name}-{host}"


def secret_name(made: Made, root_uid: str) -> str:
    """Return the name of the Secret of the switchboard."""
    return f"{_prefix(made, root_uid)}-{SWITCHBOARD}"


def gang_name(made: Made, root_uid: str) -> str:
    """Return the name of the PodGroup."""
    return f"{_prefix(made, root_uid)}-gang"


def archive_name(made: Made, root_uid: str) -> str:
    """Return the name of the ConfigMap with the workspace."""
    return f"{_prefix(made, root_uid)}-source"


def _prefix(made: Made, root_uid: str) -> str:
    return f"{made.root_name}-{zlib.crc32(root_uid.encode()) & 0xFFFFF:05x}"


def pod_spec(made: Made, template: PodTemplate, root_uid: str) -> Object:
    """Return the spec of a pod, without the fields of ``pod:``."""
    source = made.source
    holder = [made.python, "-I", "-S", "-c", HOLDER.read_text()]
    times = [f"{source.hold:g}", f"{source.start_timeout:g}", f"{made.until:.0f}"]
    times += [f"{SWITCHBOARD_DIR}/{PROGRAM}"] * made.has_switchboard
    volumes, mounts = _volumes(made, template, root_uid)
    container: dict[str, object] = {
        "name": CONTAINER,
        "image": template.image,
        "command": [*holder, *times],
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": mounts,
    }
    resources = {"requests": template.requests, "limits": template.limits}
    if any(resources.values()):
        container["resources"] = {key: dict(value) for key, value in resources.items() if value}
    if template.env:
        container["env"] = [{"name": name, "value": value} for name, value in template.env.items()]
    before: list[Object] = []
    if template.source is not None:
        own, mounted = code.volumes_of(template.source, archive_name(made, root_uid))
        first = [one for one in mounts if one["name"] in ("mesh", "tmp")]
        before = [code.init_container(template.source, made.python, REMOTE_DIR, container, [*first, *mounted])]
        volumes += own
    spec: dict[str, object] = {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": ENDING_S,
        "automountServiceAccountToken": bool(template.service_account),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        **({"initContainers": before} if before else {}),
        "containers": [container],
        "volumes": volumes,
    }
    optional = {
        "nodeSelector": dict(template.node_selector),
        "tolerations": list(template.tolerations),
        "serviceAccountName": template.service_account,
        "priorityClassName": template.priority_class,
        "imagePullSecrets": [{"name": name} for name in template.image_pull_secrets],
    }
    return {**spec, **gang.fields_of(template.gang), **{key: value for key, value in optional.items() if value}}


def _volumes(made: Made, template: PodTemplate, root_uid: str) -> tuple[list[Object], list[Object]]:
    volumes: list[Object] = [{"name": "mesh", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    mounts: list[Object] = [
        {"name": "mesh", "mountPath": REMOTE_DIR},
        {"name": "tmp", "mountPath": "/tmp"},  # control sockets lie there
    ]
    if made.has_switchboard:
        # Without the right to create Secrets there is none, and each pod has a stream of its own.
        secret = {"secretName": secret_name(made, root_uid), "defaultMode": 0o444, "optional": True}
        volumes.append({"name": SWITCHBOARD, "secret": secret})
        mounts.append({"name": SWITCHBOARD, "mountPath": SWITCHBOARD_DIR, "readOnly": True})
    if template.shm:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": template.shm}})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    for number, volume in enumerate(template.volumes):
        volumes.append({"name": f"volume-{number}", **_volume(volume)})
        mounts.append({"name": f"volume-{number}", "mountPath": volume.path, **_read_only(volume)})
    return volumes, mounts


def _volume(volume: Volume) -> Object:
    value = volume.value
    if volume.kind == "claim":
        return {"persistentVolumeClaim": {"claimName": value, **_read_only(volume)}}
    if volume.kind == "host_path":
        return {"hostPath": {"path": value}}
    if volume.kind == "empty_dir":
        return {"emptyDir": {"sizeLimit": value} if value else {}}
    if volume.kind == "secret":
        return {"secret": {"secretName": value}}
    if volume.kind == "config_map":
        return {"configMap": {"name": value}}
    server, _, path = value.partition(":")
    return {"nfs": {"server": server, "path": path or "/", **_read_only(volume)}}


def _read_only(volume: Volume) -> Object:
    return {"readOnly": True} if volume.read_only else {}


def merged(ours: Object, theirs: Object) -> Object:
    """Return a mapping with the fields of another one, which win; mappings and lists of named things are merged.

    >>> merged({"a": {"b": 1}, "c": [{"name": "x", "d": 1}]}, {"a": {"e": 2}, "c": [{"name": "x", "f": 3}]})
    {'a': {'b': 1, 'e': 2}, 'c': [{'name': 'x', 'd': 1, 'f': 3}]}
    """
    found = dict(ours)
    for key, value in theirs.items():
        before = found.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            found[key] = merged(before, value)
        elif isinstance(before, list) and isinstance(value, list) and _are_named(value):
            found[key] = _merged_lists(before, value)
        else:
            found[key] = value
    return found


def _are_named(listed: list[object]) -> bool:
    return all(isinstance(one, Mapping) and "name" in one for one in listed)


def _merged_lists(ours: list[object], theirs: list[object]) -> list[object]:
    found = list(ours)
    for value in theirs:
        assert isinstance(value, Mapping)
        names = [one.get("name") if isinstance(one, Mapping) else None for one in found]
        if value["name"] in names:
            place = names.index(value["name"])
            before = found[place]
            assert isinstance(before, Mapping)
            found[place] = merged(before, value)
        else:
            found.append(value)
    return found


def role_object(*, is_existing: bool, gang_kind: str = "", has_jobs: bool = False) -> Object:
    """Return the Role for a namespace.

    is_existing: mesh makes no pods there; gang_kind: of those that it makes; has_jobs: also to apply declared jobs
    """
    own = not is_existing
    rules: list[Object] = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", *(["create", "delete"] * own)]},
        # A websocket is opened by GET; servers from 1.35 on ask for create as well.
        {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
    ]
    if own:
        rules.append({"apiGroups": [""], "resources": ["resourcequotas"], "verbs": ["list"]})
        rules.append({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "create", "delete"]})
        rules.append({"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]})
        rules += gang.rules_of(gang_kind)
    if has_jobs:
        kinds = {"": ["configmaps", "services"], "batch": ["jobs"], JOBSET_GROUP: ["jobsets"]}
        kinds |= {gang.GROUP: [gang.RESOURCE]} if gang_kind else {}
        rules += [{"apiGroups": [one], "resources": names, "verbs": list(APPLIES)} for one, names in kinds.items()]
        rules.append({"apiGroups": [""], "resources": ["secrets"], "verbs": ["delete"]})
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "mesh"},
        "rules": rules,
    }
