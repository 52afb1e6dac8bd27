"""The commands for runs that go on without a client."""

from __future__ import annotations

from typing import Any

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from mesh import api
from mesh.cli.speech import say, show
from mesh.cli.speech import told as telling
from mesh.config.settings import read_ranks
from mesh.core.errors import MeshError, UsageError

RUN = "the id of a run, the beginning of one, or last; with `mesh` the first word that is no option"
WHERE: dict[str, Any] = {
    "cluster": "where it is, if this machine does not know",
    "clusters": "read clusters from this file instead of ~/.config/mesh/cluster.yaml",
}


@task(
    auto_shortflags=False,
    positional=["run"],
    help={
        "run": f"{RUN} (default: last)",
        **WHERE,
        "from": "what is shown: here (what is new to this machine), start (all) or now (default: here)",
        "output": "all, fold, rank0 or none (default: fold on a terminal, else all)",
        "fold": "numbers, or exact: fold only equal lines (default: numbers)",
        "label": "what leads a line: rank or host (default: rank)",
        "json": "print events as JSON lines",
    },
)
@telling
def attach(
    context: Context,
    run: str = "",
    cluster: str = "",
    clusters: str = "",
    from_: str = "here",
    output: str = "",
    fold: str = "numbers",
    label: str = "rank",
    json: bool = False,
) -> None:
    """Come back to a run that goes on by itself, or has ended since: its output and its exit status."""
    result = api.attach(
        run or "last",
        cluster=cluster,
        begin=from_,
        clusters_file=clusters,
        output=output,
        label=label,
        fold=fold,
        json=json,
    )
    raise Exit(code=result.exit_code)


@task(auto_shortflags=False, positional=["run"], help={"run": f"{RUN} (default: last)", **WHERE})
@telling
def detach(context: Context, run: str = "", cluster: str = "", clusters: str = "") -> None:
    """Have the hosts keep a run without its client, which leaves."""
    full = api.detach(run or "last", cluster=cluster, clusters_file=clusters)
    say(f"{full} goes on by itself; `mesh attach {full}` comes back")


@task(
    auto_shortflags=False,
    positional=["run", "name"],
    help={
        "run": RUN,
        "name": "as kill has it: USR1, SIGUSR1 or 10; the second word",
        "rank": "only these: 3 or 0-2,7",
        **WHERE,
    },
)
@telling
def signal(
    context: Context, run: str = "", name: str = "", rank: str = "", cluster: str = "", clusters: str = ""
) -> None:
    """Signal the ranks of a run: those of their processes that have a handler for it."""
    if not run or not name:
        raise UsageError("which run, and which signal?", hint="mesh signal RUN USR1")
    from mesh.core.ranks import told_ranks

    went = api.signal(run, name, ranks=read_ranks("--rank", rank), cluster=cluster, clusters_file=clusters)
    reached = [one for one, count in went.items() if count]
    if reached:
        show([f"signalled {told_ranks(reached)}"])
    if missed := [one for one, count in went.items() if not count]:
        raise MeshError(f"{told_ranks(missed)}: no process there has a handler for {name}, which would end it")


def left(result: api.RunResult, *, json: bool) -> None:
    """A run that was told to go on by itself: its id, for scripts."""
    from mesh.core.outcome import Cause

    if result.cause is Cause.DETACHED and not json:
        show([result.run])
