"""Commands about pods of Kubernetes: ``mesh pods COMMAND``."""

from __future__ import annotations

from mesh.cli import options as o
from mesh.cli import podoptions as p
from mesh.cli.command import command, family
from mesh.cli.inspection import GROUP
from mesh.cli.options import Given
from mesh.cli.speech import columns, show

family("pods", GROUP, "Show pods of Kubernetes, and give users a place for them.")


@command(
    "pods role",
    GROUP,
    "[--existing | --gang KIND]",
    examples=(
        ("mesh pods role > role.yaml", "for an administrator: kubectl apply -f role.yaml"),
        ("mesh pods role --existing", "for pods that mesh does not make"),
    ),
)
def role(given: Given) -> None:
    """Print the Role (the rights) that mesh needs in a namespace, as YAML."""
    from mesh.api.podshow import role_text

    show(role_text(is_existing=given[o.EXISTING], gang=given[p.GANG]).splitlines())


@command(
    "pods show",
    GROUP,
    "CLUSTER [HOST]",
    examples=(
        ("mesh pods show gpus", "the pods that are there, and why some do not run"),
        ("mesh pods show gpus 3", "all conditions and events of one pod"),
    ),
)
def show_pods(given: Given) -> None:
    """Show the pods of a cluster: state, conditions and events."""
    from mesh.api.podshow import pods_lines

    show(pods_lines(given[o.NAMED_CLUSTER], given[o.POD], given[o.CLUSTERS], width=columns()))


@command(
    "pods render",
    GROUP,
    "CLUSTER",
    examples=(("mesh pods render gpus", "the objects that `mesh run gpus` makes"),),
)
def render_objects(given: Given) -> None:
    """Print the objects that mesh would make for a cluster, as YAML; sends no request."""
    from mesh.api.podshow import objects_text

    show(objects_text(given[o.NAMED_CLUSTER], given[o.CLUSTERS]).splitlines())
