"""Files in the directory of a job, for people: its events as ``events.jsonl``, and logs.

``logs/tpu.log`` or ``logs/machines.log`` has what became of its machines, ``logs/queue.log`` its tasks.
"""

from __future__ import annotations

import os
import time as clock
from collections.abc import Callable, Iterable, Iterator

from mesh.jobs.coding import encode
from mesh.jobs.events import AnyEvent
from mesh.jobs.machinelog import MachineLog
from mesh.jobs.queuelog import QueueLog
from mesh.jobs.store import Store
from mesh.jobs.values import Job

EVENTS_FILE = "events.jsonl"
TPU_FILE, MACHINES_FILE, TASKS_FILE = "logs/tpu.log", "logs/machines.log", "logs/queue.log"


class Log:
    """The lines of a log of one job, from its events in their order."""

    def __init__(self, text: Callable[[AnyEvent], str]) -> None:
        """text: returns that for an event; "": none"""
        self._text, self._last = text, ""

    def lines(self, new: Iterable[AnyEvent]) -> Iterator[str]:
        """Yield a line with its time for each event that has a text; a repetition has none."""
        for event in new:
            text = self._text(event)
            if text and text != self._last:
                self._last = text
                yield f"{clock.strftime('%Y-%m-%d %H:%M:%S', clock.localtime(event.time))} {text}\n"


def logs_of(job: Job) -> dict[str, Log]:
    """Return new logs for a job, by their files."""
    found = {}
    if job.spec.machines.tpu is not None:
        found[TPU_FILE] = Log(MachineLog().text)
    if job.spec.machines.carrier is not None:
        found[MACHINES_FILE] = Log(MachineLog().text)
    if job.spec.worker is not None:
        found[TASKS_FILE] = Log(QueueLog().text)
    return found


class Mirror:
    """Appends what the store has more than the files. A file that cannot be written is tried again at the next event.

    The directory of a job is made at its first start, or by `mesh jobman create`. A job has no file before.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lines: dict[int, int] = {}  # that each file has
        self._logs: dict[int, dict[str, Log]] = {}  # of each job, by their files

    def write(self, jobs: Iterable[Job]) -> None:
        """Write the new events of jobs. Raises StoreFailed."""
        for job in jobs:
            is_made = job.spec.machines.tpu is not None or job.spec.machines.carrier is not None
            if not (job.attempts or is_made) or self._lines.get(job.id) == job.seq:
                continue
            try:
                self._append_logs(job, self._append(job))
            except OSError:  # its directory is not there yet, or the disk is full
                self._forget(job)
            if job.state.is_final:
                self._forget(job)

    def _forget(self, job: Job) -> None:
        self._lines.pop(job.id, None)
        self._logs.pop(job.id, None)

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

    def _append_logs(self, job: Job, new: list[AnyEvent]) -> None:
        """Append the lines of new events to the logs; write the whole files after a start or a failure."""
        how, logs = os.O_APPEND, self._logs.get(job.id)
        if logs is None:
            how, logs = os.O_TRUNC, logs_of(job)
            self._logs[job.id] = logs
            new = self._store.events(job.id)[: self._lines[job.id]] if logs else []  # later ones come with the next
        for name, log in logs.items():
            path = self._store.place.of_job(job.id) / name
            path.parent.mkdir(exist_ok=True, mode=0o700)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.writelines(log.lines(new))
