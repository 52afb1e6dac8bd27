"""JOBMAN's command line: ``mesh jobman COMMAND``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.cli import jobmanoptions as j
from mesh.cli import joboptions
from mesh.cli import options as o
from mesh.cli.command import COMMANDS, Takes, command, family
from mesh.cli.options import Given
from mesh.cli.others import GROUP
from mesh.cli.reports import aligned
from mesh.cli.speech import say, show
from mesh.core.errors import UsageError

if TYPE_CHECKING:
    from mesh.api.jobs import JobRow

family("jobman", GROUP, "JOBMAN's commands (docs/from-jobman.md)")
LIST_HEAD = ("Job ID", "User", "Name", "Accelerator", "Zone", "Host0 IP", "Status")
STATUS_HEAD = ("Job Name", "Accelerator", "Start Time", "Status", "Notes")
TAIL_LINES = 20


@command(
    "jobman create",
    GROUP,
    "FILE",
    examples=(
        ("mesh jobman create --config=configs/quick-start.yaml", "a TPU as the file asks for it"),
        ("mesh jobman create quick-start.yaml --cluster pod", "on hosts that are there"),
    ),
)
def create(given: Given) -> int:
    """Submit the job of a file, and link its directory as jobs/ID or jobs/USER/ID."""
    from mesh.api import jobs
    from mesh.compat import jobman

    file = given[j.CREATE_FILE] or given[j.CREATE_CONFIG]
    if not file or (given[j.CREATE_FILE] and given[j.CREATE_CONFIG]):
        raise UsageError("expected one job file", hint="mesh jobman create FILE")
    wanted = jobs.Wanted(
        file=file,
        cluster=given[j.CREATE_CLUSTER],
        overrides=(*given[joboptions.SETTINGS],),
        clusters_file=given[o.CLUSTERS],
    )
    if given[j.CREATE_PLAN]:
        show(list(jobs.plan_lines(wanted)))
        return 0
    made, links = jobman.create(wanted, is_first_version=bool(given[j.CREATE_CONFIG]))
    for notice in made.notices:
        say(notice)
    (row,) = made
    place = str(links[0]) if links else row.directory
    show([f"job {jobman.number_of(row.id)} {row.name}: {place}", f"logs: {place}/logs"])
    if not made.serving.pid:
        say("no steward looks after it, as MESH_SERVE is 0: start one with `mesh serve`")
    return 0


@command("jobman list", GROUP, examples=(("mesh jobman list", "all jobs of yours, and their chips by zone"),))
def list_(given: Given) -> None:
    """List jobs with JOBMAN's columns and states."""
    from mesh.compat import jobman

    lines = jobman.lines_of()
    rows = [
        [one.number, one.row.user, one.row.name, one.accelerator, one.zone, one.address, jobman.state_of(one.row)]
        for one in lines
    ]
    show([*aligned([list(LIST_HEAD), *rows]), *jobman.totals(lines)])


@command(
    "jobman status",
    GROUP,
    "[ID]",
    takes=Takes.PATHS,
    examples=(("mesh jobman status 000042", "with the last lines of its command"),),
)
def status(given: Given) -> None:
    """Show how jobs are: start time, state, and the last step of the log."""
    from mesh.compat import jobman

    lines = jobman.lines_of(given.words)
    rows = [
        [
            one.row.name,
            one.accelerator,
            _moment(one.row.started),
            jobman.state_of(one.row),
            _note(one.row),
        ]
        for one in lines
    ]
    show(aligned([list(STATUS_HEAD), *rows]))
    if given.words and len(lines) == 1:
        log = Path(lines[0].row.directory) / "logs/main_command_worker_0.log"
        show(log.read_text(errors="replace").splitlines()[-TAIL_LINES:] if log.exists() else [])


def _note(row: JobRow) -> str:
    """Return the last step of a job, also after its end; else the reason of its state."""
    from mesh.cli.jobtable import why

    text = why(row, time.time())
    return (row.progress if row.progress and text == row.reason else text) or "-"


def _moment(seconds: float | None) -> str:
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _changed(given: Given, change: Callable[[Sequence[str]], Sequence[JobRow]]) -> None:
    """Change jobs, and show each with JOBMAN's state."""
    from mesh.compat import jobman

    if not given.words:
        raise UsageError("expected jobs", hint=f"mesh {given.command} 000042")
    rows = change(given.words)
    show(f"job {jobman.number_of(row.id)} {row.name}: {jobman.state_of(row)} ({row.state})" for row in rows)


@command("jobman resume", GROUP, "ID ...", takes=Takes.PATHS, examples=(("mesh jobman resume 000042", "it goes on"),))
def resume(given: Given) -> None:
    """Continue jobs that are held or have ended."""
    from mesh.api import jobs

    _changed(given, jobs.resume)


@command("jobman cancel", GROUP, "ID ...", takes=Takes.PATHS, examples=(("mesh jobman cancel 000042", "its end"),))
def cancel(given: Given) -> None:
    """End jobs: their ranks are ended, and their machines given back."""
    from mesh.api import jobs

    _changed(given, jobs.stop)


@command("jobman stop", GROUP, "ID ...", takes=Takes.PATHS, examples=(("mesh jobman stop 000042 000043", "both"),))
def stop(given: Given) -> None:
    """End jobs, as cancel does."""
    cancel(given)


@command(
    "jobman reboot",
    GROUP,
    "ID ...",
    takes=Takes.PATHS,
    examples=(("mesh jobman reboot 000042 --force", "with the set-up from its beginning"),),
)
def reboot(given: Given) -> None:
    """End the attempts of jobs, and start them again."""
    from mesh.api import jobs

    forces = given[j.FORCE_SETUP] or given[j.FORCE_PREFIX]
    _changed(given, lambda words: jobs.restart(words, setup="force" if forces else "check"))


@command("jobman delete", GROUP, "ID ...", takes=Takes.PATHS, examples=(("mesh jobman delete 000042", "and its TPU"),))
def delete(given: Given) -> None:
    """Stop jobs, give their machines back, and remove them from all lists."""
    from mesh.compat import jobman

    _changed(given, jobman.delete)


@command(
    "jobman clean",
    GROUP,
    "ID ...",
    takes=Takes.PATHS,
    examples=(("mesh jobman clean 000042", "with its logs"), ("mesh jobman clean --all", "all that have ended")),
)
def clean(given: Given) -> None:
    """Delete jobs with their directories, once nothing of them runs."""
    from mesh.compat import jobman

    if not given.words and not given[j.CLEAN_ALL]:
        raise UsageError("expected jobs, or --all", hint="mesh jobman clean 000042")
    rows = jobman.clean(given.words, every=given[j.CLEAN_ALL])
    show(f"job {jobman.number_of(row.id)} {row.name}: removed" for row in rows)


@command(
    "jobman run",
    GROUP,
    "ID",
    takes=Takes.PATHS,
    examples=(("mesh jobman run 000042 --cmd-only", "the command again, without set-up"),),
)
def run(given: Given) -> int:
    """Run a job in the foreground: show its output until it has ended, and start it where it has."""
    from mesh.api import jobs
    from mesh.api.jobruns import JobOutput, job_attach
    from mesh.compat import jobman

    job = jobman.only_job(given.words, "mesh jobman run 000042")
    row = jobs.show(job)
    forces = given[j.FORCE_SETUP] or given[j.FORCE_PREFIX]
    if given[j.CMD_ONLY]:
        jobs.restart([row.id], setup="skip")
    elif forces or row.state in (*jobs.ENDED, jobs.HELD):
        jobs.restart([row.id], setup="force" if forces else "check")
    return job_attach(row.id, JobOutput(), notify=say)


@command("jobman tpu", GROUP, "ID", takes=Takes.PATHS, examples=(("mesh jobman tpu 000042", "its request"),))
def tpu(given: Given) -> None:
    """Request the TPU of a job, where it has none and is not queued for one."""
    from mesh.api import jobs
    from mesh.compat import jobman

    row = jobs.show(jobman.only_job(given.words, "mesh jobman tpu 000042"))
    jobman.require_tpu(row)
    rows = jobs.resume([row.id]) if row.state in (*jobs.ENDED, jobs.HELD) else [row]
    show(f"job {jobman.number_of(one.id)} {one.name}: {jobman.state_of(one)} ({one.reason})" for one in rows)


def _stage(module: str) -> None:
    """Make the command that sets up one module."""

    def body(given: Given) -> int:
        from mesh.api.jobsetup import job_setup
        from mesh.app.screen import Showing
        from mesh.compat import jobman

        job = jobman.only_job(given.words, f"mesh jobman {module} 000042")
        result = job_setup(job, [module], force=given[j.FORCE_SETUP], showing=Showing(look=given.look()))
        return result.exit_code

    body.__doc__ = f"Set up the module {module} of a job on all of its hosts."
    example = (f"mesh jobman {module} 000042", "on the hosts that it has")
    command(f"jobman {module}", GROUP, "ID", takes=Takes.PATHS, examples=(example,))(body)


for _module in j.STAGES:
    _stage(_module)


@command(
    "jobman ssh",
    GROUP,
    "ID [-- COMMAND ...]",
    takes=Takes.PATHS,
    examples=(
        ("mesh jobman ssh 000042", "docs/from-jobman.md has the rule"),
        ("mesh jobman ssh 000042 -- nvidia-smi", "a command on worker 0"),
    ),
)
def ssh(given: Given) -> int:
    """Set up SSH keys of a job (as JOBMAN 2 does), or log in to its worker 0 (as JOBMAN 3)."""
    from mesh.api import jobs
    from mesh.api.jobsetup import job_setup
    from mesh.app.screen import Showing
    from mesh.cli.parser import parse
    from mesh.compat import jobman

    job, *words = given.words or [""]
    row = jobs.show(jobman.only_job([job] if job else [], "mesh jobman ssh 000042"))
    why = jobman.why_login(row)
    if words or (why and not given[j.FORCE_SETUP]):
        if not words:
            say(f"logging in to worker 0, because {why}; to set up keys: `mesh job setup {row.id} ssh`")
        command_line = [f"job:{row.id}:0", *(["--", *words] if words else [])]
        return COMMANDS["ssh"].body(parse(COMMANDS["ssh"], command_line)) or 0
    return job_setup(row.id, ["ssh"], force=given[j.FORCE_SETUP], showing=Showing(look=given.look())).exit_code


def _handed_on(given: Given, name: str) -> int:
    """Run another command of mesh with the words of this one."""
    from mesh.cli.parser import parse

    flags = [j.STORAGE_ALL.flag] if given[j.STORAGE_ALL] else []
    return COMMANDS[name].body(parse(COMMANDS[name], [*flags, *given.words])) or 0


@command("jobman quota", GROUP, examples=(("mesh jobman quota", "chips by zone, as `mesh job quota`"),))
def quota(given: Given) -> int:
    """Show chips in use against their quotas."""
    return _handed_on(given, "job quota")


@command(
    "jobman billing",
    GROUP,
    examples=(("mesh jobman billing", "the bill, as `mesh job billing`, or an estimate, as `mesh job cost`"),),
)
def billing(given: Given) -> int:
    """Show Google's bill if prices.yaml names its table, else what jobs have cost."""
    from mesh.api.costing import prices_here

    asked = given[joboptions.BILL_TABLE] or given[joboptions.BILL_BY] or given[joboptions.BILL_DAYS]
    if prices_here().billing is not None or asked or given[joboptions.JSON_MACHINES]:
        return COMMANDS["job billing"].body(given) or 0
    return _handed_on(given, "job cost")


@command(
    "jobman storage",
    GROUP,
    "[BUCKET ...]",
    takes=Takes.PATHS,
    examples=(("mesh jobman storage", "sizes of buckets, as `mesh job storage`"),),
)
def storage(given: Given) -> int:
    """Show the sizes of buckets."""
    return _handed_on(given, "job storage")
