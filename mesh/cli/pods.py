"""Commands about pods of Kubernetes: ``mesh pods COMMAND``."""

from __future__ import annotations

from mesh.cli import options as o
from mesh.cli import podoptions as p
from mesh.cli.command import COMMANDS, Takes, command, family
from mesh.cli.inspection import GROUP
from mesh.cli.options import Given
from mesh.cli.speech import columns, say, show
from mesh.config.settings import given_command
from mesh.core.errors import UsageError

family("pods", GROUP, "Show pods of Kubernetes, and give users a place for them.")


@command(
    "pods role",
    GROUP,
    "[--existing | [--gang KIND] [--jobs]]",
    examples=(
        ("mesh pods role > role.yaml", "for an administrator: kubectl apply -f role.yaml"),
        ("mesh pods role --existing", "for pods that mesh does not make"),
    ),
)
def role(given: Given) -> None:
    """Print the Role (the rights) that mesh needs in a namespace, as YAML."""
    from mesh.api.podshow import role_text

    show(role_text(is_existing=given[o.EXISTING], gang=given[p.GANG], has_jobs=given[p.JOBS]).splitlines())


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
    "CLUSTER [-- COMMAND [ARG ...]]",
    takes=Takes.TAIL,
    examples=(
        ("mesh pods render gpus", "the objects that `mesh run gpus` makes"),
        ("mesh pods render --as job gpus -- python3 train.py", "a run that needs no client, for kubectl apply"),
    ),
)
def render_objects(given: Given) -> None:
    """Print the objects of a cluster or a declared job, as YAML; sends no request."""
    if not given[p.AS]:
        from mesh.api.podshow import objects_text

        if given.words:
            raise UsageError("a command needs --as", hint="mesh pods render --as job CLUSTER -- COMMAND")
        show(objects_text(given[o.NAMED_CLUSTER], given[o.CLUSTERS]).splitlines())
        return
    from mesh.api.declaring import job_text

    text = job_text(
        given[o.NAMED_CLUSTER],
        given_command(given.words, COMMANDS[given.command].usage),
        kind=given[p.AS],
        retries=given[p.RETRIES],
        options=given.options(),
        clusters_file=given[o.CLUSTERS],
    )
    show(text.splitlines())


@command(
    "pods secret",
    GROUP,
    "CLUSTER",
    examples=(("mesh pods secret gpus", "once, before a job of `mesh pods render --as job gpus`"),),
)
def secret(given: Given) -> None:
    """Make the Secret of a cluster's declared jobs: key, program and variables."""
    from mesh.api.declaring import make_job_secret

    say(f"{make_job_secret(given[o.NAMED_CLUSTER], given[o.CLUSTERS])} is there")
