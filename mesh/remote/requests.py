"""The requests of a client to one agent."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from mesh.core.events import EndOrdered
from mesh.core.interfaces import Channel
from mesh.core.run import SetupCommand
from mesh.remote import messages
from mesh.remote.agent.frames import encode
from mesh.remote.asked import Asked
from mesh.remote.begin import Begin, Finds, Preparation, Rank, begin_frame, finds_of, prepare_frame
from mesh.remote.blob import opening
from mesh.remote.sender import Sender, pack_frames, pieces


class Requests:
    """Sends requests to one agent, from any thread; notes each one, as its answers are checked against it."""

    def __init__(self, channel: Channel, sizes: Mapping[str, int]) -> None:
        """sizes: of the bytes that may come behind a message, by its type"""
        self._sender = Sender(channel)
        self._asked = Asked()
        self._data_bytes = dict(sizes)
        self._may_come_back = False  # the agent listens for another channel
        self.round_trip = float("inf")  # seconds, of the fastest beat

    @property
    def sent(self) -> int:
        """Return how many bytes of the workspace were sent."""
        return self._sender.sent

    @property
    def attempt(self) -> int:
        """The listing of the workspace that is being sent; pieces of an earlier one are broken off."""
        return self._sender.attempt

    @attempt.setter
    def attempt(self, attempt: int) -> None:
        self._sender.attempt = attempt

    def begin(self, begin: Begin, preparation: Preparation | None = None, finds: Finds | None = None) -> None:
        """Ship the agent and its first request in one flight, and with it the one to prepare, if there is that.

        preparation, finds: as in prepare
        """
        self._run, self._agent, self._remote_dir = begin.run, begin.node, begin.remote_dir
        self._begun = time.monotonic()
        self._is_locking = begin.lock
        self._marker = os.urandom(16).hex()
        at_once = prepare_frame(preparation, finds or Finds()) if preparation else b""
        self._is_preparing = preparation is not None
        self._asked.begin(len(begin.ports))
        if begin.lock:
            self._asked.note("lock")
        if preparation is not None:
            self._asked.prepare(len(preparation.prerun))
        self._sender.begin(opening() + begin_frame(begin, self._marker) + at_once)

    def lock(self) -> None:
        """Take the host's lock, if the run takes any."""
        self._asked.note("lock")
        self._sender.send(encode({"type": "lock"}))

    def unlock(self) -> None:
        """Let go of the host's lock."""
        self._sender.send(encode({"type": "unlock"}))

    def send_changes(
        self,
        changes: bytes,
        *,
        attempt: int,
        fresh: bool,
        pack: int = -1,
        asks: bool = True,
        lacks_bytes: int = messages.LACKS_BYTES,
    ) -> None:
        """Send the changes of the manifest, and a pack with what the host will lack, if one is given.

        attempt: comes back with what the host answers
        pack: an open file; -1: none goes along
        asks: without one the host is to answer what it lacks; otherwise it waits for a pack
        lacks_bytes: of the longest list of what it lacks
        """
        self._data_bytes["lacks"] = lacks_bytes
        self._asked.send(attempt)
        frames = [(dict(header), piece) for header, piece in pieces({"type": "changes"}, changes)]
        frames[0][0].update({"first": True, "fresh": fresh, "attempt": attempt})
        frames[-1][0].update({"last": asks and pack < 0})
        self._sender.send_pieces(attempt, self.round_trip, frames, pack_frames(pack) if pack >= 0 else ())

    def send_pack(self, pack: int, *, attempt: int) -> None:
        """Send a pack from an open file, which other threads read as well. attempt: as in send_changes."""
        self._sender.send_pieces(attempt, self.round_trip, pack_frames(pack))

    def settle(self) -> None:
        """Have the host drop the pack: no other host gets it from there any more."""
        self._sender.send(encode({"type": "settled"}))

    def serve(self, tree: int, size: int, credentials: str) -> None:
        """Have the host hand on the next pack that it gets, of so many bytes. tree: comes back with its answer."""
        self._asked.serve(tree)
        self._sender.send(encode({"type": "serve", "tree": tree, "bytes": size, "credentials": credentials}))

    def fetch(self, tree: int, address: str, port: int, size: int, credentials: str) -> None:
        """Have the host get the pack from another one."""
        self._asked.fetch(tree)
        given = {"tree": tree, "address": address, "port": port, "bytes": size, "credentials": credentials}
        self._sender.send(encode({"type": "fetch", **given}))

    def prepare(self, preparation: Preparation, finds: Finds) -> None:
        """Prepare the host. finds: what prerun finds, as the first rank does"""
        self._asked.prepare(len(preparation.prerun))
        self._sender.send(prepare_frame(preparation, finds))

    def start(
        self, argv: Sequence[str], ranks: Sequence[Rank], *, finds: Finds | None = None, detach: bool = False
    ) -> None:
        """Start the ranks of this host.

        finds: their environment, if the host was prepared without it
        detach: what they print is kept there from the beginning
        """
        listed = [{"rank": rank.rank, "env": dict(rank.env), "stdin": rank.stdin} for rank in ranks]
        self._may_come_back = True
        self._asked.start([rank.rank for rank in ranks])
        told = finds_of(finds) if finds else None
        self._sender.order({"type": "start", "argv": list(argv), "ranks": listed, "finds": told, "detach": detach})

    def detach(self) -> None:
        """Have the host keep the run without us; it answers with Detached."""
        self._sender.order({"type": "detach"})

    def introduce(self, host_grace: float, credentials: str, address: str = "", port: int = 0) -> None:
        """Have the agents of a detached run meet at the first host's; it answers with Introduced.

        host_grace: seconds that a host may be silent before it is lost
        credentials: a private key and its certificate, as PEM, that all of them and nobody else get
        address, port: of the first host's agent; "": it is that one
        """
        self._asked.note("introduce")
        place = {"address": address, "port": port}
        given = {"node": self._agent, "host_grace": host_grace, "credentials": credentials, **place}
        self._sender.order({"type": "introduce", **given})

    def setup(self, rank: int, commands: Sequence[SetupCommand], force: bool) -> None:
        """Run the commands of a setup as this rank; force: also those that ``unless`` would skip."""
        listed = [asdict(command) for command in commands]
        self._may_come_back = True
        self._asked.setup(rank, commands)
        self._sender.order({"type": "setup", "rank": rank, "commands": listed, "force": force})

    def password(self, step: int, password: str) -> None:
        """Answer AsksPassword, unless the command that asked has ended; "" if there is no password."""
        if self._asked.may_have_password(step):
            self._sender.order({"type": "password"}, password.encode("utf-8", "surrogateescape"))

    def ask(self, question: Mapping[str, Any], *, lasting: bool = False) -> None:
        """Ask the agent; it answers with Answered.

        lasting: the answer takes its time, and is worth another channel
        """
        self._asked.ask(question, has_enclosed=False)
        if lasting:
            self._may_come_back = True
            self._sender.order({"type": "ask", **question})
        else:
            self._sender.send(encode({"type": "ask", **question}))

    def ask_with(self, question: Mapping[str, Any], enclosed: bytes) -> None:
        """Ask the agent something that comes with many bytes. For a thread of its own."""
        self._asked.ask(question, has_enclosed=bool(enclosed))
        frames = [*pieces({"type": "enclosed"}, enclosed), ({"type": "ask", **question}, b"")]
        self._sender.send_pieces(self.attempt, self.round_trip, frames)

    def reply(self, data: bytes) -> None:
        """Send data to the part of the agent that answers a lasting question."""
        self._sender.order({"type": "reply"}, data)

    def stdin(self, rank: int, data: bytes) -> None:
        """Give bytes to the stdin of a rank; b"" ends it."""
        self._asked.give(rank, len(data))
        self._sender.order({"type": "stdin", "rank": rank}, data)

    def beat(self) -> None:
        """Renew the lease, and ask for the host's time."""
        self._sender.owe_beat()
        self._sender.send(b"")

    def signal(self, number: int, grace: float, why: EndOrdered | None = None) -> None:
        """Signal every process of the run there, and kill what is left after grace seconds.

        why: the reason that a run reports which goes on by itself
        """
        told = {"cause": why.cause, "more": {"lost": why.lost, "reason": why.reason}} if why else {}
        self._sender.order({"type": "signal", "signal": number, "grace": grace, **told})

    def kill(self) -> None:
        """Kill every process of the run there, now."""
        self._sender.order({"type": "kill"})

    def finish(self, number: int, grace: float) -> None:
        """End what is left (signal, grace, SIGKILL), look that it is gone, and let the agent leave."""
        self._sender.is_ending = True
        self._asked.end()
        self._sender.order({"type": "finish", "signal": number, "grace": grace})
