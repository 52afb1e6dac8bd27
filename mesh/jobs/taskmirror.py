"""The mirror of a task file's state beside it, as JOBMAN writes it: ``tasks_state.yaml``. It is for people and scripts.

A mirror that lies there when a file is loaded for the first time is read once, so that a queue of JOBMAN goes on.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Mapping
from pathlib import Path

import yaml

from mesh.core.errors import UsageError
from mesh.core.tasks import STATE_SUFFIX
from mesh.jobs.tasking import TaskRecord
from mesh.jobs.tasktables import TaskFileState
from mesh.jobs.turns import How

HEAD = "# The state of {name}, written by mesh. Changes here have no effect: mesh job queue {name} --help\n"


def mirror_of(tasks: Path) -> Path:
    """Return the path of the mirror of a task file.

    >>> mirror_of(Path("/x/tasks.yaml"))
    PosixPath('/x/tasks_state.yaml')
    """
    return tasks.with_name(f"{tasks.stem}{STATE_SUFFIX}")


def write_mirror(state: TaskFileState) -> None:
    """Write the mirror of a file, all of it or nothing. Raises OSError."""
    path = mirror_of(state.tasks.path)
    known = {task.id for task in state.tasks.tasks}
    names = [task.id for task in state.tasks.tasks] + [name for name in state.records if name not in known]
    body = {name: _lines(state.records.get(name, TaskRecord(id=name))) for name in names}
    text = HEAD.format(name=state.tasks.path.name) + yaml.safe_dump({"tasks": body}, sort_keys=False)
    with contextlib.suppress(OSError):
        if path.read_text() == text:
            return
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text)
        os.replace(beside, path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def _lines(record: TaskRecord) -> dict[str, object]:
    return {
        "done": record.is_done,
        "running": [{"job_id": f"{one.job:06d}", "started": _moment(one.since)} for one in record.running],
        "run_count": record.runs,
        "fail_count": record.failures,
        "priority": record.is_first,
        "history": [
            {
                "job_id": f"{one.job:06d}",
                "started": _moment(one.started),
                "ended": _moment(one.ended),
                "status": one.how.value,
                "run": one.run,
            }
            for one in record.history
        ],
    }


def _moment(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).isoformat(timespec="seconds")


def read_mirror(tasks: Path) -> list[TaskRecord]:
    """Return the records of a mirror; [] without one. Instances that ran count as interrupted.

    Raises UsageError for a file that is no mirror.
    """
    path = mirror_of(tasks)
    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, AttributeError, RecursionError, yaml.YAMLError) as error:  # PyYAML lets some through
        raise UsageError(f"{path}: cannot be read ({error})", hint=f"mv {path} {path}.old") from error
    listed = found.get("tasks") if isinstance(found, Mapping) else None
    if found is not None and not isinstance(listed, Mapping):
        raise UsageError(f"{path}: has no state of tasks", hint=f"mv {path} {path}.old")
    return [_record(str(name), facts) for name, facts in (listed or {}).items() if isinstance(facts, Mapping)]


def _record(name: str, facts: Mapping[object, object]) -> TaskRecord:
    history = facts.get("history")
    last = history[-1] if isinstance(history, list) and history else {}
    status = last.get("status") if isinstance(last, Mapping) else ""
    # JOBMAN has done: true for a task that has failed for good, too.
    is_done = bool(facts.get("done")) and status != How.FAILED.value
    return TaskRecord(
        id=name,
        runs=_count(facts.get("run_count")),
        failures=0 if is_done else _count(facts.get("fail_count")),
        is_done=is_done,
        is_first=bool(facts.get("priority")),
    )


def _count(value: object) -> int:
    return max(0, value) if isinstance(value, int) else 0
