"""The file ``events.jsonl`` in the directory of a job: its events, one JSON object a line, for people."""

from __future__ import annotations

import os
from collections.abc import Iterable

from mesh.jobs.coding import encode
from mesh.jobs.store import Store
from mesh.jobs.values import Job

EVENTS_FILE = "events.jsonl"


class Mirror:
    """Appends what the store has more than the files. A file that cannot be written is tried again at the next event.

    The directory of a job is made at its first start, so that a job has no file before.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lines: dict[int, int] = {}  # that each file has

    def write(self, jobs: Iterable[Job]) -> None:
        """Write the new events of jobs. Raises StoreFailed."""
        for job in jobs:
            if not job.attempts or self._lines.get(job.id) == job.seq:
                continue
            try:
                self._append(job)
            except OSError:  # its directory is not there yet, or the disk is full
                self._lines.pop(job.id, None)
            if job.state.is_final:
                self._lines.pop(job.id, None)

    def _append(self, job: Job) -> None:
        path = self._store.place.of_job(job.id) / EVENTS_FILE
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with open(descriptor, "r+b") as file:
            known = self._lines.get(job.id)
            if known is None:  # a steward before may have been killed within a line
                whole, _, rest = file.read().rpartition(b"\n")
                known = whole.count(b"\n") + bool(whole)
                file.seek(-len(rest), os.SEEK_END)
                file.truncate()
            else:
                file.seek(0, os.SEEK_END)
            new = self._store.events(job.id, after=known)
            file.write("".join(f"{encode(one)}\n" for one in new).encode())
        self._lines[job.id] = known + len(new)
