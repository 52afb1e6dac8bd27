"""The search for lines that match a regular expression, in the process of the reader or in one of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

from mesh.core.events import Output
from mesh.rundir.grep import LineFilter


class Search(Protocol):
    """A filter of output by whole lines."""

    def through(self, outputs: Iterator[Output]) -> Iterator[Output]:
        """Yield the lines that match; output without data means that the search goes on. Raises MeshError."""

    def end(self) -> Iterator[Output]:
        """Yield the rest of lines that never ended. Raises MeshError."""

    def close(self) -> None:
        """End the search. May be called from any thread, and again."""


class OwnSearch:
    """A search in this process. A bad expression may take longer than anybody waits, and nothing can stop it."""

    def __init__(self, expression: str) -> None:
        """Raises re.error for a wrong expression."""
        self._lines = LineFilter(re.compile(expression))

    def through(self, outputs: Iterator[Output]) -> Iterator[Output]:
        """Yield the lines that match."""
        for output in outputs:
            yield from self._lines.feed(output)

    def end(self) -> Iterator[Output]:
        """Yield the rest of lines that never ended."""
        return self._lines.end()

    def close(self) -> None:
        """Do nothing."""
