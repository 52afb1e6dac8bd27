"""A backend whose agents are played here, without a process or a connection: for runs of thousands of ranks.

An agent answers in the thread that asks it, so that a run of mesh over it costs what the client costs, and no more.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mesh.core.cluster import Host
from mesh.core.errors import ChannelClosed, HostUnreachable
from mesh.core.events import Event
from mesh.core.interfaces import CLIENT_RETURN_S, Farewell, NoAgent, Opened
from mesh.protocol.frames import Decoder, encode
from mesh.protocol.messages import PROTOCOL_VERSION
from mesh.remote.blob import opening

Frames = Iterator[tuple[dict[str, Any], bytes]]
Play = Callable[[int], Frames]  # the frames of a rank from its start to its end, less those two


def silent(rank: int) -> Frames:
    """A rank that prints nothing."""
    return iter(())


def prints(lines: int, text: Callable[[int, int], bytes] = lambda rank, line: b"line %d\n" % line) -> Play:
    """A rank that prints so many lines on its stdout; text: makes one of the rank and the line's number."""

    def play(rank: int) -> Frames:
        for number in range(lines):
            yield {"type": "output", "rank": rank, "stream": "stdout"}, text(rank, number)

    return play


class ScriptedChannel:
    """The pipes of one agent that is only played."""

    def __init__(self, node: int, play: Play, codes: Mapping[int, int], ends: threading.Event | None) -> None:
        """play: what a rank prints; codes: exit statuses of ranks that have another one than 0

        ends: the ranks run until it is set, or until they are signalled; None: they end when they have printed
        """
        self._node, self._play, self._codes, self._ends = node, play, codes, ends
        self._decoder = Decoder()
        self._skip = len(opening())
        self._out: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._script: Frames = iter(())
        self._running: list[int] = []  # ranks
        self._changes = threading.Lock()  # a reader sees a start as a whole, and no rank ends before it has printed
        self._obeyed = self._ports = 0
        self._is_closed = False
        self.received = 0  # bytes

    def send(self, data: bytes) -> None:
        if self._is_closed:
            raise ChannelClosed("closed")
        self.received += len(data)
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        for header, _ in self._decoder.feed(data[skipped:]):
            self._obeyed = max(self._obeyed, header.get("n", 0))
            if answer := getattr(self, f"_on_{header['type']}", None):
                answer(header)

    def receive(self) -> bytes:
        return self.ready() or (b"" if self._is_closed else self._out.get())

    def ready(self) -> bytes:
        """Return the next bytes without waiting; b"" if there are none now."""
        while not self._is_closed:
            with self._changes:
                try:
                    return self._out.get_nowait()
                except queue.Empty:
                    pass
                frames = b"".join(encode(*frame) for frame, _ in zip(self._script, range(64), strict=False))
                if frames:
                    return frames
                if not self._running or self._ends is not None:
                    break
            self._end(0)
        return b""

    def farewell(self) -> Farewell:
        return Farewell(status=0, stderr=b"")

    def close(self, *, leave: bool = False) -> None:
        self._is_closed = True
        self._out.put(b"")

    def end(self) -> None:
        """End the ranks, as they might by themselves."""
        self._end(0)

    def _tell(self, kind: str, **more: Any) -> None:
        self._out.put(encode({"type": kind, **more}))

    def _on_begin(self, header: Mapping[str, Any]) -> None:
        self._out.put(b"\n%s\n" % header["marker"].encode())
        self._ports = len(header["ports"])
        self._tell("hello", protocol=PROTOCOL_VERSION, time=time.time(), machine=f"machine-{self._node}")
        if header["lock"]:
            self._on_lock(header)

    def _on_lock(self, header: Mapping[str, Any]) -> None:
        self._tell("locked", tree="", bare=False, cgroup="", others=[], ports=[29500, 29501][: self._ports])

    def _on_prepare(self, header: Mapping[str, Any]) -> None:
        self._tell("ready", interfaces={})

    def _on_start(self, header: Mapping[str, Any]) -> None:
        ranks = [rank["rank"] for rank in header["ranks"]]
        with self._changes:
            self._script = (frame for rank in ranks for frame in self._play(rank))
            self._running = list(ranks)
            for rank in ranks:
                self._tell("started", rank=rank, pid=1000 + rank, time=time.time())

    def _on_signal(self, header: Mapping[str, Any]) -> None:
        self._end(header["signal"])

    def _on_finish(self, header: Mapping[str, Any]) -> None:
        self._tell("clear", left=[], stays=[])
        self._tell("gone", left=[], stays=[])

    def _on_beat(self, header: Mapping[str, Any]) -> None:
        self._tell("beat", echo=header["time"], held=0.0, time=time.time(), orders=self._obeyed)

    def _end(self, signal: int) -> None:
        with self._changes:
            ended, self._running = self._running, []
            for rank in ended:
                how = {"signal": signal} if signal else {"code": self._codes.get(rank, 0)}
                self._tell("exited", rank=rank, time=time.time(), during="", **how)


class ScriptedBackend:
    """Opens channels to agents that are played."""

    client_return = CLIENT_RETURN_S

    def __init__(
        self,
        play: Play = silent,
        *,
        codes: Mapping[int, int] | None = None,
        ends: threading.Event | None = None,
    ) -> None:
        """play, codes, ends: as ScriptedChannel has them"""
        self._play, self._codes, self._ends = play, codes or {}, ends
        self.channels: list[ScriptedChannel] = []

    def listen(self, post: Callable[[Event], None]) -> None:
        pass

    def open(self, hosts: Sequence[Host], argv: Sequence[str]) -> Iterator[Opened]:
        for node, _ in enumerate(hosts):
            channel = ScriptedChannel(node, self._play, self._codes, self._ends)
            self.channels.append(channel)
            address = f"10.{node >> 16}.{node >> 8 & 255}.{node & 255}"
            yield Opened(node=node, result=channel, address=address)

    def reopen(self, node: int, argv: Sequence[str]) -> ScriptedChannel:
        raise AssertionError("nothing here breaks")

    def explain(self, node: int, end: NoAgent) -> HostUnreachable:
        raise AssertionError("every agent starts")

    def why(self, node: int) -> str:
        return ""

    def user(self, node: int) -> str:
        return "ana"

    def close(self) -> None:
        for channel in self.channels:
            channel.close()
