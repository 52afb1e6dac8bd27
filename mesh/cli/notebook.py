"""mesh notebook: Jupyter on a host."""

from __future__ import annotations

from mesh.cli import options as o
from mesh.cli.command import command
from mesh.cli.options import Given
from mesh.cli.speech import say


@command(
    "notebook",
    "Run",
    "CLUSTER:HOST",
    examples=(("mesh notebook pod:0", "Jupyter on the first host, in the workspace, until Ctrl-C"),),
)
def notebook(given: Given) -> int:
    """Run Jupyter on one host, and reach it here."""
    from mesh.api import notebooks

    return notebooks.notebook(
        given[o.CLUSTER], given.options(), clusters_file=given[o.CLUSTERS], look=given.look(), notify=say
    )
