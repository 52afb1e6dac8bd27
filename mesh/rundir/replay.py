"""Reading the output of a run from its directory, in the order in which it came, in bounded memory."""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from mesh.core.events import Output, Stream
from mesh.rundir.layout import INDEX, LOGS, MASKED, RECORD, SUFFIX, log_name, log_number, marker, read_tail_name
from mesh.rundir.logfile import OPEN_FILES
from mesh.rundir.records import Record, read_record

BLOCK_BYTES = 1 << 16  # read and handed on together; less where there are many logs
BLOCKS_BYTES = 1 << 25  # of all logs in memory
LINE_START_BYTES = 1 << 16  # searched backwards from a moment for the start of the line that was being written then


class Part(Struct, frozen=True):
    """A file, or a part of one, with some of a log's bytes."""

    start: int  # the place of its first byte in all output of the rank
    end: int
    path: Path
    offset: int  # of that byte in the file


@dataclass
class Log:
    """A log that is read."""

    name: str
    node: int
    rank: int
    stream: Stream
    told: int = 0  # the place up to which it was yielded or skipped
    has_begun: bool = False  # some of it was yielded


class Replay:
    """Yields the output of chosen ranks. Call ``advance`` again for later output."""

    def __init__(
        self, record: Record, *, streams: Collection[Stream], ranks: Collection[int] | None = None, since: float = 0.0
    ) -> None:
        """ranks: None for all; since: seconds since the epoch; earlier output is left out."""
        self._since = since
        self._files = LogFiles(record.directory)
        self._logs = dict(_chosen(record, streams, ranks))  # by their number
        self._place, self._time = 0, 0.0  # place in the index; time of its last record

    @property
    def has_index(self) -> bool:
        """Return True if an index holds the order of the output. Valid after ``advance``."""
        return self._files.changed(INDEX) > 0

    @property
    def index_end(self) -> int:
        """The bytes of the index whose output was yielded."""
        return self._place

    def shows(self, rank: int, stream: Stream) -> bool:
        """Return True if it is one of the logs that are read."""
        return log_number(rank, stream) in self._logs

    def advance(self) -> Iterator[Output]:
        """Yield new output in the order of the index. Raises OSError."""
        self._files.look()
        end = self._files.end(INDEX)
        self._files.look()  # bytes that the index refers to were written by then
        while self._place < end:
            data, place = self._files.read(INDEX, self._place, end)
            if torn := len(data) % RECORD.size:  # by a crash
                data, place = data[:-torn], place - torn
            if place == self._place:
                break
            self._place = place
            for time, number, log_end in RECORD.iter_unpack(data):
                self._time = time
                log = self._logs.get(number)
                if log is not None and log_end > log.told:
                    if time >= self._since:
                        yield from self._until(log, log_end, time)
                    else:
                        log.told = log_end

    def rest(self) -> Iterator[Output]:
        """Yield output without a record, rank by rank: all of it without an index, else the part after a crash.

        Raises OSError.
        """
        self._files.look()
        for log in self._logs.values():
            if self._files.changed(log.name) >= self._since:
                yield from self._until(log, self._files.end(log.name), self._time)

    def close(self) -> None:
        self._files.close()

    def _until(self, log: Log, end: int, time: float) -> Iterator[Output]:
        """Yield the output of one log up to a place."""
        if not log.has_begun:
            log.has_begun, log.told = True, self._files.line_begin(log.name, log.told)
        while log.told < end:
            data, place = self._files.read(log.name, log.told, end)
            if place == log.told:
                return
            log.told = place
            yield Output(time=time, node=log.node, rank=log.rank, stream=log.stream, data=data)


def _chosen(record: Record, streams: Collection[Stream], ranks: Collection[int] | None) -> Iterator[tuple[int, Log]]:
    """Yield the logs of ranks and their hosts, with their numbers. A spare host has no rank: only None chooses it."""
    for rank in range(record.placement.world_size):
        for stream in streams:
            if stream in SUFFIX and (ranks is None or rank in ranks):
                name, node = log_name(record.placement, rank, stream), record.placement.node(rank)
                yield log_number(rank, stream), Log(name=name, node=node, rank=rank, stream=stream)
    begin = record.first_placement
    for node in range(len(begin.hosts)):
        for stream in streams:
            if stream not in SUFFIX and (ranks is None or any(rank in ranks for rank in begin.ranks(node))):
                rank = begin.first(node)
                log = Log(name=log_name(begin, rank, stream), node=node, rank=rank, stream=stream)
                yield log_number(rank, stream), log


class LogFiles:
    """The files of ``logs``, addressed by places in all bytes of each log, in whatever files these are now.

    The client may still write there: the result of ``look`` holds until the next ``look``, or until a file is gone.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self._logs = directory, directory / LOGS
        self._parts: dict[str, list[Part]] = {}
        self._changed: dict[str, float] = {}
        self._ahead: dict[str, tuple[int, bytes]] = {}  # a block of each log, with the place where it begins
        self._open: OrderedDict[Path, int] = OrderedDict()

    def look(self) -> None:
        """Find the files that exist. Raises OSError."""
        # Tails are joined to their heads only while they exist, and are removed only after run.json has the gaps.
        with os.scandir(self._logs) as entries:
            found = {entry.name: entry.stat() for entry in entries}
        tails: dict[str, list[tuple[int, int, str]]] = {}
        for name in sorted(os.listdir(self._logs)):
            if told := read_tail_name(name):
                tails.setdefault(told[0], []).append((told[1], told[2], name))
        gaps = _gaps(self._directory)
        self._changed = {name: about.st_mtime for name, about in found.items()}
        self._parts, self._ahead = {}, {}
        for name, about in found.items():
            if not read_tail_name(name):
                self._parts[name] = self._layout(name, about.st_size, tails.get(name, ()), gaps.get(name, ()))

    def end(self, name: str) -> int:
        """Return the place where a log ends."""
        parts = self._parts.get(name)
        return parts[-1].end if parts else 0

    def changed(self, name: str) -> float:
        """Return the time of the last write to a log, in seconds since the epoch."""
        return self._changed.get(name, 0.0)

    def read(self, name: str, place: int, end: int) -> tuple[bytes, int]:
        """Return some bytes from a place, not beyond end, and the place after them: the same one if there are none.

        A line stands for bytes that are in no file, except in files of records. Raises OSError.
        """
        begin, block = self._ahead.get(name, (0, b""))
        if not begin <= place < begin + len(block):
            part = next((part for part in self._parts.get(name, ()) if part.end > place), None)
            if part is None:
                return b"", place
            if part.start > place:
                return b"" if name in (INDEX, MASKED) else marker(part.start - place), part.start
            size = min(BLOCK_BYTES, BLOCKS_BYTES // len(self._parts)) // RECORD.size * RECORD.size or RECORD.size
            try:
                offset = part.offset + place - part.start
                block = os.pread(self._descriptor(part.path), min(size, part.end - place), offset)
            except FileNotFoundError:  # left out, or joined, meanwhile
                self.look()
                if part in self._parts.get(name, ()):
                    raise
                return self.read(name, place, end)
            begin = place
            self._ahead[name] = begin, block
        data = block[place - begin : end - begin]
        return data, place + len(data)

    def line_begin(self, name: str, place: int) -> int:
        """Return the start of the line at a place; that place if the line began long before. Raises OSError."""
        begin = max(0, place - LINE_START_BYTES)
        before, after = self.read(name, begin, place)
        if after < place:  # bytes are left out there
            return place
        newline = before.rfind(b"\n") + 1
        return begin + newline if newline or not begin else place

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _layout(
        self, name: str, size: int, tails: Sequence[tuple[int, int, str]], gaps: Sequence[tuple[int, int, int]]
    ) -> list[Part]:
        path = self._logs / name
        head = tails[0][0] if tails else size
        parts: list[Part] = []
        place = offset = 0
        for at, count, of_marker in gaps:
            if not tails or at < head:  # otherwise they are being joined
                parts.append(Part(place, place + at - offset, path, offset))
                place, offset = parts[-1].end + count, at + of_marker
        parts.append(Part(place, place + max(0, min(head, size) - offset), path, offset))
        for of_head, start, tail in tails:
            with contextlib.suppress(FileNotFoundError):
                if of_head == head:
                    own = self._logs / tail
                    parts.append(Part(start, start + own.stat().st_size, own, 0))
        return [part for part in parts if part.end > part.start]

    def _descriptor(self, path: Path) -> int:
        descriptor = self._open.get(path)
        if descriptor is None:
            if len(self._open) >= OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
            descriptor = self._open[path] = os.open(path, os.O_RDONLY)
        self._open.move_to_end(path)
        return descriptor


def _gaps(directory: Path) -> dict[str, list[tuple[int, int, int]]]:
    """Return the gaps of joined logs: the place in the file, the count of bytes, and those of the marker."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    items = read_record(directory).about.get("left_out")
    for item in items if isinstance(items, list) else ():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            found.setdefault(str(item["log"]), []).append((int(item["at"]), int(item["bytes"]), int(item["marker"])))
    return {log: sorted(gaps) for log, gaps in found.items()}
