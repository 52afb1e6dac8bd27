"""Users' places in Kubernetes: made or changed, awaited, listed and deleted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from mesh.backends.pods import state
from mesh.backends.pods.api import Api, ApiFailed
from mesh.backends.pods.happenings import events_of
from mesh.backends.pods.objects import Condition, Meta, Part, Pod, Pods, Quota, Thing
from mesh.config.userspaces import CONTAINER, DEV, namespace_of
from mesh.core.errors import MeshError
from mesh.core.statusline import StatusLine
from mesh.hosts.kubernetes import userobjects
from mesh.hosts.kubernetes.differing import differences
from mesh.hosts.kubernetes.render import Object
from mesh.hosts.kubernetes.userobjects import SPACE, Space

LOOK_INTERVAL_S = 0.5
QUOTA_TIMEOUT_S = 60.0  # for the quota controller to count, before which nothing in a namespace is admitted
CRASHES_FINAL = 2  # restarts of a container without a message, after which it does not start by itself
CONFLICT_STATUS = 409  # of HTTP: others have set a field to another value
MADE, CHANGED, UNCHANGED = "made", "changed", "unchanged"
REPLICA_FAILURE = "ReplicaFailure"  # the condition of a Deployment whose pod was refused
Data = dict[str, object]


class NotASpace(MeshError):
    """The namespace is there, and mesh has not made it."""


class Change(Struct, frozen=True, kw_only=True):
    """A change of one object."""

    kind: str
    name: str
    done: str  # one of MADE, CHANGED, UNCHANGED
    fields: tuple[str, ...] = ()  # a line for each that differs


class DeploymentSpec(Part, frozen=True, kw_only=True):
    """The wanted number of pods."""

    replicas: int = 1


class DeploymentStatus(Part, frozen=True, kw_only=True):
    """The state of a Deployment."""

    observed_generation: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    replicas: int = 0
    conditions: tuple[Condition, ...] | None = None


class DeploymentMeta(Meta, frozen=True, kw_only=True):
    """Name and version of a Deployment."""

    generation: int = 0


class Deployment(Part, frozen=True, kw_only=True):
    """The Deployment of a dev pod."""

    metadata: DeploymentMeta = DeploymentMeta()
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()

    @property
    def is_ready(self) -> bool:
        """True once its newest pod runs, and no other one."""
        now = self.status
        is_seen = now.observed_generation >= self.metadata.generation
        return is_seen and now.updated_replicas == now.ready_replicas == now.replicas == self.spec.replicas


def namespace_label(api: Api, namespace: str) -> str | None:
    """Return the user whose place a namespace is, "" if it is none; None without such a namespace. Raises MeshError."""
    try:
        found = api.get(f"/api/v1/namespaces/{namespace}", Thing)
    except ApiFailed as error:
        if error.status == 404:
            return None
        raise
    return (found.metadata.labels or {}).get(SPACE, "")


def check_space(api: Api, user: str) -> bool:
    """Return True if the place of a user is there. Raises NotASpace for a namespace that mesh has not made."""
    namespace = namespace_of(user)
    label = namespace_label(api, namespace)
    if label is not None and label != user:
        raise NotASpace(
            f"namespace {namespace} is there, and mesh has not made it",
            hint=f"kubectl label namespace {namespace} {SPACE}={user}  # hands it to mesh",
        )
    return label is not None


def apply_space(api: Api, space: Space, *, dry_run: bool = False, is_forced: bool = False) -> Iterator[Change]:
    """Make what a user's place lacks, and change what differs; yield each object with what was done. Raises MeshError.

    dry_run: change nothing, and yield what would be done
    """
    is_there = check_space(api, space.user.name)
    for found in userobjects.objects_of(space):
        if found["kind"] == "Deployment":
            yield _with_host_key(api, space, dry_run=dry_run, is_there=is_there)
        if not is_there and dry_run:  # a server refuses objects of a namespace that is not there
            yield _change(found, MADE)
        else:
            yield _applied(api, found, dry_run=dry_run, is_forced=is_forced)
        if found["kind"] == "ResourceQuota" and not dry_run:
            _wait_for_quota(api, userobjects.path_of(found))


def _applied(api: Api, found: Object, *, dry_run: bool, is_forced: bool) -> Change:
    path = userobjects.path_of(found)
    before = object_at(api, path)
    if before is None:
        api.apply(path, found, dry_run=dry_run, is_forced=is_forced)
        return _change(found, MADE)
    try:
        after = api.apply(path, found, dry_run=True, is_forced=is_forced)
    except ApiFailed as error:
        if error.status != CONFLICT_STATUS:
            raise
        raise MeshError(f"{path}: {error}", hint="mesh pods apply --force FILE  # takes these fields over") from error
    lines = differences(before, after)
    if not lines:  # also no field manager's time changes then
        return _change(found, UNCHANGED)
    if not dry_run:
        api.apply(path, found, is_forced=is_forced)
    return _change(found, CHANGED, lines)


def _change(found: Object, done: str, lines: Sequence[str] = ()) -> Change:
    meta = found["metadata"]
    assert isinstance(meta, Mapping)
    return Change(kind=str(found["kind"]), name=str(meta["name"]), done=done, fields=tuple(lines))


def object_at(api: Api, path: str) -> Data | None:
    """Return an object; None if there is none. Raises MeshError."""
    try:
        return api.get(path, dict[str, object])
    except ApiFailed as error:
        if error.status == 404:
            return None
        raise


def _with_host_key(api: Api, space: Space, *, dry_run: bool, is_there: bool) -> Change:
    """Make the key by which the user's sshd is recognised, unless it is there; it stays the same for good."""
    secret = userobjects.host_key_object(space, b"" if dry_run else _new_key())
    path = userobjects.path_of(secret)
    if is_there and object_at(api, path) is not None:
        return _change(secret, UNCHANGED)
    if not dry_run:
        try:
            api.create(path.rpartition("/")[0], secret)
        except ApiFailed as error:
            if error.status != 409:
                raise
    return _change(secret, MADE)


def _new_key() -> bytes:
    """Return a new private key as OpenSSH writes it."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def _wait_for_quota(api: Api, path: str) -> None:
    """Wait until a quota has counted what is there. Raises MeshError."""
    deadline = time.monotonic() + QUOTA_TIMEOUT_S
    while not api.get(path, Quota).status.hard:
        if time.monotonic() > deadline:
            raise MeshError(f"{path}: the quota controller does not count it", hint="kubectl get resourcequota -A")
        time.sleep(LOOK_INTERVAL_S)


# ---- the dev pod


def wait_for_dev_pods(api: Callable[[str], Api], spaces: Sequence[Space], notify: StatusLine) -> None:
    """Wait until the dev pods of all users run. api: returns that of a namespace. Raises MeshError with all reasons."""
    began = time.monotonic()
    waiting = list(spaces)
    while waiting:
        reasons = dict[str, tuple[str, bool]]()
        for space in list(waiting):
            reason = why_not_ready(api(space.namespace), userobjects.mark_of(space))
            if reason is None:
                waiting.remove(space)
            else:
                reasons[space.user.name] = reason
        lasted = time.monotonic() - began
        text = "; ".join(f"{user}: {why}" for user, (why, _) in reasons.items())
        if any(is_final for _, is_final in reasons.values()) or (waiting and lasted > waiting[0].dev.start_timeout):
            notify.end()
            first = namespace_of(next(iter(reasons)))
            raise MeshError(f"dev pods do not run: {text}", hint=f"kubectl describe pods -n {first} -l {DEV}")
        if waiting:
            notify.show(f"dev pods start: {text}", lasted)
            time.sleep(LOOK_INTERVAL_S)
    notify.end()


def why_not_ready(api: Api, mark: str = "") -> tuple[str, bool] | None:
    """Return why the dev pod of a namespace does not run, and True if that does not end by itself; None if it runs.

    mark: of the pods that count; "": all
    """
    found = api.get(api.path("deployments", userobjects.DEPLOYMENT, "apps/v1"), Deployment)
    if found.is_ready:
        return None
    for pod in dev_pods(api):
        if state.is_over(pod) or (mark and (pod.metadata.annotations or {}).get(userobjects.MARK) != mark):
            continue
        if (ended := _crash(pod)) is not None:
            return ended
        if not state.runs(pod, CONTAINER):
            return state.waits_for(pod, events_of(api, pod), CONTAINER)
    for condition in found.status.conditions or ():
        if condition.type == REPLICA_FAILURE and condition.status == "True":
            return condition.message, False
    return "it is started", False


def dev_pods(api: Api) -> Sequence[Pod]:
    """Return the dev pods of a namespace, the newest first. Raises MeshError."""
    found = api.get(api.pods, Pods, {"labelSelector": DEV}).items or ()
    return sorted(found, key=lambda pod: pod.metadata.creation_timestamp or "", reverse=True)


def _crash(pod: Pod) -> tuple[str, bool] | None:
    """Return how the container of a dev pod has ended, and True if its image or its volume has to be changed."""
    status = state.status_of(pod, CONTAINER)
    for ended in (status.state.terminated, status.last_state.terminated):
        if ended is not None and not status.state.running:
            text = ended.message.strip() or f"its container has ended (exit {ended.exit_code})"
            return text, bool(ended.message.strip()) or status.restart_count >= CRASHES_FINAL
    return None
