"""Starting a program: in threads, as processes of this machine, or on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from msgspec.structs import replace

from mesh.app.screen import Showing
from mesh.config import spares
from mesh.config.settings import Options
from mesh.core.cluster import Cluster, Host
from mesh.core.errors import UsageError
from mesh.program.graph import Graph
from mesh.program.ledger import Ledger, Rules
from mesh.program.payload import payloads
from mesh.program.placing import Facts, Place, place
from mesh.program.processes import Processes, has_work_at_client
from mesh.program.running import Decides, Running, always
from mesh.program.runtime.errors import CLIENT
from mesh.program.settings import facts_of, named_hosts, setting_of, showing_of
from mesh.program.threads import Threads

START_ALLOWANCE_S = 600.0  # for connections, sync and prerun, which have limits of their own


def launch(
    program: Graph,
    where: str,
    *,
    calls_run: bool,
    ready_timeout: float,
    showing: Showing | None = None,
    keep_results: bool = False,
) -> Running:
    """Start all nodes of a program. Raises UsageError, and MeshError if a node fails or is not ready in time.

    showing: how the output of processes is shown; None: all of it, line by line
    keep_results: write the values of nodes to the run directory
    """
    if not program.nodes:
        raise UsageError(f"{program.name}: the program has no nodes", hint="program.add(...) adds one")
    if where not in ("threads", "local", "cluster"):
        hint = 'program.launch("threads"), program.launch("local"), or program.launch() for the cluster'
        raise UsageError(f"launch({where!r}): expected threads, local or cluster", hint=hint)
    if where == "threads" and keep_results:
        hint = 'program.launch("local", keep_results=True)'
        raise UsageError(f"{program.name}: threads are no run, so there is no directory for results", hint=hint)
    if where == "threads":
        return _in_threads(program, calls_run, ready_timeout)
    setting = setting_of(program, where, calls_run)
    check_hosts(program, [host.name for host in setting.cluster.hosts], setting.cluster.name)
    cluster, spare = spares_of(program, setting.cluster)
    hosts = [host.name for host in cluster.hosts]
    places = place([node.wish for node in program.nodes], hosts, facts_of(program, cluster))
    used = {one.host for one in places} - {CLIENT}
    options = program.options or Options()
    check_client_nodes(program, places, options)
    cluster = replace(cluster, hosts=tuple(host for host in cluster.hosts if host.name in used))
    spec = replace(setting.spec, ready_timeout=ready_timeout, keep_results=keep_results)
    spec, cluster = spares.add(spec, cluster, spare)
    running = _running(program, places, calls_run, decides=decides_for(program, places, calls_run))
    setting = replace(setting, cluster=cluster, spec=spec)
    processes = Processes(program, payloads(program, places), running, setting, showing or showing_of(options))
    running.attach(processes)
    processes.start()
    return waited(running, ready_timeout + START_ALLOWANCE_S)


def _in_threads(program: Graph, calls_run: bool, ready_timeout: float) -> Running:
    hosts = named_hosts(program)
    places = place([node.wish for node in program.nodes], hosts, {host: Facts(gpus=1 << 20) for host in hosts})
    running = _running(program, places, calls_run)
    threads = Threads(program, payloads(program, places), running, calls_run)
    running.attach(threads)
    threads.start()
    return waited(running, ready_timeout)


def spares_of(program: Graph, cluster: Cluster) -> tuple[Cluster, tuple[Host, ...]]:
    """Return the cluster without its spare hosts, and these; a host that a node names is none."""
    named = {name for node in program.nodes for name in node.wish.hosts}
    others, spare = spares.divide(cluster)
    taken = tuple(host for host in spare if host.name in named)
    return replace(others, hosts=(*others.hosts, *taken)), tuple(host for host in spare if host.name not in named)


def check_client_nodes(program: Graph, places: Sequence[Place], options: Options) -> None:
    """Raise UsageError where nodes on the client are with no others, or would be left by it."""
    at_client = [one.label for one in places if one.host == CLIENT]
    if at_client and len(at_client) == len(places):
        raise UsageError(f"{program.name}: all nodes are on the client", hint='program.launch("threads")')
    if at_client and options.detach:
        hint = "Options(detach=False), or a host in its on="
        raise UsageError(
            f"{program.name}: {at_client[0]} is on the client, so the program cannot be detached", hint=hint
        )


def decides_for(program: Graph, places: Sequence[Place], calls_run: bool) -> Decides:
    """Return when this process ends a program of processes: the hosts do for their own nodes."""
    at_client = {one.label for one in places if one.host == CLIENT}
    runs_here = has_work_at_client(program, places, calls_run)
    return lambda label, stop: label in at_client or (runs_here and stop.reason == "stop")


def _running(program: Graph, places: Sequence[Place], calls_run: bool, *, decides: Decides = always) -> Running:
    return Running({one.label: one.host for one in places}, ledger_of(program, places, calls_run), decides=decides)


def waited(running: Running, ready_timeout: float) -> Running:
    """Return a program once it is ready; stop it if that fails, or at a Ctrl-C."""
    try:
        running.wait_ready(ready_timeout)
    except KeyboardInterrupt:
        running.stop()
        raise
    return running


def check_hosts(program: Graph, hosts: Sequence[str], cluster: str) -> None:
    """Raise UsageError for a host that the cluster does not have, with the nearest name."""
    for node in program.nodes:
        for name in node.wish.hosts:
            if name not in hosts and name != CLIENT:
                near = get_close_matches(name, hosts, 1)
                hint = f"the nearest is {near[0]}" if near else f"it has {', '.join(hosts[:8])}"
                raise UsageError(f"{node.wish.label}: no host {name!r} in {cluster}", hint=hint)


def ledger_of(program: Graph, places: Sequence[Place], calls_run: bool) -> Ledger:
    """Return the states of all nodes at the start."""
    nodes = {node.wish.label: node for node in program.nodes}
    rules = {}
    for one in places:
        node = nodes[one.group]
        options = node.options
        runs = node.runs and calls_run
        rules[one.label] = Rules(runs=runs, on_failure=options.on_failure, on_exit=options.on_exit)
    return Ledger(rules)
