"""The local end of a detached run: follows its journal on one host, from the place up to which the client has it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from mesh.core.events import (
    CaughtUp,
    Connected,
    EndOrdered,
    Event,
    LeftOut,
    Lost,
    Output,
    PrepareFailed,
    Reconnected,
    Stream,
)
from mesh.core.text import one_line
from mesh.protocol import answers, journal
from mesh.protocol.first import Begin, Follow
from mesh.protocol.frames import FrameError
from mesh.protocol.messages import Message, Table, encode
from mesh.remote.blob import opening
from mesh.remote.greeting import new_marker
from mesh.remote.handover import Handovers
from mesh.remote.session import Session

if TYPE_CHECKING:
    from mesh.protocol.frames import Header

Place = Mapping[tuple[int, Stream], int]  # bytes of each rank's streams


class Following(Session):
    """Reads the run's journal through a process of its own there, which passes orders on to the run's agent."""

    _table: ClassVar[Table[Message]] = journal.OF_JOURNAL
    _first_step: ClassVar[str] = "attach"

    def follow(
        self,
        begin: Begin,
        ranks: Iterable[int],
        have: Place,
        handovers: Handovers,
        *,
        only_reads: bool = False,
        only_end: bool = False,
    ) -> None:
        """Ship the program and its only request.

        ranks: of this host
        have: output that need not come again; handovers: of ranks that have moved
        only_reads: end nothing that a killed agent has left there
        only_end: the journal does not count as fetched after that
        """
        self._asked.follow(ranks)
        self._run, self._agent, self._remote_dir = begin.run, begin.node, begin.remote_dir
        self._handovers = handovers
        self._have, self._only_reads, self._only_end = dict(have), only_reads, only_end
        self._client = os.urandom(8).hex()
        self._received: set[str] = set()  # all but output comes again through each channel
        self._marker = new_marker()
        self._sender.begin(opening() + encode(self._first()))

    def beat(self) -> None:
        """Ask for the host's time, and for a sign of life."""
        if self._sender.is_attached:
            super().beat()

    def _first(self) -> Follow:
        return Follow(
            marker=self._marker,
            run=self._run,
            node=self._agent,
            client=self._client,
            have={f"{rank}.{stream.value}": count for (rank, stream), count in self._have.items()},
            only_reads=self._only_reads,
            only_end=self._only_end,
            place=self.place,
            remote_dir=self._remote_dir,
        )

    def _channel_ended(self, greeted: bool, banner: bytes) -> Iterator[Event]:
        is_open = greeted and self._may_come_back and not self._sender.given_up
        if is_open and self._sender.channel.farewell().status == 0:
            self._why = self._why_hung_up or "the connection ended"  # the reader takes that for our leaving
        else:
            yield from super()._channel_ended(greeted, banner)

    def _event(self, message: Message, data: bytes) -> Iterator[Event]:
        now, node = time.time(), self.node
        match message:
            case journal.Following(time=there, machine=machine):
                self._offset = there - now
                is_back, self._may_come_back = self._may_come_back, True
                self._go_on(0)
                self.beat()
                if is_back:
                    yield Reconnected(time=now, node=node)
                else:
                    yield Connected(time=now, node=node, address=self._address, machine=machine)
            case journal.CaughtUp():
                yield CaughtUp(time=now, node=node)
            case journal.NoJournal():
                yield self._no_journal(message)
            case answers.Failed(message=text, hint=hint) if not self._may_come_back:
                # The journal cannot be read there, for example because a newer mesh has written it.
                self._over = True
                yield PrepareFailed(time=now, node=node, step="attach", message=text, hint=hint)
            case journal.NoAgent(left=left, why=why, time=at):
                self._over = True
                reason = why or "its agent was killed"
                if left:
                    reason += f", and left there {'; '.join(left)}"
                lost_at = at - self._offset
                yield Lost(time=lost_at, node=node, reason=reason, is_clear=not left, is_known=True)
            case answers.Beat():
                yield from super()._event(message, data)
            case _:
                yield from self._once(message, data)

    def _once(self, message: Message, data: bytes) -> Iterator[Event]:
        """Yield the events of a message other than output, unless an earlier channel brought it."""
        known = json.dumps(message.header())
        if known in self._received:
            return
        self._received.add(known)
        if isinstance(message, answers.Exited):
            for name, count in message.printed.items():
                yield from self._new_output(answers.Output(rank=message.rank, stream=name, at=count), b"")
        if isinstance(message, journal.EndOrdered):
            yield EndOrdered(
                time=message.time - self._offset,
                node=self.node,
                cause=message.cause,
                signal=message.signal,
                lost=message.lost,
                reason=message.reason,
                code=message.code,
            )
        else:
            yield from super()._event(message, data)

    def _output(self, header: Header, data: bytes) -> Iterator[Event]:
        message = self._table.read(header, one_line)
        assert isinstance(message, answers.Output)
        yield from self._new_output(message, data)

    def _new_output(self, message: answers.Output, data: bytes) -> Iterator[Event]:
        """Yield the new part of output, and before it a gap for output that is missing."""
        key, at = self._stream(message), message.at
        if at is None:
            raise FrameError("output: at: expected a place in the stream")
        if self._handovers.concerns(key):
            for missing, new in self._handovers.take(self.node, key, at, data):
                yield from self._pieces(key, missing, new)
            return
        have = self._have.get(key, 0)
        self._have[key] = max(have, at + len(data))
        yield from self._pieces(key, max(0, at - have), data[max(0, have - at) :])

    def _pieces(self, key: tuple[int, Stream], missing: int, new: bytes) -> Iterator[Event]:
        """Yield a gap and output, where there is any. missing: bytes"""
        now, node, (rank, stream) = time.time(), self.node, key
        if missing:
            yield LeftOut(time=now, node=node, rank=rank, stream=stream, bytes=missing)
        if new:
            yield Output(time=now, node=node, rank=rank, stream=stream, data=new)

    def _no_journal(self, message: journal.NoJournal) -> PrepareFailed:
        self._over = True
        now, node = time.time(), self.node
        if message.state:
            text = f"the run is not detached there: its client has it ({message.about.machine or '?'})"
            hint = f"`mesh detach {self._run}` detaches it"
            return PrepareFailed(time=now, node=node, step="attach", message=text, hint=hint)
        text = "nothing is kept of the run there"
        return PrepareFailed(time=now, node=node, step="journal", message=text, hint="`mesh ps` lists what runs")
