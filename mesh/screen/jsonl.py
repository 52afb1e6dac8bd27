"""``--json``: one JSON object per event on stdout, and nothing else."""

from __future__ import annotations

import codecs
import json
from typing import Any

from mesh.core import encoding
from mesh.core.cluster import Placement
from mesh.core.events import Event, Exited, Finished, Gone, Lost, Output, Stream
from mesh.core.lines import LineCutter, Lines
from mesh.core.nodes import Restarted
from mesh.screen.descriptor import Descriptor, standard

HOST_STREAMS = (Stream.PRERUN, Stream.MODULE)  # which go on when a rank ends


class JsonSink:
    """Writes events as they come. A line of any length is written in bounded memory."""

    def __init__(self, *, placement: Placement, stdout_fd: int | None = None) -> None:
        """stdout_fd: None: sys.stdout"""
        self._placement = placement
        self._out = standard(1, required=True) if stdout_fd is None else Descriptor(stdout_fd, required=True)
        self._cutters: dict[tuple[int, Stream], LineCutter] = {}
        self._last: dict[tuple[int, Stream], Output] = {}

    def handle(self, event: Event) -> None:
        if isinstance(event, Output):
            key = event.rank, event.stream
            self._last[key] = event
            cutter = self._cutters.setdefault(key, LineCutter())
            self._write_lines(cutter.feed(event.data), event)
            return
        if isinstance(event, Gone | Lost):  # no more output can come from there, and a last line may lack its newline
            self._end_lines(event.node)
        elif isinstance(event, Exited):
            self._end_lines(event.node, event.rank)
        elif isinstance(event, Finished):
            self._end_lines()
        if isinstance(event, Restarted):
            self._placement = self._placement.moved([(event.rank, event.node)])
        for item in encoding.objects(event, self._placement):
            self._out.write(json.dumps(item).encode() + b"\n")

    def idle(self) -> None:
        self._out.check()

    def close(self) -> None:
        pass

    def _end_lines(self, node: int | None = None, rank: int | None = None) -> None:
        for (of_rank, stream), event in self._last.items():
            if node in (None, event.node) and rank in (None, of_rank) and (rank is None or stream not in HOST_STREAMS):
                self._write_lines(self._cutters[of_rank, stream].end(), event)

    def _write_lines(self, lines: Lines | None, event: Output) -> None:
        if lines is None:
            return
        fields: dict[str, Any] = encoding.rank("line", event, self._placement)
        if event.stream is Stream.PRERUN:
            fields["event"] = "prerun"
        elif event.stream is Stream.MODULE:
            fields["event"] = "module_output"
        # A setup has one stream for both of its outputs.
        fields["stream"] = "stdout" if event.stream is Stream.SETUP else event.stream.value
        opening = json.dumps(fields)[:-1] + ', "text": "'
        first, *others = lines.text.removesuffix(b"\n").split(b"\n")
        if lines.head is not None:
            self._write_long(lines, first, opening)
        else:
            others.insert(0, first)
        text = "".join(f'{opening}{_quoted(line.decode("utf-8", "replace"))}"}}\n' for line in others)
        self._out.write(text.encode())

    def _write_long(self, lines: Lines, rest: bytes, opening: str) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._out.write(opening.encode())
        for piece in lines.pieces():
            self._out.write(_quoted(decoder.decode(piece)).encode())
        self._out.write(f'{_quoted(decoder.decode(rest, final=True))}"}}\n'.encode())


def _quoted(text: str) -> str:
    return json.dumps(text)[1:-1]
