"""Measures mesh, beside other tools or another revision of itself, and writes what it found into docs/.

    python -m benchmarks [ROW ...] [--hosts 8,32,128] [--rounds 5] [--against REV] [--peers VENV,...] [--write]

Needs root, for test hosts made of namespaces. Other tools that are not installed are named as missing. ``--peers``:
virtual environments with more of them (``pip install ansible-core parallel-ssh``; for the row programs ``ray grpcio
pyzmq numpy``). ``--against`` compares two revisions of mesh in one run and writes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.carriers import carriers
from benchmarks.check import check
from benchmarks.kill import kill
from benchmarks.launch import launch
from benchmarks.logs import logs
from benchmarks.loop import loop
from benchmarks.orphans import orphans
from benchmarks.plots import write_plots
from benchmarks.program_goals import programs
from benchmarks.rows import Chosen, Row
from benchmarks.scale import scale
from benchmarks.slurm import slurm
from benchmarks.stage import OURS, REPOSITORY, Variant
from benchmarks.steady import steady
from benchmarks.switchboard import switchboard
from benchmarks.sync import sync
from benchmarks.ui import ui
from tests.chaos.page import PAGE as RELIABILITY
from tests.pages import DOCS, Page, machine, today

INTRODUCTION = """\
# How fast mesh is

Written by `inv dev.bench --write`. All test hosts are namespaces of one machine, each with a real sshd. The tools take
turns in every round. A figure is the median of the rounds, with the least and the most. Ratios are medians of the
ratios within each round. All hosts share the machine's few cores with the client. So what a tool starts on each host
costs CPU once for each host. The CPU time of the client and that of the hosts stand apart. For a round trip of
30 ms every packet between client and hosts waits for 15 ms. Output has [its page](logs-performance.md), and so have
[the workspace](sync-performance.md) and [thousands of ranks](scale.md).
"""
LOGS = "# How fast output comes through\n\nWritten by `inv dev.bench --rows logs --write`.\n"
UI = "# How fast the pages are\n\nWritten by `inv dev.bench --rows ui --write`.\n"
SYNC = "# How fast the workspace travels\n\nWritten by `inv dev.bench --rows sync --write`.\n"
PERFORMANCE = Page(
    DOCS / "performance.md", INTRODUCTION, ("launch", "loop", "kill", "check", "steady", "carriers", "slurm")
)
PROGRAMS = """\
# How fast programs are

Written by `inv dev.bench --rows programs --peers VENV --write`, where VENV is made by `python3 -m venv VENV` and
`VENV/bin/pip install ray grpcio pyzmq numpy`. [Programs](programs.md) are Python nodes that call each other. Courier is
that of dm-launchpad 0.5.2, which needs a virtual environment of its own with Python 3.10.
"""
PROGRAMS_PAGE = Page(DOCS / "programs-performance.md", PROGRAMS, ("programs",))
SCALE_PAGE = Page(DOCS / "scale.md", "", ("scale", "switchboard"))
ROWS: dict[str, tuple[Row, Page, Chosen]] = {
    "launch": (launch, PERFORMANCE, Chosen()),
    "loop": (loop, PERFORMANCE, Chosen()),
    "kill": (kill, PERFORMANCE, Chosen()),
    "check": (check, PERFORMANCE, Chosen()),
    "steady": (steady, PERFORMANCE, Chosen(hosts=(32,))),
    "carriers": (carriers, PERFORMANCE, Chosen(rounds=3)),
    "slurm": (slurm, PERFORMANCE, Chosen(rounds=3)),
    "logs": (logs, Page(DOCS / "logs-performance.md", LOGS, ("logs",)), Chosen(rounds=3)),
    "sync": (sync, Page(DOCS / "sync-performance.md", SYNC, ("sync",)), Chosen(rounds=3)),
    "orphans": (orphans, RELIABILITY, Chosen()),
    "programs": (programs, PROGRAMS_PAGE, Chosen(rounds=3)),
    "ui": (
        ui,
        Page(DOCS / "ui-performance.md", UI, ("ui",)),
        Chosen(rounds=3),
    ),
    "scale": (scale, SCALE_PAGE, Chosen(hosts=(250, 1000, 4000))),
    "switchboard": (switchboard, SCALE_PAGE, Chosen(hosts=(256, 1024, 4096), rounds=3)),
}
DUELS = ("launch", "loop", "kill", "check", "logs", "sync")  # what compares revisions


@contextlib.contextmanager
def checked_out(revision: str) -> Iterator[Variant]:
    """A revision in a directory of its own."""
    git = ["git", "-C", str(REPOSITORY)]
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source"
        made = subprocess.run([*git, "worktree", "add", "-q", "--detach", str(source), revision], check=False)
        if made.returncode:
            sys.exit(f"--against {revision}: no such revision here")
        try:
            yield Variant(name=f"mesh at {revision}", source=source)
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(source)], check=True)


def measured(name: str, chosen: Chosen) -> str:
    """A section, with what it was measured on."""
    load = os.getloadavg()[0]
    began = time.monotonic()
    text = ROWS[name][0](chosen)
    took = (time.monotonic() - began) / 60
    made = f"On {today()}, {chosen.rounds} rounds, {took:.0f} minutes; load of the machine before: {load:.1f}."
    return f"{text.rstrip()}\n\n{made} Machine: {machine()}.\n"


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; default: all")
    parser.add_argument("--hosts", type=numbers, help="how many, as 8,32,128")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--against", metavar="REV", default="")
    parser.add_argument("--peers", metavar="VENV,...", default="")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(words)
    names = given.rows or list(DUELS if given.against else ROWS)
    if unknown := [name for name in names if name not in (DUELS if given.against else ROWS)]:
        parser.error(f"no such row{' for two revisions' * bool(given.against)}: {', '.join(unknown)}")
    if given.against and given.write:
        parser.error("--against writes no page")
    for place in filter(None, given.peers.split(",")):
        os.environ["PATH"] += f":{Path(place).resolve() / 'bin'}"
    with contextlib.ExitStack() as resources:
        variants = [OURS]
        if given.against:
            variants = [resources.enter_context(checked_out(given.against)), OURS]
        for name in names:
            _, page, chosen = ROWS[name]
            chosen = replace(chosen, variants=variants, hosts=given.hosts or chosen.hosts)
            text = measured(name, replace(chosen, rounds=given.rounds or chosen.rounds))
            print(text, flush=True)
            if given.write:
                page.write(name, text)
                write_plots()


if __name__ == "__main__":
    main()
