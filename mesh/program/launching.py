"""Starting a program: in threads, as processes of this machine, or on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from mesh.core.errors import UsageError
from mesh.program.graph import Graph
from mesh.program.ledger import Ledger, Rules
from mesh.program.payload import payloads
from mesh.program.placing import Facts, Place, place
from mesh.program.running import Running

HERE = "local"  # the name of the only host, where no node names one


def launch(program: Graph, where: str, *, calls_run: bool, ready_timeout: float) -> Running:
    """Start all nodes of a program. Raises UsageError, and MeshError if a node fails or is not ready in time."""
    if not program.nodes:
        raise UsageError(f"{program.name}: the program has no nodes", hint="program.add(...) adds one")
    if where != "threads":
        raise UsageError(f"launch({where!r}): expected threads")
    hosts = named_hosts(program)
    places = place([node.wish for node in program.nodes], hosts, {host: Facts(gpus=1 << 20) for host in hosts})
    sent = payloads(program, places)
    running = Running({one.label: one.host for one in places}, ledger_of(program, places, calls_run))
    from mesh.program.threads import Threads

    threads = Threads(program, sent, running, calls_run)
    running.attach(threads)
    threads.start()
    return waited(running, ready_timeout)


def waited(running: Running, ready_timeout: float) -> Running:
    """Return a program once it is ready; stop it if that fails, or at a Ctrl-C."""
    try:
        running.wait_ready(ready_timeout)
    except KeyboardInterrupt:
        running.stop()
        raise
    return running


def named_hosts(program: Graph) -> list[str]:
    """Return the hosts that nodes name, in order of first use; one of our own where no node names any."""
    names = dict.fromkeys(name for node in program.nodes for name in node.wish.hosts)
    return list(names) or [HERE]


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
