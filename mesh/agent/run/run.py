"""A run on this host: the parts, the decisions, and the loop between them."""

from __future__ import annotations

import os
import select
import time

from mesh.agent.base.directories import machine_id
from mesh.agent.base.light import signal
from mesh.agent.control.sockets import other_runs
from mesh.agent.loop import Loop
from mesh.agent.run.actions import Actions
from mesh.agent.run.decide import Decisions
from mesh.agent.run.executor import Executor
from mesh.agent.run.facts import AllGone, Failed, Terminated
from mesh.agent.run.handlers import carry_out
from mesh.agent.run.lease import Lease
from mesh.agent.run.parts import Parts
from mesh.agent.run.requests import Requests
from mesh.agent.run.rules import Rules
from mesh.agent.run.view import describe
from mesh.protocol.answers import Hello
from mesh.protocol.frames import FrameError
from mesh.protocol.requests import Lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mesh.agent.base.background import Answer, Background
    from mesh.agent.guardian import Guardian
    from mesh.agent.run.facts import Fact
    from mesh.protocol.first import Begin
    from mesh.protocol.frames import Decoder
    from mesh.protocol.messages import Message
    from mesh.protocol.nodes import Taken
    from mesh.protocol.requests import Request

FOREVER = float("inf")


class Run:
    """The port of all parts. Facts of the parts go to the decisions, orders of the decisions to the parts."""

    def __init__(self, begin: Begin, decoder: Decoder, guardian: Guardian, is_moved: bool) -> None:
        """Make the agent of a run.

        decoder: may hold the beginning of a request; is_moved: HOME is read-only, and the files of the run are in /tmp
        """
        self._guardian, self._parent, self._began = guardian, os.getppid(), time.time()
        self._loop = Loop()
        self._requests = Requests(self._carry_out)
        self._parts = Parts(self, self._loop, begin, decoder, self._requests, is_moved)
        rules = Rules(
            grace=begin.grace,
            drain=begin.drain,
            timeout=begin.timeout,
            keep_going=begin.keep_going,
            device_patience=begin.device_patience,
            has_nodes=bool(begin.nodes) or begin.program,
        )
        rules.term_limit = begin.term_limit
        lease = Lease(begin.lease, begin.return_within, time.monotonic(), agents_meet=_agents_meet(begin))
        self._decisions = Decisions(rules, lease)
        self._actions = Actions(self, self._loop, self._parts)
        self._executor = Executor(self._decisions, self._actions.table())

    def serve(self, requests: Sequence[tuple[Request, bytes]]) -> None:
        """Serve until every process of the run is gone, and the client has received that or is gone itself.

        requests: came with the first message
        """
        parts, decisions = self._parts, self._decisions
        with self._loop as loop:
            loop.on_signal(signal.SIGCHLD, self._children_ended)
            loop.on_signal(signal.SIGTERM, self._terminated)
            loop.on_other_child_end = lambda pid, status: parts.sync.child_ended(pid)
            loop.before_poll = [self._arm]
            loop.after_turn = [self._end_turn]
            parts.client.open()
            try:
                self._begin(requests)
            finally:  # the reason goes to the client
                self.flush()
            try:
                loop.run_until(
                    lambda: decisions.is_done(time.monotonic(), parts.out.is_acknowledged, parts.peers.is_needed)
                )
            finally:
                parts.close(decisions.is_detached or decisions.is_kept)

    def precede(self, marker: bytes) -> None:
        """Send a line before all messages."""
        self._parts.out.precede(marker)

    # ---- the loop

    def _begin(self, requests: Sequence[tuple[Request, bytes]]) -> None:
        """Greet the client, and carry out what came with its first message."""
        begin = self._parts.begin
        self.send(Hello(time=time.time(), machine=machine_id(), pid=os.getpid(), runs=other_runs(begin.run)))
        if begin.lock:
            self._carry_out(Lock(), b"")
        for request, data in requests:
            self._requests.receive(request, data)
        self._requests.serve()

    def _arm(self) -> None:
        """Prepare the next poll."""
        parts, decisions, loop, now = self._parts, self._decisions, self._loop, time.monotonic()
        parts.client.arm()
        parts.peers.arm()
        parts.answering.arm(parts.out.has_room)
        parts.following.arm(dict.fromkeys(parts.followers.descriptors(), select.POLLIN))
        loop.at("decide", decisions.due_at(now), _do_nothing)
        loop.at("end", FOREVER if decisions.is_clear else parts.processes.next(), _do_nothing)
        loop.at("go on", now if parts.out.is_moving or self._requests.is_ready else FOREVER, _do_nothing)
        self._guardian.renew(decisions.must_turn_by(now, parts.processes.kill_at()))

    def _end_turn(self) -> None:
        """Pass on output and reports of this turn, decide by the clock, and carry out waiting requests."""
        parts = self._parts
        parts.answering.serve()
        parts.sources.settle()
        parts.ranks.report_ends()
        self._take_from_followers()
        parts.peers.serve()
        if parts.nodes is not None:
            parts.nodes.settle()
        self._executor.tick()
        self._look_for_the_end()
        self._requests.serve()
        if parts.detachment.write():
            parts.followers.wake()

    def _take_from_followers(self) -> None:
        """Carry out orders of clients that follow the journal."""
        for order in self._parts.followers.receive(self._parts.following.take()):
            self._requests.add(order)

    def _look_for_the_end(self) -> None:
        """Kill what has had its grace, and report once every process is gone or cannot be ended."""
        parts = self._parts
        if self._decisions.is_clear or self._actions.is_cleaning:
            return
        left = parts.processes.step()
        if left is None:
            return
        busy: Sequence[str] = ()
        if parts.environment.has_claimed:
            from mesh.agent.run import devices

            busy = devices.blocked(devices.find(parts.begin.devices))
        self.post(
            AllGone(
                tuple(process.described() for process in left),
                busy=tuple(busy),
                uses_containers=parts.containers.used(),
                has_copy=bool(parts.share),
                was_killed=parts.processes.is_hard,
            )
        )

    def _children_ended(self) -> None:
        self._parts.processes.look_now()
        self._loop.collect_children()

    def _terminated(self) -> None:
        self.post(Terminated(os.getppid() != self._parent))

    def _carry_out(self, request: Request, data: bytes) -> None:
        try:
            carry_out(self, self._parts, request, data)
        except FrameError as error:
            self._parts.client.refuse(error)

    # ---- the port of all parts

    @property
    def is_over(self) -> bool:
        return self._decisions.is_over

    def send(self, message: Message, data: bytes = b"") -> None:
        self._parts.out.send(message, data)

    def send_now(self, message: Message) -> None:
        self._parts.out.send_urgently(message)
        self.flush()

    def flush(self) -> None:
        self._parts.client.flush()

    def fail(self, step: str, message: str, hint: str = "") -> None:
        self.post(Failed(step, message, hint))

    def post(self, fact: Fact) -> None:
        self._executor.post(fact)

    def background(self, work: Callable[[], Answer], then: Callable[[Answer], None]) -> Background:
        def end(answer: Answer) -> None:
            self._requests.end_work()
            then(answer)

        background = self._loop.background(work, end)
        self._requests.begin_work()
        return background

    # ---- of single parts

    def listen(self) -> None:
        begin = self._parts.begin
        self._parts.control.listen(begin.run, begin.node)

    def keep_open(self, descriptor: int) -> None:
        self._guardian.keep_open(descriptor)

    def suspend_guardian(self) -> None:
        self._guardian.renew(FOREVER)

    @property
    def stops_ranks(self) -> bool:
        return self._decisions.stops_ranks

    @property
    def has_ranks(self) -> bool:
        return bool(self._parts.ranks.ranks) or self._parts.ranks.has_begun

    def may_leave_unasked(self) -> bool:
        return not self.is_over and self._decisions.may_leave_unasked(self._parts.holds())

    def make_way(self) -> None:
        from mesh.agent.detached import logins  # noqa: F401  (the directory of the agent may be gone later)
        from mesh.agent.link import journal  # noqa: F401
        from mesh.agent.run import devices  # noqa: F401
        from mesh.protocol import journal as journal_messages  # noqa: F401

        self._parts.sync.drop()
        self.listen()
        self._parts.locking.release_ports()

    def hold_output(self) -> None:
        self._parts.detachment.hold()

    def continue_output(self, taken: Taken) -> None:
        self._parts.out.continue_at(taken.rank, taken.printed)
        self._parts.detachment.taken.append(taken)

    @property
    def is_detached(self) -> bool:
        return self._decisions.is_detached

    @property
    def last_order(self) -> int:
        return self._requests.last_order

    def describe(self) -> dict[str, object]:
        return describe(self._parts, self._decisions, self._began)

    def pass_on(self, number: int, ranks: Sequence[int] | None) -> dict[int, int]:
        return self._parts.ranks.pass_on(number, ranks)

    def restart(self, ranks: Sequence[int], grace: float | None, to: int) -> dict[int, str]:
        moves = self._parts.moves
        if to == self._parts.begin.node:  # the request reaches all hosts, and this one after the rank itself
            return {}
        if to < 0:
            moving = moves.moving(ranks)
            others = [rank for rank in ranks if rank not in moving]
            return {**self._parts.ranks.ask_restart(others, grace), **moving}
        return moves.ask(ranks, self._parts.begin.grace if grace is None else grace, to)


def _do_nothing() -> None:
    """Let a turn of the loop begin."""


def _agents_meet(begin: Begin) -> bool:
    """Return True if the client has the agents meet before it leaves; it does so where a failure ends all ranks."""
    hosts = begin.plan.get("hosts")
    return isinstance(hosts, list) and len(hosts) > 1 and (bool(begin.nodes) or not begin.keep_going)
