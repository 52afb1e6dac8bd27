"""Calls between nodes of a program, beside Ray, grpcio, pyzmq and Courier: latency, calls in flight, arrays."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks import calls
from benchmarks.figures import Spread, table
from benchmarks.nodes import Caller, Crowd, Echo
from benchmarks.peers import python_with
from benchmarks.rows import Chosen
from mesh.program import Group, Handle, Program

CALLS, IN_FLIGHT, ARRAYS, ARRAY_BYTES = 400, 1000, 2, 100_000_000
PROCESSES, LINKS, CALLS_OF_EACH = 16, 16, 40  # of many callers
WARM_UP = (("echo", 50, 0), ("many", 1, 200), ("bulk", 1, ARRAY_BYTES))
ROUND = (("echo", CALLS, 0), ("many", 1, IN_FLIGHT), ("bulk", ARRAYS, ARRAY_BYTES))
TLS = "mesh, two hosts"
HEAD = """\
## Calls to another process

Two processes of one machine. All pairs are there until the end and take turns in every round. A figure is the median of
the rounds, with the least and the most. They call with a small value, one call after the other; make {many} calls at
once; and send an array of 100 MB. The CPU time is that of both processes. On one host mesh uses a Unix socket that only
its user can open, and Ray shared memory. Hosts of mesh need Python and nothing else; the other libraries are compiled
packages.
"""

Figure = tuple[list[float], float]  # seconds, and CPU seconds for all of them

Measure = Callable[[str, int, int], Figure]


@dataclass(kw_only=True)
class Library:
    """A way to call, and what was measured of it."""

    name: str
    encryption: str
    start: Callable[[], contextlib.AbstractContextManager[Measure]]
    found: dict[str, list[Figure]] = field(default_factory=dict)  # by kind, in the order of the rounds
    failures: list[str] = field(default_factory=list)

    def measure(self, measure: Measure, kind: str, count: int, size: int, *, counts: bool) -> None:
        """Add one figure. Nothing more of a kind is measured once it has failed."""
        if any(one.startswith(kind) for one in self.failures):
            return
        try:
            figure = measure(kind, count, size)
        except RuntimeError as error:
            self.failures.append(f"{kind}: {error}")
            return
        if counts:
            self.found.setdefault(kind, []).append(figure)


@contextlib.contextmanager
def mesh_program(here: str, there: str) -> Iterator[Measure]:
    """Start a program with two nodes on test hosts of this machine."""
    program = Program("bench", python=sys.executable)
    caller = program.add(Caller, program.add(Echo, on=there), on=here)
    assert isinstance(caller, Handle)
    with program.launch("local"):
        measure: Measure = caller.measure  # type: ignore[assignment]
        yield measure


@contextlib.contextmanager
def peer(library: str, python: str) -> Iterator[Measure]:
    """Start a pair of processes that call each other by another library."""
    argv = [python, calls.__file__, library]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ
    ) as process:
        assert process.stdin
        assert process.stdout
        ask, answers = process.stdin, process.stdout

        def measure(kind: str, count: int, size: int) -> Figure:
            ask.write(f"{kind} {count} {size}\n")
            ask.flush()
            answer = json.loads(answers.readline() or '"it has ended"')
            if isinstance(answer, str):
                raise RuntimeError(answer)
            seconds, cpu = answer
            return seconds, cpu

        yield measure
        ask.close()


def known() -> tuple[list[Library], list[str]]:
    """Return all that can be measured here, and the names of the libraries that are not installed."""
    found = [
        Library(name=TLS, encryption="TLS, both ends", start=partial(mesh_program, "a", "b")),
        Library(name="mesh, one host", encryption="Unix socket", start=partial(mesh_program, "a", "a")),
    ]
    missing = []
    for name, library, module, encryption in (
        ("grpcio, mTLS", "grpcio", "grpc", "TLS, both ends"),
        ("pyzmq, CURVE", "pyzmq", "zmq", "CURVE"),
        ("Ray actor", "ray", "ray", "none, shared memory"),
        ("Courier", "courier", "courier", "none"),
        ("grpcio", "grpcio-open", "grpc", "none"),
    ):
        python = python_with(module)
        if python:
            found.append(Library(name=name, encryption=encryption, start=partial(peer, library, python)))
        else:
            missing.append(name)
    return found, missing


def libraries(chosen: Chosen) -> str:
    """Measure all libraries in turns."""
    found, missing = known()
    with contextlib.ExitStack() as ends:
        pairs = [(one, ends.enter_context(one.start())) for one in found]
        for turn in range(chosen.rounds + 1):
            for kind, count, size in ROUND if turn else WARM_UP:
                for one, measure in pairs:
                    one.measure(measure, kind, count, size, counts=bool(turn))
    parts = [HEAD.format(many=f"{IN_FLIGHT:,}"), figures(found), "", ratios(found), "", crowd(), ""]
    for one in found:
        parts += [f"No figure for {one.name}, {failure}." for failure in one.failures]
    if missing:
        parts.append(f"Not measured, as not installed here: {', '.join(missing)}.")
    return "\n".join(parts)


def figures(found: Sequence[Library]) -> str:
    """Return the table of all figures."""
    head = ["", "encryption", "call, us (min-max)", "CPU, us", f"{IN_FLIGHT:,} in flight, calls/s", "CPU, us a call"]
    head += ["100 MB, MB/s (min-max)", "CPU, s per GB"]
    rows = []
    for one in found:
        trip, many, bulk = (one.found.get(kind, ()) for kind in ("echo", "many", "bulk"))
        rows.append(
            [
                one.name,
                one.encryption,
                _told([statistics.median(seconds) * 1e6 for seconds, _ in trip]),
                _told([cpu / len(seconds) * 1e6 for seconds, cpu in trip], is_short=True),
                _told([IN_FLIGHT / seconds[0] for seconds, _ in many]),
                _told([cpu / IN_FLIGHT * 1e6 for _, cpu in many], is_short=True),
                _told([rate for seconds, _ in bulk for rate in _rates(seconds)]),
                _told([cpu / len(seconds) / ARRAY_BYTES * 1e9 for seconds, cpu in bulk], digits=1, is_short=True),
            ]
        )
    return table(head, rows)


def ratios(found: Sequence[Library]) -> str:
    """Return a table of the others beside mesh over TLS: the medians of the ratios within each round."""
    base = next(one for one in found if one.name == TLS)
    rows = []
    for one in found:
        trip = _ratio(one.found, base.found, "echo", lambda figure: statistics.median(figure[0]))
        many = _ratio(one.found, base.found, "many", lambda figure: 1 / figure[0][0])
        bulk = _ratio(one.found, base.found, "bulk", lambda figure: statistics.median(_rates(figure[0])))
        cpu = _ratio(one.found, base.found, "bulk", lambda figure: figure[1])
        rows.append([one.name, trip, many, bulk, cpu])
    return table(["ratios to mesh over TLS", "call, time", "in flight, rate", "100 MB, rate", "100 MB, CPU time"], rows)


def crowd() -> str:
    """Let many callers, each with a connection of its own, call one node at the same time; count the answers."""
    program = Program("crowd", python=sys.executable)
    echo = program.add(Echo, on="b", backlog=LINKS * PROCESSES * CALLS_OF_EACH)
    crowds = program.add(Crowd, echo, LINKS, on="a", count=PROCESSES)
    assert isinstance(crowds, Group)
    with program.launch("local"):
        connected = sum(int(str(one)) for one in crowds.connect())
        begun = time.perf_counter()
        answered = sum(int(str(one)) for one in crowds.check(CALLS_OF_EACH))
        took = time.perf_counter() - begun
    sent = LINKS * PROCESSES * CALLS_OF_EACH
    made = (
        f"{connected} callers of one node, each with a connection of its own over TLS and {CALLS_OF_EACH} calls at once"
    )
    return f"{made}: {answered:,} of {sent:,} calls answered with what was sent, {sent / took:,.0f} calls/s."


def _rates(seconds: Sequence[float]) -> list[float]:
    """Return MB/s."""
    return [ARRAY_BYTES / one / 1e6 for one in seconds]


def _told(values: Sequence[float], digits: int = 0, *, is_short: bool = False) -> str:
    if not values:
        return "-"
    spread = Spread.of(values)
    median = f"{spread.median:,.{digits}f}"
    return median if is_short else f"{median} ({spread.least:,.{digits}f}-{spread.most:,.{digits}f})"


def _ratio(
    mine: Mapping[str, Sequence[Figure]],
    theirs: Mapping[str, Sequence[Figure]],
    kind: str,
    of: Callable[[Figure], float],
) -> str:
    pairs = list(zip(mine.get(kind, ()), theirs.get(kind, ()), strict=False))
    return f"{statistics.median(of(one) / of(other) for one, other in pairs):.2f}" if pairs else "-"
