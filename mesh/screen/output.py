"""Output of the ranks on our stdout and stderr: all of it, folded, rank 0's alone, or none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from mesh.core.cluster import Placement
from mesh.core.escapes import Cleaner, clean, clean_lines
from mesh.core.events import Output, Stream
from mesh.core.lines import LineCutter, Lines, label
from mesh.core.look import Look
from mesh.core.width import columns_of, fitted
from mesh.screen.descriptor import Descriptor
from mesh.screen.labels import Labels
from mesh.screen.live import LiveLines

if TYPE_CHECKING:
    from mesh.screen.fold import Fold, Folded
    from mesh.screen.places import LocalPlaces

# bash names the script of prerun by this, and a line of ours.
_SCRIPT = re.compile(rb"^/proc/self/fd/\d+: line \d+: ", re.MULTILINE)
BARS_SHOWN = 8  # live lines of ranks


class Style(Struct, frozen=True, kw_only=True):
    """How a run is shown."""

    mode: str  # "all", "fold", "rank0" or "none"
    label: str = "rank"  # or "host"
    fold: str = "numbers"  # "exact": fold only equal lines; "mean": numbers as mean and deviation, not as range
    look: Look = Look()
    is_cut: bool = False  # cut lines of several ranks with different numbers to the width of a terminal
    places: LocalPlaces | None = None  # for tracebacks on a terminal; None: they are shown as they are


class RankOutput:
    """Shows the output of ranks, and of the steps before them."""

    def __init__(
        self,
        placement: Placement,
        to: Mapping[Stream, Descriptor],
        live: LiveLines,
        style: Style,
    ) -> None:
        self._placement, self._to, self._live, self._mode = placement, to, live, style.mode
        self._is_cut, self._places = style.is_cut, style.places
        self._labels = Labels(placement, with_hosts=style.label == "host")
        self._cutters: dict[tuple[int, Stream], LineCutter] = {}
        self._cleaners: dict[Stream, Cleaner] = {}
        self._folds: dict[Stream, Fold] = {}
        if style.mode == "fold":
            from mesh.screen.fold import Fold

            ranks = range(placement.world_size)
            self._folds = {stream: Fold(ranks, style.fold) for stream in (Stream.STDOUT, Stream.STDERR)}

    @property
    def is_waiting(self) -> bool:
        """True while some output is held back, as other ranks may write it too."""
        return any(fold.is_waiting for fold in self._folds.values())

    def handle(self, event: Output, now: float) -> None:
        """Show all that can be shown now; now: seconds on the clock that tick() gets as well."""
        if event.stream is Stream.MODULE:
            return  # it is in the logs of modules
        if event.stream is Stream.PRERUN:
            if event.node == 0:  # the other hosts do the same, and their output is in the logs
                self._lines(replace(event, data=_SCRIPT.sub(b"bash: ", event.data)))
        elif event.stream in self._folds:
            self._folded(event.stream, self._folds[event.stream].feed(event.rank, event.data, now))
        elif self._mode == "rank0":
            if event.rank == 0:
                self._bytes(event)
        elif self._mode != "none":
            self._lines(event)

    def tick(self, now: float) -> None:
        """Show lines that have waited long enough."""
        for stream, fold in self._folds.items():
            self._folded(stream, fold.tick(now))

    def end(self, ranks: Iterable[int], now: float) -> None:
        """Show the unfinished lines of ranks that have ended."""
        for rank in ranks:
            for stream, fold in self._folds.items():
                self._folded(stream, fold.end(rank, now))
            for stream in Stream:
                if (rank, stream) in self._cutters:
                    self._write_lines(self._cutters[rank, stream].end(), rank, stream)

    def end_all(self, now: float) -> None:
        """Show all that waits, by rank: no rank writes any more. now: as in ``handle``"""
        for stream, fold in self._folds.items():
            self._folded(stream, fold.end_all(now))
        for (rank, stream), cutter in self._cutters.items():
            self._write_lines(cutter.end(), rank, stream)

    def bars(self) -> list[str]:
        """Return the lines that ranks overprint again and again, for the live lines."""
        if not self._live.is_possible:
            return []
        told = [
            self._labels.of_set(bar.ranks, is_short=True, paint=self._to[stream].paint).decode()
            + clean(bar.text.decode("utf-8", "replace")).rstrip()
            for stream, fold in self._folds.items()
            if self._to[stream].is_terminal
            for bar in fold.bars()
        ]
        return told if len(told) <= BARS_SHOWN else [*told[: BARS_SHOWN - 1], f"and {len(told) - BARS_SHOWN + 1} more"]

    def _bytes(self, event: Output) -> None:
        to, data = self._to[event.stream], event.data
        if to.is_terminal:
            data = self._cleaners.setdefault(event.stream, Cleaner()).feed(data).encode()
        self._live.write(to, data)

    def _folded(self, stream: Stream, found: list[Folded]) -> None:
        told: list[bytes] = []
        to = self._to[stream]
        columns = to.size()[0] if found and self._is_cut and to.is_terminal else 0
        for one in found:
            prefix = self._labels.of_set(one.ranks, is_short=to.is_terminal, paint=to.paint)
            if one.head is not None:
                self._live.write(to, b"".join(told))
                told = []
                self._write(to, prefix, Lines(one.head, one.text))
                continue
            text = self._shown(one.text, to)
            if columns and one.is_mixed and b"\n" not in text:
                text = fitted(
                    text.decode("utf-8", "replace"), columns - columns_of(prefix.decode()), at_space=True
                ).encode()
            told.append(label(text, prefix))
        self._live.write(to, b"".join(told))

    def _lines(self, event: Output) -> None:
        key = event.rank, event.stream
        cutter = self._cutters.get(key)
        if cutter is None:
            cutter = self._cutters[key] = LineCutter()
        self._write_lines(cutter.feed(event.data), event.rank, event.stream)

    def _write_lines(self, lines: Lines | None, rank: int, stream: Stream) -> None:
        if lines is None:
            return
        is_host = stream in (Stream.PRERUN, Stream.SETUP)
        to = self._to[stream]
        self._write(to, (self._labels.of_host if is_host else self._labels.of_rank)(rank, to.paint), lines)

    def _write(self, to: Descriptor, prefix: bytes, lines: Lines) -> None:
        if lines.head is not None:
            self._live.write(to, prefix)
            for piece in lines.pieces():
                self._live.write(to, clean(piece.decode("utf-8", "replace")).encode() if to.is_terminal else piece)
        self._live.write(to, label(self._shown(lines.text, to), prefix, first=lines.head is None))

    def _shown(self, text: bytes, to: Descriptor) -> bytes:
        if not to.is_terminal:
            return text
        cleaned = clean_lines(text.decode("utf-8", "replace"))
        return (self._places.shown(cleaned) if self._places else cleaned).encode()
