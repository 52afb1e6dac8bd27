"""Commands for users' places in Kubernetes."""

from __future__ import annotations

import sys

from mesh.cli import userpodoptions as p
from mesh.cli.command import command
from mesh.cli.options import Given
from mesh.cli.speech import columns, say, show
from mesh.core.errors import UsageError

GROUP = "Hosts"
EXIT_LISTED = 2  # `remove` without --yes
RESOURCES = {"cpu": "requests.cpu", "memory": "requests.memory", "storage": "requests.storage", "pods": "pods"}
GPU_PART = "gpu"  # is in the names of resources that are GPUs


@command(
    "pods apply",
    GROUP,
    "FILE",
    examples=(
        ("mesh pods apply --dry-run pods.yaml", "what would change"),
        ("mesh pods apply pods.yaml", "a namespace, a quota, a volume and a dev pod for each user"),
    ),
)
def apply(given: Given) -> None:
    """Make or change the places of the users in a file, and wait until their dev pods run."""
    from mesh.api.podusers import apply_users, change_lines
    from mesh.core.statusline import StatusLine

    if not given[p.USERS_FILE]:
        raise UsageError("no file was named", hint="mesh pods apply pods.yaml")
    found = apply_users(
        given[p.USERS_FILE],
        context=given[p.USERS_CONTEXT],
        dry_run=given[p.DRY_APPLY],
        is_forced=given[p.FORCE_APPLY],
        notify=StatusLine(say, sys.stderr),
        notice=say,
    )
    for applied in found:
        show(change_lines(applied))


@command("pods list", GROUP, examples=(("mesh pods list", "each user's dev pod, and how much of the quota is used"),))
def list_(given: Given) -> None:
    """List users' places with their dev pods and quotas."""
    from mesh.api.podusers import SpaceRow, list_users
    from mesh.core.width import Table

    def cells(row: SpaceRow) -> list[str]:
        wanted = [*RESOURCES.values()]
        wanted.insert(2, next((name for name in row.used if GPU_PART in name and name.startswith("requests.")), ""))
        return ["/".join(row.used[name]) if name in row.used else "-" for name in wanted]

    head = ("user", "cpu", "memory", "gpus", "storage", "pods", "dev pod")
    rows = [[row.user, *cells(row), row.dev] for row in list_users(given[p.USERS_CONTEXT])]
    show(Table(head, width=columns()).lines(rows) if rows else ["no users: mesh pods apply FILE"])


@command(
    "pods remove",
    GROUP,
    "USER",
    examples=(
        ("mesh pods remove ana", "list what would go, with status 2"),
        ("mesh pods remove --yes ana", "all but the volume"),
    ),
)
def remove(given: Given) -> int:
    """Delete the place of a user: pods, rights and quota; the volume only with --with-data."""
    from mesh.api.podusers import doomed_lines, remove_user

    user, with_data, context = _user(given), given[p.WITH_DATA], given[p.USERS_CONTEXT]
    lines = doomed_lines(user, with_data=with_data, context=context)
    show(lines)
    if not given[p.REMOVE_YES]:
        say(f"nothing was deleted: mesh pods remove --yes {'--with-data ' * with_data}{user}")
        return EXIT_LISTED
    remove_user(user, with_data=with_data, context=context)
    say(f"{user}: deleted")
    return 0


@command(
    "pods kubeconfig",
    GROUP,
    "USER",
    examples=(("mesh pods kubeconfig --for 7d ana > ana.kubeconfig", "credentials for the user's namespace alone"),),
)
def kubeconfig(given: Given) -> None:
    """Print a kubeconfig for a user's namespace, which ends after a time."""
    from mesh.api.podusers import TOKEN_S
    from mesh.api.podusers import kubeconfig as made

    seconds = given[p.TOKEN_FOR]
    text, end = made(_user(given), TOKEN_S if seconds is None else seconds, given[p.USERS_CONTEXT])
    show(text.splitlines())
    say(f"this kubeconfig is valid until {end}")


@command(
    "pods proxy",
    GROUP,
    "USER",
    examples=(("ssh -o ProxyCommand='mesh pods proxy ana' ana@user-ana", "SSH to the dev pod, for editors"),),
)
def proxy(given: Given) -> int:
    """Connect to sshd in a user's dev pod, as ProxyCommand of ssh."""
    from mesh.api.podusers import DEFAULT_PORT
    from mesh.api.podusers import proxy as connected

    return connected(_user(given), given[p.PROXY_PORT] or DEFAULT_PORT, given[p.USERS_CONTEXT])


def _user(given: Given) -> str:
    if not given[p.POD_USER]:
        raise UsageError("no user was named", hint="mesh pods list")
    return given[p.POD_USER]
