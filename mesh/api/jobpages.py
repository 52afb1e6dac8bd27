"""Jobs and machines as pages show them: the rows of `mesh job list --json`, with costs, events, logs and tasks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import to_builtins

from mesh.api import jobs, machines
from mesh.api.costing import prices_here
from mesh.api.jobruns import numbered_runs
from mesh.api.tasks import listing
from mesh.core.errors import MeshError
from mesh.core.escapes import plain

FILE_BYTES_MAX = 1 << 16  # of a file of a job's directory
LOG_BYTES_MAX = 1 << 16  # the end of a log of modules
CONFIGURATIONS = (".yaml", ".yml", ".json", ".toml")
TASKS_FILE = "tasks.yaml"
Page = dict[str, object]


def jobs_page(every: bool = False) -> Page:
    """Return the jobs with their costs, the steward, and the tasks of tasks.yaml in this directory. Raises MeshError.

    every: also those that ended more than a day ago
    """
    rows = jobs.list_jobs(query=jobs.Query(every=every))
    steward, trouble = None, ""
    try:
        steward = jobs.about_steward()
    except MeshError as error:
        trouble = str(error)
    prices, now = jobs.prices_for_lists(), time.time()
    costs = {str(row.id): jobs.cost_of(row, prices, now) for row in rows}
    return {
        "jobs": [_plain(row) for row in rows],
        "costs": costs,
        "currency": prices.currency,
        "steward": None if steward is None else _plain(steward),
        "trouble": trouble,
        "strays": jobs.stray_lines(),
        **_tasks(),
    }


def _plain(value: object) -> object:
    return to_builtins(value, enc_hook=str, str_keys=True)


def _tasks() -> Page:
    if not Path(TASKS_FILE).is_file():
        return {"tasks": None}
    try:
        found = listing(TASKS_FILE, show_all=True)
    except MeshError as error:
        return {"tasks": None, "tasks_problem": str(error)}
    return {"tasks": _plain(found)}


def job_page(job: int) -> Page:
    """Return all about a job: row, events, attempts, configuration, logs of its modules. Raises MeshError."""
    row = jobs.show(job)
    directory = Path(row.directory)
    return {
        "job": _plain(row),
        "cost": jobs.cost_of(row, jobs.prices_for_lists(), time.time()),
        "currency": jobs.prices_for_lists().currency,
        "attempts": list(numbered_runs(row)),
        "events": [json.loads(json.dumps(_plain(event), default=str)) for event in jobs.events(row.id)],
        "files": _texts(directory, lambda path: path.suffix in CONFIGURATIONS),
        "logs": _texts(directory / "logs", lambda path: path.suffix == ".log"),
    }


def _texts(directory: Path, chosen: Callable[[Path], bool]) -> list[tuple[str, str]]:
    """Return the names and the ends of the texts in a directory."""
    found = []
    try:
        paths = sorted(path for path in directory.iterdir() if chosen(path) and path.is_file())
    except OSError:
        return []
    for path in paths:
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - FILE_BYTES_MAX))
                found.append((path.name, plain(file.read(FILE_BYTES_MAX).decode("utf-8", "replace"))))
        except OSError:
            continue
    return found


def machines_page() -> Page:
    """Return the machines of jobs with their price of an hour, as the store has them. Raises MeshError."""
    prices = prices_here()
    rows = []
    for one in machines.list_machines():
        hours = one.chip_hours
        per_hour = one.cost / hours if one.cost is not None and hours else None
        rows.append({**to_builtins(one), "per_chip_hour": per_hour})
    return {"machines": rows, "currency": prices.currency, "date": prices.date}
