"""mesh debug: the debugger of one rank of a run that goes on."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable

from msgspec.structs import replace

from mesh.api.detached import with_hosts
from mesh.api.inquiries import DEFAULTS, find_run
from mesh.app.carriers import Means, carrier_of
from mesh.app.console import LEFT, show, talk
from mesh.app.forwarder import Forwarder
from mesh.backends.ssh.passwords import Passwords
from mesh.core.errors import MeshError, UsageError
from mesh.core.ranks import choose_ranks
from mesh.protocol.forwarding import Waiting

FIRST_LOOK_S = 1.0  # for the host to report the ranks that wait already
STOP_LIMIT_S = 10.0  # for a rank to stop: Python looks at signals between two of its instructions


def debug(run: str, *, rank: str, cluster: str = "", clusters_file: str = "", notify: Callable[[str], object]) -> None:
    """Stop a rank, unless it waits already, and have its pdb on our terminal until it goes on or the user leaves it.

    rank: as --rank takes it, and one alone; "": rank 0, and a line names the others
    Raises UsageError, and MeshError if the rank cannot be stopped.
    """
    if not (sys.stdin is not None and sys.stdin.isatty() and os.isatty(2)):
        raise UsageError("debug: stdin and stderr are no terminal", hint="mesh stacks shows where ranks are")
    found = find_run(run, cluster, DEFAULTS, clusters_file)
    record = found.record
    if record is None or not record.hosts:
        raise UsageError(f"run {found.run} was not started on this machine", hint="mesh runs")
    placement = record.placement
    chosen = choose_ranks("--rank", rank, placement) if rank else {0}
    if len(chosen) != 1:
        raise UsageError("--rank: expected one rank", hint=f"mesh debug {found.run[-6:]} --rank {min(chosen)}")
    (number,) = chosen
    if not rank and placement.world_size > 1:
        last = placement.world_size - 1
        notify(f"debug: rank {number} of 0-{last}; another one: mesh debug {found.run[-6:]} --rank {last}")
    if number >= placement.world_size:
        raise UsageError(f"--rank: the run has no rank {number}", hint=f"mesh stacks {found.run[-6:]}")
    node = placement.node(number)
    where = with_hosts(found.clusters[0], [host.name for host in placement.hosts])
    where = replace(where, hosts=(where.hosts[node],), slices=())
    passwords = Passwords(where.password_env, os.environ)
    backend = carrier_of(where).open(where, Means(environ=os.environ, passwords=passwords))
    forwarder = Forwarder(where, backend, found.run, notify)
    forwarder.nodes, forwarder.debugs = (node,), True
    try:
        _talk(forwarder, found.run, number)
    finally:
        forwarder.close()
        passwords.close()


def _talk(forwarder: Forwarder, run: str, rank: int) -> None:
    """Connect, stop the rank, and have its debugger on the terminal. Raises MeshError."""
    answers: queue.SimpleQueue[str] = queue.SimpleQueue()  # "": it waits

    def note(node: int, waiting: Waiting) -> None:
        if rank in (*waiting.ranks, *waiting.asked):
            answers.put("")

    forwarder.on_waiting = note
    forwarder.on_not_stopped = answers.put
    forwarder.open()  # its host may report the rank at once
    loop = threading.Thread(target=forwarder.serve, name="mesh-debug", daemon=True)
    loop.start()
    try:
        reason = _first(answers, FIRST_LOOK_S)
        if reason is None:
            forwarder.stop_rank(0, rank)
            reason = _first(answers, STOP_LIMIT_S)
        if reason is None:
            reason = f"it did not stop within {STOP_LIMIT_S:g} s: another terminal has its pdb, or a library keeps it"
        if reason:
            raise MeshError(f"rank {rank}: {reason}", hint=f"mesh stacks {run[-6:]}")
        show(f"==> rank {rank} has stopped: c goes on, q ends it, Ctrl-D leaves it stopped\n")
        with forwarder.attach(0, rank) as program:
            if talk(program, lambda: not loop.is_alive()) == LEFT:
                show(f"\n==> rank {rank} stays stopped; mesh debug {run[-6:]} --rank {rank}\n")
    finally:
        forwarder.stop()
        loop.join()


def _first(answers: queue.SimpleQueue[str], seconds: float) -> str | None:
    """Return the first answer; None if none comes in time."""
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        return None
