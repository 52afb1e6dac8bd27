"""The output of a run, folded as on the terminal, in a temporary file: any window of its lines is read at once."""

from __future__ import annotations

import contextlib
import tempfile
import time
from array import array
from collections.abc import Callable, Collection, Iterator

from msgspec import Struct

from mesh.core.errors import MeshError
from mesh.core.events import Output, Stream
from mesh.core.lines import LineCutter, Lines
from mesh.core.ranks import members
from mesh.pages.searching import OwnSearch, Search
from mesh.pages.showing import cleaned, spans
from mesh.rundir.records import Record, State, read_record
from mesh.rundir.replay import Replay
from mesh.screen.fold import Fold, Folded
from mesh.screen.labels import Labels

LINE_BYTES_MAX = 1 << 16  # of a line that are kept; the rest stays in the logs
WRITE_LAG_S = 0.7  # in which output of a live run may still be on its way to its directory
SLICE_CHECK_CHUNKS = 16  # chunks of output between two looks at the clock
STREAMS = (Stream.STDOUT, Stream.STDERR)
HOST_STREAMS = (Stream.PRERUN, Stream.SETUP)


class Choice(Struct, frozen=True, kw_only=True):
    """The part of a run's output that is shown."""

    ranks: frozenset[int] | None = None  # None: all
    streams: tuple[Stream, ...] = STREAMS
    grep: str = ""  # a regular expression; "": all lines
    since: float = 0.0  # seconds since the epoch; earlier output is left out


EVERYTHING = Choice()


class Shown(Struct, frozen=True):
    """A line of the page."""

    number: int  # from 0
    label: str  # "[0-6,8-15]"
    stream: str
    text: str  # cleaned, with colours
    is_mixed: bool  # numbers of several ranks stand in it

    def row(self) -> list[object]:
        """Return it as JSON has it: number, label, stream, text or spans, mixed."""
        text: object = [list(span) for span in spans(self.text)] if "\x1b" in self.text else self.text
        return [self.number, self.label, self.stream, text, self.is_mixed]


class FoldedOutput:
    """The folded lines of a run. Call ``advance`` until the end, and again while the run is on.

    The order and the text of lines are those of ``mesh logs --output fold``. They depend on the recorded times alone:
    another reader of the same directory numbers the lines alike.
    """

    def __init__(
        self,
        record: Record,
        choice: Choice = EVERYTHING,
        seen: Callable[[Output], None] | None = None,
        searching: Callable[[str], Search] = OwnSearch,
    ) -> None:
        """seen: is called with each chunk of output; searching: makes the search for an expression

        Raises re.error for a wrong expression, and OSError.
        """
        self._record, self._seen = record, seen
        streams = (Stream.SETUP,) if record.kind == "setup" and choice.streams == STREAMS else choice.streams
        placement = record.first_placement if set(streams) <= set(HOST_STREAMS) else record.placement
        self._search = searching(choice.grep) if choice.grep else None
        self._replay = Replay(record, streams=streams, ranks=choice.ranks, since=choice.since)
        self._labels, self._ranks = Labels(placement, with_hosts=False), range(placement.world_size)
        self._folds = {stream: Fold(self._ranks) for stream in STREAMS if stream in streams}
        self._cutters: dict[tuple[int, Stream], LineCutter] = {}
        self._now = 0.0  # the time of the output that has come
        self._source: Iterator[Output] | None = None
        self._has_rest = False  # the output without a record in the index comes now
        self._failure: MeshError | None = None
        self.is_complete = False  # the run has ended, and all of its output is here
        self._file = tempfile.TemporaryFile(prefix="mesh-lines-")  # noqa: SIM115
        self._ends, self._kinds, self._sets = array("Q"), array("B"), array("L")
        self._known: dict[tuple[int, bool], int] = {}  # by ranks as bits, and whether they are one host's
        self._members: list[tuple[str, int]] = []  # label and ranks as bits
        self._size = 0
        self._waiting: list[bytes] = []  # lines that are not written yet

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def index_end(self) -> int:
        """The bytes of the index of the logs that were read."""
        return self._replay.index_end

    def close(self) -> None:
        """Remove the file, and end the search."""
        self.stop()
        self._replay.close()
        self._file.close()

    def stop(self) -> None:
        """End the search. May be called from any thread, also while output is folded."""
        if self._search:
            self._search.close()

    def advance(self, seconds: float) -> bool:
        """Fold more output for about so many seconds; return True if more is there.

        Raises OSError, and MeshError if the search cannot go on.
        """
        if self._failure:
            raise self._failure
        if self.is_complete:
            return False
        try:
            return self._advance(seconds)
        except MeshError as error:
            self._failure = error  # the lines so far are not all, whoever asks later
            raise

    def _advance(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        if self._source is None:
            record = read_record(self._record.directory)  # before the output: then its end is the end of that output
            self._has_rest = record.state is not State.ON
            self._source = self._outputs()
        for number, output in enumerate(self._source):
            if output.data:
                self._take(output)
            if (number % SLICE_CHECK_CHUNKS == 0 or not output.data) and time.monotonic() > until:
                self._write()
                return True
        self._source = None
        if self._has_rest:
            self._end()
        else:
            self._tick(max(self._now, time.time() - WRITE_LAG_S))
        self._write()
        return False

    def window(self, first: int, count: int) -> list[Shown]:
        """Return some lines; fewer at the end."""
        first, last = max(0, first), min(len(self._ends), first + count)
        if first >= last:
            return []
        begin = self._ends[first - 1] if first else 0
        self._file.seek(begin)
        data = self._file.read(self._ends[last - 1] - begin)
        found, offset = [], 0
        for number in range(first, last):
            size = self._ends[number] - begin - offset
            label, _ = self._members[self._sets[number]]
            kind = self._kinds[number]
            text = cleaned(data[offset : offset + size])
            found.append(Shown(number, label, "stderr" if kind & 1 else "stdout", text, bool(kind & 2)))
            offset += size
        return found

    def members(self, number: int) -> list[int]:
        """Return the ranks of a line; none for one of a spare host."""
        found = members(self._members[self._sets[number]][1]) if 0 <= number < len(self._ends) else []
        return [rank for rank in found if rank in self._ranks]

    def first_of(self, ranks: Collection[int], number: int) -> int:
        """Return the number of the first line of one of these ranks from a number on; -1: there is none."""
        wanted = sum(1 << rank for rank in set(ranks))
        for place in range(max(0, number), len(self._ends)):
            if self._members[self._sets[place]][1] & wanted:
                return place
        return -1

    # ---- folding

    def _outputs(self) -> Iterator[Output]:
        with contextlib.suppress(FileNotFoundError):  # a run that has just begun has no logs yet
            yield from self._filtered(self._replay.advance())
            if self._has_rest:
                yield from self._filtered(self._replay.rest())
                yield from self._search.end() if self._search else ()

    def _filtered(self, outputs: Iterator[Output]) -> Iterator[Output]:
        noted = self._noted(outputs) if self._seen else outputs
        return self._search.through(noted) if self._search else noted

    def _noted(self, outputs: Iterator[Output]) -> Iterator[Output]:
        for output in outputs:
            if self._seen:
                self._seen(output)
            yield output

    def _take(self, output: Output) -> None:
        self._now = max(self._now, output.time)
        if fold := self._folds.get(output.stream):
            self._add(fold.feed(output.rank, output.data, self._now), output.stream)
        else:
            key = output.rank, output.stream
            lines = self._cutters.setdefault(key, LineCutter()).feed(output.data)
            self._add_lines(lines, *key)
        self._tick(self._now)

    def _tick(self, now: float) -> None:
        for stream, fold in self._folds.items():
            self._add(fold.tick(now), stream)

    def _end(self) -> None:
        for rank in self._ranks:
            for stream, fold in self._folds.items():
                self._add(fold.end(rank, self._now), stream)
        for (rank, stream), cutter in self._cutters.items():
            self._add_lines(cutter.end(), rank, stream)
        self.stop()
        self.is_complete = True

    def _add(self, found: list[Folded], stream: Stream) -> None:
        for one in found:
            kind = (stream is Stream.STDERR) + 2 * one.is_mixed
            self._put(Lines(one.head, one.text), self._set(one.ranks, is_host=False), kind)

    def _add_lines(self, lines: Lines | None, rank: int, stream: Stream) -> None:
        if lines:
            self._put(lines, self._set(1 << rank, is_host=stream in HOST_STREAMS), int(stream is Stream.STDERR))

    def _put(self, lines: Lines, number: int, kind: int) -> None:
        """Add whole lines; the first one may be long."""
        texts = lines.text.removesuffix(b"\n").split(b"\n")
        if lines.head is not None:
            with lines.head as head:
                head.seek(0)
                texts[0] = head.read(LINE_BYTES_MAX + 1) + texts[0]
        for text in texts:
            if len(text) > LINE_BYTES_MAX:
                text = text[:LINE_BYTES_MAX] + b" [mesh: the rest of this line is in the logs]"
            self._size += len(text)
            self._waiting.append(text)
            self._ends.append(self._size)
            self._kinds.append(kind)
            self._sets.append(number)

    def _set(self, bits: int, *, is_host: bool) -> int:
        key = bits, is_host
        if key not in self._known:
            own = self._labels
            label = own.of_host(bits.bit_length() - 1) if is_host else own.of_set(bits, is_short=False)
            self._known[key] = len(self._members)
            self._members.append((label.decode().rstrip(), bits))
        return self._known[key]

    def _write(self) -> None:
        if self._waiting:
            self._file.seek(0, 2)
            self._file.write(b"".join(self._waiting))
            self._file.flush()
            self._waiting = []
