"""Command line of JOBMAN, on jobs of mesh: its words, its states, and its directory ``jobs/``."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from mesh.api import jobs
from mesh.api.attempts import write_files
from mesh.api.joblogs import LOGS, note
from mesh.api.jobs import JobRow, Submitted
from mesh.api.jobsetup import job_of
from mesh.api.jobstore import JobStore
from mesh.api.submitting import Wanted, ready_to_submit
from mesh.api.taskparts import TASKS
from mesh.app.owner import user_name
from mesh.config.jobman import third_version_key
from mesh.core.errors import MeshError, UsageError
from mesh.core.tpu import TpuSpec
from mesh.hosts.job import read_machines
from mesh.jobs.reading import Selection

PLACE = "jobs"  # in the working directory
IGNORE = "*\n"  # its .gitignore: what is there belongs to no repository, and to no workspace
NONE = "N/A"
END_TIMEOUT_S = 900.0  # for jobs to end before their directories are removed
QUEUEING, RUNNING, IDLE, DEAD = "QUEUEING", "RUNNING", "IDLE", "DEAD"
PREEMPTED, PREFIX_FAIL = "PREEMPTED", "PREFIX_FAIL"
STATES = {
    **dict.fromkeys(("queued", "requesting"), QUEUEING),
    **dict.fromkeys(("preparing", "running", "ending"), RUNNING),
    "recovering": PREEMPTED,
}
PREFIX = "prefix"  # begins the reason of a job that a failed prefix step holds


class Line(Struct, frozen=True, kw_only=True):
    """A job as JOBMAN lists it."""

    row: JobRow
    address: str  # of the first host
    tpu: TpuSpec | None  # None: it runs on the hosts of a cluster

    @property
    def number(self) -> str:
        """The id as JOBMAN writes it."""
        return number_of(self.row.id)

    @property
    def accelerator(self) -> str:
        return self.tpu.accelerator if self.tpu else NONE

    @property
    def zone(self) -> str:
        return ",".join(self.tpu.zones) if self.tpu else NONE


def number_of(job: int) -> str:
    """Return the id of a job as JOBMAN writes it.

    >>> number_of(42)
    '000042'
    """
    return f"{job:06d}"


def state_of(row: JobRow) -> str:
    """Return JOBMAN's word for the state of a job."""
    if row.state == jobs.HELD and row.reason.startswith(PREFIX):
        return PREFIX_FAIL
    return STATES.get(row.state) or (IDLE if row.machines else DEAD)


# ---- the directory


def create(wanted: Wanted, *, is_first_version: bool = False) -> tuple[Submitted, list[Path]]:
    """Submit the job of a file, and link its directory into ``jobs/``; return the links.

    is_first_version: link ``jobs/ID`` and not ``jobs/USER/ID``, also for a file without ``setup.modules``
    Raises UsageError for a file with mistakes, MeshError if nothing was submitted.
    """
    ready = ready_to_submit(wanted)
    made = jobs.submit_specs(ready.specs, ready.notices)
    is_first_version = is_first_version or ready.jobman.has_listed_modules
    links = []
    for row, spec in zip(made, ready.specs, strict=True):
        directory = Path(row.directory)
        with contextlib.suppress(OSError):  # the steward writes it as well
            write_files(spec, directory)
            note(directory, f"job {row.id} {row.name}: submitted")
        link = link_of(row, is_first_version=is_first_version)
        if _linked(link, directory):
            links.append(link)
        if spec.worker is not None:
            _linked(Path(PLACE, TASKS), directory.parent / TASKS)
    return made, links


def link_of(row: JobRow, *, is_first_version: bool) -> Path:
    """Return the path of a job's link, relative to the working directory."""
    return Path(PLACE, *([] if is_first_version else [row.user]), number_of(row.id))


def _linked(link: Path, directory: Path) -> bool:
    """Make a link; return False if something else is there, or if the working directory cannot be written."""
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        ignore = Path(PLACE, ".gitignore")
        if not ignore.exists():
            ignore.write_text(IGNORE)
        if link.is_symlink() and os.readlink(link) != str(directory):
            link.unlink()  # of a store that is gone, as ids are never used twice
        if not link.is_symlink():
            link.symlink_to(directory)
    except OSError:
        return False
    return True


def unlink(rows: Sequence[JobRow]) -> None:
    """Remove the links of jobs."""
    for row in rows:
        for is_first_version in (True, False):
            link = link_of(row, is_first_version=is_first_version)
            if link.is_symlink() and os.readlink(link) == row.directory:
                with contextlib.suppress(OSError):
                    link.unlink()


def logs_of(row: JobRow) -> str:
    """Return where the logs of a job are: in ``jobs/``, else in the job's own directory."""
    for is_first_version in (True, False):
        link = link_of(row, is_first_version=is_first_version)
        if link.is_symlink():
            return str(link / LOGS)
    return str(Path(row.directory) / LOGS)


# ---- commands


def lines_of(words: Sequence[str] = ()) -> list[Line]:
    """Return all jobs of this user that are not deleted, or those that words mean. Raises UsageError, MeshError."""
    rows = JobStore().rows() if not words else jobs.list_jobs(list(words))
    user = user_name()
    return [_line(row) for row in rows if words or row.user == user]


def _line(row: JobRow) -> Line:
    machines = read_machines(Path(row.directory)) if row.machines else None
    address = machines.hosts[0].address if machines and machines.hosts else NONE
    return Line(row=row, address=address, tpu=job_of(row.id).spec.machines.tpu)


def totals(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the chips of all jobs by zone and kind: those that are held, and those that are asked for."""
    held: dict[tuple[str, str], int] = {}
    asked: dict[tuple[str, str], int] = {}
    for line in lines:
        if line.tpu is not None and line.row.state not in jobs.ENDED:
            key = line.zone, line.tpu.kind
            sums = asked if state_of(line.row) == QUEUEING else held
            sums[key] = sums.get(key, 0) + line.tpu.chips
    for zone, kind in sorted({*held, *asked}):
        yield f"{zone} {kind}: {held.get((zone, kind), 0)} chips held, {asked.get((zone, kind), 0)} asked for"


def delete(words: Sequence[str]) -> list[JobRow]:
    """Stop jobs, give their machines back, and remove them from all lists. Raises UsageError, MeshError."""
    rows = jobs.delete(list(words))
    unlink(rows)
    return rows


def clean(words: Sequence[str], *, every: bool = False) -> list[JobRow]:
    """Delete jobs, and remove their directories once nothing of them runs. Raises UsageError, MeshError.

    every: all jobs of this user that have ended
    """
    user = user_name()
    chosen = [str(row.id) for row in JobStore().rows() if row.user == user and row.state in jobs.ENDED] if every else []
    chosen += words
    if not chosen:
        return []
    rows = delete(chosen)
    status = jobs_wait(rows)
    for row in rows:
        shutil.rmtree(row.directory, ignore_errors=True)
    return status


def jobs_wait(rows: Sequence[JobRow]) -> list[JobRow]:
    """Wait until deleted jobs have ended; return them as they are then. Raises MeshError if they have not in time."""
    store, ids = JobStore(), tuple(row.id for row in rows)
    deadline = time.monotonic() + END_TIMEOUT_S
    found = list(rows)
    while not all(row.state in jobs.ENDED for row in found):
        if time.monotonic() > deadline:
            left = next(row for row in found if row.state not in jobs.ENDED)
            raise MeshError(f"job {left.id} {left.name} has not ended: {left.reason}", hint=f"mesh job show {left.id}")
        time.sleep(jobs.WAIT_POLL_S)
        found = store.rows(Selection(ids=ids, deleted=True))
    return found


def only_job(words: Sequence[str], usage: str) -> str:
    """Return the only word, which names a job. Raises UsageError for none or several."""
    if len(words) != 1:
        raise UsageError("expected one job", hint=usage)
    return words[0]


def why_login(row: JobRow) -> str:
    """Return the reason why ``jobman ssh`` logs in to a job, as in JOBMAN's third version; "": it sets keys up."""
    spec = job_of(row.id).spec
    if key := third_version_key(spec.file):
        return f"its file has {key}"
    return "" if "ssh" in dict(spec.modules) else "it has no module ssh"


def require_tpu(row: JobRow) -> None:
    """Raise MeshError for a job on the hosts of a cluster, which needs no TPU of its own."""
    if job_of(row.id).spec.machines.tpu is None:
        raise MeshError(
            f"job {row.id} {row.name} has no TPU of its own: it uses the hosts of {row.cluster}",
            hint=f"mesh jobman resume {row.id}",
        )
