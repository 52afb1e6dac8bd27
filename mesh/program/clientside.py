"""Nodes that are threads of the process that launches, while all other nodes are processes on hosts.

Hosts need no way to the client: it connects to each process of a node through that node's agent, and the node then
calls over this link in the other direction. Arguments from hosts are read by the plain codec.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from mesh.core.errors import MeshError
from mesh.program.graph import Graph
from mesh.program.ledger import State, Stop
from mesh.program.payload import Payload
from mesh.program.running import Running
from mesh.program.runtime import frames, plain
from mesh.program.runtime.caller import Caller
from mesh.program.runtime.errors import CLIENT, ENDED, NodeLost
from mesh.program.runtime.frames import Frame
from mesh.program.runtime.here import Context, Here
from mesh.program.runtime.links import Link, memory_links
from mesh.program.threads import STOP_TIMEOUT_S, NodeThread

LINK_NEWS_TIMEOUT_S = 10.0  # for the event that explains the end of a link
START_TIMEOUT_S = 900.0  # for the process of a node to begin, so that it can be called


class ClientNode(NodeThread):
    """A node that is a thread here."""

    def __init__(
        self,
        payload: Payload,
        context: Context,
        running: Running,
        calls_run: bool,
        on_end: Callable[[str, State], None],
    ) -> None:
        super().__init__(payload, context, running, calls_run)
        self._on_end = on_end

    def _finish(self, state: State, why: str = "", code: int = 1) -> None:
        is_first = not self.has_ended
        super()._finish(state, why, code)
        if is_first:
            self._on_end(self.context.here.label, state)


class ClientNodes:
    """The nodes of one program that are threads here."""

    def __init__(
        self,
        program: Graph,
        payloads: Mapping[str, Payload],
        running: Running,
        way: tuple[Callable[[str], Link], Callable[[Mapping[str, State]], None]],
        calls_run: bool,
    ) -> None:
        """payloads: of all nodes

        way: returns a link to a node on a host, or raises OSError; and sends the hosts the states of nodes here
        """
        self._program, self._running = program, running
        self._remote, self._send_states = way
        self._ended: dict[str, State] = {}  # nodes here, for those on hosts, whose processes may begin later
        self._hosts = {label: payload.place.host for label, payload in payloads.items()}
        self._changed = threading.Condition()
        self._begun: set[str] = set()  # nodes whose processes are there
        self._is_over = False
        mine = {label: payload for label, payload in payloads.items() if payload.place.host == CLIENT}
        self.client = self._caller("")
        self._nodes = {label: self._node(payload, calls_run) for label, payload in mine.items()}
        self.callers = [self.client, *(node.context.caller for node in self._nodes.values())]

    def _caller(self, label: str) -> Caller:
        place = self._program.id, label
        return Caller(place, self._connect, self._hosts, self._program.trust_hosts, LINK_NEWS_TIMEOUT_S)

    def _node(self, payload: Payload, calls_run: bool) -> NodeThread:
        place = payload.place
        here = Here(self._program.name, place.label, place.index, place.count, CLIENT)

        def stop(code: int, why: str) -> None:
            self._running.end(Stop(reason="stop", code=code, why=why, label=place.label))

        context = Context(here, self._caller(place.label), stop)
        return ClientNode(payload, context, self._running, calls_run, self._note_end)

    def _note_end(self, label: str, state: State) -> None:
        """Send the hosts the end of a node here: calls to it fail there, and nodes wait for it no longer."""
        with self._changed:
            self._ended[label] = state
            has_others = bool(self._begun)
        if has_others:
            self._send_states({label: state})

    @property
    def labels(self) -> frozenset[str]:
        """The labels of these nodes."""
        return frozenset(self._nodes)

    def start(self) -> None:
        """Start all threads. Their calls wait for the processes of other nodes."""
        for node in self._nodes.values():
            node.thread.start()

    def _connect(self, label: str) -> Link:
        """Return a link to a node, once its process has begun. Raises OSError."""
        own = self._nodes.get(label)
        if own is not None:
            if own.has_ended:
                raise NodeLost(label, CLIENT, "it has failed" if own.has_failed else ENDED)
            one, other = memory_links()
            own.server.attach(other)
            return one
        if self._nodes:
            with self._changed:
                self._changed.wait_for(lambda: label in self._begun or self._is_over, START_TIMEOUT_S)
        return self._remote(label)

    def begin(self, label: str) -> None:
        """Note that the process of a node has begun, and let it call the nodes here."""
        with self._changed:
            self._begun.add(label)
            self._changed.notify_all()
            ended = dict(self._ended)
        if ended:
            self._send_states(ended)
        if self._nodes:
            threading.Thread(target=self._offer, args=(label,), name="mesh-offer", daemon=True).start()

    def _offer(self, label: str) -> None:
        """Connect to a node, and serve its calls over that link."""
        for own, node in self._nodes.items():
            greeting = {"program": self._program.id, "to": label, "from": own, "serves": True}
            try:
                link = self._remote(label)
            except OSError:  # the process has ended again; the next one gets links of its own
                return
            try:
                link.send(Frame(frames.HELLO, body=plain.dumps(greeting)[0]))
            except OSError:
                link.release()
            else:
                node.server.attach(link)

    def stop(self, reason: str) -> None:
        """Set the stop of all nodes here; the first reason counts."""
        for node in self._nodes.values():
            node.context.set_stopped(reason)

    def finish(self, reason: str) -> None:
        """Note that no process of the program is left."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self.stop(reason)

    def close(self) -> None:
        """Wait for all threads, and end all links. Raises MeshError for nodes that do not stop."""
        late = []
        for label, node in self._nodes.items():
            if node.thread is not threading.current_thread() and node.thread.ident is not None:
                node.thread.join(STOP_TIMEOUT_S)
                late += [label] if node.thread.is_alive() else []
        for caller in self.callers:
            caller.close()
        for node in self._nodes.values():
            node.end()
        if late:
            hint = "a run() ends by itself once wait_for_stop() returns; threads cannot be killed"
            raise MeshError(f"{', '.join(late)}: still running {STOP_TIMEOUT_S:g} s after the stop", hint=hint)
