"""Jobs: runs that are looked after. Each function is one command of ``mesh job``.

from mesh.api import jobs
(job,) = jobs.submit("train.yaml")
status = jobs.wait([job.id])
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

from mesh.api.jobstore import JobRow as JobRow
from mesh.api.jobstore import JobStore, chosen
from mesh.api.serving import Serving as Serving
from mesh.api.serving import about_steward as about_steward
from mesh.api.serving import serve as serve
from mesh.api.serving import stop_steward as stop_steward
from mesh.api.submitting import Wanted, plan_lines, ready_to_submit
from mesh.app.owner import user_name
from mesh.core.errors import UsageError
from mesh.core.job import PRIORITY_LIMIT
from mesh.core.outcome import EXIT_BUSY, EXIT_TIMEOUT
from mesh.jobs.events import AnyEvent, FromPeople, HoldChanged, PriorityChanged, RestartAsked, Wished
from mesh.jobs.reading import FINAL, Selection
from mesh.jobs.values import Wanted as Wish

RECENT_S = 86400.0  # jobs that ended so long ago are still listed
STATES = (
    *("queued", "requesting", "preparing", "running", "recovering", "held", "ending"),
    *FINAL,
)
HELD = "held"
WAIT_POLL_S = 0.25  # between two looks at jobs that are waited for
EXIT_STOPPED = 143  # 128 + SIGTERM
Jobs = Sequence[int | str]  # ids, names with or without wildcards, or "last"


class Submitted(list[JobRow]):
    """The jobs that were submitted, with the steward that looks after them and notices for people."""

    def __init__(self, rows: Sequence[JobRow], serving: Serving, notices: Sequence[str]) -> None:
        super().__init__(rows)
        self.serving, self.notices = serving, tuple(notices)


def submit(
    file: str | os.PathLike[str] = "",
    *,
    command: Sequence[str] = (),
    cluster: str = "",
    overrides: Sequence[str] = (),
    array: str = "",
    name: str = "",
    queue: str = "",
    priority: int | None = None,
    clusters_file: str = "",
) -> Submitted:
    """Submit the job of a file, and return it; with an array, all of its jobs.

    command: the words for execve, in place of those of the file; with a cluster no file is needed
    overrides: KEY=VALUE, as "restart.on=failure", which win over the file
    array: as "0-31", or "0-31%4" for four jobs at a time; each has its MESH_ARRAY_INDEX
    The workspace of the working directory is copied now. The steward is started where none runs, except with
    MESH_SERVE=0. Raises UsageError with all problems of the file, and MeshError if nothing was submitted.
    """
    given = {"machines.cluster": cluster, "job.name": name, "job.queue": queue}
    ready = ready_to_submit(_wanted(file, command, _settings(given, priority, overrides), array, clusters_file))
    rows, serving = JobStore().submit(ready.specs)
    return Submitted(rows, serving, ready.notices)


def plan(
    file: str | os.PathLike[str] = "",
    *,
    command: Sequence[str] = (),
    cluster: str = "",
    overrides: Sequence[str] = (),
    array: str = "",
    name: str = "",
    queue: str = "",
    priority: int | None = None,
    clusters_file: str = "",
) -> Iterator[str]:
    """Describe a ``submit`` in lines for people, and submit nothing. Raises UsageError."""
    given = {"machines.cluster": cluster, "job.name": name, "job.queue": queue}
    return plan_lines(_wanted(file, command, _settings(given, priority, overrides), array, clusters_file))


def _wanted(
    file: str | os.PathLike[str], command: Sequence[str], settings: Sequence[str], array: str, clusters_file: str
) -> Wanted:
    if isinstance(command, str):
        raise UsageError("expected a command as a list of words", hint='for shell text: ["bash", "-c", TEXT]')
    return Wanted(
        file=os.fspath(file),
        command=tuple(command),
        overrides=tuple(settings),
        array=array,
        clusters_file=clusters_file,
    )


def _settings(given: dict[str, str], priority: int | None, overrides: Sequence[str]) -> list[str]:
    """Return all values that win over the file as KEY=VALUE."""
    from mesh.config.yamlfile import quoted

    settings = [f"{key}={quoted(value)}" for key, value in given.items() if value]
    return [*settings, *([] if priority is None else [f"job.priority={priority}"]), *overrides]


# ---- look


def list_jobs(
    words: Jobs = (), *, every: bool = False, state: str = "", user: str = "", since: float | None = None
) -> list[JobRow]:
    """Return jobs by id: those that have not ended, and those that ended within a day.

    words: only these, ended or not; every: all of them; state: only in this one; since: submitted within so many
    seconds before now. Raises UsageError, and MeshError if the store cannot be read.
    """
    store = JobStore()
    rows = store.rows(selection_of(every=every or bool(words), state=state, user=user, since=since))
    store.look_after(rows)
    rows = chosen(rows, list(map(str, words))) if words else rows
    return rows if every or words or state else recent(rows)


def recent(rows: Sequence[JobRow]) -> list[JobRow]:
    """Return the jobs that have not ended, and those that ended within a day."""
    since = time.time() - RECENT_S
    return [row for row in rows if row.state not in FINAL or (row.ended or 0.0) > since]


def selection_of(*, every: bool = False, state: str = "", user: str = "", since: float | None = None) -> Selection:
    """Return the jobs that a list asks the store for. Raises UsageError for a state that there is not."""
    if state and state not in STATES:
        raise UsageError(f"--state: expected {', '.join(STATES)}, found {state!r}")
    begin = 0.0 if since is None else time.time() - since
    return Selection(states=(state,) if state else (), user=user, since=begin)


def job_texts(*, every: bool = False, state: str = "", user: str = "", since: float | None = None) -> list[str]:
    """Return jobs as JSON objects, by id; the parameters are those of ``list_jobs``."""
    store = JobStore()
    selection = selection_of(every=every, state=state, user=user, since=since)
    if every or state:
        return store.texts(selection)
    from mesh.jobs.coding import encode

    rows = store.rows(selection)
    store.look_after(rows)
    return [encode(row) for row in recent(rows)]


def watch_jobs(*, state: str = "", user: str = "", since: float | None = None) -> Iterator[list[JobRow]]:
    """Yield the jobs of a list, and then those that have changed, without an end."""
    return JobStore().watch(selection_of(state=state, user=user, since=since))


def show(job: int | str) -> JobRow:
    """Return one job. Raises UsageError if there is none, or if several are meant."""
    store = JobStore()
    (row,) = _rows(store, [job], single=True)
    store.look_after([row])
    return row


def events(job: int | str, after: int = 0) -> list[AnyEvent]:
    """Return the events of a job, oldest first. after: only those behind so many"""
    store = JobStore()
    (row,) = _rows(store, [job], single=True)
    return store.events(row.id, after)


def _rows(store: JobStore, jobs: Jobs, *, single: bool = False) -> list[JobRow]:
    """Return the jobs that words mean. Raises UsageError."""
    if not jobs:
        raise UsageError("expected a job: its number, its name, or last", hint="mesh job list")
    words = [str(job).removeprefix("job:") for job in jobs]
    ids = tuple(int(word) for word in words if word.isdecimal())
    selection = Selection(ids=ids) if len(ids) == len(words) else Selection()
    found = chosen(store.rows(selection), words)
    if single and len(found) > 1:
        names = ", ".join(str(row.id) for row in found[-8:])
        raise UsageError(f"{words[0]!r} may be any of {len(found)} jobs", hint=f"name one of them: {names}")
    return found


# ---- change


def _record(jobs: Jobs, event: FromPeople) -> list[JobRow]:
    store = JobStore()
    return store.record([row.id for row in _rows(store, jobs)], event)


def stop(jobs: Jobs) -> list[JobRow]:
    """End jobs: their ranks are ended and proved gone, and nothing restarts them."""
    return _record(jobs, Wished(time=time.time(), wanted=Wish.STOP, by=user_name()))


def resume(jobs: Jobs) -> list[JobRow]:
    """Let jobs go on that are held, or have ended."""
    return _record(jobs, Wished(time=time.time(), wanted=Wish.RUN, by=user_name()))


def restart(jobs: Jobs) -> list[JobRow]:
    """End the attempts of jobs, and start them again."""
    return _record(jobs, RestartAsked(time=time.time(), by=user_name()))


def hold(jobs: Jobs) -> list[JobRow]:
    """Keep jobs from starting until they are released. An attempt that runs goes on."""
    return _record(jobs, HoldChanged(time=time.time(), is_on_hold=True, by=user_name()))


def release(jobs: Jobs) -> list[JobRow]:
    """Let jobs go on that are held."""
    return _record(jobs, HoldChanged(time=time.time(), is_on_hold=False, by=user_name()))


def prioritize(jobs: Jobs, priority: int) -> list[JobRow]:
    """Give jobs another priority, -100 to 100; the greatest comes first."""
    if not -PRIORITY_LIMIT <= priority <= PRIORITY_LIMIT:
        raise UsageError(f"--priority: expected -{PRIORITY_LIMIT} to {PRIORITY_LIMIT}, found {priority}")
    return _record(jobs, PriorityChanged(time=time.time(), priority=priority, by=user_name()))


def delete(jobs: Jobs) -> list[JobRow]:
    """Stop jobs and remove them from all lists, once nothing of them runs."""
    return _record(jobs, Wished(time=time.time(), wanted=Wish.DELETE, by=user_name()))


# ---- wait


def status_of(row: JobRow) -> int:
    """Return the exit status that a job stands for: its own, 75 while it is held."""
    if row.state == HELD:
        return EXIT_BUSY
    return EXIT_STOPPED if row.exit_code is None else row.exit_code


def wait(jobs: Jobs, timeout: float | None = None) -> int:
    """Wait until jobs have ended or are held; return the status of the first that did not succeed, in their order.

    timeout: seconds, after which 124 is returned
    """
    store = JobStore()
    rows = {row.id: row for row in _rows(store, jobs)}
    store.look_after(list(rows.values()))
    deadline = None if timeout is None else time.monotonic() + timeout
    while not all(_is_over(row) for row in rows.values()):
        if deadline is not None and time.monotonic() > deadline:
            return EXIT_TIMEOUT
        time.sleep(WAIT_POLL_S)
        rows |= {row.id: row for row in store.rows(Selection(ids=tuple(rows), deleted=True))}
    return next(filter(None, map(status_of, rows.values())), 0)


def _is_over(row: JobRow) -> bool:
    return row.state in FINAL or row.state == HELD
