"""Task files: their tasks, and the workers that take them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from mesh.cli import taskoptions as t
from mesh.cli.command import Takes, command
from mesh.cli.jobs import GROUP
from mesh.cli.options import Given
from mesh.cli.others import GROUP as JOBMAN_GROUP
from mesh.cli.speech import columns, say, show
from mesh.core.errors import UsageError

if TYPE_CHECKING:
    from mesh.api.tasks import Listing, TaskRow

HEAD = ("id", "state", "runs", "accelerator", "zone", "why")
DROPPED = ("zone", "runs", "accelerator")  # in a narrow terminal, the first one first
STATES = ("pending", "running", "done", "failed", "blocked")
ONE_AT_A_TIME = "expected one of --reset, --reset-all, --reset-failed, --reset-pattern, --prioritize, --done, --cleanup"


@command(
    "job queue",
    GROUP,
    "FILE",
    takes=Takes.PATHS,
    examples=(
        ("mesh job queue tasks.yaml", "its tasks and their states"),
        ("mesh job queue tasks.yaml --reset-failed", "once the cause is mended"),
        ("mesh job queue tasks.yaml --prioritize eval-8b", "taken next"),
    ),
)
def queue(given: Given) -> None:
    """List or change the tasks of a file that workers take them from."""
    from mesh.api import tasks

    file = given[t.TASK_FILE]
    if not file:
        raise UsageError("expected a task file", hint="mesh job queue tasks.yaml")
    changes: list[Callable[[], list[str]]] = []
    if given[t.RESET]:
        changes.append(lambda: tasks.reset(file, given[t.RESET]))
    if given[t.RESET_ALL]:
        changes.append(lambda: tasks.reset_all(file))
    if given[t.RESET_FAILED]:
        changes.append(lambda: tasks.reset_failed(file))
    if given[t.RESET_PATTERN]:
        changes.append(lambda: tasks.reset_pattern(file, given[t.RESET_PATTERN]))
    if given[t.PRIORITIZE]:
        changes.append(lambda: tasks.prioritize(file, given[t.PRIORITIZE]))
    done = [given[t.DONE]] if isinstance(given[t.DONE], str) else given.words  # --done=ID, or --done ID
    if done and not given[t.DONE]:
        raise UsageError(f"unexpected word {done[0]!r}", hint=f"mesh job queue {file} --task {done[0]}")
    if done:
        changes.append(lambda: tasks.mark_done(file, [str(name) for name in done]))
    if given[t.CLEANUP]:
        changes.append(list)
    if len(changes) > 1:
        raise UsageError(ONE_AT_A_TIME)
    if changes:
        _show_changed(given, file, changes[0]())
    elif given[t.TASK]:
        row = tasks.task(file, given[t.TASK])
        show([_as_json(row)] if given[t.JSON_TASKS] else _lines(row))
    else:
        found = tasks.listing(file, show_all=given[t.SHOW_ALL], states=("done",) if given[t.DONE] else ())
        _show(given, found)


def _show(given: Given, found: Listing) -> None:
    for notice in found.notices:
        say(notice)
    show(map(_as_json, found.rows) if given[t.JSON_TASKS] else _table(found))


def _show_changed(given: Given, file: str, names: Sequence[str]) -> None:
    from mesh.api import tasks

    rows = [row for row in tasks.listing(file, show_all=True).rows if row.id in names]
    if given[t.JSON_TASKS]:
        show(map(_as_json, rows))
        return
    done = [f"task {row.id}: {row.state}{f' ({row.why})' if row.why else ''}" for row in rows]
    show(done or ["nothing to do"])


def _table(found: Listing) -> Iterator[str]:
    """Yield a row for each task, and how many there are of each state."""
    from mesh.core.escapes import plain
    from mesh.core.width import Table

    if found.rows:
        cells = [
            [row.id, row.state, str(row.runs), row.accelerator or "-", row.zone or "-", plain(_why(row))]
            for row in found.rows
        ]
        yield from Table(list(HEAD), width=columns(), dropped=list(DROPPED)).lines(cells)
    total = sum(found.counts.values())
    parts = [f"{found.counts[state]} {state}" for state in STATES if found.counts.get(state)]
    hidden = f" ({found.hidden} hidden: --show-all)" if found.hidden else ""
    yield f"{total} task{'s' * (total != 1)}{': ' if parts else ''}{', '.join(parts)}{hidden}"


def _why(row: TaskRow) -> str:
    return ", ".join(filter(None, ("next" if row.is_first else "", row.why)))


def _lines(row: TaskRow) -> Iterator[str]:
    """Yield all facts of a task, one a line."""
    from mesh.cli.jobtable import moment

    facts = {
        "task": row.id,
        "state": ": ".join(filter(None, (row.state, _why(row)))),
        "for": " ".join(filter(None, (row.accelerator, row.zone))),
        "depends_on": ", ".join(row.depends_on),
        "priority": str(row.priority) if row.priority else "",
        "runs": f"{row.runs}, {row.failures} of {row.max_retries} failures",
        "at once": str(row.max_jobs) if row.max_jobs > 1 else "",
    }
    yield from (f"{name:<10} {text}" for name, text in facts.items() if text)
    for one in row.history:
        status = f", exit {one.exit_code}" if one.exit_code else ""
        where = f" (run {one.run})" if one.run else ""
        times = f"{moment(one.started)} to {moment(one.ended)}"
        yield f"{f'run {one.number}':<10} {one.how.value}{status}: {times} by job {one.job}{where}"
    for running in row.running:
        yield f"{f'run {running.number}':<10} since {moment(running.since)} by job {running.job}"


def _as_json(row: object) -> str:
    from mesh.jobs.coding import encode

    return encode(row)


@command(
    "job requeue",
    GROUP,
    "TASK ...",
    takes=Takes.PATHS,
    examples=(("mesh job requeue pretrain-8b", "it ends first; its worker takes the next task"),),
)
def requeue(given: Given) -> None:
    """End tasks that workers run, and put them behind the others in the queue."""
    from mesh.api.jobruns import told
    from mesh.api.tasks import requeue as give_back

    rows = give_back(given.words)
    show(map(_as_json, rows) if given[t.JSON_TASKS] else map(told, rows))


@command(
    "jobman queue",
    JOBMAN_GROUP,
    "FILE",
    takes=Takes.PATHS,
    examples=(("mesh jobman queue tasks.yaml --reset-all", "as `mesh job queue`"),),
)
def jobman_queue(given: Given) -> None:
    """List or change the tasks of a file that workers take them from."""
    queue(given)


@command(
    "jobman requeue",
    JOBMAN_GROUP,
    "ID ...",
    takes=Takes.PATHS,
    examples=(("mesh jobman requeue 000042", "the worker ends its task, and takes the next one"),),
)
def jobman_requeue(given: Given) -> None:
    """Give the tasks of workers back: each ends, and waits behind the others."""
    requeue(given)
