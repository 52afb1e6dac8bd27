"""Nodes with a server of dm-reverb, which the host's Python must have. Its port is open to everybody on the network."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Callable, Sequence

from mesh.launchpad.runtime.address import Address, get_port_from_address
from mesh.launchpad.runtime.clients import Handle
from mesh.program.runtime.here import current


def reverb_module() -> ModuleType:
    """Return the module reverb. Raises ImportError that names the package."""
    try:
        return importlib.import_module("reverb")
    except ImportError as error:
        python = f"{sys.executable} on {current().here.host}"
        raise ImportError(f"a ReverbNode needs the package dm-reverb: {python} does not have it") from error


def serve(
    tables: "Callable[[], Sequence[object]]", checkpointer: "Callable[[], object] | None", address: Address
) -> None:
    """Serve tables until the program is stopped."""
    context = current()
    port = get_port_from_address(address.resolve())
    sys.stderr.write(f"{context.here.label}: reverb's port {port} is open to everybody who reaches this host\n")
    kept = checkpointer() if checkpointer is not None else None
    server = reverb_module().Server(tables=list(tables()), port=port, checkpointer=kept)
    context.stopped.wait()
    server.stop()


class ReverbHandle(Handle[object]):
    """The handle of a ReverbNode; in a node it is a client of reverb."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def dereference(self) -> object:
        """Return reverb's own client. Raises ImportError without dm-reverb."""
        client: object = reverb_module().Client(self._address.resolve())
        return client
