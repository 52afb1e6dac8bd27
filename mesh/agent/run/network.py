"""The host's network for its ranks: ports that are free when they start, and the interface towards rank 0."""

from __future__ import annotations

import errno
import os
import struct

from mesh.agent.base.light import Socket, contents, socket
from mesh.protocol.answers import INTERFACES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# The kernel gives ports of this range to new connections; a port below it is not taken by chance.
GIVEN_PORTS = "/proc/sys/net/ipv4/ip_local_port_range"
FIRST_PORT, PORT_TRIES = 10000, 100
RTM_NEWADDR, RTM_GETADDR, DUMP = 20, 22, 0x301  # linux/rtnetlink.h; NLM_F_REQUEST | NLM_F_DUMP of linux/netlink.h
IFA_ADDRESS, IFA_LOCAL = 1, 2  # linux/if_addr.h
HEADER, ABOUT = struct.Struct("=IHHII"), struct.Struct("=BBBBI")  # struct nlmsghdr; struct ifaddrmsg
LOOPBACK = "lo"
PLAIN = "[A-Za-z0-9_.-]+"


class Unavailable(Exception):
    """The lack of a port, of an interface or of a route to rank 0; the text has the reason."""


class Ports:
    """TCP ports that are kept from all others until the ranks start. Nobody can connect to them."""

    def __init__(self) -> None:
        self._held: list[Socket] = []

    def hold(self, wanted: Sequence[int]) -> list[int]:
        """Take ports, and return them. wanted: 0 for any that is free. Raises Unavailable."""
        for number in wanted:
            try:
                self._held.append(hold_port(number))
            except OSError as error:
                name = f"port {number}" if number else "a port"
                raise Unavailable(f"{name} for the ranks cannot be had: {error.strerror}") from error
        return [held.getsockname()[1] for held in self._held]

    def release(self) -> None:
        for held in self._held:
            held.close()
        self._held = []


def hold_port(number: int) -> Socket:
    """Return a socket that has a TCP port on every address. number: 0 for one that is free. Raises OSError."""
    # A named port must be had also while connections of an earlier run are fading out. Another program that sets
    # SO_REUSEADDR can still take it.
    if number:
        return _bound(number, insist=True)
    first, beyond = _quiet_ports()
    for _ in range(PORT_TRIES if beyond > first else 0):
        try:
            return _bound(first + int.from_bytes(os.urandom(4), "big") % (beyond - first), insist=False)
        except OSError:
            continue
    return _bound(0, insist=False)


def listen_within(ports: Sequence[int], backlog: int) -> Socket:
    """Return a socket that listens on every address. Raises OSError.

    ports: the first and the last one that it may take; (): any
    """
    if not ports:
        held = hold_port(0)
        held.listen(backlog)
        return held
    first, last = ports
    count = last - first + 1
    start = int.from_bytes(os.urandom(4), "big") % count  # so that programs that begin at once seldom meet
    for step in range(count):
        number = first + (start + step) % count
        try:
            held = _bound(number, insist=True)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            continue
        try:
            held.listen(backlog)
            return held
        except OSError:  # another one that insists was faster
            held.close()
    raise OSError(errno.EADDRINUSE, f"no port from {first} to {last} is free")


def _quiet_ports() -> tuple[int, int]:
    """Return the range of ports, without its end, that the kernel gives to no connection by itself."""
    try:
        return FIRST_PORT, int(contents(GIVEN_PORTS).split()[0])
    except (OSError, ValueError):
        return 0, 0


def _bound(number: int, insist: bool) -> Socket:
    """Return a socket that has the port on every address, IPv6 and IPv4."""
    try:
        held = Socket(socket.AF_INET6, socket.SOCK_STREAM)
        try:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, insist)
            held.bind(("::", number))
            return held
        except OSError:
            held.close()
            raise
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise
    held = Socket(socket.AF_INET, socket.SOCK_STREAM)  # a host without IPv6
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, insist)
        held.bind(("0.0.0.0", number))
    except OSError:
        held.close()
        raise
    return held


def is_numeric(host: str) -> bool:
    """Return True for an address, False for a name that must be resolved."""
    try:
        socket.getaddrinfo(host.encode("ascii"), None, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return False
    return True


def find_interface(named: str, targets: Sequence[str]) -> dict[str, object]:
    """Find the interface for NCCL and gloo, in a background process: resolving names may take long.

    named: from cluster.yaml; "": find it
    targets: as in interface_towards
    Returns "variables"; or "notice" if there is none, which need not keep a run from starting; or "error" and "hint".
    """
    try:
        return {"variables": _variables(named, targets)}
    except Unavailable as error:
        if named:
            return {"error": str(error), "hint": "interface: in cluster.yaml must name one that every host has"}
        return {"notice": str(error)}


def _variables(named: str, targets: Sequence[str]) -> dict[str, str]:
    here = [name for _, name in socket.if_nameindex()]
    if named:
        import re  # few agents need it

        if re.fullmatch(PLAIN, named) and named not in here:
            raise Unavailable(f"no interface {named} here; there are {', '.join(sorted(here))}")
        return dict.fromkeys(INTERFACES, named)
    found = interface_towards(targets)
    if not found:
        return {}
    # NCCL takes a name for the beginning of one, gloo for all of it.
    is_beginning = any(name != found and name.startswith(found) for name in here)
    return dict(zip(INTERFACES, ("=" + found if is_beginning else found, found)))


def interface_towards(targets: Sequence[str]) -> str:
    """Return the interface towards the first of these hosts; "" if the kernel does not report it.

    On that host itself, it is the interface with the address. Where its own name resolves to a loopback address
    (Debian's 127.0.1.1), the next host decides. Raises Unavailable.
    """
    found = ""
    for target in targets:
        found = _carrier(*_source_towards(target))
        if found != LOOPBACK or is_numeric(target):
            break
    return found


def _source_towards(target: str) -> tuple[int, str, int]:
    """Return the address to send from: its family, the address, and its interface where that belongs to it.

    Nothing is sent.
    """
    try:
        problem: OSError = OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
        for family, kind, _, _, address in socket.getaddrinfo(_plain(target), 9, type=socket.SOCK_DGRAM):
            try:
                with Socket(family, kind) as probe:
                    probe.connect(address)
                    ours = probe.getsockname()
                    return family, ours[0].partition("%")[0], ours[3] if len(ours) > 3 else 0
            except OSError as error:
                problem = error
        raise problem
    except UnicodeError as error:
        raise Unavailable(f"{target} is no name of a host") from error
    except socket.gaierror as error:
        raise Unavailable(f"{target}, the address of rank 0, cannot be resolved here: {error.strerror}") from error
    except OSError as error:
        raise Unavailable(f"no route from here to {target}, the address of rank 0: {error.strerror}") from error


def _plain(name: str) -> str | bytes:
    """Return an ASCII name as bytes: with a text, Python imports the tables of Unicode."""
    return name.encode() if name.isascii() else name


def _carrier(family: int, address: str, index: int) -> str:
    """Return the interface that has an address."""
    try:
        wanted = socket.inet_pton(family, address)
        found = index or next((index for index, own in _addresses(family) if own == wanted), 0)
        return socket.if_indextoname(found) if found else ""
    except (OSError, struct.error):  # a kernel that does not report it
        return ""


def _addresses(family: int) -> list[tuple[int, bytes]]:
    """Return every address of this host, and the index of the interface that has it."""
    found: list[tuple[int, bytes]] = []
    with Socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.settimeout(1.0)
        kernel.send(HEADER.pack(HEADER.size + ABOUT.size, RTM_GETADDR, DUMP, 1, 0) + ABOUT.pack(family, 0, 0, 0, 0))
        while True:
            answer, place = kernel.recv(1 << 16), 0
            while place < len(answer):
                size, kind = HEADER.unpack_from(answer, place)[:2]
                if kind != RTM_NEWADDR:  # the end, or an error
                    return found
                index = ABOUT.unpack_from(answer, place + HEADER.size)[4]
                own = _attributes(answer[place + HEADER.size + ABOUT.size : place + size])
                found.append((index, own.get(IFA_LOCAL) or own.get(IFA_ADDRESS, b"")))
                place += size + 3 & ~3


def _attributes(data: bytes) -> dict[int, bytes]:
    """Parse a sequence of struct rtattr."""
    found, place = {}, 0
    while place + 4 <= len(data):
        size, kind = struct.unpack_from("=HH", data, place)
        found[kind] = data[place + 4 : place + size]
        place += max(size, 4) + 3 & ~3
    return found
