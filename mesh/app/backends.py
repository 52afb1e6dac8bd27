"""The ways to reach hosts, by the name that ``backend:`` of cluster.yaml has for them."""

from __future__ import annotations

import contextlib
import math
import os
import resource
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

from mesh.core.cluster import Cluster
from mesh.core.errors import UsageError

if TYPE_CHECKING:
    from mesh.backends.ssh.ahead import Begun
    from mesh.backends.ssh.passwords import Passwords
    from mesh.core.interfaces import Backend

OWN_DESCRIPTORS = 128  # of this process, beside those of the hosts: 64 logs, packs, the terminal, ...
USUAL_DESCRIPTORS = 65536


class Reaching(Struct, frozen=True, kw_only=True):
    """The means by which a backend reaches the hosts of one cluster."""

    passwords: Passwords
    limit_s: float = math.inf  # for a host to take a connection; math.inf: as long, and as often, as a run tries
    begun: Begun = field(default_factory=dict)  # connections that were begun already


class Carrier(Struct, frozen=True, kw_only=True):
    """A way to reach hosts."""

    open: Callable[[Cluster, Reaching], Backend]
    descriptors: int  # for each host


def _local_backend(cluster: Cluster, reaching: Reaching) -> Backend:
    from mesh.backends.local import LocalBackend

    return LocalBackend()


def _ssh_backend(cluster: Cluster, reaching: Reaching) -> Backend:
    from mesh.backends.ssh.backend import SshBackend

    return SshBackend(
        cluster,
        environ=os.environ,
        passwords=reaching.passwords,
        reach=reaching.limit_s,
        begun=reaching.begun,
    )


BACKENDS: Mapping[str, Carrier] = {
    "local": Carrier(open=_local_backend, descriptors=3),
    "ssh": Carrier(open=_ssh_backend, descriptors=1),
}


def may_log_in_early(cluster: Cluster) -> bool:
    """Return True if logins on the hosts need no password: sshd waits for no user who thinks about one."""
    return cluster.backend == "ssh" and not cluster.password_env and not cluster.ask_password


def begun_connections(cluster: Cluster) -> contextlib.AbstractContextManager[Begun]:
    """Begin to connect to the hosts, if that is possible, before the modules are imported that go on with it."""
    if not may_log_in_early(cluster):
        return contextlib.nullcontext({})
    from mesh.backends.ssh.ahead import begun

    return begun(cluster)


def allow_descriptors(hosts: int, carrier: Carrier) -> None:
    """Raise this process's limit of open files as far as allowed: macOS begins with 256.

    Raises UsageError if that is too low for so many hosts. The limit stays: other runs of the process need it as well.
    """
    needed = hosts * carrier.descriptors + OWN_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(USUAL_DESCRIPTORS, needed) if hard == resource.RLIM_INFINITY else hard
    if needed > most:
        hint = f"`ulimit -n {needed}` before; where that is refused, root raises the limit (nofile in limits.conf)"
        raise UsageError(f"{hosts} hosts need {needed} open files, and this process may have {most}", hint=hint)
    if soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
