"""The program as users write it: a graph that can be launched."""

from __future__ import annotations

from mesh.program.graph import Graph
from mesh.program.launching import launch
from mesh.program.running import Running


class Program(Graph):
    """A graph of Python objects and functions, each on a host, that call each other through handles."""

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *error: object) -> None: ...

    def launch(self, where: str = "cluster", *, run: bool = True, ready_timeout: float = 300.0) -> Running:
        """Start all nodes and return once every one is ready for calls.

        where: "threads" of this process, "local" processes, or "cluster"
        run: False to call no ``run()``, so that a test steps nodes by their handles
        ready_timeout: seconds until every node must be ready
        Raises UsageError for what cannot be placed, MeshError if a node fails or is not ready in time.
        """
        return launch(self, where, calls_run=run, ready_timeout=ready_timeout)
