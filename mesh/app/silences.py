"""The silence of hosts as evidence that machines are lost which the API has READY. It counts with `unreachable_for`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import Struct

from mesh.config.hosts import split
from mesh.core.amounts import span
from mesh.core.cluster import Cluster
from mesh.hosts.tpu.answering import SSH_PORT, answering
from mesh.jobs.doubts import is_silent
from mesh.jobs.values import Job

PROBE_INTERVAL_S = 10.0  # between two tries of the hosts of a generation
PROBE_TIMEOUT_S = 5.0
GAP_LIMIT_S = 60.0  # between two tries, beyond which the silence counts from the later one
ELSEWHERE_COUNT = 8  # hosts of other machines that are tried
Address = tuple[str, int]


class Silence(Struct, frozen=True, kw_only=True):
    """The silence of a generation's hosts. Times are monotonic."""

    begin: float
    last: float  # the latest try


def lasting(before: Silence | None, now: float, *, is_silent: bool) -> Silence | None:
    """Return the silence after one more try; None without one.

    Only tries count, so that a time in which this machine was asleep, or mesh serve was not there, proves nothing.

    >>> lasting(Silence(begin=0.0, last=50.0), 60.0, is_silent=True)
    Silence(begin=0.0, last=60.0)
    >>> lasting(Silence(begin=0.0, last=50.0), 500.0, is_silent=True)
    Silence(begin=500.0, last=500.0)
    """
    if not is_silent:
        return None
    if before is None or now - before.last > GAP_LIMIT_S:
        return Silence(begin=now, last=now)
    return Silence(begin=before.begin, last=now)


class Silences:
    """The silences of generations whose jobs have `unreachable_for`, by their names."""

    def __init__(self, interval: float) -> None:
        """interval: seconds between two tries of the same hosts"""
        self._interval = interval
        self._found: dict[str, Silence | None] = {}
        self._tried: dict[str, float] = {}
        self._others: dict[str, tuple[Address, ...]] = {}  # the addresses of all machines that are READY, by name

    def evidence(self, job: Job, name: str, cluster: Cluster) -> str:
        """Try the hosts of a generation that the API has READY; return the evidence of their loss, "" without.

        It counts only while an SSH server elsewhere answers. Otherwise this machine's own network may be down.
        """
        addresses = {host.name: (host.address, host.port or SSH_PORT) for host in cluster.hosts}
        self._others[name] = tuple(addresses.values())
        tpu = job.spec.machines.tpu
        if tpu is None or not tpu.unreachable_for or not is_silent(job):
            self._found.pop(name, None)
            return ""
        now = time.monotonic()
        if now < self._tried.get(name, -self._interval) + self._interval:
            return ""
        self._tried[name] = now
        elsewhere = self._elsewhere(tpu.probe, name)
        heard = answering([*addresses.values(), *elsewhere], PROBE_TIMEOUT_S)
        silent = [host for host, address in addresses.items() if address not in heard]
        witnesses = set(elsewhere) if tpu.probe else {*elsewhere, *addresses.values()}
        counts = bool(silent) and bool(heard & witnesses)
        found = self._found[name] = lasting(self._found.get(name), now, is_silent=counts)
        if found is None or found.last - found.begin < tpu.unreachable_for:
            return ""
        witness = tpu.probe or sorted(heard & witnesses)[0][0]
        return f"{', '.join(silent)} silent for {span(found.last - found.begin)}, while {witness} answers"

    def _elsewhere(self, probe: str, name: str) -> Sequence[Address]:
        """Return the SSH servers whose answers show that this machine's network works."""
        if probe:
            _, host, port = split(probe)
            return [(host, port or SSH_PORT)]
        return [one for other, some in self._others.items() if other != name for one in some][:ELSEWHERE_COUNT]
