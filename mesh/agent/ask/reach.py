"""Connections between hosts over TCP: during a check each of them listens, and tries the others."""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import time

from mesh.agent.ask.parallel import run_parallel
from mesh.agent.base.background import Background
from mesh.agent.base.errors import why
from mesh.agent.process.spawning import die_with
from mesh.agent.sync.fanout import listen
from mesh.protocol.kinds import as_it_is, either
from mesh.protocol.records import record
from mesh.protocol.replies import Address, Failure, Nothing, Ports, Trial, Tried

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh.agent.ask.context import Context
    from mesh.protocol.questions import Hush, Listen, Try

REACH_TIMEOUT_S = 2.0  # for one host to be reached and to answer; a firewall may drop packets silently
LISTEN_LIMIT_S = 20.0  # unless ``close_ports`` comes before
NONCE_BYTES, DIGEST_BYTES = 16, 32
ANSWER_BYTES = 20000  # more than the largest packet, so that a path that loses large ones is found
CONNECTIONS_MAX = 600  # at a time
SIOCGIFCONF, SIOCGIFMTU = 0x8912, 0x8921  # linux/sockios.h
GIVEN_PORTS = "/proc/sys/net/ipv4/ip_local_port_range"
FIRST_PORT, PORT_TRIES = 10000, 100
IFREQ = 40 if struct.calcsize("P") == 8 else 32  # bytes of a struct ifreq, linux/if.h

serving: list[Background] = []  # the listening process of this agent


def listen_for(question: Listen, context: Context) -> Ports:
    """Listen for connections of the other hosts."""
    return open_ports(question.key, question.ports)


def try_targets(question: Try, context: Context) -> Tried:
    """Connect to the other hosts."""
    return try_all(question.key, [(target.address, target.port) for target in question.targets])


def hush(question: Hush, context: Context) -> Nothing:
    """Listen no more."""
    close_ports()
    return Nothing()


def own_addresses() -> list[Address]:
    """Return interface, address and MTU in bytes, for each address of this host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        addresses = [*_ipv4(probe), *_ipv6()]
        mtus = {name: _mtu(probe, name) for name, _ in addresses}
    return [Address(interface=name, address=address, mtu=mtus[name]) for name, address in addresses]


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
    """Return the MTU of an interface; 0 if it is gone. In a container, /sys may be that of its machine."""
    import fcntl

    try:
        answer = fcntl.ioctl(probe.fileno(), SIOCGIFMTU, struct.pack(f"16s{IFREQ - 16}x", interface.encode()))
    except OSError:
        return 0
    return int(struct.unpack("i", answer[16:20])[0])


def open_ports(key: str, ports: Sequence[int]) -> Ports:
    """Listen until ``close_ports`` or this agent's end. Answer only connections that prove to have the key.

    ports: 0: a free one; -1: a free one that the kernel gives to no process by chance, as MASTER_PORT is
    """
    import hmac  # noqa: F401  here, so that child processes need not
    import threading  # noqa: F401

    sockets: list[socket.socket] = []
    opened: list[int | str] = []
    for port in ports:
        try:
            sockets.append(listen(port) if port >= 0 else listen_quietly())
            opened.append(sockets[-1].getsockname()[1])
        except OSError as error:
            opened.append("it is in use there" if error.errno == errno.EADDRINUSE else why(error))
    agent = os.getpid()
    close_ports()
    serving.append(Background(lambda: _serve(sockets, bytes.fromhex(key), agent)))
    for own in sockets:
        own.close()
    return Ports(ports=opened)


def close_ports() -> None:
    """End the listening process."""
    while serving:
        process = serving.pop()
        try:
            if os.waitpid(process.pid, os.WNOHANG) == (0, 0):
                os.kill(process.pid, signal.SIGKILL)
                os.waitpid(process.pid, 0)
        except ChildProcessError:  # it has ended by itself
            pass
        process.close()


def listen_quietly() -> socket.socket:
    """Return a socket on every address, with a port that the kernel gives to no process by chance. Raises OSError."""
    try:
        with open(GIVEN_PORTS) as file:
            beyond = int(file.read().split()[0])
    except (OSError, ValueError):
        beyond = 0
    for _ in range(PORT_TRIES if beyond > FIRST_PORT else 0):
        try:
            return listen(FIRST_PORT + int.from_bytes(os.urandom(4), "big") % (beyond - FIRST_PORT))
        except OSError:
            continue
    return listen()


def _serve(sockets: Sequence[socket.socket], key: bytes, agent: int) -> dict[str, object]:
    import select
    import threading

    die_with(agent)
    deadline = time.monotonic() + LISTEN_LIMIT_S
    while time.monotonic() < deadline:
        for ready in select.select(sockets, [], [], max(0.0, deadline - time.monotonic()))[0]:
            connection, _ = ready.accept()
            if threading.active_count() > CONNECTIONS_MAX:
                connection.close()
            else:
                threading.Thread(target=_answer, args=(connection, key), daemon=True).start()
    return {}


def _answer(connection: socket.socket, key: bytes) -> None:
    import hmac

    connection.settimeout(REACH_TIMEOUT_S)
    try:
        with connection:
            asked = _read(connection, NONCE_BYTES + DIGEST_BYTES)
            nonce, digest = asked[:NONCE_BYTES], asked[NONCE_BYTES:]
            if hmac.compare_digest(digest, _digest(key, b"ask", nonce)):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # first a packet that is small
                connection.sendall(_digest(key, b"answer", nonce))
                connection.sendall(bytes(ANSWER_BYTES))
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)  # until it has all
    except OSError:
        pass


def _digest(key: bytes, purpose: bytes, nonce: bytes) -> bytes:
    import hmac

    return hmac.new(key, purpose + nonce, "sha256").digest()


def _read(link: socket.socket, size: int) -> bytes:
    """Return so many bytes, or less if the connection ends before."""
    data = b""
    while len(data) < size:
        piece = link.recv(size - len(data))
        if not piece:
            break
        data += piece
    return data


def try_all(key: str, targets: Sequence[tuple[str, int]]) -> Tried:
    """Try addresses and ports of other hosts, all at the same time.

    A trial has "" (it answers), "unresolved", "silent", "mute" (it takes the connection, and that is all), "stuck" (its
    large packets do not arrive), "foreign" (it is another program), "refused", or a reason in words. Its detail is the
    address that this host connected from.
    """
    result = run_parallel({"all": lambda: _try_all(bytes.fromhex(key), targets)}, 2 * REACH_TIMEOUT_S)["all"]
    found = either(record(Failure), record(Tried)).check(result, as_it_is)
    if isinstance(found, Failure):
        return Tried(tried=[Trial(how=found.error, detail="") for _ in targets])
    return found


def _try_all(key: bytes, targets: Sequence[tuple[str, int]]) -> Tried:
    import threading

    results = [["unresolved", ""] for _ in targets]  # until a thread changes it
    threads = [
        threading.Thread(target=_try, args=(key, address, port, result), daemon=True)
        for (address, port), result in zip(targets, results)
    ]
    deadline = time.monotonic() + 1.5 * REACH_TIMEOUT_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return Tried(tried=[Trial(how=how, detail=detail) for how, detail in results])


def _try(key: bytes, address: str, port: int, result: list[str]) -> None:
    """Write the outcome into result, and the address that this host connected from."""
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    result[0] = "silent"
    family, kind, protocol, _, place = found[0]
    link = socket.socket(family, kind, protocol)
    link.settimeout(REACH_TIMEOUT_S)
    try:
        with link:
            try:
                link.connect(place)
            finally:  # an attempt that fails has an address too
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

    nonce = os.urandom(NONCE_BYTES)
    link.sendall(nonce + _digest(key, b"ask", nonce))
    result[0] = "mute"
    if not hmac.compare_digest(_read(link, DIGEST_BYTES), _digest(key, b"answer", nonce)):
        result[0] = "foreign"
        return
    result[0] = "stuck"
    if len(_read(link, ANSWER_BYTES)) == ANSWER_BYTES:
        result[0] = ""
