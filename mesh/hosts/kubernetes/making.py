"""Pods that are made, watched until they run, and deleted."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor

from msgspec.structs import replace

from mesh.backends.pods import state
from mesh.backends.pods.api import Api, ApiAway, ApiFailed, only
from mesh.backends.pods.happenings import events_of
from mesh.backends.pods.objects import Meta, Pod, PodEvent, Pods, Thing
from mesh.core.errors import MeshError
from mesh.core.outcome import EXIT_BUSY
from mesh.core.statusline import StatusLine
from mesh.hosts.kubernetes import render
from mesh.hosts.kubernetes.beside import EXISTS, create_beside
from mesh.hosts.kubernetes.choice import counted_groups, in_order
from mesh.hosts.kubernetes.clearing import delete_pods, owned
from mesh.hosts.kubernetes.ending import cleaning_up
from mesh.hosts.kubernetes.job import JOB
from mesh.hosts.kubernetes.records import Place, PodsRecord, PodsRecords, machine_here
from mesh.hosts.kubernetes.render import Made
from mesh.hosts.kubernetes.waiters import Waiters

CREATED_AT_ONCE = 16  # pods
LOOK_INTERVAL_S = 0.5  # between two looks at pods that start; one request each
FIRST_LINE_S = 1.0  # before a line about pods that start
EVENTS_PODS = 4  # whose events are read; others wait for the same reasons
EVENTS_INTERVAL_S = 5.0  # between two looks at the events of pods, and before the first
GONE_TIMEOUT_S = 120.0  # for deleted pods to be gone
AWAY_S = 30.0  # that an API server may not answer while pods start
CREATE_TRIES = 20  # of one pod, where requests change a quota at the same time
SERVER_FAILED = 500  # a status of HTTP from which on the object may have been created all the same
SHOWN_REASONS = 4  # in one message


class NotOurs(MeshError):
    """Pods that were made elsewhere, or are in use."""

    exit_code = EXIT_BUSY


class Maker:
    """Makes, finds and deletes the pods of one cluster."""

    def __init__(
        self,
        api: Api,
        made: Made,
        records: PodsRecords,
        notify: StatusLine | None = None,
        warn: Callable[[str], object] | None = None,
    ) -> None:
        """notify: shows progress; warn: gets what needs an action of the user (default: notify)"""
        self._api, self.made, self._records = api, made, records
        self._notify = notify or StatusLine()
        self._warn = warn or self._notify

    def root(self) -> Thing | None:
        """Return the root of the pods; None without one. Raises MeshError, and NotOurs if it was made elsewhere."""
        found = self.any_root()
        if found is None:
            return None
        mark = (found.metadata.annotations or {}).get(render.MARK, "")
        if not self._records.has(found.metadata.uid) and mark and self._records.has(mark):
            self._record(found)
            self._records.remove(mark)
        if not self._records.has(found.metadata.uid):
            owner = (found.metadata.annotations or {}).get(render.FULL_USER, "an unknown user")
            raise NotOurs(
                f"{self.made.cluster}: the pods of {self.made.root_name} were made elsewhere (by {owner} at "
                f"{found.metadata.creation_timestamp})",
                hint=f"mesh up --adopt {self.made.cluster}",
            )
        return found

    def any_root(self) -> Thing | None:
        """Return the root of the pods, which may have been made elsewhere; None without one. Raises MeshError."""
        try:
            return self._api.get(self._api.path("configmaps", self.made.root_name), Thing)
        except ApiFailed as error:
            if error.status == 404:
                return None
            raise

    def pods(self, uid: str) -> list[Pod]:
        """Return the pods of a root in their order. Raises MeshError."""
        return sorted(owned(self._api, uid), key=lambda pod: int((pod.metadata.labels or {}).get(render.INDEX, "0")))

    def job_pods(self) -> list[Pod]:
        """Return the pods of this user's declared jobs, which have not ended. Raises MeshError."""
        own = f"{render.CLUSTER}={render.safe(self.made.cluster)},{render.USER}={render.safe(self.made.user)}"
        found = self._api.get(self._api.pods, Pods, {"labelSelector": f"{own},{JOB}"}).items or ()
        return [pod for pod in in_order(found, "") if not state.has_ended(pod, render.CONTAINER)]

    def ensure(self) -> tuple[str, list[Pod]]:
        """Return the root's identity and the pods, all of which run; make those that are not there.

        Raises MeshError with all reasons. What this call has made is deleted then, also after Ctrl-C and SIGTERM;
        but the last of several commands that wait for the same pods deletes them.
        """
        with cleaning_up(), Waiters(self._records, self._place) as waiters:
            return self._ensured(waiters)

    def _ensured(self, waiters: Waiters) -> tuple[str, list[Pod]]:
        root = self.root()
        if root is not None:
            if (pods := self._use(root, waiters)) is not None:
                return root.metadata.uid, pods
            self.delete(root)
        root, is_new = self._create_root()
        if is_new:
            return root.metadata.uid, self._start(root, range(self.made.source.nodes), waiters, is_new=True)
        if (pods := self._use(root, waiters)) is None:  # of another command, which has made it just now
            raise NotOurs(f"{self.made.cluster}: another command deletes its pods now", hint=self._watch_command())
        return root.metadata.uid, pods

    def _use(self, root: Thing, waiters: Waiters) -> list[Pod] | None:
        """Return the pods of a root that is there, once all run; None if none is left. Raises MeshError."""
        missing = self._missing(root)
        return None if missing is None else self._start(root, missing, waiters, is_new=False)

    def _missing(self, root: Thing) -> list[int] | None:
        """Return the indices of pods to be made, after those that have ended are deleted; None if none is left."""
        pods = self.pods(root.metadata.uid)
        ended = [pod for pod in pods if state.has_ended(pod, render.CONTAINER)]
        is_same = (root.metadata.annotations or {}).get(render.TEMPLATE) == self.made.digest
        if len(ended) == len(pods) and (pods or not is_same):
            return None
        if not is_same:
            raise MeshError(
                f"{self.made.cluster}: its pods were made from another description than cluster.yaml has now",
                hint=f"mesh down {self.made.cluster}",
            )
        if ended:
            ends = state.counted([state.end_of(pod, render.CONTAINER) for pod in ended])
            self._notify(f"{self.made.cluster}: {len(ended)} pods are replaced ({ends})")
            delete_pods(self._api, ended)
            gone = {pod.metadata.uid for pod in ended}
            self._until_gone(root.metadata.uid, gone)
            pods = [pod for pod in pods if pod.metadata.uid not in gone]
        there = {(pod.metadata.labels or {}).get(render.INDEX) for pod in pods}
        return [index for index in range(self.made.source.nodes) if str(index) not in there]

    def _start(self, root: Thing, missing: Sequence[int], waiters: Waiters, *, is_new: bool) -> list[Pod]:
        """Make pods of a root and wait until all run. On failure delete what was made; is_new: the root as well."""
        uid, created = root.metadata.uid, list[Thing]()
        try:
            waiters.note(uid)
            if missing:
                self._create(root, missing, created)
            return self._wait(uid)
        except BaseException:
            self._notify.end()
            try:
                self._give_up(uid, created, waiters, is_new=is_new)
            except MeshError as error:
                self._warn(f"{self.made.cluster}: its pods may be left: mesh down {self.made.cluster} ({error})")
            raise

    def _give_up(self, uid: str, created: Sequence[Thing], waiters: Waiters, *, is_new: bool) -> None:
        """Delete the pods that this command has made, unless others wait for them or use them. Raises MeshError."""
        has_all = is_new or waiters.is_left(uid)
        if has_all:
            waiters.leave(uid)
        if not waiters.is_alone():
            self._notify(f"{self.made.cluster}: another command waits for the same pods, which stay for it")
        elif waiters.is_shared(uid) and self._all_run(self.pods(uid)):
            return  # another command may use them
        elif has_all:
            self._delete_all(uid)
        else:
            delete_pods(self._api, created)

    def _all_run(self, pods: Sequence[Pod]) -> bool:
        running = [pod for pod in pods if state.runs(pod, render.CONTAINER) and not state.is_over(pod)]
        return len(running) == len(pods) >= self.made.source.nodes

    def adopt(self) -> None:
        """Take pods that were made elsewhere for ours. Raises MeshError."""
        path = self._api.path("configmaps", self.made.root_name)
        try:
            self._record(self._api.get(path, Thing))
        except ApiFailed as error:
            if error.status != 404:
                raise

    def recorded(self) -> list[PodsRecord]:
        """Return what is recorded here about the pods of this place."""
        return [one for one in self._records.read() if one.place == self._place]

    @property
    def _place(self) -> Place:
        return Place(self._api.place.context, self._api.place.namespace, self.made.root_name)

    def forget(self, gone: Sequence[PodsRecord]) -> None:
        """Remove records, but not of pods at another server that the context named once.

        gone: as they were before a look found no root; another command may make one meanwhile
        """
        for record in gone:
            if record.server in ("", self._api.server):
                self._records.remove(record.uid)

    def delete(self, root: Thing) -> None:
        """Delete a root and its pods, and wait until they are gone. Raises MeshError."""
        self._delete_all(root.metadata.uid)
        self._until_gone(root.metadata.uid)

    def _until_gone(self, uid: str, uids: Container[str] | None = None) -> None:
        """Wait until pods of a root are gone. uids: of these pods; None: all. Raises MeshError."""
        deadline = time.monotonic() + GONE_TIMEOUT_S
        while left := [pod for pod in self._look(uid) if uids is None or pod.metadata.uid in uids]:
            if time.monotonic() > deadline:
                names = ", ".join(pod.name for pod in left[:SHOWN_REASONS])
                raise MeshError(
                    f"{self.made.cluster}: pods are still being deleted ({names})", hint=self._watch_command()
                )
            time.sleep(LOOK_INTERVAL_S)

    def _delete_all(self, uid: str) -> None:
        delete_pods(self._api, self.pods(uid))
        self._api.delete(self._api.path("configmaps", self.made.root_name), only(uid))
        self._records.remove(uid)

    def _create_root(self) -> tuple[Thing, bool]:
        """Return a new root and True; or that of another command which was faster.

        A mark is recorded first: a root whose creation was not answered, or not recorded, is ours by it.
        """
        mark = uuid.uuid4().hex
        self._record(Thing(metadata=Meta(uid=mark)), is_expected=True)
        try:
            root = self._api.create(self._api.path("configmaps"), render.root_object(replace(self.made, mark=mark)))
        except ApiFailed as error:
            if error.status < SERVER_FAILED:
                self._records.remove(mark)
            if error.status == 404:
                place = self._api.place
                raise MeshError(f"there is no namespace {place.namespace}", hint="kubectl get namespaces") from error
            if error.status != 409:
                raise
            if (other := self.root()) is None:
                raise NotOurs(
                    f"{self.made.cluster}: another command deletes its pods now", hint=self._watch_command()
                ) from error
            return other, False
        self._record(root)
        self._records.remove(mark)
        return root, True

    def _record(self, root: Thing, *, is_expected: bool = False) -> None:
        made, place, marks = self.made, self._api.place, root.metadata.annotations or {}
        self._records.write(
            PodsRecord(
                uid=root.metadata.uid,
                root=made.root_name,
                cluster=made.cluster,
                context=place.context,
                namespace=place.namespace,
                pods=int(marks.get(render.NODES, made.source.nodes)),
                since=time.time(),
                until=until_of(root),
                hold=float(marks.get(render.HOLD, made.source.hold)),
                is_expected=is_expected,
                machine=machine_here(),
                server=place.server,
            )
        )

    def _create(self, root: Thing, indices: Sequence[int], created: list[Thing]) -> None:
        """Create pods, and add them to a list. Raises the first refusal, after which no other one is asked for."""
        self._notify(f"{self.made.cluster}: making {len(indices)} pods of {self.made.source.images}")
        create_beside(self._api, self.made, root.metadata.uid, self._warn)
        made = replace(self.made, until=until_of(root))
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
        """Wait until all pods run, and show their state in one line. Raises MeshError with all reasons."""
        began, source, events = time.monotonic(), self.made.source, _Events(self._api)
        while True:
            pods = self._look(uid)
            waiting = [pod for pod in pods if state.is_over(pod) or not state.runs(pod, render.CONTAINER)]
            if len(pods) < source.nodes:
                raise MeshError(
                    f"{self.made.cluster}: {len(pods)} of {source.nodes} pods are there: others were deleted, or "
                    f"their names are taken",
                    hint=f"mesh down {self.made.cluster}",
                )
            if not waiting:
                self._notify.end()
                return pods
            lasted = time.monotonic() - began
            if lasted > min(EVENTS_INTERVAL_S, source.start_timeout):
                events.read(waiting[:EVENTS_PODS])
            reasons = [state.waits_for(pod, events.of(pod), render.CONTAINER) for pod in waiting]
            running = [pod for pod in pods if pod not in waiting]
            groups = counted_groups(source.groups, running)
            line = progress(source.nodes, len(running), [text for text, _ in reasons], groups)
            if any(is_final for _, is_final in reasons):
                raise MeshError(f"{self.made.cluster}: pods cannot start: {line}", hint=self._hint(waiting[0]))
            if lasted > source.start_timeout:
                raise MeshError(
                    f"{self.made.cluster}: not all pods run after {source.start_timeout:g} s: {line}",
                    hint=self._hint(waiting[0]),
                )
            if lasted > FIRST_LINE_S:
                self._notify.show(f"{self.made.cluster}: {line}", lasted)
            time.sleep(LOOK_INTERVAL_S)

    def _watch_command(self) -> str:
        """Return the command that shows the pods."""
        labels = f"{render.CLUSTER}={render.safe(self.made.cluster)}"
        return f"{self._api.place.kubectl('get pods,configmaps')} -l {labels}"

    def _hint(self, pod: Pod) -> str:
        return f"{self._api.place.kubectl('describe pod')} {pod.name}"


class _Events:
    """The events of pods that do not run, read now and then."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._read_at = -EVENTS_INTERVAL_S
        self._found: dict[str, tuple[PodEvent, ...]] = {}

    def of(self, pod: Pod) -> tuple[PodEvent, ...]:
        """Return the events of a pod that were read last."""
        return self._found.get(pod.metadata.uid, ())

    def read(self, pods: Sequence[Pod]) -> None:
        """Read the events of pods, unless that was done a moment ago."""
        if time.monotonic() >= self._read_at + EVENTS_INTERVAL_S:
            self._found |= {pod.metadata.uid: events_of(self._api, pod) for pod in pods}
            self._read_at = time.monotonic()


def until_of(root: Thing) -> float:
    """Return the time before which the pods of a root stay, in seconds since the epoch; 0: none."""
    return float((root.metadata.annotations or {}).get(render.UNTIL, "0") or 0)


def progress(wanted: int, running: int, reasons: Sequence[str], groups: str = "") -> str:
    """Return a line about pods that start. groups: how many of each group run

    >>> progress(4, 2, ["Insufficient cpu", "Insufficient cpu"])
    '2 of 4 pods run; 2 wait: Insufficient cpu'
    """
    counted = "; ".join(f"{reasons.count(text)} wait: {text}" for text in dict.fromkeys(reasons))
    return f"{running} of {wanted} pods run" + f" ({groups})" * bool(groups) + f"; {counted}" * bool(counted)
