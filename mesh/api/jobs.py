"""Jobs: runs that are looked after. Each function is one command of ``mesh job``.

from mesh.api import jobs
(job,) = jobs.submit("train.yaml")
status = jobs.wait([job.id])
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from mesh.api.costing import cost_of as cost_of
from mesh.api.costing import prices_for_lists as prices_for_lists
from mesh.api.jobplan import plan_lines as plan_lines
from mesh.api.jobstore import JobRow as JobRow
from mesh.api.jobstore import JobStore, chosen
from mesh.api.logout import logout_notices
from mesh.api.serving import Serving as Serving
from mesh.api.serving import about_steward as about_steward
from mesh.api.serving import serve as serve
from mesh.api.serving import stop_steward as stop_steward
from mesh.api.submitting import Wanted as Wanted
from mesh.api.submitting import ready_to_submit
from mesh.app.owner import user_name
from mesh.core.errors import UsageError
from mesh.core.job import PRIORITY_LIMIT, JobSpec
from mesh.core.outcome import EXIT_BUSY, EXIT_TIMEOUT
from mesh.jobs.events import AnyEvent, FromPeople, HoldChanged, PriorityChanged, RestartAsked, Wished
from mesh.jobs.reading import FINAL, Selection
from mesh.jobs.strays import read_strays
from mesh.jobs.values import Setup
from mesh.jobs.values import Wanted as Wish

RECENT_S = 86400.0  # jobs that ended so long ago are still listed
STATES = (
    *("queued", "requesting", "preparing", "running", "recovering", "held", "ending"),
    *FINAL,
)
ENDED = FINAL  # the states of jobs that have ended
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
    clusters_file: str = "",
) -> Submitted:
    """Submit the job of a file, and return it; with an array, all of its jobs.

    command: the words for execve, in place of those of the file; with a cluster no file is needed
    overrides: KEY=VALUE, as "job.name=lr3" or "restart.on=failure", which win over the file
    array: as "0-31", or "0-31%4" for four jobs at a time; each has its MESH_ARRAY_INDEX
    The workspace of the working directory is copied now. The steward is started where none runs, except with
    MESH_SERVE=0. Raises UsageError with all problems of the file, and MeshError if nothing was submitted.
    """
    wanted = Wanted(
        file=os.fspath(file),
        command=tuple(command),
        cluster=cluster,
        overrides=tuple(overrides),
        array=array,
        clusters_file=clusters_file,
    )
    return submit_wanted(wanted)


def submit_wanted(wanted: Wanted) -> Submitted:
    """Submit jobs as ``submit`` does."""
    JobStore().check()  # before a copy is made
    ready = ready_to_submit(wanted)
    return submit_specs(ready.specs, ready.notices)


def submit_specs(specs: Sequence[JobSpec], notices: Sequence[str]) -> Submitted:
    """Submit jobs that are complete. Raises MeshError if nothing was submitted."""
    rows, serving = JobStore().submit(specs)
    return Submitted(rows, serving, (*notices, *logout_notices(serving)))


# ---- look


class Query(Struct, frozen=True, kw_only=True):
    """The jobs that a list has; without any of the first two, those that ended more than a day ago are left out."""

    every: bool = False  # all jobs
    state: str = ""  # only in this state; "": in any
    user: str = ""  # only of this user; "": of any
    since: float | None = None  # only those that were submitted within so many seconds

    @property
    def selection(self) -> Selection:
        """Return the question to the store. Raises UsageError for a state that there is not."""
        if self.state and self.state not in STATES:
            raise UsageError(f"--state: expected {', '.join(STATES)}, found {self.state!r}")
        begin = 0.0 if self.since is None else time.time() - self.since
        return Selection(states=(self.state,) if self.state else (), user=self.user, since=begin)


USUAL = Query()


def list_jobs(words: Jobs = (), query: Query = USUAL) -> list[JobRow]:
    """Return jobs by id. words: only these, ended or not

    Raises UsageError, and MeshError if the store cannot be read.
    """
    store = JobStore()
    rows = store.rows(query.selection)
    if words:
        return chosen(rows, list(map(str, words)))
    return rows if query.every or query.state else recent(rows)


def recent(rows: Sequence[JobRow]) -> list[JobRow]:
    """Return the jobs that have not ended, and those that ended within a day."""
    since = time.time() - RECENT_S
    return [row for row in rows if row.state not in FINAL or (row.ended or 0.0) > since]


def job_texts(query: Query = USUAL) -> list[str]:
    """Return the jobs of ``list_jobs`` as JSON objects."""
    if query.every or query.state:
        return JobStore().texts(query.selection)
    from mesh.jobs.coding import encode

    return [encode(row) for row in list_jobs((), query)]


def watch_jobs(query: Query = USUAL) -> Iterator[list[JobRow]]:
    """Yield jobs, and then those that have changed, whenever some have."""
    return JobStore().watch(query.selection)


def stray_lines() -> list[str]:
    """Return a line about machines that no job has, if the steward's last audit has found some."""
    store = JobStore()
    last = read_strays(store.place.directory)
    if not last.found:
        return []
    names = ", ".join(dict.fromkeys(one.name for one in last.found))
    when = time.strftime("%H:%M", time.localtime(last.time))
    return [f"machines without an owner at {when} (they may cost money): {names}; `mesh job audit` lists them"]


def show(job: int | str) -> JobRow:
    """Return one job. Raises UsageError if there is none, or if several are meant."""
    store = JobStore()
    (row,) = _rows(store, [job], single=True)
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


def stop(jobs: Jobs, *, keep_machines: bool = False) -> list[JobRow]:
    """End jobs: their ranks are ended and proved gone, and nothing restarts them. Kept machines are deleted.

    keep_machines: let machines stay for the next job, for the time of `keep:`. Raises UsageError if the file has none.
    """
    if not keep_machines:
        return _ended(jobs, Wish.STOP)
    store = JobStore()
    ids = {row.id for row in _rows(store, jobs)}
    for job in store.jobs():
        tpu = job.spec.machines.tpu
        if job.id in ids and (tpu is None or not tpu.keep):
            raise UsageError(f"--keep-machines: the file of job {job.id} has no keep:", hint=f"mesh job stop {job.id}")
    return _record(jobs, Wished(time=time.time(), wanted=Wish.STOP, by=user_name(), keeps_machines=True))


def resume(jobs: Jobs) -> list[JobRow]:
    """Let jobs go on that are held, or have ended."""
    return _record(jobs, Wished(time=time.time(), wanted=Wish.RUN, by=user_name()))


def restart(jobs: Jobs, *, setup: Literal["check", "skip", "force"] = "check") -> list[JobRow]:
    """End the attempts of jobs, and start them again.

    setup: of their modules before that: "check": what is not in place, "skip": nothing, "force": all of it
    """
    return _record(jobs, RestartAsked(time=time.time(), by=user_name(), setup=Setup(setup)))


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
    """Stop jobs and remove them from all lists, once nothing of them runs. Kept machines are deleted."""
    return _ended(jobs, Wish.DELETE)


def _ended(jobs: Jobs, wish: Wish) -> list[JobRow]:
    """End jobs, and those that keep machines of them."""
    event = Wished(time=time.time(), wanted=wish, by=user_name())
    rows = _record(jobs, event)
    ids = {row.id for row in rows}
    store = JobStore()
    keepers = [row.id for row in store.rows(Selection(active_only=True)) if row.kept_from in ids and row.id not in ids]
    return [*rows, *store.record(keepers, event)] if keepers else rows


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
    deadline = None if timeout is None else time.monotonic() + timeout
    while not all(_is_over(row) for row in rows.values()):
        if deadline is not None and time.monotonic() > deadline:
            return EXIT_TIMEOUT
        time.sleep(WAIT_POLL_S)
        rows |= {row.id: row for row in store.rows(Selection(ids=tuple(rows), deleted=True))}
    return next(filter(None, map(status_of, rows.values())), 0)


def _is_over(row: JobRow) -> bool:
    return row.state in FINAL or row.state == HELD
