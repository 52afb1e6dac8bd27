"""Removal of old jobs: their rows, directories and snapshots. The directories of their runs stay."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence

from mesh.api.jobstore import JobRow, JobStore
from mesh.core.errors import UsageError
from mesh.jobs.reading import FINAL, Selection

JOBS_KEPT = 1000
KEPT_FOR_S = 90 * 86400.0
DELETE = "delete"


def prune_jobs(*, keep: int | None = None, older_than: float | None = None, dry_run: bool = False) -> list[JobRow]:
    """Remove jobs that ended long ago, and deleted ones; return them.

    keep: the newest so many stay, also if they are older; older_than: seconds since their end
    Without both: 1000 and 90 days. dry_run: remove nothing. Raises UsageError, and MeshError.
    """
    if keep is None and older_than is None:
        keep, older_than = JOBS_KEPT, KEPT_FOR_S
    if keep is not None and keep < 0:
        raise UsageError(f"--keep: expected a number of jobs, found {keep}")
    store = JobStore()
    before = time.time() - (older_than or 0.0)
    rows = store.rows(Selection(deleted=True))
    due = _due(rows, before, keep or 0)
    if dry_run or not rows:
        return due
    from mesh.jobs.store import open_store

    opened = open_store(store.place)
    try:
        gone = set(opened.prune(before, keep or 0))
        used = {job.spec.workspace.tree for job in opened.jobs()}
    finally:
        opened.close()
    for number in gone:
        shutil.rmtree(store.place.of_job(number), ignore_errors=True)
    from mesh.workspace.snapshot import remove_unused

    remove_unused(store.place.directory, used)
    return [row for row in rows if row.id in gone]


def _due(rows: Sequence[JobRow], before: float, keep: int) -> list[JobRow]:
    ended = [row for row in rows if row.state in FINAL]
    listed = [row for row in ended if row.wanted != DELETE]
    newest = {row.id for row in listed[max(0, len(listed) - keep) :]}
    return [row for row in ended if row.wanted == DELETE or ((row.ended or 0.0) < before and row.id not in newest)]
