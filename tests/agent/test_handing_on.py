"""The processes that hand a pack on to other hosts."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mesh.agent.base.directories import Directories
from mesh.agent.link.tls import tls_context
from mesh.agent.sync import fanout
from mesh.agent.sync.sync import Sync
from mesh.engine.credentials import make_credentials
from tests.conftest import own_children
from tests.lab import eventually


@pytest.mark.parametrize("is_told", [True, False])
def test_one_that_was_killed_does_no_harm_to_its_agent(tmp_path: Path, is_told: bool) -> None:
    """As where a run is ended: somebody else has killed it, and waited for it. Its number may be another's by now."""
    state = Directories(str(tmp_path), "project")
    state.make()
    sync = Sync(state, "run", fresh=False)
    before = own_children()
    assert sync.serve(10, make_credentials()) > 0
    (server,) = (int(pid) for pid in own_children() - before)
    os.kill(server, signal.SIGKILL)
    os.waitpid(server, 0)
    if is_told:
        sync.has_ended(server)
        assert not sync.is_serving
    sync.drop()
    assert not sync.is_serving
    assert eventually(lambda: not [path for path in tmp_path.rglob("*pack*") if path.is_file()])


CREDENTIALS = make_credentials()
SIZE = 3 * fanout.PIECE_BYTES + 1


@contextlib.contextmanager
def parent(serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """One who serves the first who comes; the port."""

    def accept() -> None:
        visitor, _ = listener.accept()
        with visitor, contextlib.suppress(OSError):
            serve(visitor)

    with fanout.listen() as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(30)
        assert not thread.is_alive()


def fetched(port: int, path: Path, size: int = SIZE) -> str:
    """What is wrong, or ""."""
    try:
        fanout.fetch("127.0.0.1", port, str(path), size, CREDENTIALS)
    except fanout.Unreachable as error:
        return str(error).partition(": ")[2]
    return ""


def secured(visitor: Any, version: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED) -> fanout._Channel:
    context = tls_context(CREDENTIALS, server=True)
    context.maximum_version = version
    return fanout._Channel(visitor, context, server=True)


class Late:
    """A socket that sends nothing until it must."""

    def __init__(self, own: socket.socket) -> None:
        self._own, self._held = own, b""

    def settimeout(self, seconds: float) -> None:
        self._own.settimeout(seconds)

    def sendall(self, data: bytes) -> None:
        self._held += data

    def recv(self, size: int) -> bytes:
        self.flush()
        return self._own.recv(size)

    def flush(self) -> None:
        self._own.sendall(self._held)
        self._held = b""


def trickle(visitor: socket.socket, data: bytes) -> None:
    for byte in data:
        visitor.send(bytes([byte]))
        time.sleep(0.01)


def test_a_pack_that_grows_while_it_is_handed_on(tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    pack.write_bytes(os.urandom(SIZE // 2))

    def serve(visitor: socket.socket) -> None:
        attend(visitor, pack, SIZE)

    with parent(serve) as port:
        threading.Timer(0.1, os.truncate, (pack, SIZE)).start()
        assert not fetched(port, tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == pack.read_bytes()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_what_comes_with_the_end_of_the_handshake(tmp_path: Path, version: ssl.TLSVersion) -> None:
    def serve(visitor: socket.socket) -> None:
        late = Late(visitor)
        secured(late, version).send(b"all of it")
        late.flush()

    with parent(serve) as port:
        assert not fetched(port, tmp_path / "fetched", 9)
    assert (tmp_path / "fetched").read_bytes() == b"all of it"


def test_who_has_said_good_bye_is_heard_no_more(tmp_path: Path) -> None:
    def serve(visitor: socket.socket) -> None:
        channel = secured(visitor)
        channel.send(b"some")
        with contextlib.suppress(ssl.SSLWantReadError):
            channel._tls._tls.unwrap()
        channel._flush()
        while True:  # until nobody listens
            visitor.sendall(bytes(fanout.PIECE_BYTES))

    with parent(serve) as port:
        assert fetched(port, tmp_path / "fetched") == f"it ended after 4 of {SIZE} bytes"


class HastyClock:
    """Time of which a second passes between two looks, so that no test has to wait for it."""

    sleep = staticmethod(time.sleep)

    def __init__(self) -> None:
        self._looks = itertools.count()

    def monotonic(self) -> float:
        return float(next(self._looks))


def test_who_sends_a_byte_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "time", HastyClock())
    with parent(lambda visitor: trickle(visitor, bytes([22, 3, 3, 64, 0]) + bytes(10_000))) as port:
        assert "it takes too long" in fetched(port, tmp_path / "fetched")

    def serve(visitor: socket.socket) -> None:
        secured(visitor)
        trickle(visitor, bytes([23, 3, 3, 64, 0]) + bytes(10_000))

    with parent(serve) as port:
        assert "it takes too long" in fetched(port, tmp_path / "fetched")


def attend(visitor: socket.socket, path: Path, size: int, transfers: int = 1) -> None:
    context = tls_context(CREDENTIALS, server=True)
    slots = threading.Semaphore(1), threading.Semaphore(transfers)
    slots[0].acquire()
    fanout._serve_peer(visitor, context, str(path), size, *slots)
    assert slots[0].acquire(blocking=False)
    assert slots[1]._value == transfers


def test_slow_handshake_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "HANDSHAKE_LIMIT_S", 0.5)
    with (
        parent(lambda visitor: attend(visitor, Path(os.devnull), 5)) as port,
        socket.create_connection(("127.0.0.1", port)) as stranger,
        contextlib.suppress(OSError),
    ):
        trickle(stranger, bytes([22, 3, 1, 64, 0]) + bytes(10_000))


@pytest.mark.parametrize("has_key", [True, False])
def test_a_peer_without_the_key_of_the_sync_gets_nothing(tmp_path: Path, has_key: bool) -> None:
    (tmp_path / "pack").write_bytes(bytes(SIZE))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if has_key:
        (tmp_path / "other").write_text(make_credentials())
        context.load_cert_chain(tmp_path / "other")
    received = b""
    with (
        parent(lambda visitor: attend(visitor, tmp_path / "pack", SIZE)) as port,
        socket.create_connection(("127.0.0.1", port)) as own,
        contextlib.suppress(OSError),  # a reset, or an alert of TLS
        context.wrap_socket(own) as stranger,
    ):
        received = stranger.recv(1)
    assert received == b""


def test_connection_beyond_the_limit_gets_nothing(tmp_path: Path) -> None:
    (tmp_path / "pack").write_bytes(bytes(SIZE))
    with parent(lambda visitor: attend(visitor, tmp_path / "pack", SIZE, transfers=0)) as port:
        assert fetched(port, tmp_path / "fetched") == f"it ended after 0 of {SIZE} bytes"


def test_silent_peers_cost_few_threads_and_stop_no_transfer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "HANDSHAKE_LIMIT_S", 6.0)  # in which the threads are counted
    monkeypatch.setattr(fanout, "STALL_LIMIT_S", 60.0)  # the transfer waits for places of silent peers
    state = Directories(str(tmp_path), "project")
    state.make()
    sync = Sync(state, "run", fresh=False)
    before = own_children()
    port = sync.serve(SIZE, CREDENTIALS)
    (server,) = own_children() - before
    sync.add(bytes(SIZE))
    with contextlib.ExitStack() as strangers:
        for _ in range(fanout.MAX_HANDSHAKES + 4):
            strangers.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert eventually(lambda: len(os.listdir(f"/proc/{server}/task")) == 1 + fanout.MAX_HANDSHAKES)
        assert not fetched(port, tmp_path / "fetched")
        assert len(os.listdir(f"/proc/{server}/task")) <= 2 + fanout.MAX_HANDSHAKES
    assert (tmp_path / "fetched").stat().st_size == SIZE
    os.kill(int(server), signal.SIGKILL)
    os.waitpid(int(server), 0)
    sync.has_ended(int(server))
    sync.drop()


def test_without_ssl_there_is_no_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with parent(lambda visitor: visitor.recv(1)) as port:
        monkeypatch.setitem(sys.modules, "ssl", None)
        monkeypatch.delitem(sys.modules, "mesh.agent.link.tls")  # which another test has imported
        assert "ssl" in fetched(port, tmp_path / "fetched")
