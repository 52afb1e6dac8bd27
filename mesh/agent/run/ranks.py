"""The ranks of this host, or a setup: their start, their standard input, and the reports of their ends."""

from __future__ import annotations

import os
import select
import time

from mesh.agent.base.errors import hint, why
from mesh.agent.base.light import partial, signal
from mesh.agent.process.processes import pass_on
from mesh.agent.run.facts import RankEnded, RanksStarting, RankStarted, SetupEnded
from mesh.agent.run.rank import Rank, start_rank
from mesh.protocol import answers
from mesh.protocol import nodes as messages
from mesh.protocol.frames import FrameError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mesh.agent.link.client import ClientConnection
    from mesh.agent.loop import Loop
    from mesh.agent.nodes.nodes import Nodes
    from mesh.agent.port import RanksPort
    from mesh.agent.run.environment import Environment
    from mesh.agent.run.group import Group
    from mesh.agent.run.restarting import Restarts
    from mesh.agent.run.setup import Command, Setup
    from mesh.agent.run.sources import Sources
    from mesh.protocol.requests import Resize, Start
    from mesh.protocol.requests import Setup as SetupRequest

END_REPORT_LIMIT_S = 1.0  # a client that takes what it is sent has the end of a rank by then
START_GATHER_S = 0.02  # a short command ends so soon: its start is reported together with its output


class Ranks:
    """The processes of ranks, or the one of a setup."""

    def __init__(
        self,
        port: RanksPort,
        loop: Loop,
        client: ClientConnection,
        sources: Sources,
        environment: Environment,
        group: Group,
    ) -> None:
        """Start without any."""
        self._port, self._loop, self._client = port, loop, client
        self._sources, self._environment, self._group = sources, environment, group
        self.ranks: dict[int, Rank] = {}  # by pid
        self.nodes: Nodes | None = None  # ranks that are nodes of a program
        self.restarts: Restarts  # of the other ranks
        # Called with each rank that was to be started again: its new pid and "", or 0 and why there is none.
        self.on_restart: Callable[[int, int, str], None] = lambda rank, pid, why: None
        self._setup: Setup | None = None
        self.has_begun = False  # the ranks of the run were started, though this host may have none
        self._unreported: list[Rank] = []  # ranks whose end may wait behind their output

    def use(self, restarts: Restarts) -> None:
        """Set the part that ends the processes of ranks for a restart."""
        self.restarts = restarts
        restarts.on_ready, restarts.on_stuck = self._make_way, self._report_stuck

    # ---- start

    def start(self, request: Start) -> None:
        """Start the ranks of this host, once their environment is complete."""
        if self._port.is_over:
            return
        if request.finds is None and not self._environment.is_known:
            raise FrameError("start: the host is not prepared")
        if request.finds is not None:  # no prerun has needed it
            self._environment.learn(request.finds, lambda: self._start(request))
        else:
            self._start(request)

    def start_setup(self, request: SetupRequest) -> None:
        """Run the commands of a setup, in the home directory."""
        from mesh.agent.run.setup import Setup

        if self._port.is_over:
            return
        if not self._environment.is_known:
            raise FrameError("setup: the host is not prepared")
        self._port.listen()
        commands: list[Command] = [{"run": one.run, "unless": one.unless, "sudo": one.sudo} for one in request.commands]
        try:
            setup = self._setup = Setup(request.rank, commands, request.force, self._environment.of_setup())
        except OSError as error:
            self._port.fail("start", why(error))
            return
        self._loop.watch(setup.words, select.POLLIN, partial(self._read_setup, setup))
        self.add(setup)

    def _start(self, request: Start) -> None:
        port = self._port
        port.make_way()
        try:
            self._environment.at_start()
            port.post(RanksStarting(len(request.ranks), request.detach))
            if request.detach:
                port.hold_output()
        except OSError as error:
            port.fail("start", why(error), hint(error))
            return
        self.has_begun = True
        self._client.gather(time.monotonic() + START_GATHER_S)
        for rank in request.ranks:
            try:
                setting = self._environment.of_rank(rank.env)
                setting.terminal = rank.terminal
                if self._environment.has_debugger:
                    self._environment.allow_debugging(setting, rank.rank)
                start = start_rank if self.nodes is None else self.nodes.start
                argv = rank.argv or request.argv
                self.restarts.note_start(rank.rank, (argv, setting, rank.stdin))
                self.add(start(rank.rank, argv, setting, rank.stdin))
            except OSError as error:  # no process or descriptor is left to have
                port.fail("start", why(error))
                break

    def add(self, rank: Rank, *, is_new: bool = True) -> None:
        """Take over the process of a rank. is_new: its start is reported here"""
        self.ranks[rank.pid] = rank
        self._group.note(rank.pid, rank.sources)
        for source in rank.sources:
            self._sources.add(source)
        self._loop.on_child_end(rank.pid, partial(self._ended, rank))
        if is_new:
            self._port.send(answers.Started(rank=rank.rank, pid=rank.pid, time=time.time()))
            self._port.post(RankStarted())

    def restart(self, number: int) -> None:
        """Kill the process of a node, so that the node is started again. One that has ended for good stays so."""
        for rank in list(self.ranks.values()):
            is_there = rank.rank == number and rank.status < 0  # else its pid may be that of another process
            if is_there and self.nodes is not None and self.nodes.ask_restart(number):
                pass_on(rank.pid, signal.SIGKILL)

    def ask_restart(self, wanted: Sequence[int], grace: float | None) -> dict[int, str]:
        """Begin to restart ranks; return those of this host, each with the reason why it cannot be restarted, or "".

        ``on_restart`` is called for those that can. grace: as in ``ControlPort.restart``
        """
        return {rank.rank: self._ask_restart(rank, grace) for rank in list(self.ranks.values()) if rank.rank in wanted}

    def _ask_restart(self, rank: Rank, grace: float | None) -> str:
        if rank is self._setup:
            return "a setup is not started again"
        if not self.restarts.is_possible:
            return "the run is ending"
        if self.nodes is None or not self.nodes.has(rank.rank):
            return self.restarts.ask(rank, grace)
        if self.nodes.is_waiting(rank.rank):
            return ""
        self.restart(rank.rank)
        return "" if self.nodes.is_waiting(rank.rank) else "it has ended"

    # ---- what goes to a rank

    def give_stdin(self, number: int, data: bytes) -> None:
        """Pass bytes on to the standard input of a rank; no bytes: its end."""
        for rank in self.ranks.values():
            if rank.rank == number:
                rank.give(data)
                self._report_taken(rank, rank.drop_input())
                self._watch_stdin(rank)

    def resize(self, request: Resize) -> None:
        """Change the size of a rank's terminal."""
        for rank in self.ranks.values():
            if rank.rank == request.rank:
                rank.resize(request.columns, request.rows)

    def give_password(self, data: bytes) -> None:
        """Answer a setup that has asked for a password."""
        if self._setup is not None:
            self._setup.answer(data)

    def pass_on(self, number: int, wanted: Sequence[int] | None) -> dict[int, int]:
        """Signal ranks as their user would; return to how many processes of each it went. wanted: None for all"""
        chosen = [rank for rank in self.ranks.values() if wanted is None or rank.rank in wanted]
        return {rank.rank: pass_on(rank.pid, number) for rank in chosen if rank.status < 0}

    def _watch_stdin(self, rank: Rank) -> None:
        if rank.wants_to_write():
            self._loop.watch(rank.stdin, select.POLLOUT, partial(self._fill_stdin, rank))

    def _fill_stdin(self, rank: Rank, events: int) -> None:
        self._loop.unwatch(rank.stdin)
        self._report_taken(rank, rank.fill())
        self._watch_stdin(rank)

    def _report_taken(self, rank: Rank, count: int) -> None:
        if count:
            self._port.send(answers.Taken(rank=rank.rank, bytes=count))

    # ---- a setup

    def _read_setup(self, setup: Setup, events: int) -> None:
        if not events & select.POLLIN:
            self._loop.unwatch(setup.words)
            return
        for word in setup.receive():
            if word == "wants":
                self._port.send(answers.WantsPassword())
            elif word == "password":
                self._port.send(answers.AsksPassword())
            else:
                (source,) = setup.sources
                self._sources.relay_all(source.descriptor)
                shown = (b"" if source.ends_line else b"\n") + setup.shown()
                self._port.send(answers.Step(number=setup.number))
                self._port.send(answers.Output(rank=setup.rank, stream="setup"), shown)
                setup.answer()

    # ---- the end

    def report_ends(self) -> None:
        """Report the end of each rank whose output was passed on. Called after each turn of the loop."""
        for rank in list(self.ranks.values()):
            if rank.all_relayed() and not rank.is_reported and not self._starts_again(rank):
                rank.is_reported = True
                self._report_end(rank)

    def relay_rest(self) -> None:
        """Pass on the last output of all processes, and their ends."""
        self._sources.relay_rest()
        self.report_ends()

    def _report_end(self, rank: Rank) -> None:
        memory = self._environment.memory
        is_last = all(other.is_reported for other in self.ranks.values()) and self._port.may_leave_unasked()
        if is_last:
            self._sources.relay_rest()  # no client reads output behind the last message
        by_kernel = not self._port.stops_ranks and memory is not None and memory.explains(rank.pid, rank.status)
        code, number = how_ended(rank.status)
        if self.nodes is not None:
            self.nodes.report_end(rank.rank, rank.status)
        self.on_restart(rank.rank, 0, "it has ended")
        self._port.send(
            answers.Exited(
                rank=rank.rank,
                time=rank.ended,
                during=rank.failed_command(),
                last=is_last,
                oom=by_kernel,
                code=code,
                signal=number,
            )
        )
        self._client.flush()
        is_failure = rank.status != 0 if self.nodes is None else self.nodes.is_failure(rank.rank, rank.status)
        self._port.post(RankEnded(is_failure))

    def _starts_again(self, rank: Rank) -> bool:
        """Return True if a rank that has ended will be started again."""
        if self.restarts.is_asked(rank.rank):
            if self.restarts.is_possible:
                return True
            self._give_up(rank, "the run is ending")
        if self.nodes is None or not self.nodes.starts_again(rank.rank, rank.status):
            return False
        self.nodes.plan_restart(rank, *how_ended(rank.status), partial(self._start_again, rank))
        return True

    def _start_again(self, rank: Rank) -> None:
        """Start a rank again after the end of its process."""
        is_node = self.nodes is not None and self.nodes.has(rank.rank)
        try:
            new = self.nodes.start_again(rank.rank) if self.nodes and is_node else self.restarts.start(rank.rank)
        except OSError as error:
            self._port.fail("start", why(error), hint(error))
            self.on_restart(rank.rank, 0, why(error))
            return
        if rank.is_input_ended:
            new.give(b"")
        self.ranks.pop(rank.pid, None)
        self.add(new, is_new=False)
        self._watch_stdin(new)
        if self.nodes and is_node:
            self.nodes.report_restart(new)
        else:
            attempt = self.restarts.attempt(rank.rank)
            self._port.send(messages.Restarted(rank=rank.rank, attempt=attempt, pid=new.pid, time=time.time()))
        self.on_restart(rank.rank, new.pid, "")

    def _make_way(self, rank: Rank) -> None:
        """Restart a rank whose processes have ended on request, and report the end and the start."""
        code, number = how_ended(rank.status)
        attempt = self.restarts.attempt(rank.rank) + 1
        self._port.send(
            messages.Restarting(
                rank=rank.rank, attempt=attempt, time=rank.ended, seconds=0.0, code=code or 0, signal=number or 0
            )
        )
        how = f"signal {number}" if number else f"exit {code}"
        begin = "" if rank.ends_line else "\n"
        marker = f"{begin}mesh: rank {rank.rank}: started again after {how}, attempt {attempt}\n"
        self._port.send(answers.Output(rank=rank.rank, stream="stderr"), marker.encode())
        self._start_again(rank)

    def _report_stuck(self, rank: Rank, why: str, was_leaving: bool) -> None:
        """Cancel the restart of a rank whose processes do not end: a new process beside them would be a second rank."""
        if was_leaving:
            self._port.send(messages.Kept(rank=rank.rank, why=why, time=time.time()))
        self.on_restart(rank.rank, 0, why)
        if rank.status >= 0:
            rank.ended = time.time()

    def _give_up(self, rank: Rank, why: str) -> None:
        """Cancel the restart of a rank because the run is ending. Its end counts from now."""
        if self.restarts.drop(rank.rank):
            rank.ended = time.time()
            self.on_restart(rank.rank, 0, why)

    def _ended(self, rank: Rank, status: int) -> None:
        """Note the status of a rank, and report it at once if its output waits."""
        self._loop.unwatch(rank.stdin)
        if self._setup is not None and rank is self._setup:
            self._loop.unwatch(self._setup.words)
        rank.end(status, time.time())
        if self.nodes is not None:
            self.nodes.end(rank.rank)
        makes_way = self.restarts.is_asked(rank.rank) and self.restarts.is_possible
        if not (makes_way or (self.nodes is not None and self.nodes.starts_again(rank.rank, status))):
            self._unreported.append(rank)
        wait = 0.0 if self._client.is_behind else END_REPORT_LIMIT_S
        self._loop.at("report ends", time.monotonic() + wait, self._report_early)
        self._report_taken(rank, rank.drop_input())
        if rank is self._setup:
            self._port.post(SetupEnded())

    def _report_early(self) -> None:
        """Report ends out of turn, so that a client sees them although output is blocked."""
        for rank in self._unreported:
            code, number = how_ended(rank.status)
            self._port.send_now(answers.Ended(rank=rank.rank, time=rank.ended, code=code, signal=number))
        self._unreported = []


def how_ended(status: int) -> tuple[int | None, int | None]:
    """Return exit code and signal of a process from the status of waitpid; one of them is None."""
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None
