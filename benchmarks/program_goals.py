"""Programs: the goals of calls between nodes, beside other libraries, all measured in the same run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.figures import goal, table
from benchmarks.program_peers import PEERS, measured
from benchmarks.program_runs import of_hosts
from benchmarks.programs import mesh_program
from benchmarks.rows import Chosen

HEAD = """\
## Calls between nodes

Two processes of this machine: the median round trip of a small call, calls with 1,000 of them in flight from one
caller, and an array of 100 MB. mesh encrypts by TLS between hosts, and uses a Unix socket within one. Medians of all
rounds; the libraries take turns in each.
"""
GOALS_HEAD = """\
### Goals

A ratio is that of the medians above, or of figures of one run; the library that is 1 stands in the name of the goal.
Links of 100 Mbit/s are made by tc, a round trip of 30 ms by handing packets on later. No other library has the rows
about memory, starts, ends and the way through the client; their measure is `mesh run` or SSH itself.
"""
HOST_LINK, TLS_LINK = "mesh, one host", "mesh, two hosts, TLS"
Measures = dict[str, Sequence[float]]


def programs(chosen: Chosen) -> str:
    """Return the section of the page."""
    found: dict[str, list[Sequence[float]]] = {}
    for _ in range(chosen.rounds):
        for name, one in all_measured().items():
            found.setdefault(name, []).append(one)
    middle = {name: [statistics.median(column) for column in zip(*taken, strict=True)] for name, taken in found.items()}
    rows = [
        [name, f"{trip * 1e6:,.0f} us", f"{rate:,.0f}/s" if rate else "-", f"{bulk / 1e6:,.0f} MB/s" if bulk else "-"]
        for name, (trip, rate, bulk) in middle.items()
    ]
    absent = [peer.name for peer in PEERS if peer.name not in middle]
    text = HEAD + "\n" + table(["", "round trip", "1,000 in flight", "100 MB"], rows)
    text += f"\nNot measured, because it is not installed here: {', '.join(absent)}.\n" * bool(absent)
    goals = [*of_calls(middle), *of_hosts()]
    return f"{text}\n\n{GOALS_HEAD}\n" + table(["goal", "wanted", "found", ""], goals)


def all_measured() -> Measures:
    """Return the measures of mesh and of all libraries that are here."""
    found: Measures = {HOST_LINK: mesh_program("a,a"), TLS_LINK: mesh_program("a,b")}
    for peer in PEERS:
        one = measured(peer)
        if one:
            found[peer.name] = one
    return found


def of_calls(found: Measures) -> list[list[str]]:
    """Return the goals of calls between two processes."""
    tls, here = found[TLS_LINK], found[HOST_LINK]
    rows = [goal("round trip over TLS, us", tls[0] * 1e6, 200, most=True)]
    for name, limit in (("Ray, one host", 1 / 3), ("grpcio, mTLS", 1 / 2), ("Courier, no encryption", 1.25)):
        if name in found:
            rows.append(goal(f"round trip over TLS, {name} = 1", tls[0] / found[name][0], limit, most=True))
    rows.append(goal("1,000 calls in flight, calls/s", tls[1], 8000))
    if "Ray, one host" in found:
        rows.append(goal("1,000 calls in flight, Ray = 1", tls[1] / found["Ray, one host"][1], 1.5))
    for name, least in (("raw TCP", 0.13), ("grpcio, mTLS", 3)):
        if name in found:
            rows.append(goal(f"100 MB over TLS, {name} = 1", tls[2] / found[name][2], least))
    if "Ray, one host" in found:
        rows.append(goal("100 MB within a host, Ray = 1", here[2] / found["Ray, one host"][2], 1.5))
    return rows
