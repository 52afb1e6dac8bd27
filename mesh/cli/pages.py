"""A run as one HTML file, and the differences of two runs."""

from __future__ import annotations

from json import dumps

from mesh.cli import options as o
from mesh.cli.command import Takes, command
from mesh.cli.options import Given
from mesh.cli.speech import show
from mesh.core.errors import UsageError
from mesh.core.naming import LAST

GROUP = "Runs"


@command(
    "report",
    GROUP,
    "[RUN]",
    examples=(("mesh report last > run.html", "a file to send: verdict, output, stacks, timeline"),),
)
def report(given: Given) -> None:
    """Write a run as one HTML file that opens offline."""
    from mesh.api import reporting

    run = given[o.RUN] or LAST
    reporting.recorded(run)  # nothing is printed for a run that is not there
    show("".join(reporting.report(run)).rstrip("\n").split("\n"))


@command(
    "diff",
    GROUP,
    "RUN RUN",
    takes=Takes.PATHS,
    examples=(("mesh diff lr3 lr4", "arguments, environment, git, tree, hosts, end"),),
)
def diff(given: Given) -> int:
    """Show in which facts two runs differ; status 1 if there are any."""
    from msgspec.structs import asdict

    from mesh.api import reporting
    from mesh.pages.differences import lines

    if len(given.words) != 2:
        raise UsageError("expected two runs", hint="mesh diff RUN RUN")
    left, right, found = reporting.diff(given.words[0], given.words[1])
    if given[o.JSON_DIFF]:
        show([dumps({"runs": [left.run, right.run], "differences": [asdict(one) for one in found]})])
    else:
        show(lines(found, left.run, right.run) if found else [f"{left.run} and {right.run} do not differ"])
    return 1 if found else 0
