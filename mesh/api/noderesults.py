"""Fetch results of nodes from hosts into the run directory of a client that has not received them."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mesh.api.reaching import answer_of, reach
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError
from mesh.core.run import RunSpec
from mesh.rundir.noderesults import result_path, write_result

AT_ONCE = 8  # connections
ANSWER_TIMEOUT_S = 60.0
READ_BYTES, RESULT_BYTES_MAX = 1 << 20, 1 << 27


def fetch_results(spec: RunSpec, cluster: Cluster, directory: Path) -> None:
    """Write results that the directory of an ended run lacks, as far as hosts answer and have them."""
    placement = spec.placed(cluster.hosts)

    def fetch(rank: int) -> None:
        path = result_path(directory, placement.role(rank))
        with contextlib.suppress(MeshError, OSError):
            if data := _result(cluster, spec.run, placement.node(rank), rank):
                write_result(path, data)

    wanted = [
        rank
        for rank, place in enumerate(placement.table)
        if spec.groups[place.group].is_node and not result_path(directory, placement.role(rank)).exists()
    ]
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="mesh-results") as pool:
        list(pool.map(fetch, wanted))


def _result(cluster: Cluster, run: str, node: int, rank: int) -> bytes:
    """Return the result of a node; b"": its host has none. Raises MeshError and OSError."""
    with reach(cluster, run, node, rank, wants="result") as connection:
        connection.settimeout(ANSWER_TIMEOUT_S)
        if answer_of(connection):
            return b""
        pieces, size = [], 0
        while piece := connection.recv(READ_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size > RESULT_BYTES_MAX:
                raise MeshError(f"{cluster.hosts[node].name}: a result of more than {RESULT_BYTES_MAX >> 20} MB")
        return b"".join(pieces)
