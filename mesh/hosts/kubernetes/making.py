"""Pods that are made, watched until they run, and deleted."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from msgspec.structs import replace

from mesh.backends.pods import state
from mesh.backends.pods.api import Api, ApiAway, ApiFailed, only
from mesh.backends.pods.objects import Meta, Pod, Pods, Thing, Things
from mesh.core.errors import MeshError
from mesh.core.outcome import EXIT_BUSY
from mesh.hosts.kubernetes import render
from mesh.hosts.kubernetes.records import PodsRecord, PodsRecords
from mesh.hosts.kubernetes.render import Made

CREATED_AT_ONCE = 16  # pods
LOOK_INTERVAL_S = 0.5  # between two looks at pods that start; one request each
REPEAT_S = 30.0  # after which the same line is shown again
GONE_TIMEOUT_S = 120.0  # for deleted pods to be gone
AWAY_S = 30.0  # that an API server may not answer while pods start
CREATE_TRIES = 20  # of one pod, where requests change a quota at the same time
EXISTS = "AlreadyExists"  # reason of a refusal
SHOWN_REASONS = 4  # in one message
Notify = Callable[[str], None]


class NotOurs(MeshError):
    """Pods that were made elsewhere, or are in use."""

    exit_code = EXIT_BUSY


class Maker:
    """Makes, finds and deletes the pods of one cluster."""

    def __init__(self, api: Api, made: Made, records: PodsRecords, notify: Notify = lambda text: None) -> None:
        self._api, self._made, self._records, self._notify = api, made, records, notify

    def root(self) -> Thing | None:
        """Return the root of the pods; None without one. Raises MeshError, and NotOurs if it was made elsewhere."""
        try:
            found = self._api.get(self._api.path("configmaps", self._made.root_name), Thing)
        except ApiFailed as error:
            if error.status == 404:
                return None
            raise
        mark = (found.metadata.annotations or {}).get(render.MARK, "")
        if not self._records.has(found.metadata.uid) and mark and self._records.has(mark):
            self._record(found)
            self._records.remove(mark)
        if not self._records.has(found.metadata.uid):
            owner = (found.metadata.annotations or {}).get(render.FULL_USER, "an unknown user")
            raise NotOurs(
                f"{self._made.cluster}: the pods of {self._made.root_name} were made elsewhere (by {owner} at "
                f"{found.metadata.creation_timestamp})",
                hint=f"mesh up --adopt {self._made.cluster}",
            )
        return found

    def pods(self, uid: str) -> list[Pod]:
        """Return the pods of a root in their order. Raises MeshError."""
        return sorted(owned(self._api, uid), key=lambda pod: int((pod.metadata.labels or {}).get(render.INDEX, "0")))

    def ensure(self) -> tuple[str, list[Pod]]:
        """Return the root's identity and the pods, all of which run; make those that are not there.

        Raises MeshError with all reasons. What this call has made is deleted then, also after Ctrl-C.
        """
        root = self.root()
        if root is not None:
            if (pods := self._use(root)) is not None:
                return root.metadata.uid, pods
            self.delete(root)
        root, is_new = self._create_root()
        if is_new:
            return root.metadata.uid, self._start(root, range(self._made.source.nodes), is_new=True)
        if (pods := self._use(root)) is None:  # of another command, which has made it just now
            raise NotOurs(f"{self._made.cluster}: another command deletes its pods now", hint=self._watch_command())
        return root.metadata.uid, pods

    def _use(self, root: Thing) -> list[Pod] | None:
        """Return the pods of a root that is there, once all run; None if none is left. Raises MeshError."""
        pods = self.pods(root.metadata.uid)
        ended = [pod for pod in pods if state.is_over(pod)]
        is_same = (root.metadata.annotations or {}).get(render.TEMPLATE) == self._made.digest
        if len(ended) == len(pods) and (pods or not is_same):
            return None
        if not is_same:
            raise MeshError(
                f"{self._made.cluster}: its pods were made from another description than cluster.yaml has now",
                hint=f"mesh down {self._made.cluster}",
            )
        if ended:
            ends = state.counted([state.end_of(pod) for pod in ended])
            raise MeshError(
                f"{self._made.cluster}: {len(pods) - len(ended)} of {self._made.source.nodes} pods are left ({ends})",
                hint=f"mesh down {self._made.cluster}",
            )
        there = {(pod.metadata.labels or {}).get(render.INDEX) for pod in pods}
        missing = [index for index in range(self._made.source.nodes) if str(index) not in there]
        return self._start(root, missing, is_new=False)

    def _start(self, root: Thing, missing: Sequence[int], *, is_new: bool) -> list[Pod]:
        """Make pods of a root and wait until all run. On failure delete what was made; is_new: the root as well."""
        uid, created = root.metadata.uid, list[Thing]()
        try:
            if missing:
                self._create(root, missing, created)
            return self._wait(uid)
        except BaseException:
            try:
                if is_new:
                    self._delete_all(uid)
                else:
                    delete_pods(self._api, created)
            except MeshError as error:
                self._notify(f"{self._made.cluster}: its pods may be left: mesh down {self._made.cluster} ({error})")
            raise

    def adopt(self) -> None:
        """Take pods that were made elsewhere for ours. Raises MeshError."""
        path = self._api.path("configmaps", self._made.root_name)
        with contextlib.suppress(ApiFailed):
            self._record(self._api.get(path, Thing))

    def delete(self, root: Thing) -> None:
        """Delete a root and its pods, and wait until they are gone. Raises MeshError."""
        uid = root.metadata.uid
        self._delete_all(uid)
        deadline = time.monotonic() + GONE_TIMEOUT_S
        while left := self.pods(uid):
            if time.monotonic() > deadline:
                names = ", ".join(pod.name for pod in left[:SHOWN_REASONS])
                raise MeshError(
                    f"{self._made.cluster}: pods are still being deleted ({names})", hint=self._watch_command()
                )
            time.sleep(LOOK_INTERVAL_S)

    def _delete_all(self, uid: str) -> None:
        delete_pods(self._api, self.pods(uid))
        self._api.delete(self._api.path("configmaps", self._made.root_name), only(uid))
        self._records.remove(uid)

    def _create_root(self) -> tuple[Thing, bool]:
        """Return a new root and True; or that of another command which was faster.

        A mark is recorded first: a root whose creation was not answered, or not recorded, is ours by it.
        """
        mark = uuid.uuid4().hex
        self._record(Thing(metadata=Meta(uid=mark)), is_expected=True)
        try:
            root = self._api.create(self._api.path("configmaps"), render.root_object(replace(self._made, mark=mark)))
        except ApiFailed as error:
            self._records.remove(mark)
            if error.status != 409:
                raise
            if (other := self.root()) is None:
                raise NotOurs(
                    f"{self._made.cluster}: another command deletes its pods now", hint=self._watch_command()
                ) from error
            return other, False
        self._record(root)
        self._records.remove(mark)
        return root, True

    def _record(self, root: Thing, *, is_expected: bool = False) -> None:
        made, place = self._made, self._api.place
        self._records.write(
            PodsRecord(
                uid=root.metadata.uid,
                root=made.root_name,
                cluster=made.cluster,
                context=place.context,
                namespace=place.namespace,
                pods=made.source.nodes,
                since=time.time(),
                until=until_of(root),
                hold=made.source.hold,
                is_expected=is_expected,
            )
        )

    def _create(self, root: Thing, indices: Sequence[int], created: list[Thing]) -> None:
        """Create pods, and add them to a list. Raises the first refusal, after which no other one is asked for."""
        self._notify(f"{self._made.cluster}: making {len(indices)} pods of {self._made.source.template.image}")
        made = replace(self._made, until=until_of(root))
        objects = [render.pod_object(made, index, root.metadata.uid) for index in indices]
        with ThreadPoolExecutor(CREATED_AT_ONCE) as pool:
            answers = [pool.submit(self._create_pod, one, created) for one in objects]
            try:
                for answer in answers:
                    answer.result()
            finally:
                for answer in answers:
                    answer.cancel()

    def _create_pod(self, pod: render.Object, created: list[Thing]) -> None:
        """Create a pod, unless another command has made it. Raises MeshError."""
        for tries_left in reversed(range(CREATE_TRIES)):
            try:
                created.append(self._api.create(self._api.path("pods"), pod))
                return
            except ApiFailed as error:
                if error.status != 409 or (error.reason != EXISTS and not tries_left):
                    raise
                if error.reason == EXISTS:
                    return
            time.sleep(LOOK_INTERVAL_S)  # a quota was changed by another request at the same time

    def _look(self, uid: str) -> list[Pod]:
        """Return the pods; an API server may be away for a time. Raises MeshError."""
        deadline = time.monotonic() + AWAY_S
        while True:
            try:
                return self.pods(uid)
            except ApiAway:
                if time.monotonic() > deadline:
                    raise
            time.sleep(LOOK_INTERVAL_S)

    def _wait(self, uid: str) -> list[Pod]:
        """Wait until all pods run; show one line for each change of their state. Raises MeshError."""
        began, shown, shown_at = time.monotonic(), "", time.monotonic()
        source = self._made.source
        while True:
            pods = self._look(uid)
            waiting = [pod for pod in pods if state.is_over(pod) or not state.runs(pod, render.CONTAINER)]
            if len(pods) < source.nodes:
                raise MeshError(
                    f"{self._made.cluster}: {len(pods)} of {source.nodes} pods are there: others were deleted, or "
                    f"their names are taken",
                    hint=f"mesh down {self._made.cluster}",
                )
            if not waiting:
                return pods
            reasons = [state.waits_for(pod) for pod in waiting]
            final = [
                f"pod {pod.name}: {text}" for pod, (text, is_final) in zip(waiting, reasons, strict=True) if is_final
            ]
            if final:
                raise MeshError(f"{self._made.cluster}: pods cannot start: {_some(final)}", hint=self._hint(waiting[0]))
            line = progress(source.nodes, len(pods) - len(waiting), [text for text, _ in reasons])
            if time.monotonic() > began + source.start_timeout:
                raise MeshError(
                    f"{self._made.cluster}: not all pods run after {source.start_timeout:g} s: {line}",
                    hint=self._hint(waiting[0]) if waiting else self._watch_command(),
                )
            if time.monotonic() > began + 1.0 and (line != shown or time.monotonic() > shown_at + REPEAT_S):
                self._notify(f"{self._made.cluster}: {line}")
                shown, shown_at = line, time.monotonic()
            time.sleep(LOOK_INTERVAL_S)

    def _watch_command(self) -> str:
        """Return the command that shows the pods."""
        labels = f"{render.CLUSTER}={render.safe(self._made.cluster)}"
        return f"{self._api.place.kubectl('get pods,configmaps')} -l {labels}"

    def _hint(self, pod: Pod) -> str:
        return f"{self._api.place.kubectl('describe pod')} {pod.name}"


def owned(api: Api, uid: str) -> list[Pod]:
    """Return the pods that belong to a root; a label alone makes none its own. Raises MeshError."""
    found = api.get(api.pods, Pods, {"labelSelector": f"{render.ROOT}={uid}"}).items or ()
    return [pod for pod in found if any(owner.uid == uid for owner in pod.metadata.owner_references or ())]


def delete_pods(api: Api, pods: Sequence[Pod | Thing]) -> None:
    """Delete these pods, and none that has taken the name of one. Raises MeshError."""
    for pod in pods:
        api.delete(api.path("pods", pod.metadata.name), only(pod.metadata.uid))


def until_of(root: Thing) -> float:
    """Return the time before which the pods of a root stay, in seconds since the epoch; 0: none."""
    return float((root.metadata.annotations or {}).get(render.UNTIL, "0") or 0)


def progress(wanted: int, running: int, reasons: Sequence[str]) -> str:
    """Return a line about pods that start.

    >>> progress(4, 2, ["Insufficient cpu", "Insufficient cpu"])
    '2 of 4 pods run; 2 wait: Insufficient cpu'
    """
    counted = "; ".join(f"{reasons.count(text)} wait: {text}" for text in dict.fromkeys(reasons))
    return f"{running} of {wanted} pods run" + f"; {counted}" * bool(counted)


def remove_ended(api: Api, user: str, records: PodsRecords) -> list[str]:
    """Delete roots that were made here and whose pods have all ended; return their names. Raises MeshError."""
    removed = []
    roots = api.get(api.path("configmaps"), Things, {"labelSelector": f"{render.USER}={render.safe(user)}"}).items or ()
    for root in roots:
        uid = root.metadata.uid
        if not records.has(uid):
            continue
        pods = owned(api, uid)
        age = time.time() - next((one.since for one in records.read() if one.uid == uid), 0.0)
        if all(state.is_over(pod) for pod in pods) and (pods or age > GONE_TIMEOUT_S):
            delete_pods(api, pods)
            api.delete(api.path("configmaps", root.metadata.name), only(uid))
            records.remove(uid)
            removed.append(root.metadata.name)
    return removed


def _some(texts: Sequence[str]) -> str:
    more = f"; and {len(texts) - SHOWN_REASONS} more" if len(texts) > SHOWN_REASONS else ""
    return "; ".join(texts[:SHOWN_REASONS]) + more
