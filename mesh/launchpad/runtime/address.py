"""Network addresses of nodes, for servers that nodes start themselves. A port is kept free on the node's host."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import threading
from typing import Dict, Tuple

from mesh.launchpad.runtime.clients import NodePort
from mesh.program.runtime.here import current

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
GIVEN_PORTS = "/proc/sys/net/ipv4/ip_local_port_range"  # the kernel gives its ports to connections
FIRST_PORT, PORT_TRIES = 10000, 50
_KEPT: "Dict[Tuple[str, str, str], Tuple[int, socket.socket]]" = {}
_LOCK = threading.Lock()


class AbstractAddressBuilder:
    """A rule that makes an address as text."""

    def build(self) -> str:
        """Return the address, as "host:port"."""
        raise NotImplementedError


class SimpleLocalAddressBuilder(AbstractAddressBuilder):
    """A free port of this machine."""

    def __init__(self) -> None:
        held = _held_port()
        self._address = f"localhost:{held.getsockname()[1]}"
        held.close()

    def build(self) -> str:
        """Return the address, as "localhost:12345"."""
        return self._address


class Address:
    """An address of one node; any other node may ask for it with ``resolve``."""

    def __init__(self, name: "str | None" = None) -> None:
        """name: letters, digits and underscores. Raises ValueError for another one."""
        if name is not None and not NAME.fullmatch(name):
            raise ValueError(f"address name {name!r}: expected letters, digits and underscores")
        self.name = name
        self._builder: "AbstractAddressBuilder | None" = None
        self._port: "NodePort | None" = None  # of its node
        self._number = ""  # among the addresses of its node

    def bind(self, address_builder: AbstractAddressBuilder) -> None:
        """Use a rule in place of a port that mesh keeps."""
        self._builder = address_builder

    def assign(self, node: object) -> None:
        """Make it an address of a node. Raises ValueError if it is that of another node."""
        port: NodePort = node.port  # type: ignore[attr-defined]
        if self._port is port:
            return
        if self._port is not None:
            raise ValueError("this address belongs to another node already")
        self._port = port
        addresses = node.addresses  # type: ignore[attr-defined]
        self._number = str(len(addresses))
        addresses.append(self)

    def resolve(self) -> str:
        """Return "host:port". Raises RuntimeError if it belongs to no node of a launched program.

        The node that owns it may bind the port from now on; until then mesh keeps it from all others.
        """
        if self._builder is not None:
            return self._builder.build()
        if self._port is None:
            raise RuntimeError("this address belongs to no node; address.assign(node) gives it one")
        context = current()
        if self._port.label == context.here.label:
            return kept_address(self._port.label, self._number, is_own=True)
        handle = self._port.handle()
        return str(getattr(handle.futures, ":address")(self._number).result())


def kept_address(label: str, number: str, is_own: bool = False) -> str:
    """Return the address of this process's node, and keep its port. is_own: release it, as the node binds it now"""
    program = current().caller.program
    with _LOCK:
        port, held = _KEPT.get((program, label, number), (0, None))
        if not port:
            held = _held_port()
            port = held.getsockname()[1]
            _KEPT[program, label, number] = port, held
        if is_own and held is not None:
            held.close()
    return f"{_own_address(label)}:{port}"


def release_addresses(program: str, label: str) -> None:
    """Release the ports of a node that has ended."""
    with _LOCK:
        for place in [place for place in _KEPT if place[:2] == (program, label)]:
            _KEPT.pop(place)[1].close()


def _own_address(label: str) -> str:
    """Return the address by which other hosts reach this node; "localhost" where all nodes are on one."""
    path = os.environ.get("MESH_ADDRESS_BOOK", "")
    if path:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            book = json.load(file)
        place = book.get(label if "/" in label else f"{label}/0", {}).get("tcp")
        if place:
            return str(place[0])
    return "localhost"


def _held_port() -> socket.socket:
    """Return a socket that has a port which the kernel gives to no connection by itself."""
    try:
        with open(GIVEN_PORTS) as file:
            beyond = int(file.read().split()[0])
    except (OSError, ValueError):
        beyond = 0
    tries = [random.randrange(FIRST_PORT, beyond) for _ in range(PORT_TRIES)] if beyond > FIRST_PORT else []
    for number in [*tries, 0]:
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            held.bind(("", number))
            return held
        except OSError:
            held.close()
            if not number:
                raise
    raise OSError("no free port")


def get_port_from_address(address: str) -> int:
    """Return the port of "host:port". A name in its place is looked up as the variable LP_PORT_NAME."""
    port = address.rpartition(":")[2]
    return int(port) if port.isdigit() else int(os.environ[f"LP_PORT_{port}"])
