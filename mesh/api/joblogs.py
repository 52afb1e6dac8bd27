"""Links in a job's directory to the logs of its runs, under JOBMAN's names, and its own log ``job.log``."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from mesh.api.attempts import link
from mesh.core.cluster import Cluster
from mesh.core.events import Stream
from mesh.core.paths import runs_directory
from mesh.core.run import RunSpec
from mesh.jobs.values import Job
from mesh.rundir.layout import LOGS as RUN_LOGS
from mesh.rundir.layout import log_name

LOGS, ATTEMPTS, JOB_LOG = "logs", "attempts", "job.log"
ADDRESSES, START_TIME = "ips.json", "start_time.txt"
COMMAND_NAMES = ("main_command", "command")  # of the log of the command, in two versions of JOBMAN


def link_setup(directory: Path, run: str, modules: Sequence[str], cluster: Cluster, *, undo: bool = False) -> None:
    """Link the logs of modules, as ``logs/gcsfuse_worker_0.log`` or ``gcsfuse_undo_worker_0.log``. Raises OSError."""
    logs = runs_directory(os.environ) / run / RUN_LOGS
    for module in modules:
        for worker, host in enumerate(cluster.hosts):
            name = f"{module}-{host.name.replace('/', '_')}.log"
            stem = f"{module}_undo" if undo else module
            link(directory / LOGS / f"{stem}_worker_{worker}.log", logs / name)


def link_attempt(job: Job, directory: Path, spec: RunSpec, attempt: int, cluster: Cluster) -> None:
    """Link the run of an attempt, and the log of its command on each worker. Raises OSError.

    cluster: the hosts that run the command
    """
    place = runs_directory(os.environ) / spec.run
    link(directory / ATTEMPTS / str(attempt), place)
    workers = job.spec.command.workers or range(len(cluster.hosts))
    placement = spec.placed(cluster.hosts, cluster.slices)
    for node, worker in enumerate(workers):
        target = place / RUN_LOGS / log_name(placement, placement.first(node), Stream.STDOUT)
        for name in COMMAND_NAMES:
            link(directory / LOGS / f"{name}_worker_{worker}.log", target)


def write_addresses(directory: Path, cluster: Cluster) -> None:
    """Write the addresses of all hosts and the time of this start, as JOBMAN does. Raises OSError."""
    hosts = [
        {"worker": worker, "internal_ip": host.internal_ip or host.address, "external_ip": host.address}
        for worker, host in enumerate(cluster.hosts)
    ]
    _write(directory / ADDRESSES, json.dumps(hosts, indent=2) + "\n")
    _write(directory / START_TIME, time.strftime("%Y-%m-%d %H:%M:%S\n"))


def _write(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def note(directory: Path, text: str) -> None:
    """Append a line with the time to the job's own log. Raises OSError."""
    path = directory / LOGS / JOB_LOG
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as file:
        file.write(line)
