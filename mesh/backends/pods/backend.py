"""The backend of pods: an agent behind one ``pods/exec`` each, and a watch that sees why a pod is gone."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Protocol

from mesh.backends.pods import state
from mesh.backends.pods.api import Api, ApiAway, ApiFailed
from mesh.backends.pods.happenings import events_of
from mesh.backends.pods.objects import Node, Pod, Pods
from mesh.core.cluster import Host, PodPlace
from mesh.core.errors import HostUnreachable, MeshError
from mesh.core.events import Event
from mesh.core.interfaces import Channel, NoAgent, Opened
from mesh.core.text import last_line

CLIENT_RETURN_S = 30.0  # an API server that is started again ends all streams at once
OPENED_AT_ONCE = 32  # pods
WHY_TIMEOUT_S = 1.8  # for the API to answer why a pod is gone
END_SHOWN_S = 4.0  # after the end of a container, until its kubelet has reported it
LOOK_TIMEOUT_S = 10.0
REOPEN_TIMEOUT_S = 5.0  # for a look at a pod; a server that starts accepts connections before it answers
WATCH_PAUSE_S = 1.0  # before a watch that has failed is begun again
API, RIGHTS = "api", "rights"  # steps of core.events.POD_STEPS
JOIN_TIMEOUT_S = 2.0


class PodStream(Channel, Protocol):
    """A channel to a pod, whose end may be seen elsewhere."""

    def cut(self) -> None:
        """End it without a good-bye; a blocked call returns."""

    def dispose(self) -> None:
        """Release it, once no thread uses it."""


def pod_of(host: Host) -> str:
    """Return the name of the pod that is a host."""
    return host.pod or host.name


class PodsBackend:
    """Opens channels to agents in the pods of one place."""

    client_return = CLIENT_RETURN_S

    def __init__(self, place: PodPlace, environ: Mapping[str, str] = os.environ) -> None:
        self._place, self._environ = place, environ
        self._api: Api | None = None
        self._hosts: Sequence[Host] = ()
        self._lock = threading.Lock()
        self._has_lost = threading.Condition(self._lock)
        self._pods: dict[str, Pod] = {}  # by name, as they were seen last
        self._uids: dict[str, str] = {}  # of the pods that were opened
        self._restarts: dict[str, int] = {}  # of their containers, then
        self._gone: dict[str, str] = {}  # why a pod is gone, by name
        self._away = ""  # why the API server did not answer the last question about a pod; "": it did
        self._channels: dict[str, list[PodStream]] = {}
        self._is_over = threading.Event()
        self._watch: threading.Thread | None = None

    def listen(self, post: Callable[[Event], None]) -> None:
        pass  # the reason of a lost pod is asked for by ``why``

    def open(self, hosts: Sequence[Host], argv: Sequence[str]) -> Iterator[Opened]:
        self._hosts = hosts
        try:
            self._api = Api(self._place, self._environ)
        except MeshError as error:
            failed = HostUnreachable(str(error), hint=error.hint, step=API)
            yield from (Opened(node=node, result=failed) for node in range(len(hosts)))
            return
        with contextlib.suppress(MeshError):
            self._look()
        self._watch = threading.Thread(target=self._watch_pods, name="mesh-pods", daemon=True)
        self._watch.start()
        with ThreadPoolExecutor(OPENED_AT_ONCE, thread_name_prefix="mesh-exec") as pool:
            opening = {pool.submit(self._open, node, argv): node for node in range(len(hosts))}
            for done in as_completed(opening):
                node = opening[done]
                host = hosts[node]
                yield Opened(node=node, result=done.result(), address=host.internal_ip or host.address)

    def _open(self, node: int, argv: Sequence[str]) -> PodStream | HostUnreachable:
        try:
            return self._exec(node, argv)
        except HostUnreachable as error:
            return error

    def reopen(self, node: int, argv: Sequence[str]) -> PodStream:
        name = pod_of(self._hosts[node])
        pod = None if self._gone.get(name) else self._ask(name, REOPEN_TIMEOUT_S)
        if gone := self._gone.get(name):
            raise HostUnreachable(gone, step=state.SCHEDULE, is_final=True)
        if pod is None and self._away:
            raise HostUnreachable(self._away, step=API)
        return self._exec(node, argv)

    def _exec(self, node: int, argv: Sequence[str]) -> PodStream:
        name = pod_of(self._hosts[node])
        assert self._api is not None
        if self._is_over.is_set():
            raise HostUnreachable("the run has ended")
        try:
            channel = self._start(name, argv)
        except ApiFailed as error:  # a server that has just started may refuse what it grants a moment later
            raise self._refused(name, error) from error
        except ApiAway as error:
            raise HostUnreachable(str(error), hint=self._place.kubectl("get --raw /readyz"), step=API) from error
        with self._lock:
            self._channels.setdefault(name, []).append(channel)
        if self._is_over.is_set():  # ``close`` came before this channel
            channel.close()
        return channel

    def _start(self, name: str, argv: Sequence[str]) -> PodStream:
        """Start a program in a pod. Raises ApiFailed and ApiAway."""
        assert self._api is not None
        return self._api.exec(name, argv)

    def _refused(self, name: str, error: ApiFailed) -> HostUnreachable:
        """Return why a program could not be started in a pod, by the state of the pod."""
        if error.status in (401, 403):
            step = API if error.status == 401 else RIGHTS
            return HostUnreachable(f"pod {name}: {error}", hint=error.hint, step=step)
        pod = self._ask(name, LOOK_TIMEOUT_S)
        if gone := self._gone.get(name):
            return HostUnreachable(f"pod {name}: {gone}", step=state.SCHEDULE, is_final=True)
        if pod is not None and not state.runs(pod, self._place.container):
            assert self._api is not None
            why, _ = state.waits_for(pod, events_of(self._api, pod), self._place.container)
            hint = f"{self._place.kubectl('describe pod')} {name}"
            return HostUnreachable(f"pod {name}: {why}", hint=hint, step=state.step_of(pod))
        return HostUnreachable(f"pod {name}: {error}", hint=error.hint, step=state.SCHEDULE)

    def explain(self, node: int, end: NoAgent) -> HostUnreachable:
        name = pod_of(self._hosts[node])
        if why := self._why(name):
            return HostUnreachable(f"pod {name}: {why}", step=state.SCHEDULE, is_final=bool(self._gone.get(name)))
        last = last_line(end.stderr or end.banner)
        container = f" -c {self._place.container}" if self._place.container else ""
        shell = f"{self._place.kubectl('exec')} {name}{container} -- python3 --version"
        if end.limit:
            message = f"pod {name}: no agent started within {end.limit:g} s"
            return HostUnreachable(message, hint=f"try `{shell}`", step=state.PYTHON)
        status = "" if end.status is None else f" (exit {end.status})"
        message = f"pod {name}: the exec ended before mesh's agent started{status}"
        return HostUnreachable(message + f": {last}" * bool(last), hint=f"try `{shell}`", step=state.PYTHON)

    def why(self, node: int) -> str:
        name = pod_of(self._hosts[node])
        if (why := self._why(name) or self._away) or self._api is None:
            return why
        with self._has_lost:
            self._has_lost.wait_for(lambda: self._gone.get(name) or self._is_over.is_set(), END_SHOWN_S)
            return self._gone.get(name, "")

    def _why(self, name: str) -> str:
        """Return why a pod is gone, and the trouble of its node; "" if nothing shows it now."""
        if self._api is None:
            return ""
        until = time.monotonic() + WHY_TIMEOUT_S
        pod = self._pods.get(name) if self._gone.get(name) else self._ask(name, WHY_TIMEOUT_S)
        gone, trouble = self._gone.get(name, ""), ""
        with contextlib.suppress(MeshError):  # nodes are read if allowed
            if pod is not None and (machine := pod.spec.node_name):
                limit = max(0.1, until - time.monotonic())
                trouble = state.node_trouble(self._api.get(f"/api/v1/nodes/{machine}", Node, timeout=limit))
        return "; ".join(one for one in (trouble, gone) if one)

    def user(self, node: int) -> str:
        return self._hosts[node].user

    def close(self) -> None:
        self._is_over.set()
        with self._has_lost:
            self._has_lost.notify_all()
        if self._api is not None:
            self._api.end_watch()
        with self._lock:
            channels = [one for listed in self._channels.values() for one in listed]
            self._channels = {}
        for channel in channels:
            channel.close()
        if self._watch is not None and self._watch is not threading.current_thread():
            self._watch.join(JOIN_TIMEOUT_S)
        for channel in channels:
            channel.dispose()
        if self._api is not None:
            self._api.close()

    # ---- the state of the pods

    def _look(self) -> str:
        """Read all pods; return the version from which a watch goes on. Raises MeshError."""
        assert self._api is not None
        found = self._api.get(self._api.pods, Pods, self._query(), LOOK_TIMEOUT_S)
        listed = {one.name: one for one in found.items or ()}
        for pod in listed.values():
            self._note(pod)
        for name in [one for one in map(pod_of, self._hosts) if one in self._uids and one not in listed]:
            self._ask(name, LOOK_TIMEOUT_S)  # it is gone, or has other labels now
        return found.metadata.resource_version

    def _query(self) -> dict[str, str]:
        return {"labelSelector": self._place.selector} if self._place.selector else {}

    def _watch_pods(self) -> None:
        """Take note of every change of a pod until the end of the run."""
        assert self._api is not None
        while not self._is_over.is_set():
            try:
                query = {**self._query(), "resourceVersion": self._look(), "timeoutSeconds": "1800"}
                for change in self._api.watch(self._api.pods, query, self._is_over):
                    pod = change.object
                    if self._is_over.is_set() or change.type == "ERROR":
                        break
                    if change.type == "DELETED" and not state.is_over(pod):
                        self._ask(pod.name, LOOK_TIMEOUT_S)  # it is gone, or has other labels now
                    elif change.type == "DELETED":
                        self._lose(pod.name, state.end_of(pod) or "the pod was deleted", pod.metadata.uid)
                    else:
                        self._note(pod)
            except MeshError:
                pass  # what is asked for is asked again
            self._is_over.wait(WATCH_PAUSE_S)

    def _note(self, pod: Pod) -> None:
        """Take note of the state of a pod; cut the channels of one that is gone."""
        name, container = pod.name, self._place.container
        with self._lock:
            self._pods[name] = pod
            uid = self._uids.setdefault(name, pod.metadata.uid)
            restarts = self._restarts.setdefault(name, state.status_of(pod, container).restart_count)
        if uid != pod.metadata.uid:
            self._lose(name, "the pod was deleted, and another one of its name made")
        elif state.has_ended(pod, container):
            self._lose(name, state.end_of(pod, container))
        elif restarted := state.restart_of(pod, container, restarts):
            self._lose(name, restarted)

    def _lose(self, name: str, why: str, uid: str = "") -> None:
        with self._lock:
            if uid and self._uids.get(name, uid) != uid:
                return
            self._gone.setdefault(name, why or "the pod is gone")
            self._has_lost.notify_all()
            channels = list(self._channels.get(name, ()))
        for channel in channels:
            channel.cut()

    def _ask(self, name: str, timeout: float) -> Pod | None:
        """Ask for one pod and take note of it; return None if it does not answer."""
        assert self._api is not None
        try:
            pod = self._api.get(self._api.path("pods", name), Pod, timeout=timeout)
        except ApiFailed as error:
            self._away = ""
            if error.status == 404:
                self._lose(name, "the pod is gone: it was deleted")
            return None
        except ApiAway as error:
            self._away = f"the API server was away ({error})"
            return None
        self._away = ""
        self._note(pod)
        return pod
