"""Users' places that are there: list, deletion, and credentials that expire."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from mesh.backends.pods.api import Api, ApiFailed
from mesh.backends.pods.objects import Part, Pods, Quotas, Things
from mesh.config.userspaces import PREFIX, namespace_of
from mesh.core.errors import MeshError
from mesh.hosts.kubernetes import devfiles, gang, render
from mesh.hosts.kubernetes.userobjects import NAME, RBAC, SPACE
from mesh.hosts.kubernetes.userspace import check_space, object_at, why_not_ready

GONE_TIMEOUT_S = 180.0  # for all pods of a namespace to be gone
LOOK_INTERVAL_S = 0.5
APPS = "apps/v1"
# Kinds of what goes, in this order: first the rights, so that nothing new is made meanwhile; pods before what they use.
REMOVED: Sequence[tuple[str, str]] = (
    ("rolebindings", f"{RBAC}/v1"),
    ("roles", f"{RBAC}/v1"),
    ("deployments", APPS),
    ("replicasets", APPS),
    ("jobsets", f"{render.JOBSET_GROUP}/v1alpha2"),
    ("jobs", "batch/v1"),
    ("pods", ""),
    ("services", ""),
    (gang.RESOURCE, f"{gang.GROUP}/{gang.VERSION}"),
    ("configmaps", ""),
    ("secrets", ""),
    ("serviceaccounts", ""),
    ("networkpolicies", "networking.k8s.io/v1"),
    ("resourcequotas", ""),
    ("limitranges", ""),
)
CLAIMS = "persistentvolumeclaims"
SERVERS_OWN = ("default-token-", "kube-root-ca.crt")  # begin the names of objects that the server makes again
BACKGROUND: Mapping[str, object] = {"propagationPolicy": "Background"}
RUNS, REMOVED_STATE, DELETING = "runs", "removed, its volume is kept", "is being deleted"


class SpaceRow(Struct, frozen=True, kw_only=True):
    """A user's place in a list."""

    user: str
    dev: str  # the state of the dev pod
    used: Mapping[str, tuple[str, str]]  # by resource: used, and the most


class TokenStatus(Part, frozen=True, kw_only=True):
    """A token of a service account, and when it ends."""

    token: str = ""
    expiration_timestamp: str = ""


class TokenRequest(Part, frozen=True, kw_only=True):
    """The answer to a request for a token."""

    status: TokenStatus = TokenStatus()


def list_spaces(api: Callable[[str], Api]) -> list[SpaceRow]:
    """Return all users' places. api: returns that of a namespace. Raises MeshError."""
    every = api("").get("/api/v1/namespaces", Things, {"labelSelector": SPACE}).items or ()
    rows = []
    for one in every:
        user = (one.metadata.labels or {}).get(SPACE, "")
        if one.metadata.name != f"{PREFIX}{user}":
            continue
        own = api(one.metadata.name)
        dev = DELETING if one.metadata.deletion_timestamp else _dev_state(own)
        rows.append(SpaceRow(user=user, dev=dev, used=_used(own)))
    return sorted(rows, key=lambda row: row.user)


def _dev_state(api: Api) -> str:
    try:
        reason = why_not_ready(api)
    except ApiFailed as error:
        if error.status != 404:
            raise
        return REMOVED_STATE
    return RUNS if reason is None else reason[0]


def _used(api: Api) -> Mapping[str, tuple[str, str]]:
    """Return each quantity of a user's quota: used, and the most."""
    found: dict[str, tuple[str, str]] = {}
    for quota in api.get(api.path("resourcequotas"), Quotas).items or ():
        if quota.metadata.name == NAME:
            used = quota.status.used or {}
            found |= {name: (used.get(name, "0"), hard) for name, hard in (quota.status.hard or {}).items()}
    return found


# ---- deletion


def doomed(api: Api, user: str, *, with_data: bool) -> list[str]:
    """Return a line for each kind of what a deletion would delete. Raises MeshError if the user has no place."""
    if not check_space(api, user):
        raise MeshError(f"there is no namespace {namespace_of(user)}", hint="mesh pods list")
    lines = []
    for kind, group in REMOVED:
        names = _names(api, kind, group)
        if names:
            lines.append(f"{kind}: {', '.join(names)}")
    claims = _names(api, CLAIMS, "")
    if claims and with_data:
        lines.append(f"{CLAIMS}: {', '.join(claims)}, with all data in them")
    if with_data:
        lines.append(f"namespace {namespace_of(user)}")
    return lines


def kept(api: Api) -> list[str]:
    """Return the names of the claims, which a deletion without data keeps. Raises MeshError."""
    return _names(api, CLAIMS, "")


def _names(api: Api, kind: str, group: str) -> list[str]:
    """Return the names of objects of a kind, without those of the server; none of a kind that the server lacks."""
    try:
        found = api.get(api.path(kind, "", group), Things).items or ()
    except ApiFailed as error:
        if error.status != 404:
            raise
        return []
    names = [one.metadata.name for one in found]
    return [
        name for name in names if not name.startswith(SERVERS_OWN) and (kind, name) != ("serviceaccounts", "default")
    ]


def remove_space(api: Api, user: str, *, with_data: bool) -> None:
    """Delete the place of a user, and wait until its pods are gone. Raises MeshError.

    with_data: also the volumes and the namespace
    """
    if not check_space(api, user):
        raise MeshError(f"there is no namespace {namespace_of(user)}", hint="mesh pods list")
    namespace = f"/api/v1/namespaces/{api.place.namespace}"
    if with_data:
        api.delete(namespace)
        _until(lambda: object_at(api, namespace) is None, f"namespace {api.place.namespace} is still being deleted")
        return
    for kind, group in REMOVED:
        for name in _names(api, kind, group):
            api.delete(api.path(kind, name, group), BACKGROUND)
        if kind == "pods":
            _until(lambda: not api.get(api.pods, Pods).items, f"pods of {api.place.namespace} are still being deleted")


def _until(is_done: Callable[[], bool], trouble: str) -> None:
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while not is_done():
        if time.monotonic() > deadline:
            raise MeshError(trouble, hint="kubectl get all,pvc -A")
        time.sleep(LOOK_INTERVAL_S)


# ---- credentials


def token_of(api: Api, user: str, seconds: float) -> TokenStatus:
    """Return a new token of a user's account. seconds: that it is valid; a server may allow less. Raises MeshError."""
    if not check_space(api, user):
        raise MeshError(f"there is no namespace {namespace_of(user)}", hint="mesh pods apply FILE")
    path = f"{api.path('serviceaccounts', NAME)}/token"
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": round(seconds)},
    }
    try:
        return api.post(path, body, TokenRequest).status
    except ApiFailed as error:
        if error.status != 404:
            raise
        raise MeshError(
            f"{user}: the server makes no token that ends (TokenRequest: {error})", hint="mesh pods apply FILE"
        ) from error


def kubeconfig_text(api: Api, token: str) -> str:
    """Return a kubeconfig with a token for the namespace of the API, as JSON, which is YAML."""
    name = api.place.namespace
    return json.dumps(devfiles.kubeconfig(name, api.server_fields, {"token": token}), indent=1)
