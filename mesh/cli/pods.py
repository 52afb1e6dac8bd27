"""Commands about pods of Kubernetes: ``mesh pods COMMAND``."""

from __future__ import annotations

from mesh.cli import options as o
from mesh.cli.command import command, family
from mesh.cli.inspection import GROUP
from mesh.cli.options import Given
from mesh.cli.speech import show

family("pods", GROUP, "the Role for pods of Kubernetes, and their objects")


@command(
    "pods role",
    GROUP,
    "[--existing]",
    examples=(
        ("mesh pods role > role.yaml", "for somebody who may apply it"),
        ("mesh pods role --existing", "where mesh makes no pods"),
    ),
)
def role(given: Given) -> None:
    """Print the Role that mesh needs in a namespace."""
    from mesh.api.podshow import role_text

    show(role_text(is_existing=given[o.EXISTING]).splitlines())


@command(
    "pods show",
    GROUP,
    "CLUSTER",
    examples=(("mesh pods show gpus", "the objects that `mesh run gpus` makes"),),
)
def show_objects(given: Given) -> None:
    """Print the objects that mesh makes for a cluster, as YAML. No API server is asked."""
    from mesh.api.podshow import objects_text

    show(objects_text(given[o.NAMED_CLUSTER], given[o.CLUSTERS]).splitlines())
