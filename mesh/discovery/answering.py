"""Whether hosts that were known a while ago are still there."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import time
from collections.abc import Sequence

SSH = 22


def all_answer(addresses: Sequence[tuple[str, int]], within: float) -> bool:
    """Whether every (IP address, port) takes a connection in time; all are tried at once, and nothing is said.

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
                code = sock.connect_ex((address, port or SSH))
            except OSError:  # no IP address
                return False
            if code not in (0, errno.EINPROGRESS):
                return False
            open_[sock.fileno()] = sock
            poll.register(sock, select.POLLOUT)
        while open_ and time.monotonic() < deadline:
            for descriptor, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000 + 0.5):
                poll.unregister(descriptor)
                if open_.pop(descriptor).getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    return False
    return not open_
