"""Calls between nodes: round trip, calls in flight, and 100 MB."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy

from mesh.program import Handle, Program

CALLS, IN_FLIGHT, ARRAY_BYTES = 2000, 1000, 100_000_000


class Echo:
    """Returns what it gets, or its size."""

    def echo(self, value: object) -> object:
        return value

    def size(self, value: numpy.ndarray) -> int:
        return int(value.nbytes)


class Caller:
    """Measures calls to another node."""

    def __init__(self, other: Handle[Echo]) -> None:
        self._other = other

    def measure(self, calls: int, in_flight: int, size: int) -> tuple[float, float, float]:
        """Return seconds of the median call, calls a second with many in flight, and bytes a second of an array."""
        other = self._other
        trips = sorted(timed(lambda: other.echo(1)) for _ in range(calls))
        begun = time.perf_counter()
        for future in [other.futures.echo(number) for number in range(in_flight)]:
            future.result()  # type: ignore[attr-defined]
        rate = in_flight / (time.perf_counter() - begun)
        array = numpy.ones(size, dtype=numpy.uint8)
        bulk = min(timed(lambda: other.size(array)) for _ in range(3))
        return trips[len(trips) // 2], rate, size / bulk


def timed(call: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def mesh_program(hosts: str) -> tuple[float, float, float]:
    """Measure calls between two nodes. hosts: "a,a" for one host, "a,b" for two, with TLS between them"""
    here, there = hosts.split(",")
    program = Program("bench", python=sys.executable)
    echo = program.add(Echo, on=there)
    caller = program.add(Caller, echo, on=here)
    assert isinstance(caller, Handle)
    with program.launch("local"):
        found = caller.measure(CALLS, IN_FLIGHT, ARRAY_BYTES)
    assert isinstance(found, tuple)
    return found
