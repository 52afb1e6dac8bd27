"""Text of a run's threads, for notebooks.

Jupyter shows the text of a thread below the cell that has started it. So the thread of a cell writes for all others.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import TextIO

from mesh.screen.descriptor import Descriptor, standard

BETWEEN_CELLS_BYTES = 1 << 20  # that are kept while no cell runs
STDOUT, STDERR = 1, 2


class Outlet:
    """Keeps text of other threads until the thread that runs cells writes it."""

    def __init__(self) -> None:
        """Begin without text, to the streams that sys.stdout and sys.stderr are when it is written."""
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, bytes]] = []
        self._bytes = 0  # that wait
        self._left_out = 0  # bytes
        self._has_cell = False
        self._streams: dict[int, tuple[TextIO | None, Descriptor]] = {}
        self.stdout, self.stderr = Kept(self, STDOUT), Kept(self, STDERR)

    def put(self, number: int, data: bytes) -> None:
        """Keep text for a stream. While no cell runs, text beyond a limit is left out. From any thread."""
        with self._lock:
            if self._has_cell or self._bytes + len(data) <= BETWEEN_CELLS_BYTES:
                self._waiting.append((number, data))
                self._bytes += len(data)
            else:
                self._left_out += len(data)

    @contextlib.contextmanager
    def cell(self) -> Iterator[None]:
        """Within: a cell runs, below which the text is shown."""
        with self._lock:
            self._has_cell = True
        try:
            yield
        finally:
            self.flush()
            with self._lock:
                self._has_cell = False

    def flush(self) -> None:
        """Write all text that waits. From the thread that runs cells alone."""
        with self._lock:
            waiting, left_out = self._waiting, self._left_out
            self._waiting, self._bytes, self._left_out = [], 0, 0
        if left_out:
            text = f"==> {left_out} bytes that ranks printed between two cells are left out; `mesh logs` has them\n"
            waiting.append((STDERR, text.encode()))
        for number, data in _joined(waiting):
            self._stream(number).write(data)

    def _stream(self, number: int) -> Descriptor:
        """Return a stream. The same one is kept, as it may have got a part of a character."""
        now = sys.stdout if number == STDOUT else sys.stderr
        if number not in self._streams or self._streams[number][0] is not now:
            self._streams[number] = now, standard(number, required=False)
        return self._streams[number][1]


class Kept(Descriptor):
    """Standard output or error, whose text an outlet keeps."""

    def __init__(self, outlet: Outlet, number: int) -> None:
        super().__init__(-1, required=False)
        self._outlet, self._to = outlet, number
        self._like = standard(number, required=False)
        self.is_terminal = self._like.is_terminal

    def write(self, data: bytes) -> None:
        self._outlet.put(self._to, data)

    def size(self) -> tuple[int, int]:
        return self._like.size()


def _joined(pieces: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Return pieces with those joined that follow each other in a stream.

    >>> _joined([(1, b"a"), (1, b"b"), (2, b"c"), (1, b"d")])
    [(1, b'ab'), (2, b'c'), (1, b'd')]
    """
    groups: list[tuple[int, list[bytes]]] = []
    for number, data in pieces:
        if groups and groups[-1][0] == number:
            groups[-1][1].append(data)
        else:
            groups.append((number, [data]))
    return [(number, b"".join(group)) for number, group in groups]
