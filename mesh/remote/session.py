"""The local end of one agent: requests out, events in. One per host; knows the protocol and decides nothing."""

from __future__ import annotations

import dataclasses
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mesh.core.errors import ChannelClosed
from mesh.core.events import (
    Answered,
    AsksPassword,
    Busy,
    Connected,
    Event,
    Exited,
    Gone,
    HostEvent,
    Locked,
    Lost,
    Output,
    PrepareFailed,
    Ready,
    Started,
    Stream,
    Synced,
)
from mesh.core.interfaces import Channel, Farewell
from mesh.core.run import SetupCommand
from mesh.remote.agent.frames import Decoder, FrameError, encode
from mesh.remote.blob import NO_PYTHON, OLD_PYTHON, blob

# Bytes of the workspace in one frame. An order waits behind one of them, and a host is alive as long as it takes them:
# over a share of 32 kbit/s of an uplink, this is 8 s.
PIECE = 32 << 10
NEW_PASSWORD = b"password change required"  # openssh/session.c, when there is no terminal
MAX_BANNER = 16 << 20  # bytes that login scripts may print before the agent greets


@dataclass(frozen=True, kw_only=True)
class Begin:
    """What an agent must know from its first moment."""

    run: str
    project: str  # the workspace's directory on the host
    remote_dir: str
    owner: Mapping[str, object] | None  # what the lock tells others; None: take no lock
    lease: float  # seconds without a sign from us after which the agent ends everything
    grace: float  # seconds from SIGTERM to SIGKILL when it does


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One rank to start: what differs from the host's first one."""

    rank: int
    env: Mapping[str, str]
    stdin: bool  # it gets our standard input


class Session:
    """Talks to the agent at the other end of a channel.

    ``events`` is for the host's own thread; the other methods may be called from any. None of them raises when the
    channel is gone: ``events`` tells that as Lost.
    """

    def __init__(self, node: int, first_rank: int, channel: Channel, taken: Callable[[int, int], None]) -> None:
        """taken: called with (rank, bytes) when a rank's stdin has taken bytes."""
        self.node = node
        self.heard = time.monotonic()  # when the last bytes came or went, or when we last asked for some
        self.waiting = (
            False  # for the channel; False while what came is being worked off: that is not the host's silence
        )
        self._first_rank = first_rank
        self._channel = channel
        self._taken = taken
        self._lock = threading.Lock()
        self._held_back: list[bytes] | None = None  # orders that wait while the workspace is being sent
        self._offset = 0.0  # the host's clock minus ours, in seconds
        self._round_trip = float("inf")  # of the beat that told the offset
        self._sent = 0  # bytes of the workspace
        self._ended = False
        self._given_up = ""  # why we hung up, if we did

    # ---- requests

    def begin(self, begin: Begin) -> None:
        """Ship the agent and its first request in one flight."""
        self._marker = secrets.token_hex(16)
        request = {
            "type": "begin",
            "marker": self._marker,
            "run": begin.run,
            "project": begin.project,
            "remote_dir": begin.remote_dir,
            "owner": begin.owner,
            "lease": begin.lease,
            "grace": begin.grace,
        }
        self._send(blob() + encode(request))

    def lock(self) -> None:
        """Take the host's lock, if the run takes any."""
        self._send(encode({"type": "lock"}))

    def send_workspace(self, pack: int) -> None:
        """Send the packed workspace from an open file, which other threads read as well.

        Orders given meanwhile go out between two pieces. For the host's own thread.
        """
        with self._lock:
            self._held_back = []
        self.waiting = True
        while piece := os.pread(pack, PIECE, self._sent):
            self.heard = time.monotonic()
            self._send_at_once(encode({"type": "pack"}, piece))
            self._sent += len(piece)
            with self._lock:
                orders, self._held_back = self._held_back, []
            if orders:
                self._send_at_once(b"".join(orders))
            if self._ended:
                break
        self._send_at_once(encode({"type": "pack", "last": True}))
        with self._lock:
            orders, self._held_back = self._held_back, None
            self._send_at_once(b"".join(orders))
        self.waiting = False

    def prepare(self, env: Mapping[str, str], prerun: Sequence[str]) -> None:
        """Run prerun with the environment of the host's first rank."""
        self._send(encode({"type": "prepare", "env": dict(env), "prerun": list(prerun)}))

    def start(self, argv: Sequence[str], ranks: Sequence[Rank]) -> None:
        """Start the ranks of this host."""
        listed = [{"rank": rank.rank, "env": dict(rank.env), "stdin": rank.stdin} for rank in ranks]
        self._send(encode({"type": "start", "argv": list(argv), "ranks": listed}))

    def setup(self, rank: int, commands: Sequence[SetupCommand], force: bool) -> None:
        """Run the commands of a setup as this rank; force: also those that ``unless`` would skip."""
        listed = [dataclasses.asdict(command) for command in commands]
        self._send(encode({"type": "setup", "rank": rank, "commands": listed, "force": force}))

    def password(self, password: str) -> None:
        """Answer AsksPassword; "" if there is none."""
        self._send(encode({"type": "password"}, password.encode("utf-8", "surrogateescape")))

    def ask(self, question: Mapping[str, Any]) -> None:
        """Ask the agent; it answers with Answered."""
        self._send(encode({"type": "ask", **question}))

    def stdin(self, rank: int, data: bytes) -> None:
        """Give bytes to the stdin of a rank; b"" ends it."""
        self._send(encode({"type": "stdin", "rank": rank}, data))

    def beat(self) -> None:
        """Renew the lease, and ask for the host's time."""
        self._send(encode({"type": "beat", "time": time.time()}))

    def signal(self, number: int, grace: float) -> None:
        """Signal every process of the run there, and kill what is left after grace seconds."""
        self._send(encode({"type": "signal", "signal": number, "grace": grace}))

    def kill(self) -> None:
        """Kill every process of the run there, now."""
        self._send(encode({"type": "kill"}))

    def finish(self, number: int, grace: float) -> None:
        """End what is left (signal, grace, SIGKILL), look that it is gone, and let the agent leave."""
        self._ended = True
        self._send(encode({"type": "finish", "signal": number, "grace": grace}))

    def give_up(self, reason: str) -> None:
        """Hang up on a host that has fallen silent: it is lost for that reason."""
        self._given_up = reason
        self.close()

    def close(self) -> None:
        """Hang up: the agent ends whatever is left by itself."""
        self._channel.close()

    def _send(self, data: bytes) -> None:
        with self._lock:
            if self._held_back is not None:
                self._held_back.append(data)
                return
            self._send_at_once(data)

    def _send_at_once(self, data: bytes) -> None:
        try:
            self._channel.send(data)
        except ChannelClosed:
            self._ended = True  # what receive() says decides what it means

    # ---- events

    def events(self) -> Iterator[Event]:
        """Everything that the agent tells, until the channel ends; then Lost, unless the agent took its leave."""
        decoder = Decoder()
        greeted = gone = False
        banner = b""
        try:
            while chunk := self._receive():
                if not greeted:
                    banner += chunk
                    _, found, chunk = banner.partition(b"\n%s\n" % self._marker.encode())
                    if not found and len(banner) < MAX_BANNER:
                        continue
                    if not found:
                        break
                    greeted = True
                for header, data in decoder.feed(chunk):
                    for event in self._event(header, data):
                        gone = gone or isinstance(event, Gone)
                        yield event
        except FrameError as error:
            yield Lost(time=time.time(), node=self.node, reason=f"the agent does not speak our protocol: {error}")
            return
        if self._given_up:
            yield Lost(time=time.time(), node=self.node, reason=self._given_up)
        elif not greeted:
            yield self._no_agent(self._channel.farewell(), banner)
        elif not gone:
            yield Lost(time=time.time(), node=self.node, reason=_last_words(self._channel.farewell()))

    def _receive(self) -> bytes:
        self.heard, self.waiting = time.monotonic(), True
        chunk = self._channel.receive()
        self.heard, self.waiting = time.monotonic(), False
        return chunk

    def _event(self, header: dict[str, Any], data: bytes) -> Iterator[Event]:
        now = time.time()
        node = self.node
        match header["type"]:
            case "output" if header["stream"] == "prerun":
                yield Output(time=now, node=node, rank=self._first_rank, stream=Stream.PRERUN, data=data)
            case "output":  # a rank's, or that of a setup
                stream = Stream(header["stream"])
                yield Output(time=now, node=node, rank=header["rank"], stream=stream, data=data)
            case "beat":
                self._set_clock(now, sent=header["echo"], there=header["time"])
            case "taken":
                self._taken(header["rank"], header["bytes"])
            case "started":
                at = self._ours(header["time"])
                yield Started(time=at, node=node, rank=header["rank"], pid=header["pid"])
            case "exited":
                at = self._ours(header["time"])
                code, number = header.get("code", 0), header.get("signal", 0)
                during = header.get("during", "")
                yield Exited(time=at, node=node, rank=header["rank"], code=code, signal=number, during=during)
            case _:
                yield self._host_event(header, now)

    def _host_event(self, header: dict[str, Any], now: float) -> HostEvent:
        node = self.node
        match header["type"]:
            case "hello":
                self._offset = header["time"] - now  # until the first beat is back
                self.beat()
                return Connected(
                    time=now,
                    node=node,
                    address=self._channel.address,
                    port=header["port"],
                    machine=header["machine"],
                )
            case "locked":
                return Locked(time=now, node=node)
            case "busy":
                return Busy(time=now, node=node, owner=_told(header["owner"]))
            case "synced":
                files, seconds = header["files"], header["seconds"]
                return Synced(time=now, node=node, files=files, bytes=self._sent, seconds=seconds)
            case "ready":
                return Ready(time=now, node=node)
            case "failed":
                step, message, hint = header["step"], header["message"], header["hint"]
                return PrepareFailed(time=now, node=node, step=step, message=message, hint=hint)
            case "asks-password":
                return AsksPassword(time=now, node=node, user=header["user"])
            case "answer":
                return Answered(time=now, node=node, answer=header["answer"], clock=self._offset)
            case "gone":
                return Gone(time=now, node=node, left=tuple(header["left"]), stays=tuple(header["stays"]))
            case other:
                raise FrameError(f"an unknown frame {other!r}")

    def _set_clock(self, now: float, *, sent: float, there: float) -> None:
        """Of all beats, the one that was back first tells the other clock best."""
        round_trip = now - sent
        if 0 <= round_trip < self._round_trip:
            self._round_trip = round_trip
            self._offset = there - (sent + round_trip / 2)

    def _ours(self, there: float) -> float:
        return there - self._offset

    def _no_agent(self, farewell: Farewell, banner: bytes) -> PrepareFailed:
        """The channel ended before the agent greeted: say why."""
        said = _tail(farewell.stderr or banner)
        if farewell.status == NO_PYTHON:
            message = "no python3 there"
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
            hint = "try `ssh HOST true`: what do its start-up files (.bashrc, .cshrc, config.fish) do?"
        return PrepareFailed(time=time.time(), node=self.node, step="python", message=message, hint=hint)


def _last_words(farewell: Farewell) -> str:
    said = _tail(farewell.stderr)
    if said:
        return f"its agent ended: {said}"
    if farewell.status is not None:
        return f"its agent ended (exit {farewell.status})"
    return "the connection ended"


def _tail(text: bytes) -> str:
    """The last line that says something, as a person may read it."""
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _told(owner: Mapping[str, object]) -> str:
    """The owner of a lock in one line."""
    if not owner:
        return "a run of which nothing is known"
    since = owner.get("since")
    when = ""
    if isinstance(since, (int, float)):
        when = time.strftime(" since %Y-%m-%d %H:%M:%S", time.localtime(since))
    return f"{owner.get('user')} on {owner.get('machine')}{when}: {owner.get('command')} (run {owner.get('run')})"
