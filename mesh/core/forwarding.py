"""Ports of hosts that programs of this machine reach as their own."""

from __future__ import annotations

from msgspec import Struct

PORT_MAX = 65535
MASTER_PORT = 0  # as a remote port: that at which the ranks of the run meet, which is free for other use


class Forwarded(Struct, frozen=True, kw_only=True):
    """A port of hosts, and the port of this machine that leads to the first of them."""

    local: int  # 1 .. 65535; 0: any that is free. The next host has the next one
    remote: int  # 1 .. 65535, or MASTER_PORT

    def wanted(self, number: int) -> int:
        """Return the port of this machine for a host, by its number from 0; 0: any that is free.

        >>> port = Forwarded(local=8000, remote=80)
        >>> port.wanted(0), port.wanted(3), Forwarded(local=65535, remote=80).wanted(1)
        (8000, 8003, 0)
        """
        port = self.local + number if self.local else 0
        return port if port <= PORT_MAX else 0
