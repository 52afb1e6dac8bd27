"""Copies of a job's output in a bucket, under the names of MaxText's multihost_job.py or in run directories."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mesh.app.bucket import copy_to_bucket
from mesh.core.errors import MeshError
from mesh.core.job import LogNames
from mesh.core.paths import runs_directory
from mesh.jobs.values import Job, Stage

LOGS = "logs"  # in a run directory
MAXTEXT_NAME = "main_command_log_slice_{slice}_worker_{worker}"


def copy_logs(job: Job, slices: Sequence[int], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Copy the output of all attempts of a job to its bucket; return what went wrong, for people.

    slices: how many hosts each slice has
    """
    if not job.spec.logs:
        return []
    runs = [runs_directory(environ) / one.run for one in job.attempts if one.stage is not Stage.NEVER]
    by_slice = job.spec.log_names is LogNames.MAXTEXT
    try:
        files = _by_slice(runs, slices) if by_slice else _by_run(runs)
        copy_to_bucket(files, job.spec.logs, environ)
    except OSError as error:
        return [f"{job.spec.logs}: cannot read {error.filename}: {error.strerror}"]
    except MeshError as error:
        return [f"logs are not in the bucket ({error}); they are in {', '.join(map(str, runs))}"]
    return []


def _by_run(runs: Sequence[Path]) -> dict[str, bytes]:
    """Return every file of run directories, by RUN/PATH."""
    found = [(run, path) for run in runs for path in sorted(run.rglob("*")) if path.is_file() and not path.is_symlink()]
    return {f"{run.name}/{path.relative_to(run)}": path.read_bytes() for run, path in found}


def _by_slice(runs: Sequence[Path], slices: Sequence[int]) -> dict[str, bytes]:
    """Return the output of each worker through all attempts, by the name that MaxText gives it."""
    places = [(number, worker) for number, count in enumerate(slices) for worker in range(count)]
    files = {}
    for rank, (number, worker) in enumerate(places):
        parts: list[bytes] = []
        for attempt, run in enumerate(runs, 1):
            path = run / LOGS / f"rank-{rank:04}.out"
            if not path.exists():
                continue
            if len(runs) > 1:
                parts.append(f"--- attempt {attempt}, run {run.name}\n".encode())
            parts.append(path.read_bytes())
        files[MAXTEXT_NAME.format(slice=number, worker=worker)] = b"".join(parts)
    return files
