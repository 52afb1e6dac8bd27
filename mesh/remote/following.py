"""The local end of a run that goes on without us, or has ended: what one host has of it, from where we were."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
from mesh.remote import messages
from mesh.remote.agent.frames import FrameError, encode
from mesh.remote.agent.messages import PLACE_MAX
from mesh.remote.begin import Begin
from mesh.remote.blob import opening
from mesh.remote.session import Session

Place = Mapping[tuple[int, Stream], int]  # bytes of each rank's streams


class Following(Session):
    """Reads the run's tape through a process of our own there; orders go through it to the run's agent."""

    _table, _sizes = messages.OF_JOURNAL, messages.JOURNAL_SIZES

    def follow(
        self, begin: Begin, ranks: Sequence[int], have: Place, *, only_reads: bool = False, only_end: bool = False
    ) -> None:
        """Ship the program and its only request.

        ranks: of this host
        have: what need not come again; only_reads: what an agent that is gone has left there is left alone
        only_end: the journal does not count as fetched after that
        """
        self._asked.follow(ranks)
        self._run, self._agent, self._remote_dir = begin.run, begin.node, begin.remote_dir
        self._have, self._only_reads, self._only_end = dict(have), only_reads, only_end
        self._client = os.urandom(8).hex()
        self._told: set[str] = set()  # all but output comes again through each channel
        self._marker = os.urandom(16).hex()
        self._sender.begin(opening() + encode(self._greeting()))

    def beat(self) -> None:
        """Ask for the host's time, and for a sign of life."""
        if self._sender.is_attached:
            super().beat()

    def _greeting(self) -> dict[str, Any]:
        ranks = {f"{rank}.{stream.value}": count for (rank, stream), count in self._have.items()}
        return {
            "type": "follow",
            "marker": self._marker,
            "run": self._run,
            "node": self._agent,
            "client": self._client,
            "have": ranks,
            "only_reads": self._only_reads,
            "only_end": self._only_end,
            "place": self.place,
            "remote_dir": self._remote_dir,
        }

    def _channel_ended(self, greeted: bool, banner: bytes) -> Iterator[Event]:
        is_open = greeted and self._may_come_back and not self._sender.given_up
        if is_open and self._sender.channel.farewell().status == 0:
            self._why = self._why_hung_up or "the connection ended"  # which our process there takes for our leaving
        else:
            yield from super()._channel_ended(greeted, banner)

    def _event(self, header: dict[str, Any], data: bytes) -> Iterator[Event]:
        now, node = time.time(), self.node
        match header["type"]:
            case "following":
                self._offset = header["time"] - now
                is_back, self._may_come_back = self._may_come_back, True
                self._go_on(0)
                self.beat()
                if is_back:
                    yield Reconnected(time=now, node=node)
                else:
                    address, machine = self._address, header["machine"]
                    yield Connected(time=now, node=node, address=address, machine=machine)
            case "caught-up":
                yield CaughtUp(time=now, node=node)
            case "no-tape":
                yield from self._no_tape(header)
            case "no-agent":
                self._over = True
                left = "; ".join(header["left"])
                reason = header["why"] or "its agent was killed"
                if left:
                    reason += f", and left there {left}"
                lost_at = header["time"] - self._offset
                yield Lost(time=lost_at, node=node, reason=reason, is_clear=not left, is_known=True)
            case "beat":
                yield from super()._event(header, data)
            case _:
                yield from self._once(header, data)

    def _once(self, header: dict[str, Any], data: bytes) -> Iterator[Event]:
        """Yield the events of a frame other than output, unless an earlier channel brought it."""
        known = json.dumps(header)
        if known in self._told:
            return
        self._told.add(known)
        if header["type"] == "exited":
            for name, count in header.get("printed", {}).items():
                yield from self._output({"type": "output", "rank": header["rank"], "stream": name, "at": count}, b"")
        if header["type"] == "end-ordered":
            more = {"lost": header.get("lost", -1), "reason": header.get("reason", "")}
            at, cause = header["time"] - self._offset, header["cause"]
            yield EndOrdered(time=at, node=self.node, cause=cause, signal=header["signal"], **more)
        else:
            yield from super()._event(header, data)

    def _output(self, header: dict[str, Any], data: bytes) -> Iterator[Event]:
        """Yield the new part of an output frame, and before it a gap for what is missing."""
        key, at = self._stream_of(header), header.get("at")
        if type(at) is not int or not 0 <= at <= PLACE_MAX:
            raise FrameError("output: at: expected a place in the stream")
        rank, stream = key
        have = self._have.get(key, 0)
        self._have[key] = max(have, at + len(data))
        now, node = time.time(), self.node
        if at > have:
            yield LeftOut(time=now, node=node, rank=rank, stream=stream, bytes=at - have)
        if new := data[max(0, have - at) :]:
            yield Output(time=now, node=node, rank=rank, stream=stream, data=new)

    def _no_tape(self, header: dict[str, Any]) -> Iterator[Event]:
        self._over = True
        now, node = time.time(), self.node
        if header["state"]:
            message = f"the run is not detached there: its client has it ({header['about'].get('machine', '?')})"
            hint = f"`mesh detach {self._run}` turns it into one that goes on by itself"
            yield PrepareFailed(time=now, node=node, step="attach", message=message, hint=hint)
        else:
            message = "nothing is kept of the run there"
            yield PrepareFailed(time=now, node=node, step="tape", message=message, hint="`mesh ps` lists what runs")
