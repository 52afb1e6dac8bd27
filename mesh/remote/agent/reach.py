"""Whether hosts reach each other over TCP: while a check asks, each of them listens, and tries the others."""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import time

from .errand import Errand, side_by_side, why
from .fanout import listen
from .spawning import die_with

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

REACH = 2.0  # seconds for one host to be reached and to answer; a firewall may drop packets without a word
LONGEST = 20.0  # seconds that we listen, should nobody end us before
NONCE, DIGEST = 16, 32  # bytes
# Bytes of an answer: more than fits into the largest packet, so that a path that loses large ones is found.
ANSWER = 20000
MOST_VISITORS = 600  # at a time
SIOCGIFCONF, SIOCGIFMTU = 0x8912, 0x8921  # linux/sockios.h
GIVEN_PORTS = "/proc/sys/net/ipv4/ip_local_port_range"
FIRST_PORT = 10000
IFREQ = 40 if struct.calcsize("P") == 8 else 32  # bytes of a struct ifreq, linux/if.h

serving: list[Errand] = []  # our own listening process


def own_addresses() -> list[tuple[str, str, int]]:
    """Interface, address and MTU in bytes, for each address of this host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        addresses = [*_ipv4(probe), *_ipv6()]
        mtus = {name: _mtu(probe, name) for name, _ in addresses}
    return [(name, address, mtus[name]) for name, address in addresses]


def _ipv4(probe: socket.socket) -> list[tuple[str, str]]:
    import array
    import fcntl

    buffer = array.array("B", bytes(IFREQ * 512))
    place, length = buffer.buffer_info()
    answer = fcntl.ioctl(probe.fileno(), SIOCGIFCONF, struct.pack("iP", length, place))
    (length,) = struct.unpack("i", answer[:4])
    data, found = buffer.tobytes(), []
    for begin in range(0, length, IFREQ):
        name = data[begin : begin + 16].partition(b"\0")[0].decode("ascii", "replace").partition(":")[0]
        found.append((name, socket.inet_ntoa(data[begin + 20 : begin + 24])))
    return found


def _ipv6() -> list[tuple[str, str]]:
    try:
        with open("/proc/net/if_inet6") as file:
            lines = [line.split() for line in file]
    except OSError:  # there is none here
        return []
    return [(words[-1], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0]))) for words in lines]


def _mtu(probe: socket.socket, interface: str) -> int:
    """0 if it is gone. In a container, /sys may be that of its machine."""
    import fcntl

    try:
        answer = fcntl.ioctl(probe.fileno(), SIOCGIFMTU, struct.pack(f"16s{IFREQ - 16}x", interface.encode()))
    except OSError:
        return 0
    return int(struct.unpack("i", answer[16:20])[0])


def open_ports(key: str, ports: Sequence[int]) -> dict[str, Any]:
    """Listen until ``close_ports`` or this agent's end, and answer those who know the key and nobody else.

    ports: 0: one that is free; -1: a free one of those that the kernel gives to nobody by chance, as MASTER_PORT is
    Returns {"ports": [...]} in the same order; instead of a port, why it cannot be listened on.
    """
    import hmac  # noqa: F401  here, so that the processes below need not
    import threading  # noqa: F401

    sockets, opened = [], []
    for port in ports:
        try:
            sockets.append(listen(port) if port >= 0 else listen_quietly())
            opened.append(sockets[-1].getsockname()[1])
        except OSError as error:
            opened.append("it is in use there" if error.errno == errno.EADDRINUSE else why(error))
    agent = os.getpid()
    close_ports()
    serving.append(Errand(lambda: _serve(sockets, bytes.fromhex(key), agent), lambda answer: None))
    for own in sockets:
        own.close()
    return {"ports": opened}


def close_ports() -> dict[str, Any]:
    """Listen no more."""
    while serving:
        errand = serving.pop()
        try:
            if os.waitpid(errand.pid, os.WNOHANG) == (0, 0):
                os.kill(errand.pid, signal.SIGKILL)
                os.waitpid(errand.pid, 0)
        except ChildProcessError:  # it has ended by itself
            pass
        os.close(errand.answer)
    return {}


def listen_quietly() -> socket.socket:
    """A socket on every address, with a port that the kernel gives to nobody by chance. Raises OSError."""
    try:
        with open(GIVEN_PORTS) as file:
            beyond = int(file.read().split()[0])
    except (OSError, ValueError):
        beyond = 0
    for _ in range(100 if beyond > FIRST_PORT else 0):
        try:
            return listen(FIRST_PORT + int.from_bytes(os.urandom(4), "big") % (beyond - FIRST_PORT))
        except OSError:
            continue
    return listen()


def _serve(sockets: Sequence[socket.socket], key: bytes, agent: int) -> dict[str, Any]:
    import select
    import threading

    die_with(agent)
    deadline = time.monotonic() + LONGEST
    while time.monotonic() < deadline:
        for ready in select.select(sockets, [], [], max(0.0, deadline - time.monotonic()))[0]:
            visitor, _ = ready.accept()
            if threading.active_count() > MOST_VISITORS:
                visitor.close()
            else:
                threading.Thread(target=_answer, args=(visitor, key), daemon=True).start()
    return {}


def _answer(visitor: socket.socket, key: bytes) -> None:
    import hmac

    visitor.settimeout(REACH)
    try:
        with visitor:
            asked = _read(visitor, NONCE + DIGEST)
            if hmac.compare_digest(asked[NONCE:], _digest(key, b"ask", asked[:NONCE])):
                visitor.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # first a packet that is small
                visitor.sendall(_digest(key, b"answer", asked[:NONCE]))
                visitor.sendall(bytes(ANSWER))
                visitor.shutdown(socket.SHUT_WR)
                visitor.recv(1)  # until it has all
    except OSError:
        pass


def _digest(key: bytes, what: bytes, nonce: bytes) -> bytes:
    import hmac

    return hmac.new(key, what + nonce, "sha256").digest()


def _read(link: socket.socket, size: int) -> bytes:
    """So many bytes, or less if it ends before."""
    data = b""
    while len(data) < size:
        piece = link.recv(size - len(data))
        if not piece:
            break
        data += piece
    return data


def try_all(key: str, targets: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """Try addresses and ports of other hosts, all at the same time.

    Returns "tried", in the same order: [HOW, OUR ADDRESS], where HOW is "" (it answers), "unresolved", "silent",
    "mute" (it takes the connection, and that is all), "stuck" (its large packets do not arrive), "foreign" (it is not
    who we look for), "refused", or a reason in words.
    """
    answer = side_by_side({"all": lambda: _try_all(bytes.fromhex(key), targets)}, 2 * REACH)["all"]
    return answer if "tried" in answer else {"tried": [[answer["error"], ""] for _ in targets]}


def _try_all(key: bytes, targets: Sequence[tuple[str, int]]) -> dict[str, Any]:
    import threading

    results = [["unresolved", ""] for _ in targets]  # until a thread knows better
    threads = [
        threading.Thread(target=_try, args=(key, address, port, result), daemon=True)
        for (address, port), result in zip(targets, results)
    ]
    deadline = time.monotonic() + 1.5 * REACH
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {"tried": [list(result) for result in results]}


def _try(key: bytes, address: str, port: int, result: list[str]) -> None:
    """Note in result how it went, and the address that we did it from."""
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    result[0] = "silent"
    family, kind, protocol, _, place = found[0]
    link = socket.socket(family, kind, protocol)
    link.settimeout(REACH)
    try:
        with link:
            try:
                link.connect(place)
            finally:  # a try that fails has left from somewhere as well
                result[1] = link.getsockname()[0].partition("%")[0]
            _ask(link, key, result)
    except socket.timeout:
        pass
    except ConnectionRefusedError:
        result[0] = "refused"
    except OSError as error:
        result[0] = error.strerror or str(error)


def _ask(link: socket.socket, key: bytes, result: list[str]) -> None:
    import hmac

    nonce = os.urandom(NONCE)
    link.sendall(nonce + _digest(key, b"ask", nonce))
    result[0] = "mute"
    if not hmac.compare_digest(_read(link, DIGEST), _digest(key, b"answer", nonce)):
        result[0] = "foreign"
        return
    result[0] = "stuck"
    if len(_read(link, ANSWER)) == ANSWER:
        result[0] = ""
