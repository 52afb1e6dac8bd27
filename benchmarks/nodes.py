"""The nodes whose calls are measured. They import little, as hosts do."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial

from benchmarks import calls
from mesh.program import Handle
from mesh.program.runtime.book import Book
from mesh.program.runtime.caller import Caller as Links
from mesh.program.runtime.here import current


class Echo:
    """Returns what it gets, or its size."""

    def echo(self, value: object) -> object:
        return value

    def bulk(self, data: calls.Sized) -> int:
        return int(data.nbytes)

    def cpu(self) -> float:
        return time.process_time()


class Caller:
    """Measures calls to another node."""

    def __init__(self, other: Handle[Echo]) -> None:
        self._other = other
        self._calls = calls.Calls(partial(other.echo, 1), self._many, other.bulk, other.cpu)  # type: ignore[arg-type]

    def measure(self, kind: str, count: int, size: int) -> calls.Found:
        """Return the seconds of each measurement, and the CPU seconds of both nodes."""
        return calls.measured(self._calls, kind, count, size)

    def _many(self, count: int) -> None:
        for future in [self._other.futures.echo(number) for number in range(count)]:
            future.result()  # type: ignore[attr-defined]


class Crowd:
    """Many callers of another node in one process, each with a connection of its own."""

    def __init__(self, other: Handle[Echo], count: int) -> None:
        label, context = other.label, current()
        role = os.environ["MESH_LABEL"]
        book = Book(os.environ["MESH_ADDRESS_BOOK"], os.environ["MESH_LINK_KEY"], role)
        place = context.caller.program, context.here.label
        callers = [Links(place, book.connect, context.caller.hosts, is_trusting=True) for _ in range(count)]
        self._others: Sequence[Handle[Echo]] = [Handle(context.here.program, label, caller=one) for one in callers]

    def connect(self) -> int:
        """Connect all, and return their number."""
        return sum(one.echo(number) == number for number, one in enumerate(self._others))

    def check(self, count: int) -> int:
        """Make so many calls by each caller at once, and return how many were answered with what was sent."""
        sent = [(caller, number) for number in range(count) for caller in range(len(self._others))]
        futures = [self._others[caller].futures.echo((caller, number)) for caller, number in sent]
        results = [future.result() for future in futures]  # type: ignore[attr-defined]
        return sum(result == one for one, result in zip(sent, results, strict=True))
