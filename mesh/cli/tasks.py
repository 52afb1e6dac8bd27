"""The commands, as Invoke tasks: each parses, calls one function of ``mesh.api``, and exits with its status."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from json import dumps
from typing import Any

from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import Task, task

from mesh import api
from mesh.cli.attaching import attach, detach, left, signal
from mesh.cli.completion import script
from mesh.cli.mad import mad
from mesh.cli.multihost import multihost
from mesh.cli.reports import (
    RunsTable,
    explained,
    keeper_lines,
    leftovers,
    listed,
    report_as_dict,
    stack_lines,
    stacks_as_dict,
    table,
)
from mesh.cli.speech import complain, say, show
from mesh.cli.speech import told as telling
from mesh.cli.words import own_words, typed_line
from mesh.config.settings import given_command, read_number, read_options, read_ranks, read_seconds
from mesh.core.errors import MeshError, UsageError

FORCE = "run also the commands that their `unless` would skip"
LAST, NEWEST = "last", "the last run of this machine"
CLUSTERS = "read clusters from this file instead of ~/.config/mesh/cluster.yaml"


PICK = {
    "cluster": "a name from cluster.yaml, or local, or local:N; with `mesh` the first word that is no option",
    "clusters": CLUSTERS,
    "hosts": "only these: names or ranges, as tpu-0,tpu-[4-7]",
    "ranks": "only the hosts with these numbers, as 0-3,6",
    "exclude": "not these: names, ranges or numbers",
    "connect-timeout": "seconds for each try to connect (default: 10), then for the login to start mesh (default: 20)",
}
OPTIONS = {
    **PICK,
    "nproc": "ranks on each host, or auto: as many as it has GPUs (default: 1)",
    "launcher": "torchrun, accelerate or deepspeed: start one on each host, with these ranks; your words follow",
    "bind": "let each rank see one GPU of its host, by CUDA_VISIBLE_DEVICES",
    "master-port": "where the ranks meet on the first host (default: a port that is free there)",
    "env": "NAME=VALUE for every rank; may be repeated",
    "output": "all, fold (what ranks print alike as one line), rank0 or none (default: fold on a terminal, else all)",
    "fold": "numbers, or exact: fold only equal lines, not those that differ in numbers (default: numbers)",
    "label": "what leads a line: rank or host (default: rank)",
    "json": "print events as JSON lines",
    "grace": "seconds from SIGTERM to SIGKILL (default: 10)",
    "drain": "seconds that the others may speak after the first failure (default: 2)",
    "timeout": "end the run after so many seconds (or 30m, 2h), with status 124",
    "host-grace": "seconds that a host may be silent before it is lost, with status 76 (default: 60)",
    "lease": "seconds that hosts keep the run without a sign of us (default: 900 on a terminal, else 60)",
    "keep-going": "let the other ranks run when one fails; exec: also without the hosts that cannot be reached",
    "dry-run": "tell what would be done, and do nothing",
    "interactive": "give our standard input to rank 0",
    "stdin": "which ranks get our standard input: none, rank0 or all (default: none)",
    "wait": "wait for busy hosts, at most so many seconds (or 10m); without a value: however long",
    "share": "run beside others, in a copy of the workspace that is removed afterwards",
    "exclusive": "refuse hosts where another Unix user's run is, with status 75",
    "evict": "end your own processes that hold a device which the run needs",
    "no-fanout": "send to every host from here: hosts hand nothing on among themselves",
    "fresh": "remove from the workspace what the hosts have made in it",
    "detach": "leave once all ranks have started, and print the run's id: `mesh attach` comes back",
    "prerun": "run also the prerun entries whose inputs have not changed",
    "check": "see first whether every host is fit for the run: devices, disk, network",
    "stacks": "prepare every Python for `mesh stacks`, where py-spy may not trace (by a sitecustomize on PYTHONPATH)",
    "stacks-on-timeout": "when --timeout runs out, show where every rank is before the run ends",
}


def _command(name: str, summary: str, function: Callable[[], Callable[..., api.RunResult]]) -> Task[Any]:
    """A task that runs the user's command; all of them take the same options.

    function: gives the function of ``mesh.api``, which is not imported before it is needed
    """

    def body(
        context: Context,
        cluster: str = "",
        clusters: str = "",
        hosts: str = "",
        ranks: str = "",
        exclude: str = "",
        connect_timeout: str = "",
        nproc: str = "",
        launcher: str = "",
        bind: bool = False,
        master_port: str = "",
        env: list[str] | None = None,
        output: str = "",
        fold: str = "numbers",
        label: str = "rank",
        json: bool = False,
        grace: str = "",
        drain: str = "",
        timeout: str = "",
        host_grace: str = "",
        lease: str = "",
        keep_going: bool = False,
        dry_run: bool = False,
        interactive: bool = False,
        stdin: str = "",
        wait: str | bool | None = None,
        share: bool = False,
        exclusive: bool = False,
        evict: bool = False,
        fresh: bool = False,
        no_fanout: bool = False,
        prerun: bool = False,
        check: bool = False,
        stacks: bool = False,
        stacks_on_timeout: bool = False,
        detach: bool = False,
    ) -> None:
        options = read_options(
            hosts=hosts,
            ranks=ranks,
            exclude=exclude,
            connect_timeout=connect_timeout,
            nproc=nproc,
            launcher=launcher,
            bind=bind,
            master_port=master_port,
            env=tuple(env or ()),
            grace=grace,
            drain=drain,
            timeout=timeout,
            host_grace=host_grace,
            lease=lease,
            keep_going=keep_going,
            interactive=interactive,
            stdin=stdin,
            wait=wait,
            share=share,
            exclusive=exclusive,
            evict=evict,
            fresh=fresh,
            no_fanout=no_fanout,
            prerun=prerun,
            check=check,
            stacks=stacks,
            stacks_on_timeout=stacks_on_timeout,
            detach=detach,
        )
        usage = f"mesh {name} [options] CLUSTER COMMAND [ARG ...]"
        command = given_command(own_words(context), usage, launcher=launcher)
        if dry_run:
            lines = api.plan(command, cluster=cluster, options=options, clusters_file=clusters)
            show(lines)
            return
        result = function()(
            command,
            cluster=cluster,
            options=options,
            clusters_file=clusters,
            output=output,
            fold=fold,
            label=label,
            json=json,
            typed=typed_line(context, name),
        )
        if detach:
            left(result, json=json)
        raise Exit(code=result.exit_code)

    body.__doc__ = summary
    made: Task[Any] = task(name=name, auto_shortflags=False, iterable=["env"], optional=["wait"], help=OPTIONS)(
        telling(body)
    )
    return made


run = _command("run", "Run a command on every host, with the working directory there and RANK set.", lambda: api.run)
execute = _command("exec", "The same without sync, prerun and lock: safe while a run is on.", lambda: api.exec)


@task(
    auto_shortflags=False,
    optional=["wait"],
    help={**{name: OPTIONS[name] for name in (*PICK, "json", "grace", "timeout", "wait")}, "force": FORCE},
)
@telling
def setup(
    context: Context,
    cluster: str = "",
    clusters: str = "",
    hosts: str = "",
    ranks: str = "",
    exclude: str = "",
    connect_timeout: str = "",
    force: bool = False,
    json: bool = False,
    grace: str = "",
    timeout: str = "",
    wait: str | bool | None = None,
) -> None:
    """Run the `commands:` of mesh.yaml on every host."""
    options = read_options(
        hosts=hosts,
        ranks=ranks,
        exclude=exclude,
        connect_timeout=connect_timeout,
        grace=grace,
        timeout=timeout,
        wait=wait,
    )
    result = api.setup(cluster=cluster, options=options, force=force, clusters_file=clusters, json=json)
    raise Exit(code=result.exit_code)


@task(
    auto_shortflags=False,
    optional=["wait"],
    help={
        **{name: OPTIONS[name] for name in (*PICK, "json", "wait", "fresh", "no-fanout")},
        "list": "list what would be sent, the biggest first, and do nothing; needs no cluster",
        "explain": "tell which rule decides whether this path is sent; needs no cluster",
        "watch": "do it again whenever a file changes, until Ctrl-C",
    },
)
@telling
def push(
    context: Context,
    cluster: str = "",
    clusters: str = "",
    hosts: str = "",
    ranks: str = "",
    exclude: str = "",
    connect_timeout: str = "",
    json: bool = False,
    wait: str | bool | None = None,
    fresh: bool = False,
    no_fanout: bool = False,
    list: bool = False,  # noqa: A002  (the option's name)
    explain: str = "",
    watch: bool = False,
) -> None:
    """Bring the working directory to every host, and start nothing."""
    options = read_options(
        hosts=hosts,
        ranks=ranks,
        exclude=exclude,
        connect_timeout=connect_timeout,
        wait=wait,
        fresh=fresh,
        no_fanout=no_fanout,
    )
    if (explain != "") + list + watch > 1:
        raise UsageError("--list, --explain and --watch are three things: name one of them")
    if explain:
        found = api.explain(explain)
        show([dumps(asdict(found))] if json else explained(explain, found))
    elif list:
        files = api.list_workspace()
        show([dumps([asdict(file) for file in files])] if json else listed(files))
    elif watch:
        raise Exit(
            code=api.watch(
                cluster=cluster, options=options, clusters_file=clusters, json=json, say=say, complain=complain
            )
        )
    else:
        result = api.sync(cluster=cluster, options=options, clusters_file=clusters, json=json)
        raise Exit(code=result.exit_code)


@task(
    auto_shortflags=False,
    help={
        **PICK,
        "into": "the directory for what comes: PATH of the first host is DIR/rank-0000/PATH (default: pulled)",
        "json": OPTIONS["json"],
    },
)
@telling
def pull(
    context: Context,
    cluster: str = "",
    clusters: str = "",
    hosts: str = "",
    ranks: str = "",
    exclude: str = "",
    connect_timeout: str = "",
    into: str = "",
    json: bool = False,
) -> None:
    """Bring files back from every host: those of the workspace by their names in it; ~, / and * are the hosts'."""
    options = read_options(hosts=hosts, ranks=ranks, exclude=exclude, connect_timeout=connect_timeout)
    paths = own_words(context)
    result = api.pull(paths, cluster=cluster, into=into, options=options, clusters_file=clusters, json=json)
    raise Exit(code=result.exit_code)


@task(
    auto_shortflags=False,
    iterable=["path", "program"],
    help={
        **PICK,
        "json": "print what was found as one JSON list",
        "path": "a path that must be there, and look the same on all hosts; may be repeated",
        "program": "a program that must be on PATH; may be repeated",
        "master-port": "the port where the ranks are to meet on the first host (default: one that is free)",
    },
)
@telling
def check(
    context: Context,
    cluster: str = "",
    clusters: str = "",
    hosts: str = "",
    ranks: str = "",
    exclude: str = "",
    connect_timeout: str = "",
    path: list[str] | None = None,
    program: list[str] | None = None,
    master_port: str = "",
    json: bool = False,
) -> None:
    """See whether every host is fit for a run, and all together: login, disk, devices, versions, network."""
    options = read_options(
        hosts=hosts, ranks=ranks, exclude=exclude, connect_timeout=connect_timeout, master_port=master_port
    )
    reports = api.check(
        cluster=cluster, options=options, clusters_file=clusters, paths=path or (), programs=program or ()
    )
    if json:
        show([dumps([report_as_dict(report) for report in reports])])
    else:
        show(table(reports))
    raise Exit(code=0 if all(report.ok for report in reports) else 1)


@task(auto_shortflags=False, help={**PICK, "json": "print the runs as one JSON list"})
@telling
def ps(
    context: Context,
    cluster: str = "",
    clusters: str = "",
    hosts: str = "",
    ranks: str = "",
    exclude: str = "",
    connect_timeout: str = "",
    json: bool = False,
) -> None:
    """List the runs on a cluster's hosts, from whichever machine they were started; without CLUSTER: on all."""
    options = read_options(hosts=hosts, ranks=ranks, exclude=exclude, connect_timeout=connect_timeout)
    table = RunsTable()
    if json:
        answers = api.ps(cluster=cluster, options=options, clusters_file=clusters)
        show([dumps([asdict(line) for line in answers.runs])])
    else:
        answers = api.ps(
            cluster=cluster,
            options=options,
            clusters_file=clusters,
            show=lambda runs: show(table.rows(runs, time.time())),
        )
        show([*table.end(), *keeper_lines(api.about_keepers())])
    if answers.failures:
        raise MeshError("\n".join(answers.failures), hint="`mesh check CLUSTER` tells what is wrong there")


@task(
    auto_shortflags=False,
    positional=["run"],
    help={
        "run": "the id of a run, the beginning of one, or last; with `mesh` the first word that is no option",
        "all": "every run of yours on the cluster",
        "cluster": "where it runs, if this machine does not know",
        "clusters": CLUSTERS,
        "grace": "seconds from SIGTERM to SIGKILL (default: what the run was started with)",
        "connect-timeout": PICK["connect-timeout"],
    },
)
@telling
def stop(
    context: Context,
    run: str = "",
    all: bool = False,  # noqa: A002  (the option's name)
    cluster: str = "",
    clusters: str = "",
    grace: str = "",
    connect_timeout: str = "",
) -> None:
    """End a run on every host, from any machine; succeeds once nothing of it is left."""
    options = read_options(grace=grace, connect_timeout=connect_timeout)
    stopped = api.stop(run, every=all, cluster=cluster, options=options, clusters_file=clusters)
    show(
        [f"stopped {one}" for one in stopped]
        or [f"nothing to stop: {NEWEST if run == LAST else run} has ended already" if run else "no run is there"]
    )


@task(
    auto_shortflags=False,
    positional=["run"],
    help={
        "run": "the id of a run, the beginning of one, or last (default: last)",
        "rank": "only these ranks, as 3,5-7",
        "stderr": "only what they printed on stderr",
        "prerun": "what prerun printed on their hosts instead",
        "since": "only what came within this time before now: 10m, 2h, 30s, 1d",
        "grep": "only lines in which this regular expression (Python's) matches",
        "follow": "go on until the run has ended",
        "cluster": "where it is, if this machine does not know",
        "clusters": CLUSTERS,
        "local": "only what this machine has: ask no host, as when they are out of reach",
        **{name: OPTIONS[name] for name in ("output", "fold", "label")},
    },
)
@telling
def logs(
    context: Context,
    run: str = "",
    rank: str = "",
    stderr: bool = False,
    prerun: bool = False,
    since: str = "",
    grep: str = "",
    follow: bool = False,
    output: str = "",
    fold: str = "numbers",
    label: str = "rank",
    cluster: str = "",
    clusters: str = "",
    local: bool = False,
) -> None:
    """Show what the ranks of a run have printed, with what the hosts of a detached one have more."""
    api.logs(
        run or "last",
        ranks=read_ranks("--rank", rank),
        stderr=stderr,
        prerun=prerun,
        since=read_seconds("--since", since),
        grep=grep,
        follow=follow,
        output=output,
        fold=fold,
        label=label,
        cluster=cluster,
        clusters_file=clusters,
        local=local,
    )


@task(
    auto_shortflags=False,
    positional=["action"],
    help={
        "action": "prune: remove old ones",
        "json": "print each run as one JSON object, as in its run.json",
        "keep": "prune: the newest so many stay",
        "older-than": "prune: what has ended within this time stays: 30d, 12h (default: 30d beyond the last 50)",
        "dry-run": "prune: tell what would be removed, and remove nothing",
    },
)
@telling
def runs(
    context: Context,
    action: str = "",
    json: bool = False,
    keep: str = "",
    older_than: str = "",
    dry_run: bool = False,
) -> None:
    """List the runs that this machine has started, the newest first; `runs prune` removes old ones."""
    from mesh.cli.records import pruned, record_as_json, records_table

    if action not in ("", "prune"):
        raise UsageError(f"unknown word {action!r}", hint="mesh runs, or mesh runs prune")
    if action:
        removed = api.prune(
            keep=read_number("--keep", keep), older_than=read_seconds("--older-than", older_than), dry_run=dry_run
        )
        show((dumps(asdict(one)) for one in removed) if json else pruned(removed, dry_run))
        return
    if keep or older_than or dry_run:
        raise UsageError("--keep, --older-than and --dry-run are for `mesh runs prune`")
    records = api.list_records()
    show(map(record_as_json, records) if json else records_table(records, time.time()))


@task(
    auto_shortflags=False,
    positional=["run"],
    help={
        "run": "the id of a run, the beginning of one, or last; with `mesh` the first word that is no option",
        "cluster": "where it runs, if this machine does not know",
        "clusters": CLUSTERS,
        "full": "all calls of all threads and processes",
        "json": "print what was found as one JSON object",
    },
)
@telling
def stacks(
    context: Context, run: str = "", cluster: str = "", clusters: str = "", full: bool = False, json: bool = False
) -> None:
    """Show where every rank of a run is (default: the last one): equal stacks as one line, the odd one out first."""
    found = api.stacks(run or "last", cluster=cluster, clusters_file=clusters)
    show([dumps(stacks_as_dict(found))] if json else stack_lines(found, full=full))
    for note in found.notes:
        say(note)
    if found.failures:
        raise MeshError("\n".join(found.failures), hint="`mesh check CLUSTER` tells what is wrong there")


@task(
    auto_shortflags=False,
    help={**PICK, "dry-run": "list it, and remove nothing", "json": "print what was found as one JSON list"},
)
@telling
def clean(
    context: Context,
    cluster: str = "",
    clusters: str = "",
    hosts: str = "",
    ranks: str = "",
    exclude: str = "",
    connect_timeout: str = "",
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Remove what runs that were cut short have left on the hosts; workspaces stay."""
    options = read_options(hosts=hosts, ranks=ranks, exclude=exclude, connect_timeout=connect_timeout)
    found = api.clean(cluster=cluster, dry_run=dry_run, options=options, clusters_file=clusters)
    if json:
        show([dumps([asdict(item) for item in found])])
    else:
        show(leftovers(found, dry_run))
    raise Exit(code=1 if any(item.stays for item in found) else 0)


@task(
    auto_shortflags=False,
    help={"cluster": "a cluster, or CLUSTER:RANK; with `mesh` it stands before the words", "clusters": CLUSTERS},
)
@telling
def ssh(context: Context, cluster: str = "", clusters: str = "") -> None:
    """Log in to a host with the system's ssh, CLUSTER:RANK; words after it are run there."""
    words = own_words(context)
    argv = api.ssh_argv(cluster, words[1:] if words[:1] == ["--"] else words, clusters)
    os.execvp(argv[0], argv)


@task(
    auto_shortflags=False,
    help={
        "clusters": CLUSTERS,
        "json": "print them as one JSON list",
        "refresh": "ask the TPU API for the hosts of TPUs, whatever it has told lately",
    },
)
@telling
def clusters(context: Context, clusters: str = "", json: bool = False, refresh: bool = False) -> None:
    """List the clusters there are."""
    lines = api.list_clusters(clusters, refresh=refresh)
    if json:
        show([dumps([asdict(line) for line in lines])])
        return
    width = max(len(line.name) for line in lines)
    for line in lines:
        hosts = len(line.hosts)
        told = line.problem or line.note or f"{hosts} host{'s' * (hosts != 1)}"
        show([f"{line.name:<{width}}  {told}".replace("\n", "\n" + " " * (width + 2))])


@task(auto_shortflags=False, positional=["action"], help={"action": "stop: end it; without: tell what is kept"})
@telling
def keep(context: Context, action: str = "") -> None:
    """Tell of the connections that `keep:` of cluster.yaml keeps for the next command, or end them: mesh keep stop."""
    if action not in ("", "stop"):
        raise UsageError(f"mesh keep: expected stop or nothing, found {action!r}")
    if action:
        show(["nothing is kept any more" if api.stop_keepers() else "nothing is kept"])
    else:
        show(keeper_lines(api.about_keepers()) or ["nothing is kept"])


@task
@telling
def init(context: Context) -> None:
    """Write a commented mesh.yaml into this directory."""
    show([str(api.init())])


@task(auto_shortflags=False, positional=["shell"], help={"shell": "bash, zsh or fish"})
@telling
def completion(context: Context, shell: str = "") -> None:
    """Print the completion script of a shell: eval "$(mesh completion bash)" in your .bashrc."""
    show([script(shell).rstrip("\n")])


namespace = Collection(
    run,
    execute,
    multihost,
    push,
    pull,
    setup,
    check,
    ps,
    stacks,
    attach,
    detach,
    signal,
    stop,
    logs,
    runs,
    clean,
    ssh,
    clusters,
    keep,
    init,
    completion,
    mad,
)
