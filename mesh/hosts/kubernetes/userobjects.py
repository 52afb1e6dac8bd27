"""The objects of a user's place: a namespace with its limits and rights, a volume and a dev pod. Pure."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping

from msgspec import Struct

from mesh.config.podusers import DevPod, PodUser
from mesh.config.userspaces import CONTAINER, DEV, VOLUME_VARIABLE, namespace_of
from mesh.hosts.kubernetes import devfiles
from mesh.hosts.kubernetes.render import Object, merged, role_object
from mesh.hosts.kubernetes.room import amount

SPACE = "mesh/space"  # a label of the namespace and of all objects in it; its value is the user
MARK = "mesh/dev-template"  # an annotation of the dev pod: another pod or other files have another one
NAME = "mesh"  # of the account, the Role, its binding, the quota, the limits and the network policy
CLAIM, FILES, HOST_KEY_SECRET, DEPLOYMENT = "tdata", "dev-files", "dev-host-key", "dev"
DEFAULT_LIMITS: Mapping[str, str] = {"cpu": "1", "memory": "2Gi"}  # of containers without limits
ENDING_S = 5  # from SIGTERM to SIGKILL of a dev pod
RBAC = "rbac.authorization.k8s.io"
PSA = "pod-security.kubernetes.io/enforce"
PSA_LEVEL = "baseline"
CORE = "v1"
PLURALS: Mapping[str, str] = {
    "Namespace": "namespaces",
    "ResourceQuota": "resourcequotas",
    "LimitRange": "limitranges",
    "ServiceAccount": "serviceaccounts",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "NetworkPolicy": "networkpolicies",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "ConfigMap": "configmaps",
    "Secret": "secrets",
    "Deployment": "deployments",
}


class Space(Struct, frozen=True, kw_only=True):
    """A user's place."""

    user: PodUser
    dev: DevPod

    @property
    def namespace(self) -> str:
        """The namespace of the user."""
        return namespace_of(self.user.name)


def objects_of(space: Space) -> list[Object]:
    """Return all objects in the order in which they are made, without the Secret that is made once."""
    return [
        _object(space, "Namespace", space.namespace, labels={PSA: PSA_LEVEL}),
        _object(space, "ResourceQuota", NAME, spec={"hard": hard_of(space)}),
        _object(space, "LimitRange", NAME, spec={"limits": [_limits(space)]}),
        _object(space, "ServiceAccount", NAME, automountServiceAccountToken=False),
        _role(space),
        _binding(space),
        _policy(space),
        _claim(space),
        _object(space, "ConfigMap", FILES, data=dict(devfiles.dev_files(space.user, space.dev))),
        _deployment(space),
    ]


def host_key_object(space: Space, private: bytes) -> Object:
    """Return the Secret with the key that identifies the dev pod's sshd. private: as OpenSSH writes it"""
    data = {devfiles.HOST_KEY: base64.b64encode(private).decode()}
    return _object(space, "Secret", HOST_KEY_SECRET, type="Opaque", data=data)


def path_of(found: Object) -> str:
    """Return the path of an object in the API.

    >>> path_of({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "dev", "namespace": "user-ana"}})
    '/apis/apps/v1/namespaces/user-ana/deployments/dev'
    """
    version, meta = str(found["apiVersion"]), found["metadata"]
    assert isinstance(meta, Mapping)
    base = "/api/v1" if version == CORE else f"/apis/{version}"
    inside = f"/namespaces/{meta['namespace']}" if "namespace" in meta else ""
    return f"{base}{inside}/{PLURALS[str(found['kind'])]}/{meta['name']}"


def hard_of(space: Space) -> Mapping[str, str]:
    """Return the quota of a user. A pod without limits gets those of the LimitRange, so that both sums are limited."""
    user, dev = space.user, space.dev
    both = {f"{kind}.{name}": value for kind in ("requests", "limits") for name, value in _amounts(user).items()}
    more = {f"requests.{dev.gpu}": str(user.gpus), "requests.storage": user.storage, "pods": str(user.pods)}
    return {**both, **more, "services.nodeports": "0", "services.loadbalancers": "0"}


def too_little(space: Space) -> str:
    """Return why a user's quota has no room for the user's own dev pod and volume; "" if it has."""
    user, dev = space.user, space.dev
    for name, needed, most in (
        ("cpu", dev.cpu, user.cpu),
        ("memory", dev.memory, user.memory),
        ("storage", dev.volume, user.storage),
    ):
        if amount(needed) > amount(most):
            return f"{user.name}: the dev pod needs {needed} of {name}, and the user may have {most}"
    return ""


def _amounts(user: PodUser) -> Mapping[str, str]:
    return {"cpu": user.cpu, "memory": user.memory}


def _object(
    space: Space, kind: str, name: str, version: str = CORE, labels: Mapping[str, str] | None = None, **fields: object
) -> Object:
    meta: dict[str, object] = {"name": name, "labels": {SPACE: space.user.name, **(labels or {})}}
    if kind != "Namespace":
        meta["namespace"] = space.namespace
    return {"apiVersion": version, "kind": kind, "metadata": meta, **fields}


def _limits(space: Space) -> Object:
    default = {
        name: min((value, _amounts(space.user)[name]), key=amount, default=value)
        for name, value in DEFAULT_LIMITS.items()
    }
    return {"type": "Container", "default": default, "defaultRequest": default}


def _role(space: Space) -> Object:
    """Return the rights of a user: those that mesh needs, and to read logs, volumes and limits."""
    rules = role_object(is_existing=False, gang_kind=space.dev.gang, has_jobs=space.dev.jobs)["rules"]
    assert isinstance(rules, list)
    more = [
        {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["persistentvolumeclaims", "limitranges"], "verbs": ["get", "list"]},
    ]
    return _object(space, "Role", NAME, f"{RBAC}/v1", rules=[*rules, *more])


def _binding(space: Space) -> Object:
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": space.namespace}
    role = {"apiGroup": RBAC, "kind": "Role", "name": NAME}
    return _object(space, "RoleBinding", NAME, f"{RBAC}/v1", subjects=[subject], roleRef=role)


def _policy(space: Space) -> Object:
    """Return the policy that pods of the namespace alone may connect to its pods."""
    own: list[Object] = [{"from": [{"podSelector": {}}]}]
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": own}
    return _object(space, "NetworkPolicy", NAME, "networking.k8s.io/v1", spec=spec)


def _claim(space: Space) -> Object:
    dev = space.dev
    spec: dict[str, object] = {"accessModes": [dev.access], "resources": {"requests": {"storage": dev.volume}}}
    if dev.storage_class:
        spec["storageClassName"] = dev.storage_class
    return _object(space, "PersistentVolumeClaim", CLAIM, spec=spec)


def _deployment(space: Space) -> Object:
    labels = {SPACE: space.user.name, DEV: space.user.name}
    template = {"metadata": {"labels": labels, "annotations": {MARK: mark_of(space)}}, "spec": _pod_spec(space)}
    spec = {
        "replicas": 1,
        "revisionHistoryLimit": 0,
        "strategy": {"type": "Recreate"},  # a volume may be on one node at a time
        "selector": {"matchLabels": {DEV: space.user.name}},
        "template": template,
    }
    return _object(space, "Deployment", DEPLOYMENT, "apps/v1", spec=spec)


def mark_of(space: Space) -> str:
    """Return a number for the pod and its files, by which a change starts the pod again."""
    files = devfiles.dev_files(space.user, space.dev)
    fixed = {name: text for name, text in files.items() if name != "authorized_keys"}  # sshd reads that at each login
    return hashlib.sha256(json.dumps([fixed, _pod_spec(space)], sort_keys=True).encode()).hexdigest()[:16]


def _pod_spec(space: Space) -> Object:
    dev, amounts = space.dev, {"cpu": space.dev.cpu, "memory": space.dev.memory}
    env = {
        "HOME": dev.mount,
        "USER": space.user.name,
        "KUBECONFIG": f"{devfiles.DIRECTORY}/kubeconfig",
        VOLUME_VARIABLE: f"{CLAIM}:{dev.mount}",
        "MESH_DEV_IMAGE": dev.image,
    }
    container = {
        "name": CONTAINER,
        "image": dev.image,
        "command": ["/bin/sh", f"{devfiles.DIRECTORY}/start.sh"],
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "resources": {"requests": amounts, "limits": amounts},
        "readinessProbe": {"exec": {"command": ["test", "-s", devfiles.PID_FILE]}, "periodSeconds": 2},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": CLAIM, "mountPath": dev.mount},
            {"name": FILES, "mountPath": devfiles.DIRECTORY},
            *({"name": FILES, "mountPath": f"/etc/{name}", "subPath": name} for name in ("passwd", "group")),
            {"name": HOST_KEY_SECRET, "mountPath": devfiles.HOST_KEY_DIRECTORY},
        ],
        "workingDir": dev.mount,
    }
    own = {
        "runAsUser": devfiles.DEV_UID,
        "runAsGroup": devfiles.DEV_UID,
        "fsGroup": devfiles.DEV_UID,
        "runAsNonRoot": True,
    }
    spec = {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "hostname": DEPLOYMENT,
        "terminationGracePeriodSeconds": ENDING_S,
        "securityContext": {**own, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [
            {"name": CLAIM, "persistentVolumeClaim": {"claimName": CLAIM}},
            {"name": FILES, "configMap": {"name": FILES}},
            {"name": HOST_KEY_SECRET, "secret": {"secretName": HOST_KEY_SECRET, "defaultMode": 0o440}},
        ],
    }
    return merged(spec, dev.pod)
