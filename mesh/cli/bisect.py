"""mesh bisect: the files or hosts by which a bad run differs from a good one."""

from __future__ import annotations

from mesh.cli import dailyoptions as d
from mesh.cli import options as o
from mesh.cli.command import Takes, command
from mesh.cli.options import Given
from mesh.cli.speech import say, show
from mesh.core.errors import UsageError


@command(
    "bisect",
    "Run",
    "GOOD BAD",
    takes=Takes.PATHS,
    examples=(("mesh bisect 20261121-10 20261122-09", "which file or host makes the difference"),),
)
def bisect(given: Given) -> None:
    """Find the files or hosts that make a good run bad."""
    from mesh.api.bisecting import bisect

    if len(given.words) != 2:
        raise UsageError("expected a good run and a bad one", hint="mesh bisect GOOD BAD")
    good, bad = given.words
    found = bisect(good, bad, runs=given[d.MAX_RUNS], env=given[o.ENV], clusters_file=given[o.CLUSTERS], report=say)
    show([change.shown for change in found.changes])
    if not found.is_smallest:
        say(f"--max-runs: {found.runs} runs are used up; fewer of these {len(found.changes)} changes may suffice")
