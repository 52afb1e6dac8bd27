"""A program as a user's project has it. The row ``programs`` measures it on hosts.

    python3 program_hosts.py broadcast|launch|relay|callers ARGUMENT...

It prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy

from mesh.program import Program, barrier, broadcast, here, peers
from mesh.program.runtime.caller import Caller
from mesh.program.runtime.connection import CallOptions
from mesh.program.runtime.here import current

ARRAY_BYTES = 100_000_000
LINKS = 16  # of each process that calls


class Node:
    """Answers, spreads an array, and reads its own memory."""

    def echo(self, value: object) -> object:
        return value

    def size(self, value: Any) -> int:
        return int(value.nbytes)

    def spread(self, size: int, count: int) -> float:
        """Send an array from the first node to all of the first nodes of the group; return its seconds."""
        group = peers()[:count]
        if here().index >= count:
            return 0.0
        value = numpy.ones(size, dtype=numpy.uint8) if here().index == 0 else None
        barrier(group=group)
        begun = time.perf_counter()
        broadcast(value, group=group)
        barrier(group=group)
        return time.perf_counter() - begun

    def memory(self) -> tuple[int, int]:
        """Return the bytes of memory of this process: now, and the most since ``forget``."""
        with open("/proc/self/status") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["VmRSS"].split()[0]) * 1024, int(lines["VmHWM"].split()[0]) * 1024

    def forget(self) -> None:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")


class Server(Node):
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def hit(self) -> None:
        self.calls += 1

    def count(self) -> int:
        return self.calls


class Sender(Node):
    """Sends an array to another node, and measures memory; or calls it many times."""

    def __init__(self, other: Any) -> None:
        self.other = other

    def send(self, size: int) -> tuple[float, float]:
        """Return the peaks of memory here and there, in sizes of the array."""
        array = numpy.ones(size, dtype=numpy.uint8)
        self.other.forget()
        self.forget()
        own, there = self.memory()[0] - size, self.other.memory()[0]
        self.other.size(array)
        return (self.memory()[1] - own) / size, (self.other.memory()[1] - there) / size

    def hits(self, links: int, calls: int) -> None:
        """Call the other node over so many links of its own, as so many processes would."""
        own = current().caller
        callers = [Caller((own.program, own.label), own._connect, own.hosts, is_trusting=True) for _ in range(links)]

        def hit(caller: Caller) -> None:
            for _ in range(calls):
                caller.to(self.other.label).call(("hit", (), {}), CallOptions()).result()

        with ThreadPoolExecutor(links) as pool:
            list(pool.map(hit, callers))
        for caller in callers:
            caller.close()


def run_broadcast(hosts: int) -> object:
    """Return the seconds of one transfer, and those to all hosts."""
    program = Program("bench", cluster="pod", python=sys.executable)
    group: Any = program.add(Node, count=hosts, label="node")
    with program.launch():
        group.spread(1_000_000, hosts)
        return [group.spread(ARRAY_BYTES, count)[0] for count in (2, hosts)]


def run_launch(nodes: int) -> object:
    """Return the time of the system's clock at which all nodes are ready."""
    program = Program("bench", cluster="pod", python=sys.executable)
    program.add(Node, count=nodes, label="node")
    with program.launch():
        return time.monotonic()


def run_relay(calls: int) -> object:
    """Return the seconds of the median call from the client, and bytes a second of an array."""
    program = Program("bench", cluster="pod", python=sys.executable)
    node: Any = program.add(Node)
    array = numpy.ones(ARRAY_BYTES // 5, dtype=numpy.uint8)
    with program.launch():
        trips = sorted(seconds(lambda: node.echo(1)) for _ in range(calls))
        return trips[calls // 2], array.nbytes / min(seconds(lambda: node.size(array)) for _ in range(2))


def run_callers(callers: int) -> object:
    """Return the calls that have arrived, those that were made, and the bytes of memory that the callers take."""
    program = Program("bench", python=sys.executable)
    server: Any = program.add(Server, concurrency=2)
    group: Any = program.add(Sender, server, count=callers // LINKS, label="sender")
    made = 20
    with program.launch("local"):
        before = server.memory()[0]
        group.hits(LINKS, made)
        return server.count(), callers * made, server.memory()[1] - before


def run_memory(size: int) -> object:
    """Return the peaks of memory of both nodes, in sizes of an array between two hosts."""
    program = Program("bench", python=sys.executable)
    node = program.add(Node, on="b")
    sender: Any = program.add(Sender, node, on="a", label="sender")
    with program.launch("local"):
        return sender.send(size)


def seconds(call: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


RUNS: dict[str, Callable[[int], object]] = {
    "broadcast": run_broadcast,
    "launch": run_launch,
    "relay": run_relay,
    "callers": run_callers,
    "memory": run_memory,
}

if __name__ == "__main__":
    print("FOUND", json.dumps(RUNS[sys.argv[1]](int(sys.argv[2]))), flush=True)
