"""Commands that look at hosts, or log in to one."""

from __future__ import annotations

import os
import sys
import time
from json import dumps
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from mesh import api
from mesh.cli import options as o
from mesh.cli import pageoptions as p
from mesh.cli.command import Takes, command
from mesh.cli.options import Given
from mesh.cli.reports import (
    RunsTable,
    cluster_lines,
    keeper_lines,
    leftovers,
    report_as_dict,
    stack_lines,
    stacks_as_dict,
    table,
)
from mesh.cli.speech import columns, paint_of, say, show
from mesh.core.errors import MeshError, UsageError
from mesh.core.ranks import counted
from mesh.core.statusline import StatusLine

if TYPE_CHECKING:
    from mesh.api.figures import HostFigures

GROUP = "Hosts"
TOP_HEAD = ("host", "cpu", "memory", "disk read, write /s", "network in, out /s", "run")
TOP_DROPPED = ("disk read, write /s", "network in, out /s", "run")  # in a narrow terminal, the first one first
CLEAR = "\x1b[H\x1b[J"  # home, and erase what is below
SEE_CHECK = "`mesh check CLUSTER` shows what is wrong there"


@command(
    "check",
    GROUP,
    "CLUSTER",
    examples=(
        ("mesh check pod", "what would keep a run from starting, or let it hang"),
        ("mesh check --path /nfs/data --master-port 29500 pod", "a path and a port as well"),
    ),
)
def check(given: Given) -> int:
    """Check hosts: login, disk, devices, versions, network."""
    reports = api.check(
        cluster=given[o.CLUSTER],
        options=given.options(),
        clusters_file=given[o.CLUSTERS],
        paths=given[o.PATHS],
        programs=given[o.PROGRAMS],
        workspaces=given[p.WORKSPACES],
    )
    as_table = table(reports, columns(), paint_of(sys.stdout))
    show([dumps([report_as_dict(report) for report in reports])] if given[o.JSON_LIST] else as_table)
    return 0 if all(report.ok for report in reports) else 1


@command("ps", "Runs", "[CLUSTER]", examples=(("mesh ps", "on all clusters"), ("mesh ps pod --json", "as JSON")))
def ps(given: Given) -> None:
    """List the runs on a cluster's hosts, or on those of all clusters."""
    cluster, options, file = given[o.CLUSTER], given.options(), given[o.CLUSTERS]
    if given[o.JSON_LIST]:
        answers = api.ps(cluster=cluster, options=options, clusters_file=file)
        show([dumps([asdict(line) for line in answers.runs])])
    else:
        rows = RunsTable(columns(), paint_of(sys.stdout))
        answers = api.ps(
            cluster=cluster,
            options=options,
            clusters_file=file,
            show=lambda runs: show(rows.rows(runs, time.time())),
        )
        show([*rows.end(is_complete=not answers.failures), *keeper_lines(api.about_keepers())])
    if answers.failures:
        raise MeshError("\n".join(answers.failures), hint=f"mesh check {cluster}" if cluster else SEE_CHECK)


@command(
    "top",
    GROUP,
    "CLUSTER",
    examples=(("mesh top pod", "again and again, until Ctrl-C"), ("mesh top --json pod", "once, as JSON")),
)
def top(given: Given) -> int:
    """Show CPU, memory, disk, network and GPUs of hosts."""
    from msgspec import to_builtins

    from mesh.api import figures

    cluster, options, file = given[o.CLUSTER], given.options(), given[o.CLUSTERS]
    if sys.stdout is not None and sys.stdout.isatty() and not given[o.JSON_LIST]:
        figures.watch(lambda found: _show_top(found, lead=CLEAR), cluster=cluster, options=options, clusters_file=file)
    found = figures.top(cluster=cluster, options=options, clusters_file=file)
    if given[o.JSON_LIST]:
        show([dumps(to_builtins(found))])
    else:
        _show_top(found)
    return 1 if any(one.error for one in found) else 0


def _show_top(found: list[HostFigures], lead: str = "") -> None:
    from mesh.api.figures import top_rows
    from mesh.core.width import Table

    table = Table(list(TOP_HEAD), width=columns(), dropped=TOP_DROPPED)
    first, *rest = table.lines(list(top_rows(found)))
    show([f"{lead}{first}", *rest])


@command(
    "stacks",
    "Runs",
    "[RUN]",
    examples=(
        ("mesh stacks", "of the last run, one line for equal stacks"),
        ("mesh stacks --full 20261121-10", "every call of every thread"),
    ),
)
def stacks(given: Given) -> None:
    """Show where in its code each rank is, the odd one out first."""
    run, ranks, where = given[o.RUN] or "last", given[o.SOME_RANKS], given[o.CLUSTER_OF_RUN]
    found = api.stacks(run, ranks=ranks, cluster=where, clusters_file=given[o.CLUSTERS])
    show([dumps(stacks_as_dict(found))] if given[o.JSON_LIST] else stack_lines(found, full=given[o.FULL]))
    for note in found.notes:
        say(note)
    if found.failures:
        raise MeshError("\n".join(found.failures), hint=SEE_CHECK)


@command("clean", GROUP, "CLUSTER", examples=(("mesh clean --dry-run pod", "what it would remove"),))
def clean(given: Given) -> int:
    """Remove what unfinished runs have left on hosts; workspaces stay."""
    dry_run = given[o.DRY_CLEAN]
    found = api.clean(
        cluster=given[o.CLUSTER], dry_run=dry_run, options=given.options(), clusters_file=given[o.CLUSTERS]
    )
    show([dumps([asdict(item) for item in found])] if given[o.JSON_LIST] else leftovers(found, dry_run))
    return 1 if any(item.stays for item in found) else 0


@command(
    "ssh",
    GROUP,
    "CLUSTER[:HOST] [-- COMMAND ...]",
    takes=Takes.COMMAND,
    examples=(("mesh ssh pod:3", "a shell on host 3"), ("mesh ssh pod:3 -- nvidia-smi", "a command there")),
)
def ssh(given: Given) -> None:
    """Log in to a host by your own ssh, or run a command there."""
    from mesh.cli.habits import FULL_SCREEN

    words = given.words[given.words[:1] == ["--"] :]
    argv = api.ssh_argv(given[o.CLUSTER], words, given[o.CLUSTERS])
    if words and words[0] in FULL_SCREEN and argv[0] == "ssh" and os.isatty(0):
        argv.insert(1, "-t")
    os.execvp(argv[0], argv)


@command(
    "clusters",
    GROUP,
    "[--add NAME HOST ...]",
    takes=Takes.PATHS,
    examples=(
        ("mesh clusters --json", "with all names of hosts"),
        ("mesh clusters --example", "a file to begin with"),
        ("mesh clusters --add pod 'me@tpu-[0-3]'", "write a cluster into cluster.yaml"),
    ),
)
def clusters(given: Given) -> None:
    """List all clusters, or add one."""
    if name := given[o.ADD]:
        added = api.add_cluster(name, given.words, given[o.CLUSTERS])
        say(f"added {name}: {counted(len(added.hosts), 'host')}; `mesh check {name}` looks at them")
        return
    if given.words:
        raise UsageError(f"unexpected word {given.words[0]!r}", hint="mesh clusters --add NAME HOST ...")
    if given[o.EXAMPLE]:
        from mesh.config.clusters import EXAMPLE_FILE

        show([EXAMPLE_FILE])
        return
    lines = api.list_clusters(given[o.CLUSTERS], refresh=given[o.REFRESH])
    if given[o.JSON_LIST]:
        show([dumps([asdict(line) for line in lines])])
        return
    show(cluster_lines(lines, columns(), paint_of(sys.stdout)))


@command("up", GROUP, "CLUSTER", examples=(("mesh up pod", "make its hosts and hold them"),))
def up(given: Given) -> None:
    """Make the machines or pods that a cluster asks for."""
    notify = StatusLine(say, sys.stderr)
    made = api.up(given[o.CLUSTER], given[o.CLUSTERS], notify=notify, seconds=given[o.UP_FOR], adopts=given[o.ADOPT])
    say(f"{made.name}: {counted(len(made.hosts), 'host')} up; `mesh down {made.name}` deletes them")


@command(
    "down",
    GROUP,
    "CLUSTER",
    examples=(
        ("mesh down pod", "delete what `mesh up` has made"),
        ("mesh down job:42", "delete the machines that are kept after job 42"),
    ),
)
def down(given: Given) -> None:
    """Delete hosts that `mesh up` made or `keep:` kept."""
    api.down(given[o.CLUSTER], given[o.CLUSTERS], is_forced=given[o.FORCE_DOWN], notify=say)


@command("keep", GROUP, "[stop]", examples=(("mesh keep", "what is held"), ("mesh keep stop", "end it")))
def keep(given: Given) -> None:
    """Show or end the connections that `keep:` of cluster.yaml holds."""
    action = given[o.ACTION]
    if action not in ("", "stop"):
        raise UsageError(f"mesh keep: expected stop or nothing, found {action!r}")
    if action:
        show(["the keeper has ended" if api.stop_keepers() else "nothing is kept"])
    else:
        show(keeper_lines(api.about_keepers()) or ["nothing is kept"])
