"""Options of the commands for the day after a run."""

from __future__ import annotations

import re
from operator import add

from mesh.cli.option import (
    COMMAND,
    DIAGNOSIS,
    ENDS,
    HOSTS,
    OTHER,
    OUTPUT,
    RANKS,
    WHICH_RUN,
    AnyOption,
    Option,
    switch,
    text,
)
from mesh.config.forwarding import read_forwarded
from mesh.config.retries import BISECTION_RUNS_MAX, read_retries, read_statuses, read_trials
from mesh.config.settings import read_number
from mesh.core.errors import UsageError
from mesh.core.forwarding import Forwarded

FAILED = switch("failed", ("again",), HOSTS, "only on the hosts that have failed")
EDIT = switch("edit", ("again",), COMMAND, "change the command line in $VISUAL or $EDITOR first")

RETRIES = Option(
    "retries",
    ("run",),
    ENDS,
    "N",
    "try again up to N times, each time as a run of its own; with -d on allocations of Slurm only",
    read_retries,
    0,
    field="retries",
)
RETRY_ON: Option[tuple[int, ...]] = Option(
    "retry-on",
    ("run",),
    ENDS,
    "STATUS,...",
    "with --retries: after these exit statuses (default: 76, a host was lost)",
    read_statuses,
    (),
    field="retry_on",
)

MAX_RUNS = Option(
    "max-runs",
    ("bisect",),
    ENDS,
    "N",
    "make at most so many runs, GOOD and BAD included (default: 30)",
    read_trials,
    BISECTION_RUNS_MAX,
)

ALL_LOGS = switch("all", ("logs",), WHICH_RUN, "every run of this machine, the oldest first; no host is asked")


def _lines(name: str, about: str, short: str) -> Option[int | None]:
    return Option(name, ("logs",), OUTPUT, "N", about, read_number, None, short=short)


AFTER = _lines("after-context", "with --grep: so many lines after a match too", "-A")
BEFORE = _lines("before-context", "with --grep: so many lines before a match too", "-B")
AROUND = _lines("context", "with --grep: so many lines before and after it", "-C")
DIFF = switch("diff", ("exec",), OUTPUT, "show only how the output of ranks differs from that of most")

SOCKET = text("socket", ("forward",), OTHER, "PATH", "listen at a Unix socket of your own instead of a port")


def _read_forward(flag: str, given: str) -> tuple[Forwarded, ...]:
    return (read_forwarded(flag, given),)


FORWARD: Option[tuple[Forwarded, ...]] = Option(
    "forward",
    ("run", "exec"),
    OTHER,
    "[LOCAL:]PORT",
    "reach this port of hosts here meanwhile; repeatable",
    _read_forward,
    (),
    joined=add,
    field="forward",
)
PTY = switch("pty", ("run", "exec"), RANKS, "give rank 0 your terminal: pdb, vim, top", field="pty")


def _read_kernel(flag: str, given: str) -> str:
    if not KERNEL_NAME.fullmatch(given):
        raise UsageError(f"{flag}: expected letters, digits, dots, dashes and underscores, found {given!r}")
    return given


KERNEL_NAME = re.compile(r"[A-Za-z0-9._-]+")  # as Jupyter takes them
INSTALL_KERNEL = Option(
    "install-kernel",
    ("repl",),
    OTHER,
    "NAME",
    "start nothing; write a Jupyter kernel whose cells run on all ranks",
    _read_kernel,
    "",
)
DEBUG = switch("debug", ("run",), DIAGNOSIS, "pdb here at breakpoint() or an exception of any rank", field="debug")

TABLE: list[AnyOption] = [entry for entry in list(globals().values()) if isinstance(entry, Option)]
