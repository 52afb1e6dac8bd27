"""Looks at the switchboard of an allocation: if it answers, and which nodes have connected to it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from mesh.backends.slurm.backend import connected
from mesh.backends.slurm.login import Login
from mesh.backends.slurm.records import AllocationRecord
from mesh.backends.switchboard.line import Line
from mesh.core.errors import MeshError
from mesh.core.findings import Finding, Verdict, few, ok, warning

NODES_TIMEOUT_S = 10.0  # for all nodes to be connected, in a check; a new allocation needs some of it
NAME = "switchboard"  # of the finding
NOT_TRIED = "unknown until an allocation is there: its nodes must reach the batch host by TCP"
NOT_DIALLED = Finding(name=NAME, verdict=Verdict.UNKNOWN, told=NOT_TRIED)


def answers(login: Login, address: str, key: str, python: str) -> bool:
    """Return True if a switchboard takes this client. The time of its holder for the next one begins anew."""
    with contextlib.suppress(OSError, EOFError, ValueError, MeshError), _line(login, address, key, python):
        return True
    return False


def dialled(login: Login, record: AllocationRecord, python: str) -> Finding:
    """Return the finding of a check about the nodes of an allocation: have they connected to its switchboard?"""
    missing, deadline = set(record.nodes), time.monotonic() + NODES_TIMEOUT_S
    try:
        with _line(login, record.address, record.key, python) as line:
            while missing and (here := line.wait_nodes(missing, max(0.0, deadline - time.monotonic()))):
                missing -= here
    except (OSError, EOFError, ValueError, MeshError) as error:
        hint = f"squeue --jobs={record.job} --format='%i %T %k'"
        return warning(NAME, f"{record.address} of job {record.job} does not answer ({error})", hint)
    return found(record, [name for name in record.nodes if name in missing])


def found(record: AllocationRecord, missing: Sequence[str]) -> Finding:
    """Return the finding about nodes of which some have not connected."""
    count = len(record.nodes)
    if not missing:
        return ok(NAME, f"{count} of {count} nodes have connected to {record.address}")
    told = f"{few(missing)} cannot connect to {record.address}, or only slowly"
    place = record.address.replace(":", "/")
    test = f"srun --jobid={record.job} --overlap -w {missing[0]} bash -c 'exec 3<>/dev/tcp/{place}'"
    return warning(NAME, told, f"nodes must reach the batch host by TCP: {test}")


@contextlib.contextmanager
def _line(login: Login, address: str, key: str, python: str) -> Iterator[Line]:
    """Open a connection to a switchboard. Raises OSError, EOFError, ValueError and MeshError."""
    host, _, port = address.rpartition(":")
    line = Line(connected(login, host, int(port), python), key, lambda text: None)
    try:
        line.wait_welcome()
        yield line
    finally:
        line.close()
