"""Members of collectives for the tests, also as a file of a project."""

from __future__ import annotations

import os
import signal

import numpy

from mesh.program import all_gather, all_reduce, barrier, broadcast, here
from mesh.program.runtime.here import current

TIMEOUT_S = 60.0


class Member:
    """Runs collectives as it is asked to."""

    def receive(self) -> tuple[str, float]:
        value = broadcast(root="client", timeout=TIMEOUT_S)
        assert isinstance(value, numpy.ndarray)
        return here().host, float(value.sum())

    def sums(self, size: int) -> float:
        found = all_reduce(numpy.full(size, float(here().index + 1)), timeout=TIMEOUT_S)
        assert isinstance(found, numpy.ndarray)
        return float(found[0])

    def labels(self) -> list[object]:
        return all_gather((here().label, here().host), timeout=TIMEOUT_S)

    def meet(self, seconds: float | None = None) -> None:
        barrier(seconds)

    def waiting(self) -> int:
        """Return how many members wait in collectives that this node counts."""
        return current().exchange.waiting

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
