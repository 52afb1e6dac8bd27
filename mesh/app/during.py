"""Ports of hosts that are forwarded, and debuggers of ranks that are shown, for the time of a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from mesh.app.console import Consoles
from mesh.app.forwarder import Forwarder
from mesh.app.listening import listen
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError
from mesh.core.events import Event, Locked, Lost, PrepareFailed, Started
from mesh.core.forwarding import Forwarded
from mesh.core.interfaces import Backend

JOIN_LIMIT_S = 10.0


class DuringRun:
    """A sink that forwards ports from the first start of a rank until ``end``. A problem with it ends no run."""

    def __init__(self, cluster: Cluster, ports: Sequence[Forwarded], run: str, opened: Callable[[], Backend]) -> None:
        """opened: returns a backend of its own"""
        self._cluster, self._ports, self._run, self._opened = cluster, ports, run, opened
        self.consoles: Callable[[Forwarder], Consoles] | None = None  # makes those of ranks that stop
        self.notify: Callable[[str], object] = lambda text: None  # shows a line, from any thread
        self._master_port = 0  # 0: it is unknown
        self._without: set[int] = set()  # nodes that have failed before the ranks start, and have none
        self._lock = threading.Lock()
        self._is_over = False
        self._thread: threading.Thread | None = None
        self._forwarder: Forwarder | None = None
        self._backend: Backend | None = None

    def handle(self, event: Event) -> None:
        if isinstance(event, Locked) and event.ports:
            self._master_port = event.ports[0]
        if isinstance(event, (PrepareFailed, Lost)) and self._thread is None:
            self._without.add(event.node)
        if isinstance(event, Started) and self._thread is None:
            with self._lock:
                if not self._is_over:
                    self._thread = threading.Thread(target=self._work, name="mesh-forward-run", daemon=True)
                    self._thread.start()

    def idle(self) -> None: ...

    def close(self) -> None: ...

    def end(self) -> None:
        """Close all ports and connections. May be called twice."""
        with self._lock:
            self._is_over = True
            thread, forwarder, backend = self._thread, self._forwarder, self._backend
        if forwarder is not None and backend is not None:
            forwarder.stop()
            backend.close()
        if thread is not None:
            thread.join(JOIN_LIMIT_S)

    def _work(self) -> None:
        backend = self._opened()
        forwarder = Forwarder(self._cluster, backend, self._run, self.notify)
        with self._lock:
            self._forwarder, self._backend = forwarder, backend
            is_over = self._is_over
        try:
            if not is_over:
                self._forward(forwarder)
        except (MeshError, OSError) as error:
            if not self._is_over:
                what = "no debugger is reached" if self.consoles else "no port is forwarded"
                self.notify(f"{what}: {error}")
        finally:
            forwarder.close()

    def _forward(self, forwarder: Forwarder) -> None:
        if self.consoles is None:
            self._carry(forwarder)
            return
        consoles = self.consoles(forwarder)
        forwarder.debugs, forwarder.on_waiting = True, consoles.note
        thread = threading.Thread(target=consoles.serve, name="mesh-debug", daemon=True)
        thread.start()
        try:
            self._carry(forwarder)
        finally:
            consoles.end()
            thread.join(JOIN_LIMIT_S)

    def _carry(self, forwarder: Forwarder) -> None:
        forwarder.open(self._without, is_any_enough=True)
        if self._is_over:
            return
        what = "its debuggers are not reached" if self.consoles else "its ports are not forwarded"
        for failure in forwarder.failures.values():
            self.notify(f"{failure}; {what}")
        ports = [replace(port, remote=port.remote or self._master_port) for port in self._ports]
        without = self._without | forwarder.failures.keys()
        places = listen(self._cluster.hosts, ports, without=without, here=forwarder.here)
        forwarder.listen(places)
        for place in places:
            self.notify(place.told)
        forwarder.serve()
