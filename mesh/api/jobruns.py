"""The output of jobs: that of all their attempts, which are ordinary runs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator

from msgspec import Struct

from mesh.api.attaching import attach
from mesh.api.jobs import HELD, WAIT_POLL_S, show, status_of
from mesh.api.jobstore import JobRow
from mesh.api.records import find_record
from mesh.api.replaying import logs
from mesh.core.errors import MeshError, UsageError
from mesh.core.look import Look
from mesh.core.outcome import Cause
from mesh.core.paths import runs_directory
from mesh.jobs.change import ATTEMPTS_KEPT
from mesh.jobs.reading import FINAL
from mesh.rundir.layout import EVENTS

PLAIN = Look()
Notify = Callable[[str], None]
LEFT = (Cause.SIGNAL, Cause.DETACHED, Cause.OUTPUT_CLOSED)  # ends of looking on, and not of the run


class JobOutput(Struct, frozen=True, kw_only=True):
    """The output that is shown, and its form; the fields are those of ``mesh.api.logs``."""

    ranks: str = ""
    stderr: bool = False
    since: float | None = None
    grep: str = ""
    output: str = "all"
    label: str = "rank"
    fold: str = "numbers"
    json: bool = False
    look: Look = PLAIN


def job_logs(
    job: int | str,
    shown: JobOutput,
    *,
    attempt: int | None = None,
    follow: bool = False,
    notify: Notify = lambda text: None,
) -> None:
    """Show the output of a job's attempts, the oldest first.

    attempt: only this one; follow: go on until the job has ended or is held; notify: gets a line between two attempts
    Raises UsageError, and MeshError.
    """
    row = show(job)
    number, seen = 0, set[str]()
    while True:
        for number, run in numbered_runs(row):
            if run not in seen and attempt in (None, number):
                if attempt is None and (len(row.runs) > 1 or follow):
                    notify(f"job {row.id} {row.name}: attempt {number} is run {run}")
                _show_run(run, shown, follow=follow)
            seen.add(run)
        if attempt is not None and attempt <= number:
            return
        if not follow or row.state in (*FINAL, HELD):
            break
        time.sleep(WAIT_POLL_S)
        row = show(row.id)
    if attempt is not None:
        raise UsageError(f"job {row.id} has had {len(row.runs)} attempts, and not {attempt}")
    if not row.runs:
        notify(f"job {row.id} {row.name} has not started: {row.state}{f' ({row.reason})' if row.reason else ''}")


def numbered_runs(row: JobRow) -> Iterator[tuple[int, str]]:
    """Yield the runs of a job with the numbers of their attempts; of a worker with many tasks, the last runs."""
    first = row.attempt - len(row.runs) if row.attempt > ATTEMPTS_KEPT else 0
    yield from enumerate(row.runs, max(0, first) + 1)


def _show_run(run: str, shown: JobOutput, *, follow: bool) -> None:
    if shown.json:
        from sys import stdout

        for line in run_events(run, follow=follow):
            stdout.write(f"{line}\n")
        stdout.flush()
        return
    logs(
        run,
        ranks=shown.ranks or None,
        stderr=shown.stderr,
        since=shown.since,
        grep=shown.grep,
        follow=follow,
        output=shown.output,
        label=shown.label,
        fold=shown.fold,
        look=shown.look,
    )


def run_events(run: str, *, follow: bool) -> Iterator[str]:
    """Yield the events of a run as JSON, as far as they are here. follow: until it has ended"""
    path = runs_directory(os.environ) / run / EVENTS
    done = 0
    while True:
        record = find_record(run, is_exact=True)
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(done)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                done += len(line)
                yield line.decode("utf-8", "replace").rstrip("\n")
        if not follow or record is None or record.ended is not None:
            return
        time.sleep(WAIT_POLL_S)


def job_attach(job: int | str, shown: JobOutput, *, notify: Notify = lambda text: None) -> int:
    """Show the output of a job from now on, through all attempts, until it has ended or is held; return its status.

    In the main thread Ctrl-C ends the looking on, and not the job. Raises UsageError, and MeshError.
    """
    row, before, seen, tried = show(job), "", set[str](), set[str]()
    while True:
        if row.state in (*FINAL, HELD):
            if row.runs and row.runs[-1] not in seen and not shown.json:
                try:
                    _show_run(row.runs[-1], shown, follow=False)
                except MeshError as error:  # the status is that of the job all the same
                    notify(str(error))
            notify(told(row))
            return status_of(row)
        if row.runs and row.state == "running" and row.runs[-1] not in tried:
            run = row.runs[-1]
            tried.add(run)
            notify(f"job {row.id} {row.name}: attempt {row.attempt} is run {run}")
            with contextlib.suppress(MeshError):  # hosts do not answer, or its output is on its way here: it comes last
                if (status := _attached(run, shown)) is not None:
                    return status
                seen.add(run)
        elif (line := told(row)) != before:
            notify(line)
            before = line
        time.sleep(WAIT_POLL_S)
        row = show(row.id)


def _attached(run: str, shown: JobOutput) -> int | None:
    """Show a run until it has ended; return a status if the user has left it before. Raises MeshError."""
    result = attach(
        run,
        output=shown.output,
        label=shown.label,
        fold=shown.fold,
        json=shown.json,
        look=shown.look,
    )
    return result.exit_code if result.cause in LEFT and not _has_ended(run) else None


def _has_ended(run: str) -> bool:
    record = find_record(run, is_exact=True)
    return record is not None and record.ended is not None


def told(row: JobRow) -> str:
    """Return a job and its state in one line."""
    return f"job {row.id} {row.name}: {row.state}{f' ({row.reason})' if row.reason else ''}"
