"""The socket below each SSH connection."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.backends.ssh import ahead
from mesh.backends.ssh.ahead import begun
from mesh.backends.ssh.sockets import AHEAD_BYTES, QuickSocket, connect
from mesh.core.cluster import Cluster, Host


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
        sock.settimeout(60)
        theirs.sendall(b"packet, and the next")
        assert sock.recv(6) == b"packet"
        assert sock.recv(AHEAD_BYTES) == b", and the next"
        sock.settimeout(0.01)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        theirs.close()
        sock.settimeout(60)
        assert sock.recv(1) == b""


# ---- connections that are begun ahead


@pytest.fixture
def ssh_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only one that there is."""
    monkeypatch.setattr(ahead, "FILES", (str(tmp_path / "config"),))
    return tmp_path / "config"


def cluster(*hosts: tuple[str, int], proxy_command: str = "", gateway: str = "") -> Cluster:
    found = tuple(
        Host(name=f"h{number}", address=address, port=port, proxy_command=proxy_command)
        for number, (address, port) in enumerate(hosts)
    )
    return Cluster(name="pod", backend="ssh", hosts=found, gateway=gateway)


def test_what_was_begun_ahead_is_used_once(ssh_config: Path) -> None:
    ssh_config.write_text("Host *\n  User me\n  ServerAliveInterval 5\nInclude nothing/*.conf\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address, port = server.getsockname()
        with begun(cluster((address, port), (address, port), ("localhost", port))) as found:
            assert list(found) == [(address, port)]
            theirs, name = server.accept()
            sock = connect(address, port, time.monotonic() + 60, lambda: False, found)
            assert (sock.getsockname(), sock.getblocking(), found) == (name, True, {})
            theirs.sendall(b"banner")
            assert sock.recv(10) == b"banner"
            again = connect(address, port, time.monotonic() + 60, lambda: False, found)
            assert again.getsockname() != name
            again.close()
            sock.close()
            theirs.close()


def test_what_nobody_takes_is_closed(ssh_config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with begun(cluster(server.getsockname())):
            theirs, _ = server.accept()
        assert theirs.recv(1) == b""
        theirs.close()


def test_what_was_refused_ahead_is_told_as_ever(ssh_config: Path) -> None:
    with socket.socket() as closed:  # bound, and nobody listens
        closed.bind(("127.0.0.1", 0))
        place = closed.getsockname()
        with begun(cluster(place)) as found, pytest.raises(ConnectionRefusedError):
            connect(*place, time.monotonic() + 60, lambda: False, found)


@pytest.mark.parametrize(
    "text",
    [
        "Host *\n  Port 2222\n",
        "Host 127.*\n  hostname=other\n",
        "ProxyJump gate\n",
        "Match all\n ProxyCommand nc %h %p",
        "Include more\n",
        "Include config\n",
    ],
)
def test_nothing_is_begun_where_ssh_config_has_a_say(ssh_config: Path, text: str) -> None:
    ssh_config.write_text(text)
    (ssh_config.parent / "more").write_text("Host b\n\tPORT 1\n")
    with begun(cluster(("127.0.0.1", 1))) as found:
        assert not found


@pytest.mark.parametrize("how", [{"gateway": "gate"}, {"proxy_command": "nc %h %p"}])
def test_nothing_is_begun_through_others(ssh_config: Path, how: dict[str, str]) -> None:
    with begun(cluster(("127.0.0.1", 1), **how)) as found:
        assert not found
