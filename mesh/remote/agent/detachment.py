"""A run that goes on without its client: the agent's part of leaving it, and of those who look on."""

from __future__ import annotations

import time

from . import cgroups
from .alone import Alone
from .errand import why
from .followers import Followers
from .lean import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .lean import Socket
    from .main import Agent
    from .peers import Hub, Member, News
    from .tape import Tape


class Detachment:
    """From the start of the ranks on: a tape once it is wanted, and rules of its own once the client may leave.

    What other hosts tell of the run (``Peers``) counts like what happens here.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._tape: Tape | None = None
        self._alone: Alone | None = None
        self._peers: Hub | Member | None = None
        self._is_introduced = False  # the client knows what came of it
        self._has_heeded = False  # what another host has told
        self.is_kept = False  # the journal stays for a client that is over, as that of a detached run
        self._sent: set[int] = set()  # signals that the ranks were sent
        self.followers = Followers()

    @property
    def is_on(self) -> bool:
        """The run goes on without its client."""
        return self._agent.client.is_detached

    def start(self, ranks: int, leaves: bool) -> None:
        """So many ranks are about to start; leaves: the client will, once all have. Raises OSError."""
        begin = self._agent.begin
        timeout_at = time.monotonic() + begin["timeout"] if begin["timeout"] else float("inf")
        self._alone = Alone(ranks, drain=begin["drain"], timeout_at=timeout_at, keep_going=begin["keep_going"])
        if leaves:
            self._make_tape()
            self._agent.out.hold()

    def do_detach(self, header: dict[str, Any], data: bytes) -> None:
        self.detach()

    def detach(self) -> None:
        """Let the client go, if there is something to go on with."""
        from .logins import ends_with, user_name

        agent = self._agent
        if self.is_on or self._alone is None or not agent.work.ranks or agent.is_over():
            return
        try:
            tape = self._make_tape()
            if agent.begin["owner"]:
                agent.state.tell({**agent.begin["owner"], "detached": True})
            agent.out.part(tape)  # there is no way back from here: what may fail comes before
            agent.out.move()  # with it goes who has ended already, before we say that the client may leave
            tape.flush()  # before anybody relies on it
            agent.begin["about"]["detached"] = True
        except OSError as error:
            agent.out.release()
            text = f"cannot go on by itself: {why(error)}"
            agent.out.send_urgently({"type": "notice", "text": text, "seconds": 0})
            agent.out.send_urgently({"type": "stays-attached"})
        else:
            agent.client.is_detached = True
            agent.out.send_urgently({"type": "detached", "ends_with": ends_with(user_name())})
        agent.flush()

    def keep(self) -> None:
        """Keep what the client has not received in a journal, as that of a detached run. Without room it is lost."""
        out = self._agent.out
        if self.is_on or self.is_kept or self._alone is None or self._agent.client.has_left:
            return
        if out.is_acknowledged and self._agent.ending.is_empty():
            return
        try:
            out.part(self._make_tape())
            self.is_kept = True
        except OSError:
            out.release()

    def _make_tape(self) -> Tape:
        """The tape of this run, in place of what old ones take. Raises OSError."""
        if self._tape is None:
            from .state import boot_id
            from .tape import Tape, prune, tape_of

            agent, begin = self._agent, self._agent.begin
            prune(agent.state.machine, begin["spool"])
            cgroup = agent.ending.cgroup or cgroups.scope_of(cgroups.own())
            about = {"about": begin["about"], "plan": begin["plan"], "boot": boot_id(), "cgroup": cgroup}
            self._tape = Tape(tape_of(begin["remote_dir"], begin["run"], begin["node"]), begin["spool"], about)
        return self._tape

    # ---- the other hosts

    def do_introduce(self, header: dict[str, Any], data: bytes) -> None:
        """Be the hub of the run's agents, or find it at an address: few runs need what this imports."""
        if self._peers is not None or self._alone is None:
            return
        try:
            from .fanout import credentialed
            from .peers import Hub, Member
            from .reach import listen_quietly

            about = (header["node"], header["host_grace"], credentialed(header["credentials"], not header["address"]))
            if header["address"]:
                self._peers = Member(*about, header["address"], header["port"])
            else:
                listener = listen_quietly()
                self._peers = Hub(*about, listener)
                self._tell_of_introduction(listener.getsockname()[1], "")
        except OSError as error:
            self._tell_of_introduction(0, why(error))
        except (ImportError, AttributeError) as error:
            self._tell_of_introduction(0, f"its Python lacks something: {error}")
        self._tell_of_ranks()

    def _tell_of_ranks(self) -> None:
        if self._alone is not None and self._alone.has_failed:
            self._tell({"cause": "rank"})
        if self._alone is not None and self._alone.is_over:
            self.done()

    def _tell(self, news: News) -> None:
        """The other hosts; of what has happened here."""
        if self._peers is not None:
            self._has_heeded = self._has_heeded or self._peers.news is None
            self._peers.tell(news)

    def done(self) -> None:
        """Nothing of the ranks is left here, or it was named."""
        if self._peers is not None:
            self._peers.done()

    def lose(self, reason: str) -> None:
        """This host is lost to the run."""
        if self._peers is not None:
            self._tell({"cause": "lost", "lost": self._peers.node, "reason": reason})

    def _tell_of_introduction(self, port: int, reason: str) -> None:
        self._is_introduced = True
        self._agent.out.send_urgently({"type": "introduced", "port": port, "reason": reason})
        self._agent.flush()

    def events(self) -> dict[int, int]:
        """What to poll for, by descriptor."""
        return self._peers.events() if self._peers is not None else {}

    def meet(self, ready: set[int]) -> None:
        """Hear the other hosts, and heed what they tell."""
        peers, alone = self._peers, self._alone
        if peers is None or alone is None:
            return
        peers.serve(ready)
        if not self._is_introduced and peers.verdict is not None:
            self._tell_of_introduction(0, peers.verdict)
        news = peers.news
        if news is not None and not self._has_heeded:
            self._has_heeded = True
            if news["cause"] == "signal" and not alone.is_stopped:
                told = {"signal": news["signal"], "grace": self._agent.begin["grace"], "cause": "signal"}
                self._agent.do_signal(told, b"")
            else:
                alone.fail(news["cause"], time.monotonic())

    @property
    def is_needed(self) -> bool:
        """By another host: its agent is to know that all is well here, or its ranks are still at work."""
        return self._peers is not None and self._peers.is_needed

    def close(self) -> None:
        self.followers.close()
        if self._peers is not None:
            self._peers.close()
        if self._tape is not None and not (self.is_on or self.is_kept):  # the client has everything
            self._tape.discard()

    # ---- those who look on

    def follow(self, visitor: Socket, client: str) -> None:
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
        if self._alone is None:
            return
        self._alone.ended(failed, time.monotonic())
        self._tell_of_ranks()

    def next(self) -> float:
        """When ``decide`` or ``meet`` is to be called again, at the latest, monotonic."""
        moments = [self._alone.next() if self.is_on and self._alone is not None else float("inf")]
        return min([*moments, self._peers.next()] if self._peers is not None else moments)

    def decide(self) -> None:
        """Do what nobody else does now."""
        agent, alone = self._agent, self._alone
        if not self.is_on or alone is None:
            return
        due = alone.due(time.monotonic())
        if due is not None:
            cause, number = due
            news = self._peers.news if self._peers is not None and cause == "lost" else None
            more = {name: news[name] for name in ("lost", "reason")} if news else {}
            told = {"signal": number, "grace": agent.begin["grace"], "cause": cause, "more": more}
            agent.do_signal(told, b"")
        if alone.is_over and not agent.ending.ordered:
            agent.finish(signal.SIGTERM, agent.begin["grace"])

    def note_end(self, cause: str, number: int, more: dict[str, Any]) -> None:
        """For those who come back: why the ranks were told to end. more: what else is to be told of it."""
        if self.is_on and self._alone is not None and not self._alone.is_stopped:
            self._alone.is_stopped = True
            told = {"cause": cause, "signal": number, "time": time.time()}
            self._agent.out.send({"type": "end-ordered", **told, **more})
            if cause == "signal":
                self._tell({"cause": cause, "signal": number})

    def is_said_again(self, number: int) -> bool:
        """Whether the ranks have had this signal from another client: one is enough."""
        is_again = self.is_on and number in self._sent
        self._sent.add(number)
        return is_again
