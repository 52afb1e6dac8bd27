"""The backend of many pods: one exec runs a switchboard in one of them, and carries the streams of all."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from mesh.backends.pods.backend import PodsBackend, PodStream, pod_of
from mesh.backends.pods.channel import ExecChannel
from mesh.backends.switchboard.backend import WINDOW_BYTES, WINDOWS_BYTES
from mesh.backends.switchboard.line import Line
from mesh.core.cluster import Host, PodPlace
from mesh.core.errors import ChannelClosed, HostUnreachable
from mesh.core.events import Event, Notice
from mesh.core.text import one_line

PROGRAM = "/run/mesh-switchboard/program"  # in each pod, from a Secret
ANSWER_TIMEOUT_S = 10.0  # for the switchboard to start
NODE_LIMIT_S = 10.0  # for a pod to be connected to it; then it is reached without
RETRY_INTERVAL_S = 30.0  # before another switchboard is tried, after one that did not start
ANSWER_BYTES = 64 << 10


def sharing_an_address(hosts: Sequence[Host]) -> set[str]:
    """Return the pods with `hostNetwork` that share a Kubernetes node: a call to one of them may reach another one.

    >>> a, b, c = (Host(name=name, address=address) for name, address in (("a", "1"), ("b", "2"), ("c", "1")))
    >>> sorted(sharing_an_address([a, b, c]))
    ['a', 'c']
    """
    counts = Counter(host.internal_ip or host.address for host in hosts)
    return {host.name for host in hosts if counts[host.internal_ip or host.address] > 1}


class SwitchedPods(PodsBackend):
    """Opens channels through a switchboard; to pods that it does not reach, by an exec of their own."""

    def __init__(self, place: PodPlace, python: str, environ: Mapping[str, str] = os.environ) -> None:
        """python: in the pods"""
        super().__init__(place, environ)
        self._python = python
        self._post: Callable[[Event], None] = lambda event: None
        self._connecting = threading.Lock()
        self._line: Line | None = None
        self._links: list[tuple[Line | None, ExecChannel]] = []
        self._failed_at = float("-inf")  # monotonic: the last switchboard did not start
        self._is_named = False

    def listen(self, post: Callable[[Event], None]) -> None:
        self._post = post

    def _start(self, name: str, argv: Sequence[str]) -> PodStream:
        is_alone = name not in sharing_an_address(self._hosts)
        if not is_alone:
            self._notify(f"{name} has the address of another pod (hostNetwork)")
        line = self._shared() if is_alone else None
        if line is not None and line.wait_nodes({name}, NODE_LIMIT_S):
            window = max(WINDOW_BYTES[0], min(WINDOW_BYTES[1], WINDOWS_BYTES // len(self._hosts)))
            return line.open(name, list(argv), window)
        if line is not None and not line.is_over:
            self._notify(f"{name} is not connected to the switchboard")
        return super()._start(name, argv)

    def close(self) -> None:
        super().close()
        for line, link in self._links:
            if line is not None:
                line.close()
            link.close()
            link.dispose()

    def _shared(self) -> Line | None:
        """Return the connection to the switchboard; start one if there is none. None: it does not start.

        Raises ApiFailed and ApiAway.
        """
        with self._connecting:
            if self._line is not None and not self._line.is_over:
                return self._line
            if self._is_over.is_set() or time.monotonic() < self._failed_at + RETRY_INTERVAL_S:
                return None
            link = super()._start(pod_of(self._hosts[0]), [self._python, "-I", "-S", PROGRAM, "pods-board"])
            assert isinstance(link, ExecChannel)
            self._links.append((None, link))
            try:
                line = Line(link, self._key(link), self._notice)
                self._links[-1] = (line, link)
                line.wait_welcome()
            except (ChannelClosed, HostUnreachable, ValueError, LookupError) as error:
                self._failed_at = time.monotonic()
                self._notify(f"no switchboard in pod {pod_of(self._hosts[0])} ({one_line(str(error))})")
                return None
            self._line = line
            return line

    def _key(self, link: ExecChannel) -> str:
        """Send the addresses of all pods; return the key. Raises ChannelClosed, ValueError and LookupError."""
        clock = threading.Timer(ANSWER_TIMEOUT_S, link.cut)
        clock.start()
        try:
            nodes = {pod_of(host): host.internal_ip or host.address for host in self._hosts}
            link.send(json.dumps({"nodes": nodes}).encode() + b"\n")
            answer = b""
            while not answer.endswith(b"\n") and len(answer) < ANSWER_BYTES:
                data = link.receive()
                if not data:
                    raise ChannelClosed(link.farewell().stderr.decode("utf-8", "replace").strip() or "it ended")
                answer += data
        finally:
            clock.cancel()
        return str(json.loads(answer)["key"])

    def _notify(self, text: str) -> None:
        """Name the first pod that is reached without the switchboard."""
        if not self._is_named:
            self._is_named = True
            self._notice(f"{text}: its stream goes through the API server by itself")

    def _notice(self, text: str) -> None:
        self._post(Notice(time=time.time(), text=one_line(text)))
