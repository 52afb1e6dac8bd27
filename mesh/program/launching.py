"""Starting a program: in threads, as processes of this machine, or on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from msgspec.structs import replace

from mesh.app.screen import Showing
from mesh.config.settings import Options
from mesh.core.errors import UsageError
from mesh.program.graph import Graph
from mesh.program.ledger import Ledger, Rules
from mesh.program.payload import payloads
from mesh.program.placing import Facts, Place, place
from mesh.program.processes import Processes
from mesh.program.running import Running
from mesh.program.settings import facts_of, named_hosts, setting_of, showing_of
from mesh.program.threads import Threads

START_ALLOWANCE_S = 600.0  # for connections, sync and prerun, which have limits of their own


def launch(
    program: Graph, where: str, *, calls_run: bool, ready_timeout: float, showing: Showing | None = None
) -> Running:
    """Start all nodes of a program. Raises UsageError, and MeshError if a node fails or is not ready in time.

    showing: how the output of processes is shown; None: all of it, line by line
    """
    if not program.nodes:
        raise UsageError(f"{program.name}: the program has no nodes", hint="program.add(...) adds one")
    if where not in ("threads", "local", "cluster"):
        raise UsageError(f"launch({where!r}): expected threads, local or cluster")
    if where == "threads":
        return _in_threads(program, calls_run, ready_timeout)
    setting = setting_of(program, where, calls_run)
    hosts = [host.name for host in setting.cluster.hosts]
    check_hosts(program, hosts, setting.cluster.name)
    places = place([node.wish for node in program.nodes], hosts, facts_of(program, setting.cluster))
    used = {one.host for one in places}
    cluster = replace(setting.cluster, hosts=tuple(host for host in setting.cluster.hosts if host.name in used))
    spec = replace(setting.spec, ready_timeout=ready_timeout)
    running = _running(program, places, calls_run, decides=False)
    showing = showing or showing_of(program.options or Options())
    setting = replace(setting, cluster=cluster, spec=spec)
    processes = Processes(program, payloads(program, places), running, setting, showing)
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


def _running(program: Graph, places: Sequence[Place], calls_run: bool, *, decides: bool = True) -> Running:
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
            if name not in hosts:
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
