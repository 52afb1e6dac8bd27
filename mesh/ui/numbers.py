"""Numbers of the runs that are looked at: the output of a run is read once, however often a page asks."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator

from mesh.core.events import Output
from mesh.pages.lines import STREAMS
from mesh.pages.metrics import Metrics
from mesh.rundir.records import Record, State, read_record
from mesh.rundir.replay import Replay

RUNS_MAX = 4  # whose numbers are kept
SLICE_S = 2.0  # of reading for one answer
CLOSE_LIMIT_S = 1.0
CHECK_CHUNKS = 64  # chunks of output between two looks at the clock


class RunNumbers:
    """The numbers of a run, and the place up to which its output was read."""

    def __init__(self, record: Record) -> None:
        self._lock = threading.Lock()
        self._directory = record.directory
        self._metrics = Metrics()
        self._replay = Replay(record, streams=STREAMS)
        self._source: Iterator[Output] | None = None  # in the middle of output that was there at the last look
        self._is_closed = False

    def answer(self) -> dict[str, object]:
        """Read more output for SLICE_S; return the points by names, and if more output is there. Raises OSError."""
        with self._lock:
            try:
                more = self._advance()
            finally:
                if self._is_closed:  # another run has taken its place meanwhile
                    self._replay.close()
            points = {name: [point.row() for point in found] for name, found in self._metrics.points().items()}
        return {"metrics": points, "more": more}

    def close(self) -> None:
        """Let go of the files."""
        self._is_closed = True
        if self._lock.acquire(timeout=CLOSE_LIMIT_S):  # else ``answer`` closes them
            try:
                self._replay.close()
            finally:
                self._lock.release()

    def _advance(self) -> bool:
        until = time.monotonic() + SLICE_S
        if self._source is None:
            # The state is read before the output: that of a run that is over is complete by then.
            self._source = self._outputs(read_record(self._directory).state is State.ON)
        for number, output in enumerate(self._source):
            self._metrics.output(output)
            if number % CHECK_CHUNKS == 0 and time.monotonic() > until:
                return True
        self._source = None
        if not self._directory.exists():
            raise FileNotFoundError(self._directory)
        return False

    def _outputs(self, is_on: bool) -> Iterator[Output]:
        with contextlib.suppress(FileNotFoundError):  # a run that has just begun has no logs yet
            yield from self._replay.advance()
            if not is_on:
                yield from self._replay.rest()


class Numbers:
    """The numbers of several runs. The run that was asked for longest ago is the first to go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, RunNumbers] = OrderedDict()

    def of(self, record: Record) -> dict[str, object]:
        """Return the numbers of a run as far as they are read. Raises OSError."""
        with self._lock:
            found = self._runs.get(record.run)
            if found is None:
                found = self._runs[record.run] = RunNumbers(record)
            self._runs.move_to_end(record.run)
            dropped = self._runs.popitem(last=False)[1] if len(self._runs) > RUNS_MAX else None
        if dropped:
            dropped.close()
        try:
            return found.answer()
        except OSError:
            self._drop(record.run)
            raise

    def close(self) -> None:
        """Let go of all files."""
        for run in list(self._runs):
            self._drop(run)

    def _drop(self, run: str) -> None:
        with self._lock:
            found = self._runs.pop(run, None)
        if found:
            found.close()
