"""The progress of jobs: the last match of ``progress:`` in their output, which is fetched now and then."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from pathlib import Path

from mesh.api.detached import DetachedRun, Place
from mesh.api.fetching import Fetch
from mesh.app.assemble import placed
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError
from mesh.core.paths import runs_directory
from mesh.core.run import RunSpec, followed
from mesh.rundir.about import describe
from mesh.rundir.layout import LOGS

PROGRESS_S = 20.0  # between two fetches of the output of a run
TAIL_BYTES = 1 << 18  # of each log that are searched
LOGS_SEARCHED = 16  # those of the first ranks
PROGRESS_CHARACTERS = 80


class ProgressReader:
    """The progress of runs, each fetched in a thread of its own, so that a look does not wait for it."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}
        self._due: dict[str, float] = {}  # monotonic, by run
        self._lock = threading.Lock()

    def of(self, spec: RunSpec, cluster: Cluster, pattern: str) -> str:
        """Return the progress that was found last; "" before the first one. pattern: a regular expression"""
        now = time.monotonic()
        with self._lock:
            is_due = now >= self._due.get(spec.run, 0.0)
            if is_due:
                self._due[spec.run] = now + PROGRESS_S
        if is_due:
            arguments = (spec, cluster, pattern)
            threading.Thread(target=self._read, args=arguments, name="mesh-progress", daemon=True).start()
        return self._found.get(spec.run, "")

    def _read(self, spec: RunSpec, cluster: Cluster, pattern: str) -> None:
        with contextlib.suppress(MeshError, OSError, re.error):
            _fetch(spec, cluster)
            if found := last_match(runs_directory(os.environ) / spec.run / LOGS, re.compile(pattern)):
                self._found[spec.run] = found


def _fetch(spec: RunSpec, cluster: Cluster) -> None:
    """Bring the output that hosts have by now, unless another client follows the run and brings it."""
    about = describe(spec, cluster.name, placed(spec, cluster))
    try:
        place = Place(DetachedRun(run=spec.run, cluster=cluster.name, about=about), "here", shared=False)
    except BlockingIOError:
        return
    with contextlib.closing(place), contextlib.closing(Fetch(followed(spec), cluster, place, lasting=False)) as fetch:
        fetch.wait()


def last_match(logs: Path, pattern: re.Pattern[str]) -> str:
    """Return the last match in the logs of the first ranks, of the first rank that has one; "" without any."""
    for path in sorted(logs.glob("rank-*"))[:LOGS_SEARCHED]:
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            for line in reversed(file.read().decode("utf-8", "replace").splitlines()):
                if match := pattern.search(line):
                    return as_text(match)[:PROGRESS_CHARACTERS]
    return ""


def as_text(match: re.Match[str]) -> str:
    """Return the groups of a match with their names, or all of it.

    >>> as_text(re.search(r"step (?P<step>[0-9]+) loss (?P<loss>[0-9.]+)", "step 1200 loss 2.31 lr 1"))
    'step 1200 loss 2.31'
    """
    named = match.groupdict()
    return " ".join(f"{name} {value}" for name, value in named.items() if value is not None) or match.group()
