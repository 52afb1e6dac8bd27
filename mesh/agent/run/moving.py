"""Ranks that move between hosts of a run, on the order of its client: they leave this host, or come to it."""

from __future__ import annotations

import time

from mesh.agent.base.errors import hint, why
from mesh.agent.base.light import signal
from mesh.agent.run.facts import RankStarted
from mesh.agent.run.rank import start_rank
from mesh.agent.run.ranks import how_ended
from mesh.protocol import answers
from mesh.protocol import nodes as messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh.agent.port import RanksPort
    from mesh.agent.run.environment import Environment
    from mesh.agent.run.rank import Rank
    from mesh.agent.run.ranks import Ranks
    from mesh.protocol.requests import Take


class Moves:
    """The moves of ranks from this host and to it."""

    def __init__(self, port: RanksPort, ranks: Ranks, environment: Environment) -> None:
        """Start without any. ranks: of this host"""
        self._port, self._ranks, self._environment = port, ranks, environment
        self._asked: dict[int, int] = {}  # the hosts of ranks whose moves have no outcome yet
        ranks.restarts.on_left = self._left

    def ask(self, wanted: Sequence[int], grace: float, to: int) -> dict[int, str]:
        """Pass on to the client that ranks are to move to another host.

        Return those of this host, each with the reason why it cannot move, or "".
        grace: seconds from SIGTERM to SIGKILL; to: index of the host
        """
        here = [rank.rank for rank in self._ranks.ranks.values() if rank.rank in wanted]
        found = {number: self._refusal(number, to) for number in [*here, *(set(wanted) & set(self._asked))]}
        for number, refused in found.items():
            if not refused and number not in self._asked:
                self._asked[number] = to
                self._port.send_now(messages.MoveAsked(rank=number, to=to, grace=grace, time=time.time()))
        return found

    def moving(self, wanted: Sequence[int]) -> dict[int, str]:
        """Return those of some ranks that are moving from this host, each with the words for it."""
        return {number: "it is moving to another host" for number in wanted if number in self._asked}

    def note_outcome(self, number: int) -> None:
        """Note that a move has succeeded or failed."""
        self._asked.pop(number, None)

    def _refusal(self, number: int, to: int) -> str:
        """Return why a rank of this host cannot move; "" if that is the client's to decide."""
        restarts = self._ranks.restarts
        if self._port.is_detached:
            return "the run is detached, and only a client can move a rank"
        if not restarts.is_possible:
            return "the run is ending"
        if number in self._asked:
            return "" if self._asked[number] == to else "it is moving to another host already"
        return "it is being started again" if restarts.is_asked(number) else ""

    def release(self, number: int, grace: float) -> None:
        """End the processes of a rank that goes to another host, and report that; or report why it stays."""
        rank = next((one for one in self._ranks.ranks.values() if one.rank == number), None)
        if rank is None or rank.status >= 0:
            nodes = self._ranks.nodes
            waits = nodes is not None and nodes.has(number) and nodes.is_waiting(number)
            refused = "it is being started again" if waits else "it has ended"
        elif not self._ranks.restarts.is_possible:
            refused = "the run is ending"
        else:
            is_node = self._ranks.nodes is not None and self._ranks.nodes.has(number)
            # SIGTERM means to a node that the program ends.
            refused = self._ranks.restarts.ask(rank, 0.0 if is_node else grace, is_leaving=True)
        if refused:
            self._port.send(messages.Kept(rank=number, why=refused, time=time.time()))

    def take(self, request: Take) -> None:
        """Start a rank that comes from another host."""
        rank, port, nodes = request.start, self._port, self._ranks.nodes
        if port.is_over:
            return
        port.continue_output(messages.Taken(rank=rank.rank, attempt=request.attempt, printed=request.printed))
        if port.stops_ranks:  # the order to end has overtaken this one
            ended = answers.Exited(
                rank=rank.rank, time=time.time(), during="", last=False, oom=False, code=None, signal=signal.SIGTERM
            )
            port.send(ended)
            return
        marker = f"mesh: rank {rank.rank}: started again on another host after {request.after}"
        port.send(answers.Output(rank=rank.rank, stream="stderr"), f"{marker}, attempt {request.attempt}\n".encode())
        argv, setting = rank.argv, self._environment.of_rank(rank.env)
        self._ranks.restarts.note_start(rank.rank, (argv, setting, rank.stdin), request.attempt)
        try:
            if nodes is not None and nodes.has(rank.rank):
                new = nodes.take(rank.rank, (argv, setting, rank.stdin), request.attempt)
            else:
                new = start_rank(rank.rank, argv, setting, rank.stdin)
        except OSError as error:
            port.fail("start", why(error), hint(error))
            return
        self._ranks.add(new, is_new=False)
        port.post(RankStarted())
        port.send(messages.Restarted(rank=rank.rank, attempt=request.attempt, pid=new.pid, time=time.time()))

    def _left(self, rank: Rank) -> None:
        """Forget a rank whose processes have ended and that goes to another host, and report that."""
        code, number = how_ended(rank.status)
        nodes, restarts = self._ranks.nodes, self._ranks.restarts
        is_node = nodes is not None and nodes.has(rank.rank)
        attempt = nodes.attempt(rank.rank) if nodes is not None and is_node else restarts.attempt(rank.rank)
        if not rank.ends_line:
            self._port.send(answers.Output(rank=rank.rank, stream="stderr"), b"\n")
        self._ranks.ranks.pop(rank.pid, None)
        restarts.forget(rank.rank)
        if nodes is not None and is_node:
            nodes.release(rank.rank, code or 0, number or 0)
        left = messages.Released(
            rank=rank.rank, attempt=attempt + 1, time=rank.ended, code=code or 0, signal=number or 0
        )
        self._port.send(left)
