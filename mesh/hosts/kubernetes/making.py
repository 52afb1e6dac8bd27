"""Pods that are made, watched until they run, and deleted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from mesh.backends.pods import state
from mesh.backends.pods.api import Api, ApiFailed
from mesh.backends.pods.objects import Pod, Pods, Thing, Things
from mesh.core.errors import MeshError
from mesh.core.outcome import EXIT_BUSY
from mesh.hosts.kubernetes import render
from mesh.hosts.kubernetes.records import PodsRecord, PodsRecords
from mesh.hosts.kubernetes.render import Made

CREATED_AT_ONCE = 16  # pods
LOOK_INTERVAL_S = 0.5  # between two looks at pods that start; one request each
REPEAT_S = 30.0  # after which the same line is shown again
GONE_TIMEOUT_S = 120.0  # for deleted pods to be gone
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
        found = self._api.get(self._api.pods, Pods, {"labelSelector": f"{render.ROOT}={uid}"}).items or ()
        return sorted(found, key=lambda pod: int((pod.metadata.labels or {}).get(render.INDEX, "0")))

    def ensure(self) -> tuple[str, list[Pod]]:
        """Return the root's identity and the pods, all of which run; make them where there are none.

        Raises MeshError with all reasons. What this call has made is deleted then, also after Ctrl-C.
        """
        root = self.root()
        if root is not None:
            uid = root.metadata.uid
            pods = self.pods(uid)
            living = [pod for pod in pods if not state.is_over(pod)]
            if len(living) == self._made.source.nodes:
                self._check_template(root)
                return uid, self._wait(uid)
            if living:
                ended = state.counted([state.end_of(pod) for pod in pods if state.is_over(pod)])
                raise MeshError(
                    f"{self._made.cluster}: {len(living)} of {self._made.source.nodes} pods are left ({ended})",
                    hint=f"mesh down {self._made.cluster}",
                )
            self.delete(root)
        uid = self._create_root()
        try:
            self._create(uid)
            return uid, self._wait(uid)
        except BaseException:
            with contextlib.suppress(MeshError):
                self._delete_all(uid)
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
                raise MeshError(f"{self._made.cluster}: pods are still being deleted ({names})", hint=self._look())
            time.sleep(LOOK_INTERVAL_S)

    def _delete_all(self, uid: str) -> None:
        for pod in self.pods(uid):
            self._api.delete(self._api.path("pods", pod.name))
        self._api.delete(self._api.path("configmaps", self._made.root_name), {"preconditions": {"uid": uid}})
        self._records.remove(uid)

    def _check_template(self, root: Thing) -> None:
        if (root.metadata.annotations or {}).get(render.TEMPLATE) != self._made.digest:
            raise MeshError(
                f"{self._made.cluster}: its pods were made from another description than cluster.yaml has now",
                hint=f"mesh down {self._made.cluster}",
            )

    def _create_root(self) -> str:
        try:
            root = self._api.create(self._api.path("configmaps"), render.root_object(self._made))
        except ApiFailed as error:
            if error.status != 409:
                raise
            raise NotOurs(
                f"{self._made.cluster}: another command is making its pods; wait until it has ended",
                hint=self._look(),
            ) from error
        self._record(root)
        return root.metadata.uid

    def _record(self, root: Thing) -> None:
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
                until=float((root.metadata.annotations or {}).get(render.UNTIL, "0") or 0),
                hold=made.source.hold,
            )
        )

    def _create(self, uid: str) -> None:
        """Create all pods. Raises the first refusal, after all others have been answered."""
        self._notify(
            f"{self._made.cluster}: making {self._made.source.nodes} pods of {self._made.source.template.image}"
        )
        path = self._api.path("pods")
        with ThreadPoolExecutor(CREATED_AT_ONCE) as pool:
            objects = [render.pod_object(self._made, index, uid) for index in range(self._made.source.nodes)]
            for answer in [pool.submit(self._api.create, path, one) for one in objects]:
                answer.result()

    def _wait(self, uid: str) -> list[Pod]:
        """Wait until all pods run; show one line for each change of their state. Raises MeshError."""
        began, shown, shown_at = time.monotonic(), "", time.monotonic()
        source = self._made.source
        while True:
            pods = self.pods(uid)
            waiting = [pod for pod in pods if not state.runs(pod, render.CONTAINER)]
            if not waiting and len(pods) == source.nodes:
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
                    hint=self._hint(waiting[0]) if waiting else self._look(),
                )
            if time.monotonic() > began + 1.0 and (line != shown or time.monotonic() > shown_at + REPEAT_S):
                self._notify(f"{self._made.cluster}: {line}")
                shown, shown_at = line, time.monotonic()
            time.sleep(LOOK_INTERVAL_S)

    def _look(self) -> str:
        labels = f"{render.CLUSTER}={render.safe(self._made.cluster)}"
        return f"{self._api.place.kubectl('get pods,configmaps')} -l {labels}"

    def _hint(self, pod: Pod) -> str:
        return f"{self._api.place.kubectl('describe pod')} {pod.name}"


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
        pods = api.get(api.pods, Pods, {"labelSelector": f"{render.ROOT}={uid}"}).items or ()
        age = time.time() - next((one.since for one in records.read() if one.uid == uid), 0.0)
        if all(state.is_over(pod) for pod in pods) and (pods or age > GONE_TIMEOUT_S):
            for pod in pods:
                api.delete(api.path("pods", pod.name))
            api.delete(api.path("configmaps", root.metadata.name), {"preconditions": {"uid": uid}})
            records.remove(uid)
            removed.append(root.metadata.name)
    return removed


def _some(texts: Sequence[str]) -> str:
    more = f"; and {len(texts) - SHOWN_REASONS} more" if len(texts) > SHOWN_REASONS else ""
    return "; ".join(texts[:SHOWN_REASONS]) + more
