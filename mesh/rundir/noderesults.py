"""``results/`` of a run directory: what the nodes of a program have returned, as bytes that mesh does not read here."""

from __future__ import annotations

import contextlib
from pathlib import Path

from mesh.core.cluster import Placement
from mesh.core.nodes import NodeResult

RESULTS = "results"


def result_path(directory: Path, role: str) -> Path:
    """Return the file of a node's result. role: its name among the ranks

    >>> str(result_path(Path("run"), "actor/3"))
    'run/results/actor-3.bin'
    """
    return directory / RESULTS / f"{role.replace('/', '-')}.bin"


def write_result(path: Path, data: bytes) -> None:
    """Write a whole result in one step. Raises OSError."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    part = path.with_suffix(".new")
    part.touch(mode=0o600)
    part.write_bytes(data)
    part.replace(path)


class ResultFiles:
    """Writes the results of nodes as they come."""

    def __init__(self, directory: Path, placement: Placement) -> None:
        """directory: of the run"""
        self._directory, self._placement = directory, placement
        self._begun: set[int] = set()  # ranks whose results are incomplete

    def add(self, event: NodeResult) -> None:
        """Append a piece; the last one puts the file in place. Raises OSError.

        A host that cannot read a result sends a last piece without bytes, and there is no file then.
        """
        path = result_path(self._directory, self._placement.role(event.rank))
        part = path.with_suffix(".new")
        if event.rank not in self._begun:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            part.touch(mode=0o600)
            part.write_bytes(b"")
            self._begun.add(event.rank)
        if event.data:
            with part.open("ab") as file:
                file.write(event.data)
        if event.is_last:
            self._begun.discard(event.rank)
            if part.stat().st_size:
                part.replace(path)
            else:
                part.unlink()

    def forget(self, rank: int) -> None:
        """Remove the failure of a node that was started again."""
        with contextlib.suppress(OSError):
            result_path(self._directory, self._placement.role(rank)).unlink()

    def close(self) -> None:
        """Remove what is incomplete."""
        for rank in self._begun:
            with contextlib.suppress(OSError):
                result_path(self._directory, self._placement.role(rank)).with_suffix(".new").unlink()
