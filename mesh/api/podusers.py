"""Users' places in Kubernetes: ``mesh pods apply``, ``list``, ``remove``, ``kubeconfig`` and ``proxy``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from mesh.backends.pods import state
from mesh.backends.pods.api import Api
from mesh.config.podusers import SHARED, read_pod_users
from mesh.config.userspaces import CONTAINER, namespace_of
from mesh.core.cluster import PodPlace
from mesh.core.errors import MeshError, UsageError
from mesh.core.statusline import StatusLine
from mesh.hosts.kubernetes import userlist, userobjects, userspace
from mesh.hosts.kubernetes.userlist import SpaceRow as SpaceRow
from mesh.hosts.kubernetes.userobjects import Space
from mesh.hosts.kubernetes.userspace import Change as Change

DEFAULT_PORT = 2222
TOKEN_S = 30 * 86400.0  # that a kubeconfig is valid by default


class Applied(Struct, frozen=True, kw_only=True):
    """The objects of one user's place, with what was done to each."""

    user: str
    changes: tuple[Change, ...]


def apply_users(
    file: str,
    *,
    context: str = "",
    dry_run: bool = False,
    is_forced: bool = False,
    notify: StatusLine | None = None,
    notice: Callable[[str], object] = lambda text: None,
) -> Iterator[Applied]:
    """Make or change the places of all users of a file, and wait until their dev pods run; yield what was done.

    context: of kubeconfig ("": its current one); dry_run: change nothing; is_forced: also fields that others have set
    notice: gets what an administrator should see, as a volume that one node alone can mount
    Raises UsageError for the file, and MeshError.
    """
    found = read_pod_users(Path(file).expanduser())
    spaces = [Space(user=user, dev=found.dev) for user in found.users]
    little = [text for text in map(userobjects.too_little, spaces) if text]
    if little:
        raise UsageError("\n".join(little), hint=f"change cpu:, memory:, storage: or volume: in {file}")
    if found.dev.access != SHARED:
        notice(f"the volume is {found.dev.access}: pods on several nodes need `access: {SHARED}` in {file}")
    with _Apis(context) as apis:
        for space in spaces:
            changes = userspace.apply_space(apis(space.namespace), space, dry_run=dry_run, is_forced=is_forced)
            yield Applied(user=space.user.name, changes=tuple(changes))
        if not dry_run:
            userspace.wait_for_dev_pods(apis, spaces, notify or StatusLine())


def list_users(context: str = "") -> list[SpaceRow]:
    """Return all users' places of a cluster. Raises MeshError."""
    with _Apis(context) as apis:
        return userlist.list_spaces(apis)


def doomed_lines(user: str, *, with_data: bool = False, context: str = "") -> list[str]:
    """Return lines about what ``remove_user`` deletes, and what it keeps. Raises MeshError."""
    with _Apis(context) as apis:
        api = apis(namespace_of(user))
        lines = userlist.doomed(api, user, with_data=with_data)
        stays = [] if with_data else userlist.kept(api)
    return [*lines, *(f"stays: volume {name} (--with-data deletes it)" for name in stays)]


def remove_user(user: str, *, with_data: bool = False, context: str = "") -> None:
    """Delete the place of a user. with_data: also the volume and the namespace. Raises MeshError."""
    with _Apis(context) as apis:
        userlist.remove_space(apis(namespace_of(user)), user, with_data=with_data)


def kubeconfig(user: str, seconds: float = TOKEN_S, context: str = "") -> tuple[str, str]:
    """Return a kubeconfig for a user's namespace, and when it ends, as the server writes that. Raises MeshError."""
    with _Apis(context) as apis:
        api = apis(namespace_of(user))
        made = userlist.token_of(api, user, seconds)
        return userlist.kubeconfig_text(api, made.token), made.expiration_timestamp


def proxy(user: str, port: int = DEFAULT_PORT, context: str = "") -> int:
    """Connect standard input and output with sshd in a user's dev pod; return an exit status. Raises MeshError."""
    from mesh.backends.pods.through import connect

    with _Apis(context) as apis:
        api = apis(namespace_of(user))
        running = [pod for pod in userspace.dev_pods(api) if state.runs(pod, CONTAINER) and not state.is_over(pod)]
        if not running:
            raise MeshError(f"{user}: no dev pod runs", hint=f"kubectl get pods -n {namespace_of(user)}")
        return connect(api, running[0].name, port)


class _Apis:
    """The API of each namespace; a context manager closes the connections."""

    def __init__(self, context: str) -> None:
        self._context = context
        self._stack = contextlib.ExitStack()
        self._found: dict[str, Api] = {}

    def __enter__(self) -> _Apis:
        return self

    def __exit__(self, *about: object) -> None:
        self._stack.close()

    def __call__(self, namespace: str) -> Api:
        """Return the API of a namespace. Raises MeshError."""
        if namespace not in self._found:
            place = PodPlace(context=self._context, namespace=namespace, container=CONTAINER if namespace else "")
            self._found[namespace] = self._stack.enter_context(Api(place, os.environ))
        return self._found[namespace]


def change_lines(applied: Applied) -> Sequence[str]:
    """Return lines about the objects of a user that were made or changed, and a count of the others."""
    name = namespace_of(applied.user)
    lines = []
    for change in applied.changes:
        if change.done != userspace.UNCHANGED:
            lines.append(f"{name}: {change.kind} {change.name} {change.done}")
            lines += [f"  {line}" for line in change.fields]
    same = sum(change.done == userspace.UNCHANGED for change in applied.changes)
    return [*lines, *([f"{name}: {same} objects unchanged"] if same else [])]
