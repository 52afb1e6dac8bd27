"""Output of the ranks on our stdout and stderr: all of it, folded, rank 0's alone, or none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from mesh.core.cluster import Placement
from mesh.core.escapes import Cleaner, clean, clean_lines
from mesh.core.events import Output, Stream
from mesh.core.lines import LineCutter, Lines, label
from mesh.screen.descriptor import Descriptor
from mesh.screen.labels import Labels
from mesh.screen.live import LiveLines

if TYPE_CHECKING:
    from mesh.screen.fold import Fold, Folded

BARS_SHOWN = 8  # live lines of ranks


class Style(Struct, frozen=True, kw_only=True):
    """How the output of the ranks is shown."""

    mode: str  # "all", "fold", "rank0" or "none"
    label: str = "rank"  # or "host"
    exact: bool = False  # fold only equal lines


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
        self._labels = Labels(placement, with_hosts=style.label == "host")
        self._cutters: dict[tuple[int, Stream], LineCutter] = {}
        self._cleaners: dict[Stream, Cleaner] = {}
        self._folds: dict[Stream, Fold] = {}
        if style.mode == "fold":
            from mesh.screen.fold import Fold

            ranks = range(placement.world_size)
            self._folds = {stream: Fold(ranks, exact=style.exact) for stream in (Stream.STDOUT, Stream.STDERR)}

    @property
    def is_waiting(self) -> bool:
        """True while some output is held back, as other ranks may write it too."""
        return any(fold.is_waiting for fold in self._folds.values())

    def handle(self, event: Output, now: float) -> None:
        """Show all that can be shown now; now: seconds on the clock that tick() gets as well."""
        if event.stream is Stream.PRERUN:
            if event.node == 0:  # the other hosts do the same, and their output is in the logs
                self._lines(event)
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

    def bars(self) -> list[str]:
        """Return the lines that ranks overprint again and again, for the live lines."""
        if not self._live.is_possible:
            return []
        told = [
            self._labels.of_set(bar.ranks, is_short=True).decode() + clean(bar.text.decode("utf-8", "replace")).rstrip()
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
        for one in found:
            prefix = self._labels.of_set(one.ranks, is_short=to.is_terminal)
            if one.head is not None:
                self._live.write(to, b"".join(told))
                told = []
                self._write(to, prefix, Lines(one.head, one.text))
                continue
            told.append(label(_shown(one.text, to), prefix))
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
        self._write(self._to[stream], self._labels.of_host(rank) if is_host else self._labels.of_rank(rank), lines)

    def _write(self, to: Descriptor, prefix: bytes, lines: Lines) -> None:
        if lines.head is not None:
            self._live.write(to, prefix)
            for piece in lines.pieces():
                self._live.write(to, clean(piece.decode("utf-8", "replace")).encode() if to.is_terminal else piece)
        self._live.write(to, label(_shown(lines.text, to), prefix, first=lines.head is None))


def _shown(text: bytes, to: Descriptor) -> bytes:
    return clean_lines(text.decode("utf-8", "replace")).encode() if to.is_terminal else text
