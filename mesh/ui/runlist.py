"""The runs of this machine as rows of a page. Those that have ended are read once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

from mesh.core.naming import RUN_ID
from mesh.core.paths import runs_directory
from mesh.pages.verdicts import sentence
from mesh.rundir.layout import RUN
from mesh.rundir.listing import status
from mesh.rundir.records import Record, State, has_client, read_record

DAY_S = 86400.0
COMMAND_CHARACTERS = 300


class RunList:
    """The listing of run directories. Runs are looked up in it by their whole id; no path is made from other texts."""

    def __init__(self) -> None:
        self._directory = runs_directory(os.environ)
        self._ended: dict[str, tuple[int, dict[str, object]]] = {}  # rows by id, with the time of run.json
        self._over: set[str] = set()  # runs that have ended
        self._left: set[str] = set()  # older runs without a client and without a recorded end
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Return the ids of all runs, the newest first."""
        try:
            with os.scandir(self._directory) as entries:
                found = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:  # nothing was run yet
            return []
        return sorted((name for name in found if RUN_ID.fullmatch(name)), reverse=True)

    def record(self, run: str) -> Record | None:
        """Return a run by its id; None if there is none."""
        if run not in self.names():
            return None
        record = read_record(self._directory / run)
        return record if record.about or record.directory.exists() else None

    def rows(self) -> list[dict[str, object]]:
        """Return all runs, the newest first."""
        names = self.names()
        with self._lock:
            for gone in self._ended.keys() - set(names):
                del self._ended[gone]
        return [row for name in names if (row := self._row(name))]

    def newest(self, most: int) -> list[dict[str, object]]:
        """Return the newest runs."""
        return [row for name in self.names()[:most] if (row := self._row(name))]

    def live(self) -> Iterator[Record]:
        """Yield the runs that are on, and those of this day without a recorded end, the newest first."""
        recent = time.time() - DAY_S
        for name in self.names():
            directory = self._directory / name
            if name in self._over or (name in self._left and not has_client(directory)):
                continue
            record = read_record(directory)
            if record.state is State.ENDED:
                self._over.add(name)
            elif record.state is State.ON or record.created > recent:
                yield record
            else:
                self._left.add(name)

    def _row(self, name: str) -> dict[str, object] | None:
        try:
            changed = (self._directory / name / RUN).stat().st_mtime_ns
        except OSError:
            changed = -1
        with self._lock:
            known = self._ended.get(name)
        if known and known[0] == changed:
            return known[1]
        record = read_record(self._directory / name)
        if changed < 0 and not record.directory.exists():
            return None
        row = row_of(record)
        if record.state is State.ENDED:
            with self._lock:
                self._ended[name] = changed, row
        return row


def row_of(record: Record) -> dict[str, object]:
    """Return a run as a row."""
    named = record.named
    return {
        "run": record.run,
        "name": named.name,
        "tags": list(named.tags),
        "command": named.command[:COMMAND_CHARACTERS],
        "cluster": record.cluster,
        "hosts": len(record.hosts),
        "verb": record.verb,
        "created": record.created,
        "ended": record.ended,
        "state": record.state.value,
        "status": status(record),
        "exit_code": record.exit_code,
        "verdict": sentence(record.about),
    }
