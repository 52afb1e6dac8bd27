"""The commands, as Invoke tasks: each parses, calls one function of ``mesh.api``, and exits with its status."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Any

from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import Task, task

from mesh import api
from mesh.cli.words import own_words
from mesh.config.settings import RunFlags

CLUSTERS = "read clusters from this file instead of ~/.config/mesh/cluster.yaml"


OPTIONS = {
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
    "host-grace": "seconds that a host may be silent before it is lost, with status 76 (default: 60)",
    "keep-going": "let the other ranks run when one fails",
    "dry-run": "tell what would be done, and do nothing",
    "interactive": "give our standard input to rank 0",
    "stdin": "which ranks get our standard input: none, rank0 or all (default: none)",
}


def _command(name: str, summary: str, *, bare: bool) -> Task[Any]:
    """A task that runs the user's command; all of them take the same options."""

    def body(
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
        host_grace: str = "",
        keep_going: bool = False,
        dry_run: bool = False,
        interactive: bool = False,
        stdin: str = "",
    ) -> None:
        flags = RunFlags(
            hosts=hosts,
            ranks=ranks,
            exclude=exclude,
            nproc=nproc,
            env=tuple(env or ()),
            grace=grace,
            drain=drain,
            timeout=timeout,
            host_grace=host_grace,
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
            bare=bare,
        )
        raise Exit(code=status)

    body.__doc__ = summary
    made: Task[Any] = task(name=name, auto_shortflags=False, iterable=["env"], help=OPTIONS)(body)
    return made


run = _command("run", "Run a command on every host, with the working directory there and RANK set.", bare=False)
execute = _command("exec", "The same without sync, prerun and lock: safe while a run is on.", bare=True)


@task(
    auto_shortflags=False,
    help={"cluster": "a cluster, or CLUSTER:RANK; with `mesh` it stands before the words", "clusters": CLUSTERS},
)
def ssh(context: Context, cluster: str = "", clusters: str = "") -> None:
    """Log in to a host with the system's ssh, CLUSTER:RANK; words after it are run there."""
    words = own_words(context)
    argv = api.ssh_argv(cluster, words[1:] if words[:1] == ["--"] else words, clusters)
    os.execvp(argv[0], argv)


@task(auto_shortflags=False, help={"clusters": CLUSTERS, "json": "print them as one JSON list"})
def clusters(context: Context, clusters: str = "", json: bool = False) -> None:
    """List the clusters there are."""
    lines = api.list_clusters(clusters)
    if json:
        sys.stdout.write(dumps([asdict(line) for line in lines]) + "\n")
        return
    width = max(len(line.name) for line in lines)
    for line in lines:
        hosts = len(line.hosts)
        told = line.problem.replace("\n", "\n" + " " * (width + 2)) or f"{hosts} host{'s' * (hosts != 1)}"
        sys.stdout.write(f"{line.name:<{width}}  {told}\n")


@task
def init(context: Context) -> None:
    """Write a commented mesh.yaml into this directory."""
    sys.stdout.write(f"{api.init(Path.cwd())}\n")


namespace = Collection(run, execute, ssh, clusters, init)
