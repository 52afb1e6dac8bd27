"""The local end of one agent: requests out, events in. One per host; knows the protocol and decides nothing."""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

from mesh.core.errors import ChannelClosed
from mesh.core.events import (
    Connected,
    EndOrdered,
    Event,
    Heard,
    HostNotice,
    Lost,
    Output,
    PrepareFailed,
    Reconnecting,
    Stream,
)
from mesh.core.interfaces import Channel, Farewell
from mesh.core.run import PrerunEntry, SetupCommand
from mesh.core.text import one_line
from mesh.remote import messages
from mesh.remote.agent.frames import Decoder, FrameError, encode
from mesh.remote.agent.guardian import KILLED, SWEPT
from mesh.remote.asked import Asked
from mesh.remote.blob import NO_PYTHON, OLD_PYTHON, blob, lacking, opening
from mesh.remote.telling import event_of, told_owner

# Bytes of the workspace in one frame. An order waits behind one of them, and a host is alive as long as it takes them:
# over a share of 32 kbit/s of an uplink, this is 8 s.
PIECE = 32 << 10
NEW_PASSWORD = b"password change required"  # openssh/session.c, when there is no terminal
ACKNOWLEDGED = 128 << 10  # bytes of an agent's stream that are acknowledged together
MAX_BANNER = 16 << 20  # bytes that login scripts may print before the agent greets
REFUSED = "does not speak our protocol: "  # what comes before the reason; shown behind the name of the host


class Begin(Struct, frozen=True, kw_only=True):
    """What an agent must know from its first moment."""

    run: str
    project: str  # the workspace's directory on the host
    remote_dir: str
    about: Mapping[str, object]  # what others may know of the run
    owner: Mapping[str, object] | None  # what the lock tells others; None: take no lock
    lock: bool = False  # do at once what ``Session.lock`` asks for
    node: int  # index of the host in the run
    announce: bool = False  # name the run to other users of the machine, and look for their runs
    exclusive: bool = False  # with announce: be busy where another user's run is
    share: bool  # work in a copy of the workspace, and remove it afterwards
    existing: bool = False  # fail unless the workspace is there
    workspace_links: bool = False  # the workspace may be a symbolic link
    needs_home: bool = True  # fail where HOME is read-only; False: work in /tmp there
    devices: Sequence[str]  # shell patterns of device files
    device_patience: float  # seconds in which they must be free again after the run
    spool: int  # bytes of output that may wait on the host's disk
    lease: float  # seconds without a sign from us after which the agent ends everything
    grace: float  # seconds from SIGTERM to SIGKILL when it does
    ports: Sequence[int] = ()  # TCP ports to keep for the ranks from its lock to their start; 0: any that is free
    stacks: bool = False  # every Python of the ranks is prepared to tell its stacks
    # What the host needs should the run go on without us.
    drain: float = 2.0  # seconds that ranks may speak after a failure
    timeout: float = 0.0  # seconds from the start of the ranks; 0: none
    keep_going: bool = False  # a failed rank does not stop the others
    plan: Mapping[str, object] = field(default_factory=dict)  # what whoever comes back must know


class Finds(Struct, frozen=True, kw_only=True):
    """What the first rank of a host finds there."""

    env: Mapping[str, str] = field(default_factory=dict)
    interface: str = ""  # that NCCL and gloo are to use; "": the one towards the first of the targets
    # Addresses; the second one for the case that the first is the host itself; (): nobody needs to know.
    targets: Sequence[str] = ()


class Preparation(Struct, frozen=True, kw_only=True):
    """What a host does before its ranks can start."""

    prerun: Sequence[PrerunEntry] = ()
    force: bool = False  # also entries whose inputs have not changed
    claim: bool = False  # see first that nobody holds a device
    evict: bool = False  # end processes of the same user that do
    library: bytes = b""  # the source of what Python programs there may import as ``meshrun``; b"": nothing
    program: str = ""  # the first word of the command line, which the host looks for after prerun; "": none


class Rank(Struct, frozen=True, kw_only=True):
    """One rank to start: what differs from the host's first one."""

    rank: int
    env: Mapping[str, str]
    stdin: bool  # it gets our standard input


class Session:
    """Talks to one agent, through one channel after the other.

    ``events`` is for the host's own thread; the other methods may be called from any. None of them raises when the
    channel is gone: ``events`` tells what became of it. From the start of the ranks on, orders are numbered and sent
    again through the next channel, until the agent has told that it has them.

    Every message is checked by the table (messages.py) and against what was asked for (asked.py) where it is read.
    """

    _table, _sizes = messages.ANSWERS, messages.ANSWER_SIZES

    def __init__(
        self,
        node: int,
        first_rank: int,
        channel: Channel,
        taken: Callable[[int, int], None],
        reopen: Callable[[], Channel | None] = lambda: None,
        is_dead: Callable[[Mapping[str, Any]], bool] = lambda owner: False,
        receive: Callable[[bytes], Iterable[Event]] = lambda data: (),
    ) -> None:
        """taken: called with (rank, bytes) when a rank's stdin has taken bytes.

        is_dead: whether the owner of a lock is known to live no more, or the run of an id to have ended
        reopen: makes another channel to the host; it blocks, and returns None when that is not to be tried any longer
        receive: takes what the answer to a lasting question brings, in the thread of ``events``; tells what came of it
        """
        self.node = node
        self.heard = time.monotonic()  # when the last bytes came or went
        self.waiting = False  # for the channel; False while nobody reads it: that is not the host's silence
        self.place = 0  # how much of the agent's stream has come, in bytes: whole frames
        self._acknowledged = 0
        self._reopen, self._is_dead = reopen, is_dead
        self._taken_over: set[str] = set()  # runs whose owner was dead
        self._may_come_back = False  # the agent listens for another channel
        self._attached = True  # the channel is the agent's; False until a new one is
        self._has_brought = False  # a second channel was offered to the agent
        self._is_detached = False  # the agent goes on without us
        self._orders: list[tuple[int, bytes]] = []  # numbered, and not known to have arrived
        self._number = 0
        self._first_rank = first_rank
        self._channel = channel
        self._taken, self._receive_piece = taken, receive
        self._asked = Asked()
        self._data_bytes = dict(self._sizes)  # that may come behind a message, by its type
        self._streams: dict[tuple[Any, Any], tuple[int, Stream]] = {}  # of which there was output, as it is named
        self._lock = threading.Lock()
        self._held_back: list[bytes] | None = None  # orders that wait while the workspace is being sent
        self._owes_beat = False  # the first one goes with whatever is sent next
        self._offset = 0.0  # the host's clock minus ours, in seconds
        self.round_trip = float("inf")  # seconds, of the fastest beat; it told the offset
        self.sent = 0  # bytes of the workspace
        self._sending = threading.Lock()  # held by who sends much
        self.attempt = 0  # which listing of the workspace is being sent
        self._ended = False
        self._cgroup = ""  # where the run's processes are there, in case that its agent is killed
        self._has_begun = False  # the agent knows for what it is there
        self._over = False  # the agent has said its last word
        self._given_up = ""  # why we hung up for good, if we did
        self._why = ""  # the last channel ended
        self._why_hung_up = ""  # if we did, to try another one
        self.opened = time.monotonic()  # when the channel was
        self.awaits_login = True  # the login on the host has not started our program
        self._login_limit = 0.0  # seconds that it had for that, once they are over

    # ---- requests

    def begin(self, begin: Begin, preparation: Preparation | None = None, finds: Finds | None = None) -> None:
        """Ship the agent and its first request in one flight, and with it the one to prepare, if there is that.

        preparation, finds: as in prepare
        """
        self._run, self._agent, self._remote_dir = begin.run, begin.node, begin.remote_dir
        self._begun = time.monotonic()
        self._is_locking = begin.lock
        self._marker = os.urandom(16).hex()
        request = {
            "type": "begin",
            "marker": self._marker,
            "run": begin.run,
            "node": begin.node,
            "lock": begin.lock,
            "announce": begin.announce,
            "exclusive": begin.exclusive,
            "share": begin.share,
            "existing": begin.existing,
            "workspace_links": begin.workspace_links,
            "needs_home": begin.needs_home,
            "devices": list(begin.devices),
            "device_patience": begin.device_patience,
            "spool": begin.spool,
            "project": begin.project,
            "remote_dir": begin.remote_dir,
            "about": dict(begin.about),
            "owner": begin.owner,
            "lease": begin.lease,
            "grace": begin.grace,
            "ports": list(begin.ports),
            "stacks": begin.stacks,
            "drain": begin.drain,
            "timeout": begin.timeout,
            "keep_going": begin.keep_going,
            "plan": dict(begin.plan),
        }
        at_once = _prepare_frame(preparation, finds or Finds()) if preparation else b""
        self._is_preparing = preparation is not None
        self._asked.begin(len(begin.ports))
        if begin.lock:
            self._asked.note("lock")
        if preparation is not None:
            self._asked.prepare(len(preparation.prerun))
        with self._lock:
            if not self._given_up:
                self._has_begun = True
                self._send_held(opening() + encode(request) + at_once)

    def lock(self) -> None:
        """Take the host's lock, if the run takes any."""
        self._asked.note("lock")
        self._send(encode({"type": "lock"}))

    def unlock(self) -> None:
        """Let go of the host's lock."""
        self._send(encode({"type": "unlock"}))

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
        """Send the changes of the manifest, and a pack with what the host will lack, if that is known.

        attempt: comes back with what the host answers
        pack: an open file; -1: none goes along
        asks: without one the host is to tell what it lacks; otherwise it waits for a pack
        lacks_bytes: of the longest list of what it lacks
        """
        self._data_bytes["lacks"] = lacks_bytes
        self._asked.send(attempt)
        pieces = [changes[place : place + PIECE] for place in range(0, len(changes), PIECE)]
        headers: list[dict[str, Any]] = [{"type": "changes"} for _ in pieces]
        headers[0] |= {"first": True, "fresh": fresh, "attempt": attempt}
        headers[-1] |= {"last": asks and pack < 0}
        self._send_pieces(attempt, zip(headers, pieces, strict=True), _pack_frames(pack) if pack >= 0 else ())

    def send_pack(self, pack: int, *, attempt: int) -> None:
        """Send a pack from an open file, which other threads read as well. attempt: as in send_changes."""
        self._send_pieces(attempt, _pack_frames(pack))

    def settle(self) -> None:
        """Nobody gets the pack from this host any more."""
        self._send(encode({"type": "settled"}))

    def _send_pieces(self, attempt: int, *frames: Iterable[tuple[dict[str, Any], bytes]]) -> None:
        """Send much; orders that are given meanwhile go out between two pieces. For a thread of its own.

        One after the other; what belongs to an earlier attempt is broken off, or not begun.
        """
        with self._sending:
            if attempt == self.attempt:
                self._channel.pace(self.round_trip)
                self._send_each(attempt, itertools.chain(*frames))

    def _send_each(self, attempt: int, frames: Iterable[tuple[dict[str, Any], bytes]]) -> None:
        with self._lock:
            self._held_back = []
        for data, size in _together(frames):
            self.heard = time.monotonic()
            self._send_at_once(data)
            self.sent += size
            with self._lock:
                orders, self._held_back = self._held_back, []
            if orders:
                self._send_at_once(b"".join(orders))
            if self._ended or self._given_up or self._over or attempt != self.attempt:
                break
        with self._lock:
            orders, self._held_back = self._held_back, None
            self._send_at_once(b"".join(orders))

    def serve(self, tree: int, size: int, credentials: str) -> None:
        """Have the host hand on the next pack that it gets, of so many bytes. tree: comes back with its answer."""
        self._asked.serve(tree)
        self._send(encode({"type": "serve", "tree": tree, "bytes": size, "credentials": credentials}))

    def fetch(self, tree: int, address: str, port: int, size: int, credentials: str) -> None:
        """Have the host get the pack from another one."""
        self._asked.fetch(tree)
        given = {"tree": tree, "address": address, "port": port, "bytes": size, "credentials": credentials}
        self._send(encode({"type": "fetch", **given}))

    def prepare(self, preparation: Preparation, finds: Finds) -> None:
        """Prepare the host. finds: what prerun finds, as the first rank does"""
        self._asked.prepare(len(preparation.prerun))
        self._send(_prepare_frame(preparation, finds))

    def start(
        self, argv: Sequence[str], ranks: Sequence[Rank], *, finds: Finds | None = None, detach: bool = False
    ) -> None:
        """Start the ranks of this host.

        finds: what they find, if it was not known when the host was prepared
        detach: what they print is kept there from the beginning
        """
        listed = [{"rank": rank.rank, "env": dict(rank.env), "stdin": rank.stdin} for rank in ranks]
        self._may_come_back = True
        self._asked.start([rank.rank for rank in ranks])
        told = _told(finds) if finds else None
        self._order({"type": "start", "argv": list(argv), "ranks": listed, "finds": told, "detach": detach})

    def detach(self) -> None:
        """Have the host keep the run without us; it answers with Detached."""
        self._order({"type": "detach"})

    def introduce(self, host_grace: float, credentials: str, address: str = "", port: int = 0) -> None:
        """Have the agents of a detached run meet at the first host's; it answers with Introduced.

        host_grace: seconds that a host may be silent before it is lost
        credentials: a private key and its certificate, as PEM, that all of them and nobody else get
        address, port: of the first host's agent; "": it is that one
        """
        self._asked.note("introduce")
        place = {"address": address, "port": port}
        given = {"node": self._agent, "host_grace": host_grace, "credentials": credentials, **place}
        self._order({"type": "introduce", **given})

    def setup(self, rank: int, commands: Sequence[SetupCommand], force: bool) -> None:
        """Run the commands of a setup as this rank; force: also those that ``unless`` would skip."""
        listed = [asdict(command) for command in commands]
        self._may_come_back = True
        self._asked.setup(rank, commands)
        self._order({"type": "setup", "rank": rank, "commands": listed, "force": force})

    def password(self, step: int, password: str) -> None:
        """Answer AsksPassword, unless the command that asked has ended; "" if there is no password."""
        if self._asked.may_have_password(step):
            self._order({"type": "password"}, password.encode("utf-8", "surrogateescape"))

    def ask(self, question: Mapping[str, Any], *, lasting: bool = False) -> None:
        """Ask the agent; it answers with Answered.

        lasting: the answer takes its time, and is worth another channel
        """
        self._asked.ask(question, has_enclosed=False)
        if lasting:
            self._may_come_back = True
            self._order({"type": "ask", **question})
        else:
            self._send(encode({"type": "ask", **question}))

    def ask_with(self, question: Mapping[str, Any], enclosed: bytes) -> None:
        """Ask the agent something that comes with many bytes. For a thread of its own."""
        self._asked.ask(question, has_enclosed=bool(enclosed))
        pieces = [enclosed[place : place + PIECE] for place in range(0, len(enclosed), PIECE)]
        ask = {"type": "ask", **question}
        self._send_pieces(self.attempt, [*(({"type": "enclosed"}, piece) for piece in pieces), (ask, b"")])

    def reply(self, data: bytes) -> None:
        """Say something to who is answering a lasting question."""
        self._order({"type": "reply"}, data)

    def stdin(self, rank: int, data: bytes) -> None:
        """Give bytes to the stdin of a rank; b"" ends it."""
        self._asked.give(rank, len(data))
        self._order({"type": "stdin", "rank": rank}, data)

    def beat(self) -> None:
        """Renew the lease, and ask for the host's time."""
        self._owes_beat = True
        self._send(b"")

    def signal(self, number: int, grace: float, why: EndOrdered | None = None) -> None:
        """Signal every process of the run there, and kill what is left after grace seconds.

        why: what a run that goes on by itself is to tell of it
        """
        told = {"cause": why.cause, "more": {"lost": why.lost, "reason": why.reason}} if why else {}
        self._order({"type": "signal", "signal": number, "grace": grace, **told})

    def kill(self) -> None:
        """Kill every process of the run there, now."""
        self._order({"type": "kill"})

    def finish(self, number: int, grace: float) -> None:
        """End what is left (signal, grace, SIGKILL), look that it is gone, and let the agent leave."""
        self._ended = True
        self._asked.end()
        self._order({"type": "finish", "signal": number, "grace": grace})

    def acknowledge(self, place: int, *, now: bool = False) -> None:
        """What came up to this place of the stream is ours for good; now: tell the agent at once."""
        if (now or place - self._acknowledged >= ACKNOWLEDGED) and not self._given_up:
            self._acknowledged = place
            self._send(encode({"type": "ack", "place": place}))

    def leave(self) -> None:
        """Tell the agent that we leave for good, whatever it is doing: it ends the run, unless that is detached."""
        self._asked.end()
        with self._lock:
            self._given_up = self._given_up or "given up"
            is_there = self._has_begun and not self._over
        if is_there:
            self._send(encode({"type": "bye"}))

    def try_another(self, reason: str) -> None:
        """Nothing comes through the channel: end it, and try another one if the agent listens for it."""
        if self._may_come_back:
            self._why_hung_up = reason
            self._channel.close()

    def end_login(self, limit: float) -> None:
        """Close a channel whose login has not started our program. limit: the seconds that it had"""
        self._login_limit, self.awaits_login = limit, False
        self._channel.close()

    def give_up(self, reason: str) -> None:
        """Hang up on a host that has fallen silent: it is lost for that reason."""
        self._given_up = reason
        self._channel.close()

    def close(self) -> None:
        """Hang up for good: the agent ends whatever is left by itself."""
        self._given_up = self._given_up or "given up"
        if self._is_detached:
            self._channel.let_go()
        self._channel.close()

    def _order(self, header: dict[str, Any], data: bytes = b"") -> None:
        """Send something that must not get lost with a channel."""
        with self._lock:
            self._number += 1
            frame = encode({**header, "n": self._number}, data)
            self._orders.append((self._number, frame))
            if self._attached:
                self._send_held(frame)

    def _send(self, data: bytes) -> None:
        with self._lock:
            if self._attached:
                self._send_held(data)

    def _send_held(self, data: bytes) -> None:
        if self._owes_beat:
            self._owes_beat = False
            data = encode({"type": "beat", "time": time.time()}) + data
        if self._held_back is not None:
            self._held_back.append(data)
        else:
            self._send_at_once(data)

    def _send_at_once(self, data: bytes) -> None:
        try:
            self._channel.send(data)
        except ChannelClosed:
            pass  # what receive() says decides what it means

    # ---- events

    def events(self) -> Iterator[Event]:
        """Everything that the agent tells, through as many channels as it takes.

        The last one is Gone, or Lost or PrepareFailed where the agent could not take its leave. ``place`` is how much
        of the agent's stream is told by the events so far: acknowledge it once nothing of that can be lost any more.
        """
        yield from self._read()
        while not self._over:
            if self._attached:
                with self._lock:
                    self._attached = False
                yield Reconnecting(time=time.time(), node=self.node, reason=self._why)
            channel = self._reopen()
            if channel is None:
                reason = self._given_up or f"{self._why}, and it could not be reached again"
                yield Lost(time=time.time(), node=self.node, reason=reason, is_cut=True)
                return
            self._bring(channel)
            yield from self._read()

    def _bring(self, channel: Channel) -> None:
        """Offer the agent another channel; it goes on where its stream has reached us."""
        self._channel, self.opened = channel, time.monotonic()
        self._has_brought = True
        self.awaits_login, self._login_limit = True, 0.0
        if self._given_up:
            channel.close()
        self._marker = os.urandom(16).hex()
        with self._lock:
            self._send_at_once(opening() + encode(self._greeting()))

    def _greeting(self) -> dict[str, Any]:
        """What another channel begins with."""
        return {
            "type": "channel",
            "marker": self._marker,
            "run": self._run,
            "node": self._agent,
            "have": self.place,
            "remote_dir": self._remote_dir,
            "cgroup": self._cgroup,
            "age": time.monotonic() - self._begun,
        }

    def _read(self) -> Iterator[Event]:
        """The events of one channel; sets ``_over`` if there is to be no other one."""
        decoder, begin = Decoder(self._data_bytes), self.place
        greeted, has_all, banner = False, False, b""
        try:
            while chunk := self._receive():
                if not greeted:
                    banner += chunk
                    if not has_all and lacking() in banner:
                        has_all, self.awaits_login = True, False
                        with self._lock:
                            self._send_at_once(encode({"type": "agent"}, blob()))
                    _, found, chunk = banner.partition(b"\n%s\n" % self._marker.encode())
                    greeted = bool(found)
                    self.awaits_login = self.awaits_login and not greeted
                    if not greeted and len(banner) > MAX_BANNER:
                        break
                    if not greeted:
                        continue
                # Before memory is taken for what comes.
                is_long = self._asked.awaits_answer
                decoder.header_bytes = messages.ANSWER_BYTES if is_long else messages.HEADER_BYTES
                frames = decoder.feed(chunk)
                for (header, data), end in zip(frames, decoder.ends, strict=True):
                    self.place = begin + end
                    if header.get("type") == "output":
                        yield from self._output(header, data)
                        continue
                    header = messages.read(self._table, header)
                    if header["type"] == "gone":  # the last frame: the agent leaves once it knows that we have it
                        self.acknowledge(self.place, now=True)
                    yield from self._event(header, data)
                # Beats are no events, and must not fill the agent's window in a quiet run.
                if self.place - self._acknowledged >= 2 * ACKNOWLEDGED:
                    yield Heard(time=time.time(), node=self.node)
        except FrameError as error:
            self.leave()
            self._over = True
            yield Lost(time=time.time(), node=self.node, reason=REFUSED + one_line(str(error)))
            return
        finally:
            self.awaits_login = False
        if not self._over:
            yield from self._channel_ended(greeted, banner)

    def _channel_ended(self, greeted: bool, banner: bytes) -> Iterator[Event]:
        """Without a good-bye: is it worth another one?"""
        now = time.time()
        if self._given_up:
            self._over = True
            yield Lost(time=now, node=self.node, reason=self._given_up, is_cut=True)
        elif not self._may_come_back:
            self._over = True
            farewell = self._channel.farewell()
            if greeted:
                clear, by = farewell.status == SWEPT, _killed_by(farewell)
                yield Lost(time=now, node=self.node, reason=_last_words(farewell), is_clear=clear, killed_by=by)
            elif self._login_limit:
                yield self._no_greeting(farewell, banner)
            else:
                yield self._no_agent(farewell, banner)
        elif greeted and self._attached:
            farewell = self._channel.farewell()
            self._why = self._why_hung_up or "the connection ended"
            if farewell.status is not None and farewell.status >= 0:  # the guardian's own: the agent is no more
                self._over = True
                clear, by = farewell.status == SWEPT, _killed_by(farewell)
                yield Lost(time=now, node=self.node, reason=_last_words(farewell), is_clear=clear, killed_by=by)

    def _receive(self) -> bytes:
        # While nobody was reading, nothing could be heard.
        if self._attached and not self.waiting:
            self.heard = time.monotonic()
        self.waiting = True
        chunk = self._channel.receive()
        if chunk and (self._attached or not self.awaits_login):  # a login that prints is no sign of the agent
            self.heard = time.monotonic()
        return chunk

    def _output(self, header: dict[str, Any], data: bytes) -> Iterator[Event]:
        rank, stream = self._stream_of(header)
        yield Output(time=time.time(), node=self.node, rank=rank, stream=stream, data=data)

    def _stream_of(self, header: dict[str, Any]) -> tuple[int, Stream]:
        """Return the rank and the stream of output. It is checked when it comes for the first time. Raises FrameError.

        A host may send hundreds of MB in a second.
        """
        try:
            return self._streams[header["rank"], header["stream"]]
        except (KeyError, TypeError):
            header = messages.read(self._table, header)
            found = self._streams[header["rank"], header["stream"]] = self._asked.stream(header, self._first_rank)
            return found

    def _event(self, header: dict[str, Any], data: bytes) -> Iterator[Event]:
        """Do what a frame means for us, and tell the rest. The header is as the table has it."""
        self._asked.check(header)
        match header["type"]:
            case "beat":
                self._set_clock(time.time() - header.get("held", 0.0), sent=header["echo"], there=header["time"])
                self._forget_orders(header["orders"])
            case "busy" if self._may_take_over(header["owner"]):
                yield self._take_over(header["owner"])
            case "no-door":
                self._may_come_back = False
            case "no-agent" if self._attached:
                raise FrameError("no-agent: an agent sends it")
            case "no-agent":
                self._over = True
                left = "; ".join(header["left"])
                reason = "its agent is gone" + (f", and left there {left}" if left else "")
                now, clear = time.time(), not left
                yield Lost(time=now, node=self.node, reason=reason, is_clear=clear, killed_by="a signal")
            case "piece":
                yield from self._receive_piece(data)
                self.acknowledge(self.place)  # it is here, whatever the main thread is doing
            case "taken":
                self._taken(header["rank"], header["bytes"])
            case "step":
                pass  # what it allows is noted
            case "hello":
                yield self._connected(header)
            case kind:
                if kind == "attached" and not self._has_brought:
                    raise FrameError("attached: no channel was offered")
                if kind == "attached" and self._attached:
                    # The message for a channel that broke soon comes through the next one, before that one's.
                    self._forget_orders(header["orders"])
                    return
                if kind == "attached":
                    self._go_on(header["orders"])
                elif kind == "locked":
                    self._cgroup = header["cgroup"]
                elif kind == "detached":
                    self._is_detached = True
                elif kind == "gone":
                    self._over = True
                about = {"node": self.node, "sent": self.sent, "lacks_bytes": self._data_bytes.get("lacks", 0)}
                if kind == "left-out":
                    header["rank"], header["stream"] = self._stream_of(header)
                yield event_of(header, data, **about, offset=self._offset)

    def _connected(self, header: dict[str, Any]) -> Connected:
        now = time.time()
        self._offset = header["time"] - now  # until the first beat is back
        self._owes_beat = True
        self._tell_of_ends(header.get("runs", ()))
        return Connected(
            time=now,
            node=self.node,
            address=self._channel.address,
            machine=header["machine"],
            is_locking=self._is_locking,
            is_preparing=self._is_preparing,
        )

    def _may_take_over(self, owner: Mapping[str, Any]) -> bool:
        run = owner.get("run", "")
        return bool(run) and run not in self._taken_over and self._is_dead(owner)

    def _tell_of_ends(self, runs: Sequence[str]) -> None:
        """Have agents end whose runs have ended here: the host was cut off then.

        runs: the ids of all other runs on the host
        """
        if over := [run for run in runs if self._is_dead({"run": run})]:
            self._send(encode({"type": "over", "runs": over}))

    def _take_over(self, owner: Mapping[str, Any]) -> HostNotice:
        """End what is left of a run whose client is over. Once: the agent waits for the lock while that run ends."""
        self._taken_over.add(owner["run"])
        self._asked.note("lock")
        self._send(encode({"type": "lock", "take_over": owner["run"]}))
        told = f"ending what is left of a run whose client is over: {told_owner(owner)}"
        return HostNotice(time=time.time(), node=self.node, text=told)

    def _forget_orders(self, obeyed: int) -> None:
        with self._lock:
            self._orders = [(number, frame) for number, frame in self._orders if number > obeyed]

    def _go_on(self, obeyed: int) -> None:
        """The agent has the new channel: send what has not reached it."""
        self._why_hung_up = ""
        self._forget_orders(obeyed)
        with self._lock:
            self._attached = True
            self._send_at_once(b"".join(frame for _, frame in self._orders))
        self.acknowledge(self.place, now=True)

    def _set_clock(self, now: float, *, sent: float, there: float) -> None:
        """Of all beats, the one that was back first tells the other clock best."""
        round_trip = now - sent
        if 0 <= round_trip < self.round_trip:
            self.round_trip = round_trip
            self._offset = there - (sent + round_trip / 2)

    def _no_greeting(self, farewell: Farewell, banner: bytes) -> PrepareFailed:
        """Return why a login whose time was over is given up."""
        said = _tail(farewell.stderr or banner)
        message = f"its login shell did not start mesh's agent within {self._login_limit:g} s"
        message += f"; the last that it printed: {said}" if said else ", and printed nothing"
        hint = "try `ssh HOST true`: does a start-up file there (.bashrc, .zshenv, config.fish) wait for input, or\n"
        hint += "`exec` another program? Where it only needs longer: --connect-timeout SECONDS"
        return PrepareFailed(time=time.time(), node=self.node, step="login", message=message, hint=hint)

    def _no_agent(self, farewell: Farewell, banner: bytes) -> PrepareFailed:
        """The channel ended before the agent greeted: say why."""
        said = _tail(farewell.stderr or banner)
        if farewell.status in NO_PYTHON or said.endswith("Command not found."):  # csh
            message = "no python3 there, or not the one that python: of cluster.yaml names" + f" ({said})" * bool(said)
            hint = "install Python 3.8 or later on the host, or set python: in cluster.yaml to the path of one"
        elif farewell.status == OLD_PYTHON:
            message = "python3 is older than 3.8 there"
            hint = "set python: in cluster.yaml to the path of Python 3.8 or later"
        elif NEW_PASSWORD in (farewell.stderr + banner).lower():
            message = "its user must choose a new password before anything else"
            hint = "do that once: `ssh -t HOST` asks for it"
            return PrepareFailed(time=time.time(), node=self.node, step="login", message=message, hint=hint)
        else:
            status = "" if farewell.status is None else f" (exit {farewell.status})"
            message = f"the login shell ended before our agent started{status}" + (f": {said}" if said else "")
            hint = (
                "try `ssh HOST true`: what do its start-up files (.bashrc, .cshrc, config.fish) do? And is it a Python"
            )
            hint += "\nthat works what python: of cluster.yaml names, if there is one?"
        return PrepareFailed(time=time.time(), node=self.node, step="python", message=message, hint=hint)


def _prepare_frame(preparation: Preparation, finds: Finds) -> bytes:
    entries = [asdict(entry) for entry in preparation.prerun]
    chosen = {name: getattr(preparation, name) for name in ("force", "claim", "evict", "program")}
    return encode({"type": "prepare", "finds": _told(finds), "prerun": entries, **chosen}, preparation.library)


def _told(finds: Finds) -> dict[str, Any]:
    return {"env": dict(finds.env), "interface": finds.interface, "targets": list(finds.targets)}


def _together(frames: Iterable[tuple[dict[str, Any], bytes]]) -> Iterator[tuple[bytes, int]]:
    """Frames as they are sent, small ones as one; with each, how many bytes that are no header are in it."""
    data, size = b"", 0
    for header, piece in frames:
        frame = encode(header, piece)
        if data and len(data) + len(frame) > PIECE:
            yield data, size
            data, size = b"", 0
        data, size = data + frame, size + len(piece)
    if data:
        yield data, size


def _pack_frames(pack: int) -> Iterator[tuple[dict[str, Any], bytes]]:
    place = 0
    while piece := os.pread(pack, PIECE, place):
        yield {"type": "pack"}, piece
        place += len(piece)
    yield {"type": "pack", "last": True}, b""


def _last_words(farewell: Farewell) -> str:
    said = _tail(farewell.stderr)
    if said:
        return f"its agent ended: {said}"
    if farewell.status is not None:
        return f"its agent ended (exit {farewell.status})"
    return "the connection ended"


def _killed_by(farewell: Farewell) -> str:
    """Return the signal that has killed the agent, by the last words of its guardian; "" if they name none."""
    found = re.search(re.escape(KILLED) + r"(\d+)", farewell.stderr.decode("utf-8", "replace"))
    return f"signal {found.group(1)}" if found else ""


def _tail(text: bytes) -> str:
    """The last line that says something, as a person may read it."""
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    return one_line(lines[-1][:400]) if lines else ""
