"""What is to be sent to the client: nothing is forgotten before the client has it, through whatever channel."""

from __future__ import annotations

import os
import time

from .frames import Decoder, encode, stream_of
from .lean import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Union

    from .playback import Nothing
    from .spool import Spool
    from .tape import Tape

    Source = Union[Spool, Nothing]

WINDOW = 1 << 20  # bytes that are under way and not acknowledged; the rest waits in the spool
TOGETHER = 16 << 10  # bytes of frames that are written at once: each write is a packet of sshd's
# What is told of a run to whoever comes back to it, beside what its ranks print.
TOLD = frozenset(("started", "exited", "failed", "end-ordered", "notice", "gone"))
FOR_OTHERS = "end-ordered"  # means nothing to the client that is leaving


class Outbox:
    """Frames on their way to the client, as one stream of bytes that goes on over several channels.

    The client says how far it has it; a new channel begins there. Sending never blocks us.
    """

    def __init__(self, spool: Source, place: int = 0) -> None:
        """place: where in the stream it begins."""
        self._spool = spool
        self._tape: Tape | None = None
        self._is_held = False  # the client gets what ranks print, and how they end, only if it does not leave
        self._is_parted = False  # the client gets no more of what ranks print
        self._printed: dict[str, int] = {}  # bytes of each stream so far
        self._told: list[dict[str, Any]] = []  # how ranks have started and ended, for a tape
        self._recorded: set[int] = set()  # ranks whose end is on the tape
        self._urgent: deque[bytes] = deque()  # these pass the spool and the window
        self._answers: deque[tuple[dict[str, Any], float]] = deque()  # so do these; when they were asked for, monotonic
        self._window: deque[bytes] = deque()  # what the client may not have yet, in whole frames
        self._first = place  # the place of its first byte in the stream
        self._begin = place  # up to which the client has everything: within the first piece of the window
        self._end = place  # of the window
        self._in_turn = place  # up to which there is something in it that was not urgent
        self._unsent: deque[memoryview] = deque()  # the end of it, that was not written to the channel yet
        self.channel = 1  # the descriptor to write to; -1: there is none

    def __bool__(self) -> bool:
        """True if something is to be written that may be written."""
        waits = self._unsent or self._urgent or self._answers
        return self.channel >= 0 and bool(waits or (self._takes_more and self._spool))

    @property
    def _takes_more(self) -> bool:
        return self._end - self._begin < WINDOW and not (self._is_held or self._is_parted)

    @property
    def places(self) -> tuple[int, int]:
        """Up to which place of the stream the client has everything, and up to which there is something for it."""
        return self._begin, self._end

    @property
    def is_acknowledged(self) -> bool:
        """True if the client has everything that was sent in its turn: a beat may come behind the last word."""
        return not self._spool and self._begin >= self._in_turn

    @property
    def is_behind(self) -> bool:
        """True if what is sent now will wait for the client."""
        return self._end - self._begin >= WINDOW or self.channel < 0

    @property
    def has_room(self) -> bool:
        """True if more may be sent without any of it waiting in the spool."""
        return not self._spool and self._end - self._begin < WINDOW

    def send(self, header: dict[str, Any], data: bytes = b"") -> None:
        """Send to the client, and to the tape where there is one: what ranks print goes there instead."""
        if header["type"] == "output":
            stream = stream_of(header)
            header = dict(header, at=self._printed.get(stream, 0))
            self._printed[stream] = header["at"] + len(data)
        elif header["type"] == "exited":  # whoever reads a tape sees what is missing at its end
            streams = {name: stream_of({"rank": header["rank"], "stream": name}) for name in ("stdout", "stderr")}
            header = dict(header, printed={name: self._printed.get(stream, 0) for name, stream in streams.items()})
        if self._tape is None or self.is_moving:
            if header["type"] in ("started", "exited"):
                self._told.append(header)
            if self._is_held and header["type"] not in ("output", "exited"):
                self._urgent.append(encode(header, data))
            else:
                self._spool.add(encode(header, data))
            return
        self._record(header, data)
        if self._is_parted:
            self._echo(header)
        elif header["type"] != "output":
            self._spool.add(encode(header, data))

    def hold(self) -> None:
        """The client is about to leave: from now on, what ranks print and how they end waits here, for the tape."""
        while self._spool:
            self._urgent.append(self._spool.take())
        self._is_held = True

    def release(self) -> None:
        """It does not leave: what was held is sent."""
        self._is_held = False

    def part(self, tape: Tape) -> None:
        """The client is to leave: what it is not known to have, and all that comes, is for the tape. Then ``move``.

        As long as it stays it hears how the ranks end: it may have been about to end the run.
        """
        self._tape = tape
        for header in self._told:
            if header["type"] == "started":
                self._record(header, b"")
        for header, data in Decoder().feed(b"".join(self._unacknowledged())):
            if header["type"] != "started":
                self._record(header, data)
        self._record_ends()
        self._is_held, self._is_parted = False, True

    @property
    def is_moving(self) -> bool:
        """True while ``move`` has something to do."""
        return self._is_parted and bool(self._spool)

    def move(self) -> bool:
        """Hand some of what waits for a client that has left to the tape. False if there is nothing more."""
        if not self.is_moving:
            return False
        for header, data in Decoder().feed(self._spool.take()):
            self._record(header, data)
            self._echo(header)
        self._record_ends()
        return True

    def _record_ends(self) -> None:
        """Of ranks of which the client had all. The end of another one comes behind what it has printed."""
        for header in self._told if not self._spool else ():
            if header["type"] == "exited" and header["rank"] not in self._recorded:
                self._record(header, b"")

    def _echo(self, header: dict[str, Any]) -> None:
        if header["type"] in TOLD and header["type"] != FOR_OTHERS and self.channel >= 0:
            self.send_urgently(header)

    def _record(self, header: dict[str, Any], data: bytes) -> None:
        # prerun was told to who has prepared the run; what the spool has left out is seen where the next output begins.
        is_of_rank = header["type"] == "output" and header["stream"] in ("stdout", "stderr")
        if self._tape is not None and (header["type"] in TOLD or is_of_rank):
            self._tape.add({name: value for name, value in header.items() if name != "size"}, data)
            if header["type"] == "exited":
                self._recorded.add(header["rank"])

    def send_urgently(self, header: dict[str, Any]) -> None:
        """Send before all that waits; for what means something by itself."""
        self._urgent.append(encode(header))

    def answer(self, header: dict[str, Any], asked: float) -> None:
        """Send urgently, with how long it was held back here until then. asked: when, monotonic"""
        self._answers.append((header, asked))

    def precede(self, data: bytes) -> None:
        """What comes before the stream, and is no part of it."""
        self._unsent.append(memoryview(data))

    def flush(self) -> bool:
        """Write what the channel takes now. False if it has ended."""
        try:
            while self.channel >= 0:
                while sum(map(len, self._unsent)) < TOGETHER and self._fill():
                    pass
                if not self._unsent:
                    break
                count = os.writev(self.channel, self._unsent)
                while self._unsent and count >= len(self._unsent[0]):
                    count -= len(self._unsent.popleft())
                if count:
                    self._unsent[0] = self._unsent[0][count:]
        except BlockingIOError:
            pass
        except OSError:  # EPIPE
            return False
        return True

    def _fill(self) -> bool:
        """Move what comes next into the window; whole frames, so that a channel can begin at any of them."""
        if self._answers:
            header, asked = self._answers.popleft()
            piece = encode(dict(header, held=time.monotonic() - asked))
        elif self._urgent:
            piece = self._urgent.popleft()
        elif self._takes_more and self._spool:
            piece = self._spool.take()
            self._in_turn = self._end + len(piece)
        else:
            return False
        self._window.append(piece)
        self._end += len(piece)
        self._unsent.append(memoryview(piece))
        return True

    def acknowledge(self, place: int) -> None:
        """The client has everything before this place of the stream."""
        sent = self._end - sum(map(len, self._unsent))
        self._begin = max(self._begin, min(place, sent))
        while self._window and self._first + len(self._window[0]) <= self._begin:
            self._first += len(self._window.popleft())

    def go_on(self, channel: int, place: int) -> None:
        """Send to another channel from a place on, where the client has everything before it."""
        self.acknowledge(place)
        self._unsent = deque([memoryview(b"".join(self._unacknowledged()))])  # writev(2) takes 1024 pieces at most
        self.channel = channel

    def _unacknowledged(self) -> list[memoryview]:
        """What of the window the client may not have yet."""
        pieces = [memoryview(piece) for piece in self._window]
        pieces[:1] = [piece[self._begin - self._first :] for piece in pieces[:1]]
        return pieces

    def close(self) -> None:
        while self.move():
            pass
        self._spool.close()
        if self._tape is not None:
            self._tape.close()
