"""The nodes of a program here: what each inherits, what it reports, and its start after a failure."""

from __future__ import annotations

import os
import select
import time

from mesh.agent.base.errors import hint, why
from mesh.agent.base.light import dumps, partial
from mesh.agent.link.journal import journal_directory
from mesh.agent.nodes.control import ControlChannel
from mesh.agent.nodes.files import BOOK, KEY, PAYLOAD, RESULT, NodeFiles
from mesh.agent.nodes.reports import how_ended, news, send_result
from mesh.agent.nodes.sockets import ListeningSockets
from mesh.agent.process.spawning import Setting
from mesh.agent.run.facts import NodeStopped
from mesh.agent.run.rank import start_rank
from mesh.protocol import nodes as messages
from mesh.protocol.answers import Output
from mesh.protocol.nodes import NodeState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mesh.agent.loop import Loop
    from mesh.agent.port import NodesPort
    from mesh.agent.run.rank import Rank
    from mesh.protocol.first import Begin
    from mesh.protocol.nodes import Node, NodeAddress, NodeSockets
    from mesh.protocol.requests import Payload, Program

    Start = tuple[Sequence[str], Setting, bool]

FIRST_DESCRIPTOR = 3  # of those that a node inherits beside its three standard ones
NODE_SIGNALS = (2, 15)  # SIGINT, SIGTERM: a node unblocks them once it has handlers, so that none ends its start
RESTART_DELAY_S, RESTART_DELAY_MAX_S = 1.0, 30.0  # doubled after each failure of the same node
# Why a run ends, as its nodes read it, by the cause of the order.
REASONS = {
    "preempted": "preemption",
    "program": "stop",
    "completed": "stop",
    "rank": "failure",
    "lost": "failure",
    "timeout": "timeout",
}
OTHER_REASON = "signal"


class NodeOfRun:
    """A node on this host."""

    def __init__(self, about: Node) -> None:
        """Start without sockets and process."""
        self.about = about
        self.sockets: ListeningSockets | None = None
        self.control: ControlChannel | None = None
        self.attempt = 0
        self.by_hand = 0  # starts that a client has asked for, which do not count as failures
        self.is_asked = False  # a client waits for such a start
        self.has_ended = False  # for good
        self.start: Start | None = None  # its command, setting and whether it reads stdin
        self.restart_at = 0.0  # monotonic; 0.0: it is not waiting for its next start


class Nodes:
    """All nodes of a program on this host."""

    def __init__(
        self, port: NodesPort, loop: Loop, begin: Begin, spread: Callable[[Sequence[NodeState]], None]
    ) -> None:
        """Make the nodes of the first request; open nothing. spread: sends states to the agents of other hosts"""
        self._port, self._loop, self._spread = port, loop, spread
        self._files = NodeFiles(begin.run, begin.node)
        self._kept = journal_directory(begin.remote_dir, begin.run, begin.node)
        self._ports, self._plan = begin.node_ports, begin.plan
        self._nodes = {about.rank: NodeOfRun(about) for about in begin.nodes}
        self._book: Sequence[NodeAddress] = ()
        self._states: dict[str, NodeState] = {}  # of all nodes, by label
        self._is_stopped = False  # the program ends: no node is started again
        self._is_told = False  # its nodes have received why; the first reason counts
        self.on_addresses: Callable[[Sequence[NodeAddress]], None] = lambda book: None  # may raise OSError

    # ---- before the start

    def open(self) -> list[NodeSockets]:
        """Open the sockets of all nodes, unless they are open; return their addresses. Raises OSError."""
        self._files.make()
        self._files.write_plan(self._plan)
        for node in self._nodes.values():
            if node.sockets is None:
                node.sockets = ListeningSockets(node.about, self._files.path, self._ports)
        return [node.sockets.addresses for node in self._nodes.values() if node.sockets is not None]

    def close_sockets(self) -> None:
        """Close all sockets: another host is busy."""
        for node in self._nodes.values():
            self._close_sockets(node)

    def take_program(self, request: Program) -> None:
        """Write the addresses of all nodes, and take their key."""
        self._book = request.nodes
        try:
            self._files.make()
            self._files.write_addresses(request.nodes, request.credentials)
            self.on_addresses(request.nodes)
        except OSError as error:
            self._port.fail("start", why(error), hint(error))

    def take_payload(self, request: Payload, data: bytes) -> None:
        """Append a piece to the payload of some nodes."""
        try:
            self._files.make()
            self._files.add_to_payload(request.hash, data)
        except OSError as error:
            self._port.fail("start", why(error), hint(error))

    # ---- processes

    def start(self, rank: int, argv: Sequence[str], setting: Setting, wants_stdin: bool) -> Rank:
        """Start the process of a rank, with all that a node inherits. Raises OSError."""
        node = self._nodes.get(rank)
        if node is None:
            return start_rank(rank, argv, setting, wants_stdin)
        node.start = argv, setting, wants_stdin
        return self._start(node, argv, setting, wants_stdin)

    def end(self, rank: int) -> None:
        """Act on the last messages of a process that has ended, before its end is decided about."""
        node = self._nodes.get(rank)
        if node is not None and node.control is not None:
            self._read(node, 0)
            self._drop_control(node)

    def is_failure(self, rank: int, status: int) -> bool:
        """Return True if the end of a rank with this status ends the run."""
        node = self._nodes.get(rank)
        return status != 0 and not (node is not None and node.about.may_fail)

    def starts_again(self, rank: int, status: int) -> bool:
        """Return True if a rank that has ended will be started again, or waits for that. status: from waitpid"""
        node = self._nodes.get(rank)
        if node is None or self._port.stops_ranks or self._port.is_over or self._is_stopped:
            return False
        has_more = status != 0 and node.attempt - node.by_hand < node.about.restarts
        return node.start is not None and (node.is_asked or has_more)

    def plan_restart(self, rank: Rank, code: int | None, signal: int | None, restart: Callable[[], None]) -> None:
        """Report that a rank will be started again, and call ``restart`` in time. Once for each end."""
        node = self._nodes[rank.rank]
        if node.restart_at:
            return
        failures = node.attempt - node.by_hand
        delay = 0.0 if node.is_asked else min(RESTART_DELAY_MAX_S, RESTART_DELAY_S * 2**failures)
        node.restart_at = time.monotonic() + delay
        coming = messages.Restarting(
            rank=rank.rank,
            attempt=node.attempt + 1,
            time=rank.ended,
            seconds=delay,
            code=code or 0,
            signal=signal or 0,
        )
        self._port.send(coming)
        self._change(node, "restarting", node.attempt + 1, how_ended(code or 0, signal or 0))
        how = f"signal {signal}" if signal else f"exit {code}"
        marker = f"mesh: {node.about.label}: started again after {how}, attempt {node.attempt + 1}\n"
        self._loop.at(("restart", rank.rank), node.restart_at, partial(self._restart, node, marker, restart))

    def ask_restart(self, rank: int) -> bool:
        """Note that a node is to be started again once its process has ended; return False if it has ended for good."""
        node = self._nodes.get(rank)
        if node is None or node.has_ended or node.restart_at:
            return False
        node.is_asked = True
        return True

    def has(self, rank: int) -> bool:
        """Return True if a rank of this host is a node."""
        return rank in self._nodes

    def is_waiting(self, rank: int) -> bool:
        """Return True if a node will be started again."""
        node = self._nodes[rank]
        return bool(node.is_asked or node.restart_at) and not node.has_ended

    def start_again(self, rank: int) -> Rank:
        """Start the process of a rank anew, with its sockets and files. Raises OSError."""
        node = self._nodes[rank]
        assert node.start is not None
        node.attempt += 1
        self._files.forget(f"{RESULT}-{rank}")
        node.by_hand += node.is_asked
        node.is_asked = False
        return self._start(node, *node.start)

    def report_restart(self, rank: Rank) -> None:
        """Report the new process of a rank that was started again."""
        attempt = self._nodes[rank.rank].attempt
        self._port.send(messages.Restarted(rank=rank.rank, attempt=attempt, pid=rank.pid, time=time.time()))

    def report_end(self, rank: int, status: int) -> None:
        """Act on the end of a rank that is not started again."""
        node = self._nodes.get(rank)
        if node is None:
            return
        self._loop.cancel(("restart", rank))
        node.has_ended = True
        self._files.note_end(rank)
        self._close_sockets(node)
        how = how_ended(status >> 8, status & 0x7F) if status else ""
        self._change(node, "failed" if status else "ended", node.attempt, how)
        if node.about.ends_run and not status and not self._port.stops_ranks:
            self._port.post(NodeStopped(rank, 0, f"{node.about.label} has ended"))

    # ---- moves between hosts

    def attempt(self, rank: int) -> int:
        """Return how often a node was started before its present start."""
        return self._nodes[rank].attempt

    def release(self, rank: int, code: int, signal: int) -> None:
        """Forget a node whose process has ended and that starts on another host; its sockets here are closed."""
        node = self._nodes[rank]
        self._loop.cancel(("restart", rank))
        self._drop_control(node)
        self._close_sockets(node)
        self._files.forget(f"{RESULT}-{rank}")
        self._change(node, "restarting", node.attempt + 1, how_ended(code, signal))
        del self._nodes[rank]

    def adopt(self, about: Node) -> None:
        """Open the sockets of a node that comes from another host, and report them."""
        node = self._nodes[about.rank] = NodeOfRun(about)
        try:
            node.sockets = ListeningSockets(about, self._files.path, self._ports)
        except OSError as error:
            self._port.fail("port", f"the sockets of {about.label} cannot be opened: {why(error)}", hint(error))
            return
        self._port.send(messages.Adopted(rank=about.rank, sockets=node.sockets.addresses, time=time.time()))

    def readdress(self, book: Sequence[NodeAddress]) -> None:
        """Write the addresses of all nodes again, because one has moved."""
        self._book = book
        try:
            self._files.write_book(book)
            self.on_addresses(book)
        except OSError as error:
            self._port.fail("start", why(error), hint(error))

    def take(self, rank: int, start: Start, attempt: int) -> Rank:
        """Start the process of an adopted node. Raises OSError. attempt: how often it was started before"""
        node = self._nodes[rank]
        node.start, node.attempt, node.by_hand = start, attempt, attempt
        return self._start(node, *start)

    # ---- states

    def take_changes(self, states: Iterable[NodeState]) -> None:
        """Pass changes of nodes on other hosts on to the nodes here."""
        for state in states:
            self._states[state.label] = state
            self._tell(news(state))

    def settle(self) -> None:
        """End a program without a client once only nodes that serve are left. Called after each turn of the loop."""
        if not self._port.is_detached or self._is_stopped or not any(node.serves for node in self._book):
            return
        at_work = [node.label for node in self._book if not node.serves]
        ended = [
            label for label in at_work if label in self._states and self._states[label].state in ("ended", "failed")
        ]
        if at_work and len(ended) == len(at_work):
            self._is_stopped = True
            self._port.post(NodeStopped(min(self._nodes), 0, "all nodes but those that serve have ended"))

    def stop(self, cause: str) -> None:
        """Report to all nodes that the program ends. cause: of the order"""
        if not self._is_told:
            self._is_told = self._is_stopped = True
            self._tell({"stop": REASONS.get(cause, OTHER_REASON if cause else "stop")})

    def address(self, label: str) -> str:
        """Return the path of a node's Unix socket on this host; "" if there is no such node, or it has ended."""
        for node in self._nodes.values():
            if node.about.label == label and node.sockets is not None:
                return node.sockets.addresses.unix
        return ""

    def rank(self, label: str) -> int:
        """Return the rank of a node on this host; -1 if there is no such node."""
        return next((rank for rank, node in self._nodes.items() if node.about.label == label), -1)

    def place(self, name: str) -> str:
        """Return the path of a file in the private directory."""
        return self._files.place(name)

    def close(self) -> None:
        """Close everything, and remove the files; the results of a detached run stay beside its journal."""
        if self._port.is_detached:
            for rank in self._nodes:
                self._files.keep(f"{RESULT}-{rank}", self._kept)
        for node in self._nodes.values():
            self._drop_control(node)
        self.close_sockets()
        self._files.remove()

    # ---- one node

    def _start(self, node: NodeOfRun, argv: Sequence[str], setting: Setting, wants_stdin: bool) -> Rank:
        self._drop_control(node)
        node.restart_at = 0.0
        control = node.control = ControlChannel()
        keep, names = {FIRST_DESCRIPTOR: control.node_end()}, {}
        for number, (name, own) in enumerate(
            node.sockets.by_name.items() if node.sockets is not None else (), FIRST_DESCRIPTOR + 1
        ):
            keep[number], names[name] = own.fileno(), number
        variables = {
            "MESH_ATTEMPT": str(node.attempt),
            "MESH_CONTROL_FD": str(FIRST_DESCRIPTOR),
            "MESH_NODE_SOCKETS": dumps(names),
            "MESH_ADDRESS_BOOK": self._files.place(BOOK),
        }
        for variable, file in (("MESH_LINK_KEY", KEY), ("MESH_PAYLOAD", PAYLOAD + node.about.payload)):
            if (descriptor := self._files.descriptor(file)) >= 0:
                number = FIRST_DESCRIPTOR + len(keep)
                keep[number], variables[variable] = descriptor, f"/proc/self/fd/{number}"
        environment = dict(setting.environment)
        environment.update({name.encode(): os.fsencode(value) for name, value in variables.items()})
        own_setting = Setting(environment, setting.directory, setting.umask, setting.limits, setting.cgroup)
        own_setting.blocked = NODE_SIGNALS
        try:
            rank = start_rank(node.about.rank, argv, own_setting, wants_stdin, keep)
        finally:
            control.give()
        self._loop.watch(control.fileno(), select.POLLIN, partial(self._read, node))
        for state in list(self._states.values()):  # what the node has missed, when it is started again
            if state.state != "ready" and state.label != node.about.label:
                control.send(news(state))
        return rank

    def _restart(self, node: NodeOfRun, marker: str, restart: Callable[[], None]) -> None:
        if not (self._port.stops_ranks or self._port.is_over or self._is_stopped):
            self._port.send(Output(rank=node.about.rank, stream="stderr"), marker.encode())
            restart()

    def _read(self, node: NodeOfRun, events: int) -> None:
        """Act on messages of a node."""
        control = node.control
        if control is None:
            return
        descriptor = control.fileno()
        for message in control.receive():
            if message.get("ready") is True:
                now = time.time()
                self._port.send(messages.RankReady(rank=node.about.rank, attempt=node.attempt, time=now))
                self._change(node, "ready", node.attempt)
            elif type(message.get("stop")) is int:
                reason = str(message.get("why", ""))[: messages.WHY_CHARACTERS].replace("\0", "")
                self._port.post(NodeStopped(node.about.rank, int(str(message["stop"])) & 0xFF, reason))
            elif isinstance(message.get("result"), str):
                send_result(self._port, self._files, node.about, str(message["result"]))
        if not control.is_open:
            self._loop.unwatch(descriptor)
            node.control = None

    def _change(self, node: NodeOfRun, state: str, attempt: int, why: str = "") -> None:
        """Pass a change of a node here on to all other nodes that this agent can reach."""
        change = NodeState(label=node.about.label, state=state, attempt=attempt, why=why)
        self.take_changes([change])
        self._spread([change])

    def _tell(self, message: dict[str, object]) -> None:
        for node in self._nodes.values():
            if node.control is not None:
                node.control.send(message)

    def _drop_control(self, node: NodeOfRun) -> None:
        if node.control is not None:
            self._loop.unwatch(node.control.fileno())
            node.control.close()
            node.control = None

    def _close_sockets(self, node: NodeOfRun) -> None:
        if node.sockets is not None:
            node.sockets.close()
            node.sockets = None
