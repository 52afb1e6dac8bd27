"""Agents that the keeper holds between the commands of a user."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mesh.app.backends import may_log_in_early
from mesh.core.cluster import Cluster

if TYPE_CHECKING:
    from mesh.backends.ssh.kept import Stock


class Keeping:
    """The agents of the keeper that a command uses up, and replaces at its end."""

    def __init__(self, cluster: Cluster) -> None:
        from mesh.backends.ssh.kept import Stock
        from mesh.keeper.server import socket_of
        from mesh.remote.blob import opening

        self._cluster = cluster
        self.stock: Stock = Stock(socket_of(os.environ), opening())

    def refill(self) -> None:
        """Have an agent wait on each host that was reached. Waits for nothing."""
        from mesh.keeper.server import fill

        fill(self._cluster, self.stock.keys, os.environ)


def keeping(cluster: Cluster) -> Keeping | None:
    """Return the agents that wait for commands on a cluster; None if it keeps none, or its logins need a password."""
    return Keeping(cluster) if cluster.keep and may_log_in_early(cluster) else None
