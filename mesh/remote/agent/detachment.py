"""A run that goes on without its client: the agent's part of leaving it, and of those who look on."""

from __future__ import annotations

import signal
import time

from . import cgroups
from .alone import Alone
from .errand import why
from .followers import Followers
from .tape import Tape, boot_id, prune, tape_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

    from .main import Agent


class Detachment:
    """From the start of the ranks on: a tape once it is wanted, and rules of its own once the client may leave.

    What other hosts tell of the run is to come in here as well, and to be handed to ``Alone``.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._tape: Tape | None = None
        self._alone: Alone | None = None
        self._sent: set[int] = set()  # signals that the ranks were sent
        self.followers = Followers()

    @property
    def is_on(self) -> bool:
        """The run goes on without its client."""
        return self._agent.client.is_detached

    def start(self, ranks: int, keep: bool) -> None:
        """So many ranks are about to start; keep: what they print is for the tape. Raises OSError."""
        begin = self._agent.begin
        timeout_at = time.monotonic() + begin["timeout"] if begin["timeout"] else float("inf")
        self._alone = Alone(ranks, drain=begin["drain"], timeout_at=timeout_at, keep_going=begin["keep_going"])
        if keep:
            self._agent.out.keep(self._make_tape())

    def detach(self) -> None:
        """Let the client go, if there is something to go on with."""
        agent = self._agent
        if self.is_on or self._alone is None or not agent.ranks or agent.is_over():
            return
        try:
            tape = self._make_tape()
            agent.out.part(tape)
            tape.flush()  # before anybody relies on it
            agent.begin["about"]["detached"] = True
            if agent.begin["owner"]:
                agent.state.tell({**agent.begin["owner"], "detached": True})
        except OSError as error:
            text = f"cannot go on by itself: {why(error)}"
            agent.out.send_urgently({"type": "notice", "text": text, "seconds": 0})
        else:
            agent.client.is_detached = True
            agent.out.send_urgently({"type": "detached"})
        agent.flush()

    def _make_tape(self) -> Tape:
        """The tape of this run, in place of what old ones take. Raises OSError."""
        if self._tape is None:
            agent, begin = self._agent, self._agent.begin
            prune(agent.state.machine, begin["spool"])
            cgroup = agent.ending.cgroup or cgroups.scope_of(cgroups.own())
            about = {"about": begin["about"], "plan": begin["plan"], "boot": boot_id(), "cgroup": cgroup}
            self._tape = Tape(tape_of(begin["remote_dir"], begin["run"], begin["node"]), begin["spool"], about)
        return self._tape

    # ---- those who look on

    def follow(self, visitor: socket.socket, client: str) -> None:
        """Somebody has come to look on."""
        self.followers.add(visitor, client)

    def write(self) -> None:
        """Have the tape hold all that there is, and those who look on know it."""
        if self._tape is not None:
            self._agent.out.move()
            if self._tape.flush():
                self.followers.wake()

    # ---- the ranks

    def printed(self, now: float) -> None:
        if self._alone is not None:
            self._alone.printed(now)

    def ended(self, failed: bool) -> None:
        if self._alone is not None:
            self._alone.ended(failed, time.monotonic())

    def next(self) -> float:
        """When ``decide`` is to be called again, at the latest, monotonic."""
        return self._alone.next() if self.is_on and self._alone is not None else float("inf")

    def decide(self) -> None:
        """Do what nobody else does now."""
        agent, alone = self._agent, self._alone
        if not self.is_on or alone is None:
            return
        due = alone.due(time.monotonic())
        if due is not None:
            cause, number = due
            agent.do_signal({"signal": number, "grace": agent.begin["grace"], "cause": cause}, b"")
        if alone.is_over and not agent.ending.ordered:
            agent.finish(signal.SIGTERM, agent.begin["grace"])

    def note_end(self, cause: str, number: int, more: dict[str, Any]) -> None:
        """For those who come back: why the ranks were told to end. more: what else is to be told of it."""
        if self.is_on and self._alone is not None and not self._alone.is_stopped:
            self._alone.is_stopped = True
            told = {"cause": cause, "signal": number, "time": time.time()}
            self._agent.out.send({"type": "end-ordered", **told, **more})

    def is_said_again(self, number: int) -> bool:
        """Whether the ranks have had this signal from another client: one is enough."""
        is_again = self.is_on and number in self._sent
        self._sent.add(number)
        return is_again
