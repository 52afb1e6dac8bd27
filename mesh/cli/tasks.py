"""The commands, as Invoke tasks: each parses, calls one function of ``mesh.api``, and exits with its status."""

from __future__ import annotations

import sys
from pathlib import Path

from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from mesh import api
from mesh.cli.words import own_words
from mesh.config.settings import RunFlags

CLUSTERS = "read clusters from this file instead of ~/.config/mesh/cluster.yaml"


@task(
    auto_shortflags=False,
    iterable=["env"],
    help={
        "cluster": "a name from cluster.yaml, or local, or local:N; with `mesh` it stands before the command",
        "clusters": CLUSTERS,
        "hosts": "only these: names or ranges, as tpu-0,tpu-[4-7]",
        "ranks": "only the hosts with these numbers, as 0-3,6",
        "exclude": "not these: names, ranges or numbers",
        "nproc": "ranks on each host (default: 1)",
        "env": "NAME=VALUE for every rank; may be repeated",
        "output": "all, rank0 or none (default: all)",
        "label": "what leads a line: rank or host (default: rank)",
        "json": "print events as JSON lines",
        "grace": "seconds from SIGTERM to SIGKILL (default: 10)",
        "drain": "seconds that the others may speak after the first failure (default: 2)",
        "timeout": "end the run after so many seconds (or 30m, 2h), with status 124",
        "keep-going": "let the other ranks run when one fails",
        "dry-run": "tell what would be done, and do nothing",
        "interactive": "give our standard input to rank 0",
        "stdin": "which ranks get our standard input: none, rank0 or all (default: none)",
    },
)
def run(
    context: Context,
    cluster: str = "",
    clusters: str = "",
    hosts: str = "",
    ranks: str = "",
    exclude: str = "",
    nproc: str = "",
    env: list[str] | None = None,
    output: str = "all",
    label: str = "rank",
    json: bool = False,
    grace: str = "",
    drain: str = "",
    timeout: str = "",
    keep_going: bool = False,
    dry_run: bool = False,
    interactive: bool = False,
    stdin: str = "",
) -> None:
    """Run a command on every host, with the working directory there and RANK set."""
    flags = RunFlags(
        hosts=hosts,
        ranks=ranks,
        exclude=exclude,
        nproc=nproc,
        env=tuple(env or ()),
        grace=grace,
        drain=drain,
        timeout=timeout,
        keep_going=keep_going,
        interactive=interactive,
        stdin=stdin,
    )
    status = api.run(
        own_words(context),
        cluster=cluster,
        flags=flags,
        clusters_file=clusters,
        output=output,
        label=label,
        json=json,
        dry_run=dry_run,
    )
    raise Exit(code=status)


@task(auto_shortflags=False, help={"clusters": CLUSTERS})
def clusters(context: Context, clusters: str = "") -> None:
    """List the clusters there are."""
    lines = api.list_clusters(clusters)
    width = max(len(line.name) for line in lines)
    for line in lines:
        told = line.problem.replace("\n", "\n" + " " * (width + 2)) or f"{line.hosts} host{'s' * (line.hosts != 1)}"
        sys.stdout.write(f"{line.name:<{width}}  {told}\n")


@task
def init(context: Context) -> None:
    """Write a commented mesh.yaml into this directory."""
    sys.stdout.write(f"{api.init(Path.cwd())}\n")


namespace = Collection(run, clusters, init)
