"""The outbox: messages on their way to the client, which leave it only when the client has confirmed them."""

from __future__ import annotations

import os
import time

from mesh.agent.base.light import deque
from mesh.protocol.answers import STREAMS, Beat, Exited, Output, Started
from mesh.protocol.frames import Decoder
from mesh.protocol.journal import IN_JOURNAL, EndOrdered, Head
from mesh.protocol.kinds import as_it_is
from mesh.protocol.messages import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Union

    from mesh.agent.link.journal import Journal
    from mesh.agent.link.journal_reader import EmptySource
    from mesh.agent.link.spool import Spool
    from mesh.protocol.messages import Message

    Source = Union[Spool, EmptySource]

WINDOW_BYTES = 1 << 20  # that are sent and not acknowledged; the rest waits in the spool
WRITE_BYTES = 16 << 10  # of frames that are written at once: each write is a packet of sshd's
# The facts of a run in its journal, beside the output of its ranks.
FACTS = tuple(message for message in IN_JOURNAL if message not in (Head, Output))
FACT_NAMES = frozenset(message.NAME for message in FACTS)


def stream_name(rank: int, stream: str) -> str:
    """Return the name of a rank's stream, as journals and clients count its bytes.

    >>> stream_name(3, "stdout")
    '3.stdout'
    """
    return f"{rank}.{stream}"


def output_frame(message: Output, at: int, data: bytes) -> bytes:
    """Return the frame of an output message, as ``encode`` does, in a fifth of its time.

    at: bytes of the stream before it
    """
    size = b',"size":%d' % len(data) if data else b""
    start = b'{"type":"output","rank":%d,"stream":"%s","at":%d%s}\n'
    return start % (message.rank, message.stream.encode(), at, size) + data


class Outbox:
    """Messages on their way to the client, as one stream of bytes that continues over several channels.

    The client confirms up to which place it has the stream; a new channel begins there. Sending never blocks.
    """

    def __init__(self, spool: Source, place: int = 0) -> None:
        """place: where in the stream it begins"""
        self._spool = spool
        self._journal: Journal | None = None
        self._is_held = False  # the client gets output of ranks, and their ends, only if it does not leave
        self._is_parted = False  # the client gets no more output of ranks
        self._printed: dict[str, int] = {}  # bytes of each stream so far, on all hosts of its rank
        self._rank_facts: list[Message] = []  # starts and ends of ranks, for a journal
        self._recorded: set[int] = set()  # ranks whose end is in the journal
        self._urgent: deque[bytes] = deque()  # these pass the spool and the window
        self._answers: deque[tuple[Beat, float]] = deque()  # so do these; when they were asked for, monotonic
        self._window: deque[bytes] = deque()  # whole frames that the client has not confirmed
        self._first = place  # the place of its first byte in the stream
        self._begin = place  # up to which the client has everything: within the first piece of the window
        self._end = place  # of the window
        self._in_turn = place  # up to which there is something in it that was not urgent
        self._unsent: deque[memoryview] = deque()  # the end of it, that was not written to the channel yet
        self.channel = 1  # the descriptor to write to; -1: there is none

    def __bool__(self) -> bool:
        """Return True if something can be written once the channel takes it."""
        waits = self._unsent or self._urgent or self._answers
        return self.channel >= 0 and bool(waits or (self._takes_more and self._spool))

    @property
    def _takes_more(self) -> bool:
        return self._end - self._begin < WINDOW_BYTES and not (self._is_held or self._is_parted)

    @property
    def places(self) -> tuple[int, int]:
        """The places up to which the client has the stream, and up to which there is something for it."""
        return self._begin, self._end

    @property
    def is_acknowledged(self) -> bool:
        """True if the client has everything that was sent in its turn: a beat may come behind the last message."""
        return not self._spool and self._begin >= self._in_turn

    @property
    def is_behind(self) -> bool:
        """True if a message that is sent now will wait for the client."""
        return self._end - self._begin >= WINDOW_BYTES or self.channel < 0

    @property
    def has_room(self) -> bool:
        """True if more may be sent without any of it waiting in the spool."""
        return not self._spool and self._end - self._begin < WINDOW_BYTES

    def send(self, message: Message, data: bytes = b"") -> None:
        """Send to the client, and to the journal where there is one: output of ranks goes there instead."""
        if isinstance(message, Output):
            self._send_output(message, data)
            return
        if isinstance(message, Exited):  # a reader of the journal sees how much is missing at the end of a stream
            printed = {name: self._printed.get(stream_name(message.rank, name), 0) for name in STREAMS}
            message = message.replaced(printed=printed)
        if self._journal is None or self.is_moving:
            if isinstance(message, (Started, Exited)):
                self._rank_facts.append(message)
            if self._is_held and not isinstance(message, Exited):
                self._urgent.append(encode(message, data))
            else:
                self._spool.add(encode(message, data))
            return
        self._record(message)
        if self._is_parted:
            self._echo(message)
        else:
            self._spool.add(encode(message, data))

    def _send_output(self, message: Output, data: bytes) -> None:
        stream = stream_name(message.rank, message.stream)
        at = self._printed.get(stream, 0)
        self._printed[stream] = at + len(data)
        frame = output_frame(message, at, data)
        if self._journal is None or self.is_moving:
            self._spool.add(frame)
        elif message.stream in STREAMS:  # output of prerun is for the client that has prepared the run
            self._journal.add_output(stream, at + len(data), frame)

    def continue_at(self, rank: int, printed: Mapping[str, int]) -> None:
        """Count the output of a rank from there on: it comes from another host. printed: bytes of each stream"""
        for name in STREAMS:
            self._printed[stream_name(rank, name)] = printed.get(name, 0)

    def hold(self) -> None:
        """Keep output of ranks, and their ends, for the journal from now on: the client is about to leave."""
        while self._spool:
            self._urgent.append(self._spool.take())
        self._is_held = True

    def release(self) -> None:
        """Send what was held, because the client does not leave."""
        self._is_held = False

    def part(self, journal: Journal) -> None:
        """Give the journal all that the client has not confirmed, and all that comes. Then call ``move``.

        As long as the client stays it receives how the ranks end: it may have been about to end the run.
        """
        self._journal = journal
        for message in self._rank_facts:
            if isinstance(message, Started):
                self._record(message)
        self._record_frames(b"".join(self._unacknowledged()), without=Started.NAME)
        self._record_ends()
        self._is_held, self._is_parted = False, True

    @property
    def is_moving(self) -> bool:
        """True while ``move`` has something to do."""
        return self._is_parted and bool(self._spool)

    def move(self) -> None:
        """Give the journal a piece of what waits for a client that has left."""
        if self.is_moving:
            for message in self._record_frames(self._spool.take()):
                self._echo(message)
            self._record_ends()

    def _record_frames(self, frames: bytes, without: str = "") -> list[Message]:
        """Give the journal what belongs there of some frames, and return the facts among it.

        The journal needs no count of what the spool left out: the next output shows the place where it begins.
        without: a type of messages that are left out
        """
        facts: list[Message] = []
        for header, data in Decoder().feed(frames):
            if header["type"] == Output.NAME and header["stream"] in STREAMS:
                message = Output(rank=header["rank"], stream=header["stream"])
                stream, at = stream_name(message.rank, message.stream), int(header["at"])
                if self._journal is not None:
                    self._journal.add_output(stream, at + len(data), output_frame(message, at, data))
            elif header["type"] in FACT_NAMES and header["type"] != without:
                facts.append(IN_JOURNAL.read(header, as_it_is))
                self._record(facts[-1])
        return facts

    def _record_ends(self) -> None:
        """Record the ends of ranks whose output the client has; any other end comes behind the output."""
        for message in self._rank_facts if not self._spool else ():
            if isinstance(message, Exited) and message.rank not in self._recorded:
                self._record(message)

    def _echo(self, message: Message) -> None:
        """Send a fact to a client that is leaving, unless it means nothing to it."""
        if isinstance(message, FACTS) and not isinstance(message, EndOrdered) and self.channel >= 0:
            self.send_urgently(message)

    def _record(self, message: Message) -> None:
        if self._journal is not None and isinstance(message, FACTS):
            self._journal.add(message)
            if isinstance(message, Exited):
                self._recorded.add(message.rank)

    def send_urgently(self, message: Message, data: bytes = b"") -> None:
        """Send a message that depends on no other before all that waits."""
        self._urgent.append(encode(message, data))

    def answer(self, message: Beat, asked: float) -> None:
        """Send the answer to a beat urgently, with the seconds that it waited here. asked: when, monotonic"""
        self._answers.append((message, asked))

    def precede(self, data: bytes) -> None:
        """Write bytes before the stream that are no part of it."""
        self._unsent.append(memoryview(data))

    def flush(self) -> bool:
        """Write as much as the channel takes now. Return False if it has ended."""
        try:
            while self.channel >= 0:
                while sum(map(len, self._unsent)) < WRITE_BYTES and self._fill():
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
        """Move the next frames into the window: whole ones, so that a channel can begin at any of them."""
        if self._answers:
            beat, asked = self._answers.popleft()
            piece = encode(beat.replaced(held=time.monotonic() - asked))
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
        """Drop the stream up to a place that the client has confirmed."""
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
        """Return the part of the window that the client may lack."""
        pieces = [memoryview(piece) for piece in self._window]
        pieces[:1] = [piece[self._begin - self._first :] for piece in pieces[:1]]
        return pieces

    def close(self) -> None:
        while self.is_moving:
            self.move()
        self._spool.close()
        if self._journal is not None:
            self._journal.close()
