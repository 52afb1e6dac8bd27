"""Whether hosts reach each other: a real agent listens and tries."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from mesh.agent.ask import reach
from mesh.agent.ask.parallel import run_parallel
from mesh.agent.ask.paths import describe
from mesh.agent.ask.reach import close_ports, open_ports, own_addresses, try_all
from mesh.agent.base.directories import Directories
from mesh.agent.base.lock import MachineLock, lock_owner
from mesh.protocol.replies import Address, PathAbsent, PathPresent
from tests.conftest import own_children

KEY, OTHER = "00" * 32, "11" * 32


def reap(before: set[str]) -> None:
    """Wait for the children of this process that a test has started, as the agent's loop does."""
    for pid in own_children() - before:
        os.waitpid(int(pid), 0)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow a server so much time for its answer that a slow machine suffices."""
    monkeypatch.setattr(reach, "REACH_TIMEOUT_S", 8.0)
    monkeypatch.setattr(reach, "LISTEN_LIMIT_S", 600.0)


def hows(key: str, *targets: tuple[str, int]) -> list[str]:
    return [trial.how for trial in try_all(key, targets).tried]


def test_who_knows_the_key_is_answered_and_nobody_else() -> None:
    before = own_children()
    ports = open_ports(KEY, [0, -1]).ports
    assert 10000 <= ports[1] < ports[0]
    try:
        taken = open_ports(KEY, [ports[1]]).ports  # the first ones are closed then
        assert taken == ["it is in use there"]
    finally:
        close_ports()
    (port,) = open_ports(KEY, [0]).ports
    try:
        assert hows(KEY, ("127.0.0.1", port), ("::1", port)) == ["", ""]
        assert hows(OTHER, ("127.0.0.1", port)) == ["foreign"]
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.0\r\n\r\n" + bytes(100))
            stranger.settimeout(60)
            try:
                assert stranger.recv(100) == b""
            except ConnectionResetError:
                pass
    finally:
        close_ports()
    assert hows(KEY, ("127.0.0.1", port)) == ["refused"]
    reap(before)


def test_how_a_try_may_fail() -> None:
    """A peer that says nothing, one that says something else, a name of nobody, an address of nobody."""

    before = own_children()

    def serve(listener: socket.socket, says: bytes) -> None:
        visitor, _ = listener.accept()
        with visitor:
            visitor.recv(100)
            visitor.sendall(says)
            if says:
                visitor.shutdown(socket.SHUT_WR)
            visitor.recv(100)

    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    threads = [
        threading.Thread(target=serve, args=(listener, says))
        for listener, says in zip(listeners, (b"", b"HTTP/1.1 400 Bad Request\r\n"), strict=True)
    ]
    for thread in threads:
        thread.start()
    ports = [listener.getsockname()[1] for listener in listeners]
    tries = [("127.0.0.1", ports[0]), ("127.0.0.1", ports[1]), ("host.invalid", 1), ("255.255.255.255", 1)]
    mute, foreign, unresolved, other = hows(KEY, *tries)
    assert (mute, foreign, unresolved) == ("mute", "foreign", "unresolved")
    assert other in ("Network is unreachable", "Permission denied")
    for thread in threads:
        thread.join()
    for listener in listeners:
        listener.close()
    reap(before)


def test_own_addresses() -> None:
    assert Address(interface="lo", address="127.0.0.1", mtu=65536) in own_addresses()


def test_what_hangs_costs_no_more_than_its_time() -> None:
    before = own_children()
    found = run_parallel({"hangs": signal.pause, "writes": lambda: "y" * 200_000}, 6)
    reap(before)
    assert found == {"hangs": {"error": "no answer within 6 s", "hint": "", "late": True}, "writes": "y" * 200_000}


def test_what_a_path_is(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for place in (first, second):
        place.mkdir()
        (place / "x").touch()
    told = describe(str(first))
    assert isinstance(told, PathPresent)
    assert (told.kind, told.reads, told.writes) == ("directory", True, True)
    assert told == describe(str(second))
    (second / "y").touch()
    assert told != describe(str(second))
    file = describe(str(first / "x"))
    assert isinstance(file, PathPresent)
    assert file.holds == "0 bytes"
    assert describe(str(tmp_path / "z")) == PathAbsent(there=False)


def test_a_look_at_the_lock_takes_it_from_nobody(tmp_path: Path) -> None:
    place = str(tmp_path)
    assert lock_owner(place) is None
    state = Directories(place, "project")
    state.make()
    assert lock_owner(place) is None
    assert not (Path(state.machine) / "lock").exists()
    lock = MachineLock(state.machine)
    descriptor = lock.take({"run": "one"})
    try:
        assert lock_owner(place) == {"run": "one"}
        lock.release()
        assert lock_owner(place) is None
        lock.take({"run": "two"})
    finally:
        os.close(descriptor)
