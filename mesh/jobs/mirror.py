"""Files in the directory of a job, for people: its events as ``events.jsonl``, and ``logs/tpu.log``."""

from __future__ import annotations

import os
from collections.abc import Iterable

from mesh.jobs.coding import encode
from mesh.jobs.events import AnyEvent
from mesh.jobs.machinelog import MachineLog
from mesh.jobs.store import Store
from mesh.jobs.values import Job

EVENTS_FILE = "events.jsonl"
MACHINES_FILE = "logs/tpu.log"


class Mirror:
    """Appends what the store has more than the files. A file that cannot be written is tried again at the next event.

    The directory of a job is made at its first start, or by `mesh jobman create`. A job has no file before.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lines: dict[int, int] = {}  # that each file has
        self._machines: dict[int, MachineLog] = {}

    def write(self, jobs: Iterable[Job]) -> None:
        """Write the new events of jobs. Raises StoreFailed."""
        for job in jobs:
            is_made = job.spec.machines.tpu is not None
            if not (job.attempts or is_made) or self._lines.get(job.id) == job.seq:
                continue
            try:
                new = self._append(job)
                if is_made:
                    self._append_machines(job, new)
            except OSError:  # its directory is not there yet, or the disk is full
                self._forget(job)
            if job.state.is_final:
                self._forget(job)

    def _forget(self, job: Job) -> None:
        self._lines.pop(job.id, None)
        self._machines.pop(job.id, None)

    def _append(self, job: Job) -> list[AnyEvent]:
        """Append the events that the file lacks; return them."""
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
        return new

    def _append_machines(self, job: Job, new: list[AnyEvent]) -> None:
        """Append the lines about machines of new events; write the whole file after a start or a failure."""
        path = self._store.place.of_job(job.id) / MACHINES_FILE
        path.parent.mkdir(exist_ok=True, mode=0o700)
        how, log = os.O_APPEND, self._machines.get(job.id)
        if log is None:
            how, log = os.O_TRUNC, MachineLog()
            self._machines[job.id] = log
            new = self._store.events(job.id)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o600), "w") as file:
            file.writelines(log.lines(new))
