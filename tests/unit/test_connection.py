"""The socket below each SSH connection."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.backends.connection import AHEAD, QuickSocket


@contextlib.contextmanager
def connected() -> Iterator[tuple[QuickSocket, socket.socket]]:
    """One of ours, and who it is connected with."""
    with socket.create_server(("127.0.0.1", 0)) as server, QuickSocket(socket.AF_INET) as sock:
        sock.connect(server.getsockname())
        theirs, _ = server.accept()
        with theirs:
            yield sock, theirs


@given(data=st.binary(max_size=3000), sizes=st.lists(st.integers(1, 1000), min_size=1))
def test_what_is_read_ahead_comes_in_the_pieces_that_are_asked_for(data: bytes, sizes: list[int]) -> None:
    with connected() as (sock, theirs):
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        got = []
        while piece := sock.recv(sizes[len(got) % len(sizes)]):
            assert len(piece) <= sizes[len(got) % len(sizes)]
            got.append(piece)
        assert b"".join(got) == data


def test_nothing_is_waited_for_while_something_is_there() -> None:
    with connected() as (sock, theirs):
        sock.settimeout(10)
        theirs.sendall(b"packet, and the next")
        assert sock.recv(6) == b"packet"
        assert sock.recv(AHEAD) == b", and the next"
        sock.settimeout(0.01)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        theirs.close()
        assert sock.recv(1) == b""
