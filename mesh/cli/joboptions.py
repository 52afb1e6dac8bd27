"""The rows of the option table for ``mesh job ...`` and ``mesh serve``."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

from mesh.cli.option import (
    COMMAND,
    HOSTS,
    OTHER,
    OUTPUT,
    SHARING,
    WHICH_RUN,
    AnyOption,
    Option,
    as_words,
    switch,
    text,
)
from mesh.config.settings import read_number, read_seconds
from mesh.core.errors import UsageError

WHICH_JOB = "Which job"
CHANGES = ("job stop", "job resume", "job restart", "job hold", "job release", "job prioritize", "job delete")
NAMES_JOBS = (*CHANGES, "job wait")  # commands that take several
NAMES_JOB = (*NAMES_JOBS, "job show", "job logs", "job attach", "job list", "job cost")
WITH_COLOR = ("job list", "job show", "job logs", "job attach")
SUBMIT, LIST = ("job submit",), ("job list",)
SERVE_ACTIONS = ("status", "stop", "install", "uninstall", "log")


def read_priority(flag: str, text: str) -> int | None:
    """Read a whole number, which may be negative. Raises UsageError that names its place."""
    number = read_number(flag, text.removeprefix("-"))
    if number is None:
        raise UsageError(f"{flag}: expected a number from -100 to 100, found {text!r}")
    return -number if text.startswith("-") else number


FILE = text("file", SUBMIT, COMMAND, "FILE", "a job file", is_place=True)
JOB = text("job", ("job show", "job logs", "job attach"), WHICH_JOB, "ID", "a number, a name, or last", is_place=True)

SETTINGS: Option[Sequence[str]] = Option(
    "set",
    ("job submit", "jobman create"),
    COMMAND,
    "KEY=VALUE",
    "wins over the file: command.timeout=2h; repeatable",
    as_words,
    (),
    joined=add,
)
ARRAY = text("array", SUBMIT, COMMAND, "RANGE", "a job for each index: 0-31, or 0-31%4 for four at a time")
JOB_NAME = text("name", SUBMIT, OTHER, "NAME", "the job's name (default: the file's)")
JOB_CLUSTER = text("cluster", SUBMIT, HOSTS, "CLUSTER", "wins over machines: of the file")
QUEUE = text("queue", SUBMIT, SHARING, "NAME", "the queue it waits in")
PRIORITY: Option[int | None] = Option(
    "priority", ("job submit", "job prioritize"), SHARING, "N", "-100 to 100; the greatest is next", read_priority, None
)
ATTACH = switch("attach", (*SUBMIT, "multihost-job"), OUTPUT, "show its output until it has ended, with its status")
DRY_SUBMIT = switch("dry-run", SUBMIT, OTHER, "print what would be submitted, and submit nothing")

EVERY = switch("all", LIST, WHICH_JOB, "also those that ended more than a day ago")
STATE = text("state", LIST, WHICH_JOB, "STATE", "only those that are queued, running, held, failed, ...")
USER = text("user", LIST, WHICH_JOB, "USER", "only those of a user")
LISTED_SINCE = Option("since", LIST, WHICH_JOB, "TIME", "submitted within this time: 10m, 1d", read_seconds, None)
COLUMNS = text("columns", LIST, OUTPUT, "NAMES", "these alone, as id,name,state,why")
WATCH_JOBS = switch("watch", LIST, OUTPUT, "go on and show each change, until Ctrl-C")
EVENTS = switch("events", ("job show",), OUTPUT, "what has happened to it, oldest first")
FOLLOW_EVENTS = switch("follow", ("job show",), OUTPUT, "with --events: go on until it has ended", short="-f")
ATTEMPT: Option[int | None] = Option(
    "attempt", ("job logs",), WHICH_RUN, "N", "only this attempt (default: all)", read_number, None
)
LOGS_MODULE = text("module", ("job logs",), WHICH_RUN, "NAME", "show the last set-up of this module, not the ranks")
TIMEOUT = Option("timeout", ("job wait",), OTHER, "TIME", "wait so long at most, then status 124", read_seconds, None)
SKIP_SETUP = switch("skip-setup", ("job restart",), COMMAND, "start the command again, and set up nothing")
FORCE_SETUP = switch("force", ("job restart", "job setup"), COMMAND, "set up modules that are in place as well")
UNDO_SETUP = switch("undo", ("job setup",), COMMAND, "undo what they have set up, the last one first")
KEEP_MACHINES = switch("keep-machines", ("job stop",), OTHER, "keep machines for the next job, for the time of keep:")
YES = switch("yes", ("job delete",), OTHER, "also stop jobs that have not ended")
KEEP_JOBS = Option("keep", ("job prune",), OTHER, "N", "the newest N stay (default: 1000)", read_number, None)
OLDER_JOBS = Option(
    "older-than", ("job prune",), OTHER, "TIME", "what ended within TIME stays (default: 90d)", read_seconds, None
)
DRY_PRUNE_JOBS = switch("dry-run", ("job prune",), OTHER, "print what would be removed, and stop")
JSON_JOBS = switch(
    "json",
    ("job submit", "job list", "job show", *NAMES_JOBS, "job prune", "job storage", "serve"),
    OUTPUT,
    "print one JSON object for each",
)
JSON_OUTPUT = switch("json", ("job attach", "job logs"), OUTPUT, "print events as JSON lines")
ALL_MACHINES = switch("all", ("job machines", "job audit"), WHICH_JOB, "also those given back; audit: also nobody's")
DRY_GC = switch("dry-run", ("job gc",), OTHER, "print what would be deleted, and delete nothing")
GC_YES: Option[Sequence[str]] = Option(
    "yes",
    ("job gc",),
    OTHER,
    "NAME",
    "also a machine that is unknown to the store; repeatable",
    as_words,
    (),
    joined=add,
)
COST_BY = text("by", ("job cost",), OUTPUT, "KEY", "job, user, zone or day", choices=("job", "user", "zone", "day"))
BILLING = ("job billing", "jobman billing")
BILL_BY = text("by", BILLING, OUTPUT, "KEY", "day (with categories) or project", choices=("day", "project"))
BILL_DAYS: Option[int | None] = Option("days", BILLING, OUTPUT, "N", "the last N days (default: 30)", read_number, None)
BILL_TABLE = text("table", BILLING, OTHER, "P.D.TABLE", "the export's table (default: billing: of prices.yaml)")
SELFTEST = ("job selftest",)
SELF_PROJECT = text("project", SELFTEST, HOSTS, "NAME", "the project (default: gcloud's)")
SELF_ZONE = text("zone", SELFTEST, HOSTS, "NAME", "the zone (default: gcloud's)")
SELF_ACCELERATOR = text("accelerator", SELFTEST, HOSTS, "TYPE", "the smallest there (default: v5litepod-1)")
SELF_VERSION = text("runtime", SELFTEST, HOSTS, "NAME", "its software (default: v2-alpha-tpuv5-lite)")
JSON_MACHINES = switch(
    "json",
    ("job machines", "job audit", "job gc", "job quota", "job cost", *BILLING),
    OUTPUT,
    "print one JSON object for each",
)
LINES = Option("lines", ("serve",), OTHER, "N", "log: the last N lines (default: 50)", read_number, None)

TABLE: list[AnyOption] = [entry for entry in list(globals().values()) if isinstance(entry, Option)]
