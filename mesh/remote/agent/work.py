"""The ranks of this host, or a setup: what is started here, what it prints, and how it ends."""

from __future__ import annotations

import os
import select
import time

from .errand import hint, why
from .frames import FrameError
from .ranks import FULL, Rank, Source, start_rank
from .spawning import Setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .main import Agent
    from .setup import Setup

TOLD = 1.0  # seconds in which a client that takes what we send has heard of the end of a rank
STARTED = 0.02  # seconds in which a short command ends: that it has started is told with what it prints
GATHER = 0.004  # seconds: small writes of a rank are gathered that long, so that a line is no frame of its own


class Work:
    """What runs, and the pipes to and from it."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.ranks: dict[int, Rank] = {}  # by pid
        self.sources: dict[int, Source] = {}  # by descriptor
        self._setup: Setup | None = None
        self._read_again = 0.0  # when the ranks' pipes are looked at next
        self._ended: list[Rank] = []  # ranks whose end may wait behind their output
        self._tell_at = float("inf")  # when that is told before it, monotonic

    # ---- for the loop

    def next(self, now: float) -> float:
        """When there is something to do, though nothing is ready."""
        is_waiting = self.sources and now < self._read_again
        return min(self._tell_at, self._read_again) if is_waiting else self._tell_at

    def events(self, now: float) -> Iterator[tuple[int, int]]:
        """The descriptors to wait for, and what for."""
        if now >= self._read_again:
            for descriptor in self.sources:
                yield descriptor, select.POLLIN
        if self._setup is not None and self._setup.words >= 0:
            yield self._setup.words, select.POLLIN
        for rank in self.ranks.values():
            if rank.wants_to_write():
                yield rank.stdin, select.POLLOUT

    def serve(self, ready: set[int]) -> None:
        """Do what these descriptors are ready for."""
        if self._setup is not None and self._setup.words in ready:
            self._listen_to_setup(self._setup)
        self._relay(ready)
        for rank in list(self.ranks.values()):
            if rank.stdin >= 0 and rank.stdin in ready:
                self._took_stdin(rank, rank.fill())
        self._tell_ends()

    def look_at_the_clock(self) -> None:
        """Whoever looks at a paused terminal wants to know who has ended all the same."""
        if time.monotonic() >= self._tell_at:
            self._tell_urgently()

    def has_ended(self, pid: int, status: int) -> bool:
        """Take note of a child that has ended; False if it is none of these. status: what waitpid says"""
        rank = self.ranks.get(pid)
        if rank is None or rank.status >= 0:
            return False
        rank.end(status, time.time())
        self._ended.append(rank)
        self._tell_at = time.monotonic() if self._agent.out.is_behind else time.monotonic() + TOLD
        self._took_stdin(rank, rank.drop_input())
        return True

    def is_set_up(self) -> bool:
        """A setup has ended."""
        return self._setup is not None and self._setup.status >= 0

    def tell_all(self) -> None:
        """Pass on what the processes have printed last, and how they ended."""
        for descriptor in list(self.sources):
            self.relay_all(descriptor)
        self._tell_ends()

    # ---- requests

    def do_start(self, header: dict[str, Any], data: bytes) -> None:
        """Start the ranks of this host, once what they find there is known."""
        if self._agent.is_over():
            return
        if not header["finds"] and not self._agent.outfit.is_known:
            raise FrameError("start: the host is not prepared")
        if header["finds"]:  # no prerun has needed it
            self._agent.outfit.learn(header["finds"], lambda: self._start(header))
        else:
            self._start(header)

    def _start(self, header: dict[str, Any]) -> None:
        agent = self._agent
        agent.delivery.drop()
        agent.visits.make_door()
        agent.locking.release_ports()
        try:
            agent.outfit.at_start()
            agent.detachment.start(len(header["ranks"]), header["detach"])
        except OSError as error:
            agent.fail("start", why(error), hint(error))
            return
        agent.gather_until = time.monotonic() + STARTED
        for rank in header["ranks"]:
            try:
                setting = agent.outfit.of_rank(rank["env"])
                self._add_rank(start_rank(rank["rank"], header["argv"], setting, rank["stdin"], agent.spare))
            except OSError as error:  # no process or descriptor is left to have
                agent.fail("start", why(error))
                break
        agent.dismiss_spare()

    def _add_rank(self, rank: Rank) -> None:
        self.ranks[rank.pid] = rank
        self._agent.locking.note(rank.pid, rank.sources)
        for source in rank.sources:
            self.add_source(source)
        self._agent.out.send({"type": "started", "rank": rank.rank, "pid": rank.pid, "time": time.time()})

    def do_setup(self, header: dict[str, Any], data: bytes) -> None:
        """Run the commands of a setup, in the home directory."""
        from .setup import Setup

        agent = self._agent
        if agent.is_over():
            return
        if not agent.outfit.is_known:
            raise FrameError("setup: the host is not prepared")
        agent.dismiss_spare()
        agent.visits.make_door()
        environment = agent.outfit.setting.environment
        home = os.fsdecode(environment[b"HOME"])
        # What it leaves in the background is there on purpose, however long.
        own = {b"PWD": os.fsencode(home), b"PATH": agent.outfit.path, b"MESH_SETUP": b"1"}
        setting = Setting({**environment, **own}, home)
        try:
            self._setup = Setup(header["rank"], header["commands"], header["force"], setting)
        except OSError as error:
            agent.fail("start", why(error))
            return
        self._add_rank(self._setup)

    def _listen_to_setup(self, setup: Setup) -> None:
        for word in setup.hear():
            if word == "wants":
                self._agent.out.send({"type": "wants-password"})
            elif word == "password":
                self._agent.out.send({"type": "asks-password"})
            else:
                (source,) = setup.sources
                self.relay_all(source.descriptor)
                shown = (b"" if source.ends_line else b"\n") + setup.shown()
                self._agent.out.send({"type": "step", "number": setup.number})
                self._agent.out.send({"type": "output", "rank": setup.rank, "stream": "setup"}, shown)
                setup.answer()

    def do_password(self, header: dict[str, Any], data: bytes) -> None:
        """What a setup has asked for."""
        if self._setup is not None:
            self._setup.answer(data)

    def add_source(self, source: Source) -> None:
        """Pass on what comes from there as well."""
        self.sources[source.descriptor] = source

    def _relay(self, ready: set[int]) -> None:
        """Pass on what ranks have printed."""
        now = time.monotonic()
        longest = 0
        for descriptor in ready & self.sources.keys():
            source = self.sources[descriptor]
            data = source.read()
            if data:
                self._agent.out.send({"type": "output", "rank": source.rank, "stream": source.stream}, data)
                longest = max(longest, len(data))
                self._agent.detachment.printed(now)
            elif data is not None:
                del self.sources[descriptor]
                os.close(descriptor)
        if longest:
            self._read_again = now if longest >= FULL else now + GATHER
            # One that prints as it starts may end as well.
            self._agent.gather_until = min(self._agent.gather_until, self._read_again)
            if now >= self._agent.gather_until:
                self._agent.flush()

    def relay_all(self, descriptor: int) -> None:
        """Pass on what a source holds now, before something that comes after it is told."""
        source = self.sources.get(descriptor)
        if source is not None:
            source.owe_what_waits()
            while source.owed:
                data = source.read()
                if not data:
                    break
                self._agent.out.send({"type": "output", "rank": source.rank, "stream": source.stream}, data)

    def _tell_ends(self) -> None:
        for rank in self.ranks.values():
            if rank.all_relayed() and not rank.told:
                rank.told = True
                ended = {"type": "exited", "rank": rank.rank, "time": rank.ended, **rank.about_its_end()}
                ours = self._agent.signalled or self._agent.ending.ordered
                memory = self._agent.outfit.memory
                if all(other.told for other in self.ranks.values()) and self._agent.is_done_with():
                    ended["last"] = True
                    for descriptor in list(self.sources):  # nobody waits for what comes behind this word
                        self.relay_all(descriptor)
                if not ours and memory is not None and memory.explains(rank.pid, rank.status):
                    ended["oom"] = True
                self._agent.out.send({**ended, **_how(rank.status)})
                self._agent.flush()
                self._agent.detachment.ended(rank.status != 0)

    def do_stdin(self, header: dict[str, Any], data: bytes) -> None:
        """Bytes for the stdin of one rank; none: its end."""
        for rank in self.ranks.values():
            if rank.rank == header["rank"]:
                rank.give(data)
                self._took_stdin(rank, rank.drop_input())

    def _took_stdin(self, rank: Rank, count: int) -> None:
        if count:
            self._agent.out.send({"type": "taken", "rank": rank.rank, "bytes": count})

    def _tell_urgently(self) -> None:
        for rank in self._ended:
            self._agent.out.send_urgently({"type": "ended", "rank": rank.rank, "time": rank.ended, **_how(rank.status)})
        self._ended = []
        self._tell_at = float("inf")
        self._agent.flush()


def _how(status: int) -> dict[str, int]:
    """How a process ended, from what waitpid says."""
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    return {"code": os.WEXITSTATUS(status)}
