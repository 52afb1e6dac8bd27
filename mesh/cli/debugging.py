"""mesh debug: the debugger of one rank."""

from __future__ import annotations

from mesh.cli import options as o
from mesh.cli.command import command
from mesh.cli.options import Given
from mesh.cli.speech import say


@command(
    "debug",
    "Runs",
    "[RUN] --rank RANK",
    examples=(
        ("mesh debug last --rank 2", "pdb of rank 2, of a run that began with --debug"),
        ("mesh debug lr3 --rank actor/1", "a rank by its label"),
    ),
)
def debug(given: Given) -> None:
    """Stop a rank of a run, and debug it here with pdb."""
    from mesh.api import debugging

    run, rank, where = given[o.RUN] or "last", given[o.SOME_RANKS], given[o.CLUSTER_OF_RUN]
    debugging.debug(run, rank=rank, cluster=where, clusters_file=given[o.CLUSTERS], notify=say)
