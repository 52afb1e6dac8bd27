"""Jobs: runs that are looked after."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from mesh.cli import joboptions as j
from mesh.cli import options as o
from mesh.cli.command import Takes, command, family
from mesh.cli.logoptions import check_module, pattern_of
from mesh.cli.options import Given
from mesh.cli.speech import columns, paint_of, say, show
from mesh.config.settings import given_command
from mesh.core.errors import UsageError

if TYPE_CHECKING:
    from mesh.api.jobruns import JobOutput
    from mesh.api.jobs import JobRow, Submitted

GROUP = "Jobs"
LAST = "last"
MEMBERS_SHOWN = 4  # members of an array that `submit` shows one by one
REPAINT_S = 1.0
HOME, CLEAR_LINE, CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"
SUBMIT_USAGE = "mesh job submit FILE, or mesh job submit --cluster CLUSTER -- COMMAND ..."
family("job", GROUP, "Submit and follow runs that `mesh serve` starts and restarts.")


@command(
    "job submit",
    GROUP,
    "FILE | --cluster CLUSTER -- COMMAND ...",
    takes=Takes.TAIL,
    examples=(
        ("mesh job submit train.yaml", "it starts when its hosts are free"),
        ("mesh job submit --cluster pod -- python3 train.py", "without a file"),
        ("mesh job submit sweep.yaml --array 0-31%4", "32 jobs, four at a time"),
        ("mesh job submit train.yaml --set restart.on=failure --dry-run", "what it would be"),
    ),
)
def submit(given: Given) -> int:
    """Submit a job, with a copy of the workspace as it is now."""
    from mesh.api import jobs

    words = given_command(given.words, SUBMIT_USAGE) if given.words else ()
    wanted = jobs.Wanted(
        file=given[j.FILE],
        command=words,
        cluster=given[j.JOB_CLUSTER],
        overrides=_overrides(given),
        array=given[j.ARRAY],
        clusters_file=given[o.CLUSTERS],
    )
    if given[j.ATTACH] and given[j.ARRAY]:
        raise UsageError("--attach is for one job", hint="submit the array, and then: mesh job attach ID")
    if given[j.DRY_SUBMIT]:
        lines = list(jobs.plan_lines(wanted))
        show([_plan_as_json(lines)] if given[j.JSON_JOBS] else lines)
        return 0
    made = jobs.submit_wanted(wanted)
    for notice in made.notices:
        say(notice)
    if given[j.JSON_JOBS]:
        _show_json(made)
    else:
        for line in _submitted(made):
            say(line)
    if not given[j.ATTACH]:
        return 0
    from mesh.api.jobruns import job_attach

    return job_attach(made[0].id, _output(given), notify=say)


def _overrides(given: Given) -> tuple[str, ...]:
    """Return everything that wins over the file, as KEY=VALUE."""
    from mesh.config.yamlfile import quoted

    texts = {"job.name": given[j.JOB_NAME], "job.queue": given[j.QUEUE]}
    found = [f"{key}={quoted(text)}" for key, text in texts.items() if text]
    if given[j.PRIORITY] is not None:
        found.append(f"job.priority={given[j.PRIORITY]}")
    return (*found, *given[j.SETTINGS])


def _plan_as_json(lines: Sequence[str]) -> str:
    from json import dumps

    facts: dict[str, list[str]] = {}
    for line in lines:
        name, _, text = line.partition(" ")
        facts.setdefault(name, []).append(text.strip())
    return dumps({name: texts if texts[1:] else texts[0] for name, texts in facts.items()})


def _submitted(made: Submitted) -> Iterator[str]:
    """Yield a line for each job, one for all members of a long array, and one about the steward."""
    from mesh.api.jobruns import told

    if len(made) > MEMBERS_SHOWN:
        yield f"jobs {made[0].id}-{made[-1].id} {made[0].name}: {len(made)} {made[0].state}"
    else:
        yield from map(told, made)
    serving = made.serving
    if not serving.pid:
        yield "no steward looks after it, as MESH_SERVE is 0: start one with `mesh serve`"
    elif serving.has_started:
        boot = "" if serving.at_boot else ", not started at boot: `mesh serve install`"
        yield f"looked after by mesh serve on this machine (pid {serving.pid}{boot})"


@command(
    "job list",
    GROUP,
    "[ID ...]",
    takes=Takes.PATHS,
    examples=(
        ("mesh job list", "all that have not ended, or ended within a day"),
        ("mesh job list --watch", "again after each change"),
        ("mesh job list --all --state failed --json", "for a script"),
    ),
)
def list_(given: Given) -> None:
    """List jobs: their state, since when, and why."""
    from mesh.api import jobs
    from mesh.cli.jobtable import columns_of_list, job_table

    names = columns_of_list(given[j.COLUMNS])
    query = jobs.Query(every=given[j.EVERY], state=given[j.STATE], user=given[j.USER], since=given[j.LISTED_SINCE])
    if given[j.WATCH_JOBS]:
        _watch(given, jobs.watch_jobs(query), names)
    elif given[j.JSON_JOBS] and not given.words:
        show(jobs.job_texts(query))
    else:
        rows = jobs.list_jobs(given.words, query)
        if given[j.JSON_JOBS]:
            _show_json(rows)
        else:
            show([*job_table(rows, names, columns(), paint_of(sys.stdout)), *jobs.stray_lines()])


def _watch(given: Given, changes: Iterable[Sequence[JobRow]], names: Sequence[str]) -> None:
    """Show jobs after each change: in place on a terminal, else a line for each job that has changed."""
    from mesh.api.jobs import recent
    from mesh.cli.jobtable import as_json, job_table

    known: dict[int, JobRow] = {}
    words, paints = set(given.words), sys.stdout is not None and sys.stdout.isatty() and not given[j.JSON_JOBS]
    painted_at = 0.0
    for rows in changes:
        new = [row for row in rows if known.get(row.id) != row and (not words or words & {str(row.id), row.name})]
        known |= {row.id: row for row in new}
        if given[j.JSON_JOBS]:
            show(map(as_json, new if len(known) > len(new) or given[j.EVERY] else recent(new)))
            continue
        if not paints:
            if new:
                show(job_table(recent(new), names, 0))
            continue
        time.sleep(max(0.0, painted_at + REPAINT_S - time.monotonic()))
        painted_at = time.monotonic()
        shown = sorted(known.values(), key=lambda row: row.id)
        lines = list(job_table(shown if given[j.EVERY] else recent(shown), names, columns(), paint_of(sys.stdout)))
        height = os.get_terminal_size(1).lines
        visible = lines[: height - 1] if height > 1 else lines  # 0: the terminal does not report its size
        body = "".join(f"{line}{CLEAR_LINE}\n" for line in visible)
        sys.stdout.write(f"{HOME}{body}{CLEAR_REST}")
        sys.stdout.flush()


@command(
    "job show",
    GROUP,
    "[ID]",
    examples=(("mesh job show 42", "all about it, and the next step"), ("mesh job show 42 --events", "its history")),
)
def show_(given: Given) -> None:
    """Show all about a job."""
    from mesh.api import jobs
    from mesh.cli.jobtable import as_json, job_lines

    job = given[j.JOB] or LAST
    if given[j.EVENTS]:
        _show_events(given, job)
        return
    row = jobs.show(job)
    show([as_json(row)] if given[j.JSON_JOBS] else job_lines(row))


def _show_events(given: Given, job: str) -> None:
    from mesh.api import jobs
    from mesh.cli.jobtable import event_json, event_line

    row, seen = jobs.show(job), 0
    while True:
        is_over = row.state in jobs.ENDED
        found = jobs.events(row.id, seen)
        seen += len(found)
        show(event_json(one).decode() if given[j.JSON_JOBS] else event_line(one) for one in found)
        if is_over or not given[j.FOLLOW_EVENTS]:
            return
        time.sleep(jobs.WAIT_POLL_S)
        row = jobs.show(row.id)


@command(
    "job logs",
    GROUP,
    "[ID]",
    examples=(
        ("mesh job logs 42 -f", "through all attempts, until it has ended"),
        ("mesh job logs --attempt 2", "alone"),
        ("mesh job logs 42 --module gcsfuse", "the set-up of a module, on each host"),
    ),
)
def logs(given: Given) -> None:
    """Show what the ranks of a job have printed, in all attempts."""
    from mesh.api.jobruns import job_logs
    from mesh.api.jobsetup import module_lines

    if given[j.LOGS_MODULE]:
        check_module(given)
        show(module_lines(given[j.JOB] or LAST, given[j.LOGS_MODULE]))
        return
    job_logs(given[j.JOB] or LAST, _output(given), attempt=given[j.ATTEMPT], follow=given[o.FOLLOW], notify=say)


@command("job attach", GROUP, "[ID]", examples=(("mesh job attach 42", "Ctrl-C leaves, and the job goes on"),))
def attach(given: Given) -> int:
    """Show the output of a job from now on; its status becomes that of mesh."""
    from mesh.api.jobruns import job_attach

    return job_attach(given[j.JOB] or LAST, _output(given), notify=say)


def _output(given: Given) -> JobOutput:
    from mesh.api.jobruns import JobOutput

    return JobOutput(
        ranks=given[o.SOME_RANKS],
        stderr=given[o.STDERR],
        since=given[o.SINCE],
        grep=pattern_of(given),
        output=given[o.SHOWN],
        label=given[o.LABEL],
        fold=given[o.FOLD],
        json=given[j.JSON_OUTPUT],
        look=given.look(),
    )


@command(
    "job wait",
    GROUP,
    "ID ...",
    takes=Takes.PATHS,
    examples=(("mesh job wait 42 && mesh job submit next.yaml", "status 75: it is held"),),
)
def wait(given: Given) -> int:
    """Wait for jobs; the status of the first that did not succeed becomes that of mesh."""
    from mesh.api import jobs

    words = given.words or [LAST]
    status = jobs.wait(words, given[j.TIMEOUT])
    if given[j.JSON_JOBS]:
        _show_json(jobs.list_jobs(words))
    return status


def _change(given: Given, change: Callable[[Sequence[str]], Sequence[JobRow]]) -> None:
    """Change jobs, and show how each is then."""
    from mesh.api.jobruns import told

    if not given.words:
        raise UsageError("expected jobs: numbers, names or last", hint=f"mesh {given.command} 42")
    rows = change(given.words)
    if given[j.JSON_JOBS]:
        _show_json(rows)
    else:
        show(map(told, rows))


def _show_json(rows: Iterable[JobRow]) -> None:
    from mesh.cli.jobtable import as_json

    show(map(as_json, rows))


@command("job stop", GROUP, "ID ...", takes=Takes.PATHS, examples=(("mesh job stop 42 'sweep-*'", "by names too"),))
def stop(given: Given) -> None:
    """End jobs: their ranks end, and nothing restarts them."""
    from mesh.api import jobs

    _change(given, lambda words: jobs.stop(words, keep_machines=given[j.KEEP_MACHINES]))


@command("job resume", GROUP, "ID ...", takes=Takes.PATHS, examples=(("mesh job resume 42", "after a stop, too"),))
def resume(given: Given) -> None:
    """Continue jobs that are held or have ended."""
    from mesh.api import jobs

    _change(given, jobs.resume)


@command(
    "job restart",
    GROUP,
    "ID ...",
    takes=Takes.PATHS,
    examples=(("mesh job restart 42", "a new attempt"), ("mesh job restart 42 --skip-setup", "its command alone")),
)
def restart(given: Given) -> None:
    """End the attempts of jobs, and start them again."""
    from mesh.api import jobs

    if given[j.SKIP_SETUP] and given[j.FORCE_SETUP]:
        raise UsageError("--skip-setup and --force contradict each other")
    setup: Literal["check", "skip", "force"] = "force" if given[j.FORCE_SETUP] else "check"
    _change(given, lambda words: jobs.restart(words, setup="skip" if given[j.SKIP_SETUP] else setup))


@command("job hold", GROUP, "ID ...", takes=Takes.PATHS, examples=(("mesh job hold 42", "it does not start"),))
def hold(given: Given) -> None:
    """Keep jobs from starting until they are released."""
    from mesh.api import jobs

    _change(given, jobs.hold)


@command("job release", GROUP, "ID ...", takes=Takes.PATHS, examples=(("mesh job release 42", "it may start"),))
def release(given: Given) -> None:
    """Release jobs that are held, so that they can start."""
    from mesh.api import jobs

    _change(given, jobs.release)


@command(
    "job prioritize",
    GROUP,
    "ID ... --priority N",
    takes=Takes.PATHS,
    examples=(("mesh job prioritize 42 --priority 10", "before those with less"),),
)
def prioritize(given: Given) -> None:
    """Give jobs another priority."""
    from mesh.api import jobs

    priority = given[j.PRIORITY]
    if priority is None:
        raise UsageError("expected --priority N", hint="mesh job prioritize 42 --priority 10")
    _change(given, lambda words: jobs.prioritize(words, priority))


@command(
    "job delete",
    GROUP,
    "ID ...",
    takes=Takes.PATHS,
    examples=(("mesh job delete 42", "out of all lists"), ("mesh job delete 42 --yes", "stop it first")),
)
def delete(given: Given) -> None:
    """Remove jobs from all lists, once nothing of them runs."""
    from mesh.api import jobs

    if given.words and not given[j.YES]:
        going_on = [row for row in jobs.list_jobs(given.words) if row.state not in jobs.ENDED]
        if going_on:
            row = going_on[0]
            hint = f"mesh job delete --yes {' '.join(given.words)}"
            raise UsageError(f"job {row.id} {row.name} is {row.state}; --yes stops it first", hint=hint)
    _change(given, jobs.delete)


@command(
    "job prune",
    GROUP,
    examples=(
        ("mesh job prune", "those that ended 90 days ago, but not the last 1000"),
        ("mesh job prune --keep 10 --dry-run", "what would be removed"),
    ),
)
def prune(given: Given) -> None:
    """Remove old jobs with their snapshots; the directories of their runs stay."""
    from mesh.api.jobpruning import prune_jobs
    from mesh.api.jobruns import told

    dry_run = given[j.DRY_PRUNE_JOBS]
    rows = prune_jobs(keep=given[j.KEEP_JOBS], older_than=given[j.OLDER_JOBS], dry_run=dry_run)
    if given[j.JSON_JOBS]:
        _show_json(rows)
        return
    done = "would be removed" if dry_run else "removed"
    show([*map(told, rows), f"{done}: {len(rows)} job{'s' * (len(rows) != 1)}"])
