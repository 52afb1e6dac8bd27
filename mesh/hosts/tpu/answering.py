"""Test whether hosts of an earlier answer are still there."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

SSH_PORT = 22
TRIES_AT_ONCE = 32
GREETING = b"SSH-"  # RFC 4253, 4.2: the first bytes from a server


def all_answer(addresses: Sequence[tuple[str, int]], within: float) -> bool:
    """True if an SSH server greets at every (IP address, port). Tries all at once and sends nothing.

    within: seconds
    """
    deadline = time.monotonic() + within
    poll, open_ = select.poll(), dict[int, socket.socket]()
    with contextlib.ExitStack() as stack:
        for address, port in dict.fromkeys(addresses):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            sock = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            sock.setblocking(False)
            try:
                if sock.connect_ex((address, port or SSH_PORT)) not in (0, errno.EINPROGRESS):
                    return False
            except OSError:  # no IP address
                return False
            open_[sock.fileno()] = sock
            poll.register(sock, select.POLLIN)
        while open_ and time.monotonic() < deadline:
            for descriptor, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000 + 0.5):
                poll.unregister(descriptor)
                if not _greets(open_.pop(descriptor)):
                    return False
    return not open_


def answering(addresses: Sequence[tuple[str, int]], within: float) -> frozenset[tuple[str, int]]:
    """Return the (host, port) pairs at which an SSH server greets. Tries all at once and sends nothing.

    within: seconds
    """
    distinct = list(dict.fromkeys(addresses))
    if not distinct:
        return frozenset()
    with ThreadPoolExecutor(min(len(distinct), TRIES_AT_ONCE), "mesh-probe") as pool:
        found = pool.map(lambda one: _answers(one, within), distinct)
        return frozenset(one for one, is_there in zip(distinct, found, strict=True) if is_there)


def _answers(address: tuple[str, int], within: float) -> bool:
    deadline = time.monotonic() + within
    try:
        with socket.create_connection(address, timeout=within) as sock:
            sock.settimeout(max(0.01, deadline - time.monotonic()))
            return _greets(sock)
    except OSError:
        return False


def _greets(sock: socket.socket) -> bool:
    try:
        return sock.recv(len(GREETING)) == GREETING
    except OSError:
        return False
