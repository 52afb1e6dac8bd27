"""The pytest plug-in of programs: a conftest.py with ``pytest_plugins = ["mesh.program.testing"]`` has ``run_program``.

``run_program(program)`` launches a program in threads, or with ``where="local"`` as processes of this machine. The end
of the test stops it, and fails a test that leaves a thread or descriptor behind, or whose program has failed unseen.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from mesh.program.program import Program
from mesh.program.running import Running

RunProgram = Callable[..., Running]
LEFT_TIMEOUT_S = 5.0  # for threads and descriptors to go after the end of a program
DESCRIPTORS = "/proc/self/fd"


class Launches:
    """The programs of one test."""

    def __init__(self) -> None:
        self._running: list[Running] = []
        self._threads = set(threading.enumerate())
        self._descriptors = _descriptors()

    def __call__(self, program: Program, where: str = "threads", *, run: bool = True) -> Running:
        """Launch a program and return it once every node is ready. run: False to call no ``run()``

        Raises the exception of a node that fails before it is ready.
        """
        running = program.launch(where, run=run)
        self._running.append(running)
        return running

    def close(self) -> None:
        """Stop all programs. Raises the exception of a node that has failed, and AssertionError for remains."""
        results = [running.stop() for running in self._running]
        deadline = time.monotonic() + LEFT_TIMEOUT_S
        while (left := self._left()) and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        for result in results:
            if result.reason == "failure":
                result.raise_for_failure()
        assert not left, f"the test has left {', '.join(left)}"

    def _left(self) -> list[str]:
        threads = [f"thread {one.name}" for one in threading.enumerate() if one not in self._threads]
        return threads + [f"descriptor {one}" for one in _descriptors() - self._descriptors]


def _descriptors() -> set[str]:
    """Return the open files of this process: number and target."""
    found = set()
    for name in os.listdir(DESCRIPTORS) if os.path.isdir(DESCRIPTORS) else ():
        try:
            found.add(f"{name} {os.readlink(f'{DESCRIPTORS}/{name}')}")
        except OSError:  # of the listing itself
            continue
    return found


@pytest.fixture
def run_program() -> Iterator[RunProgram]:
    """Launch programs in threads or on this machine; they are stopped at the end of the test."""
    launches = Launches()
    yield launches
    launches.close()
