"""The switchboard: frames, windows, turns, and a board with nodes and clients that are played over real sockets."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.agent.ask.reach import listen_quietly
from mesh.agent.link.tls import tls_context
from mesh.agent.switchboard import board as board_module
from mesh.agent.switchboard import frames
from mesh.agent.switchboard.board import Board
from mesh.agent.switchboard.connection import READ_BYTES, Connection, ConnectionEnded
from mesh.agent.switchboard.flow import Credit, Outgoing, Taken
from mesh.agent.switchboard.frames import BadFrame, Frames
from mesh.backends.switchboard import line as line_module
from mesh.backends.switchboard.backend import SwitchboardBackend
from mesh.backends.switchboard.line import Line
from mesh.backends.switchboard.program import pack
from mesh.backends.switchboard.ways import tcp
from mesh.core.cluster import Host
from mesh.core.errors import HostUnreachable
from mesh.core.interfaces import Channel, Farewell
from mesh.engine.credentials import make_credentials
from tests.lab import eventually

LOOPBACK = "127.0.0.1"
KINDS = st.sampled_from([frames.DATA, frames.TAKEN, frames.END, frames.OPEN])
FRAMES = st.lists(st.tuples(KINDS, st.integers(0, 2**32 - 1), st.binary(max_size=40)))


@given(FRAMES, st.lists(st.integers(0, 400)))
def test_frames_come_out_as_they_went_in_wherever_their_bytes_are_cut(
    sent: list[tuple[bytes, int, bytes]], cuts: list[int]
) -> None:
    data = b"".join(frames.frame(*one) for one in sent)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reader = Frames()
    chunks = [data[begin:end] for begin, end in itertools.pairwise(places)]
    assert [one for chunk in chunks for one in reader.feed(chunk)] == sent


def test_a_frame_that_is_too_long_is_refused_before_it_has_come() -> None:
    head = frames.HEAD.pack(frames.DATA, 1, frames.FRAME_BYTES + 1)
    with pytest.raises(BadFrame):
        list(Frames().feed(head))


@given(st.one_of(st.none(), st.integers(-64, 255)), st.text(), st.binary(max_size=200))
def test_the_end_of_a_stream_keeps_status_reason_and_stderr(status: int | None, why: str, stderr: bytes) -> None:
    ((kind, stream, data),) = Frames().feed(frames.end_frame(3, status, why, stderr))
    assert (kind, stream, frames.read_end(data)) == (frames.END, 3, (status, why, stderr))


@given(st.integers(1, 1000), st.lists(st.integers(1, 300), max_size=50))
def test_a_receiver_that_takes_everything_never_stops_its_sender(window: int, wanted: list[int]) -> None:
    credit, taken = Credit(window), Taken(window)
    for count in wanted:
        sent = credit.take(count)
        assert sent > 0
        credit.widen(taken.add(sent))
        assert 0 <= credit.left <= window


def test_a_sender_stops_at_the_window_of_a_receiver_that_takes_nothing() -> None:
    credit = Credit(100)
    assert sum(credit.take(30) for _ in range(10)) == 100


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 30)), max_size=60), st.integers(1, 100))
def test_streams_keep_their_order_and_take_turns(puts: list[tuple[int, int]], limit: int) -> None:
    out = Outgoing()
    for number, (stream, size) in enumerate(puts):
        out.put(frames.frame(frames.DATA, stream, bytes([number]) * size), stream)
    taken = b""
    while out:
        piece = out.take(limit)
        assert piece
        taken += piece
    came = [(stream, data[0]) for _, stream, data in Frames().feed(taken)]
    assert out.size == 0
    for stream in range(6):
        assert [one for other, one in came if other == stream] == [
            n for n, (put, _) in enumerate(puts) if put == stream
        ]
    for place, (stream, _) in enumerate(came):  # between two frames of a stream, no other one has two turns
        before = [other for other, _ in came[:place]]
        if stream and stream in before:
            since = before[len(before) - before[::-1].index(stream) :]
            assert max(Counter(since).values(), default=0) <= 1


def test_a_dropped_stream_leaves_nothing_and_others_go_on() -> None:
    out = Outgoing()
    out.put(b"aa", 1)
    out.put(b"b", 2)
    out.drop(1)
    assert (out.size, out.take(100)) == (1, b"b")


# ---- the zip


def test_the_zip_is_small_and_the_same_each_time(tmp_path: Path) -> None:
    assert len(pack()) < 60_000
    pack.cache_clear()
    first = pack()
    pack.cache_clear()
    assert pack() == first
    with zipfile.ZipFile(BytesIO(first)) as archive:
        assert not any("backends" in name or "core" in name for name in archive.namelist())


def test_the_zip_runs_alone(tmp_path: Path) -> None:
    path = tmp_path / "switchboard.zip"
    path.write_bytes(pack())
    for role in ("board", "node"):
        argv = [sys.executable, "-I", "-S", str(path), role, "--help"]
        assert b"usage" in subprocess.run(argv, capture_output=True, check=True, cwd="/").stdout


# ---- a board, and other ends that are played


@pytest.fixture(scope="module")
def credentials() -> str:
    return make_credentials()


class Played:
    """A board in a thread, until the end of the test."""

    def __init__(self, credentials: str) -> None:
        self.board = Board(credentials, address=LOOPBACK)
        self.port = self.board.listen()
        self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over:
            self.board.run_once(0.05)

    def close(self) -> None:
        self._is_over = True
        self._thread.join()
        self.board.close()


@pytest.fixture
def played(credentials: str) -> Iterator[Played]:
    made = Played(credentials)
    yield made
    made.close()


class End:
    """A client or a node that a test plays."""

    def __init__(self, port: int, credentials: str, role: str, name: str = "", **fields: object) -> None:
        own = socket.create_connection((LOOPBACK, port), 10)
        self.connection = Connection(own, tls_context(credentials, server=False), server=False)
        self._buffer = memoryview(bytearray(READ_BYTES))
        self.came: list[tuple[bytes, int, bytes]] = []
        hello = {"version": frames.SWITCHBOARD_VERSION, "role": role, "name": name, **fields}
        try:
            self.send(frames.record(frames.HELLO, 0, **hello))
        except ConnectionEnded:
            self.connection.close()
            raise

    def send(self, *sent: bytes) -> None:
        for one in sent:
            self.connection.out.put(one)
        self.connection.flush()

    def receive(self, kind: bytes) -> tuple[bytes, int, bytes]:
        """Return the first frame of a kind, and forget it."""

        def has_come() -> bool:
            self.connection.flush()
            self.came += self.connection.receive(self._buffer)
            return any(one[0] == kind for one in self.came)

        assert eventually(has_come), self.came
        found = next(one for one in self.came if one[0] == kind)
        self.came.remove(found)
        return found

    def ended(self) -> bool:
        try:
            self.connection.flush()
            self.came += self.connection.receive(self._buffer)
        except ConnectionEnded:
            return True
        return False

    def __enter__(self) -> End:
        return self

    def __exit__(self, *why: object) -> None:
        self.connection.close()


Join = Callable[..., End]


def welcomed(port: int, credentials: str, role: str, name: str = "") -> End:
    """Another end that the board has welcomed. On a busy machine its time for that may be over before."""
    found: list[End] = []

    def joins() -> bool:
        with contextlib.suppress(ConnectionEnded, OSError):
            end = End(port, credentials, role, name)
            try:
                end.receive(frames.WELCOME)
                found.append(end)
            finally:
                if not found:
                    end.connection.close()
        return bool(found)

    assert eventually(joins, 60.0)
    return found[0]


@pytest.fixture
def join(played: Played, credentials: str) -> Iterator[Join]:
    ends: list[End] = []

    def joined(role: str, name: str = "") -> End:
        ends.append(welcomed(played.port, credentials, role, name))
        return ends[-1]

    yield joined
    for end in ends:
        end.connection.close()


def opened(client: End, stream: int, node: str) -> None:
    client.send(frames.record(frames.OPEN, stream, node=node, argv=["true"], window=1000))


def test_frames_of_a_stream_go_between_its_two_ends_and_nowhere_else(join: Join) -> None:
    node, client, other = join("node", "a"), join("client"), join("client")
    opened(client, 5, "a")
    opened(other, 5, "a")
    numbers = [node.receive(frames.OPEN)[1] for _ in range(2)]
    assert numbers[0] != numbers[1]
    client.send(frames.frame(frames.DATA, 5, b"of client"))
    other.send(frames.frame(frames.DATA, 5, b"of other"))
    got = dict(node.receive(frames.DATA)[1:] for _ in range(2))
    assert sorted(got.values()) == [b"of client", b"of other"]
    for number, data in got.items():
        node.send(frames.frame(frames.DATA, number, b"answer to " + data), frames.end_frame(number, 3))
    assert client.receive(frames.DATA)[1:] == (5, b"answer to of client")
    assert other.receive(frames.DATA)[1:] == (5, b"answer to of other")
    assert frames.read_end(client.receive(frames.END)[2])[0] == 3


def test_the_end_of_a_client_ends_its_streams_and_no_others(join: Join) -> None:
    node, client, other = join("node", "a"), join("client"), join("client")
    opened(client, 1, "a")
    number = node.receive(frames.OPEN)[1]
    opened(other, 1, "a")
    kept = node.receive(frames.OPEN)[1]
    client.connection.close()
    assert node.receive(frames.END)[1] == number
    node.send(frames.frame(frames.DATA, number, b"too late"), frames.frame(frames.DATA, kept, b"in time"))
    assert other.receive(frames.DATA)[2] == b"in time"


def test_the_end_of_a_node_ends_its_streams_with_its_name_and_clients_learn_that_it_is_gone(join: Join) -> None:
    node, client = join("node", "a"), join("client")
    opened(client, 1, "a")
    node.receive(frames.OPEN)
    node.connection.close()
    status, why, _ = frames.read_end(client.receive(frames.END)[2])
    assert status is None
    assert "the connection of a to the switchboard ended" in why
    assert frames.read_record(client.receive(frames.NODE)[2]) == {"name": "a", "is_here": False}
    opened(client, 2, "a")
    assert "a is not connected" in frames.read_end(client.receive(frames.END)[2])[1]


def test_a_node_that_connects_again_takes_the_place_of_its_old_connection(join: Join, played: Played) -> None:
    old, client = join("node", "a"), join("client")
    new = join("node", "a")
    assert eventually(old.ended)
    opened(client, 1, "a")
    assert new.receive(frames.OPEN)[1] == 1
    assert played.board.nodes == ["a"]


def test_another_key_is_refused_and_costs_nobody_else_anything(join: Join, played: Played) -> None:
    client = join("client")
    stranger = End(played.port, make_credentials(), "client")
    with stranger:
        assert eventually(stranger.ended)
    client.send(frames.frame(frames.PING))
    client.receive(frames.PONG)
    assert played.board.clients == 1


def test_a_client_with_another_key_is_unreachable_with_the_reason(played: Played) -> None:
    backend = SwitchboardBackend(tcp(LOOPBACK, played.port), make_credentials(), ["a"])
    (opened,) = backend.open([Host(name="a", address="a")], ["true"])
    backend.close()
    assert isinstance(opened.result, HostUnreachable)
    assert "switchboard did not answer" in str(opened.result)


def test_a_switchboard_that_is_not_reached_again_is_why_a_host_is_lost(played: Played, credentials: str) -> None:
    ways = [tcp(LOOPBACK, played.port)]

    def connect() -> Channel:
        if ways:
            return ways.pop()()
        raise HostUnreachable("cannot connect to login1")

    backend = SwitchboardBackend(connect, credentials, ["a"], node_limit=0.0)
    list(backend.open([Host(name="a", address="a")], ["true"]))
    assert backend.why(0) == ""
    played.close()
    assert eventually(lambda: unreachable(backend) == "cannot connect to login1")
    assert backend.why(0) == "the switchboard is out of reach: cannot connect to login1"
    backend.close()


def unreachable(backend: SwitchboardBackend) -> str:
    try:
        backend.reopen(0, ["true"])
    except HostUnreachable as error:
        return str(error)
    return ""


def test_silent_strangers_are_disconnected_and_keep_nobody_out(
    join: Join, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board_module, "HANDSHAKE_LIMIT_S", 1.0)
    monkeypatch.setattr(board_module, "MAX_HANDSHAKES", 3)
    silent = [socket.create_connection((LOOPBACK, played.port), 10) for _ in range(8)]
    join("client")  # once those before it have been sent away
    for one in silent:
        with one:
            one.settimeout(60)
            assert one.recv(1) == b""


def test_another_version_is_refused_by_both_numbers(played: Played, credentials: str) -> None:
    with End(played.port, credentials, "client", version=77) as end:
        text = end.receive(frames.REFUSED)[2].decode()
    assert "version 77" in text
    assert f"version {frames.SWITCHBOARD_VERSION}" in text


def test_a_switchboard_is_idle_without_clients_and_busy_nodes(join: Join, played: Played) -> None:
    board = played.board
    assert board.idle_since is not None
    client = join("client")
    assert board.idle_since is None
    client.connection.close()
    assert eventually(lambda: board.idle_since is not None)
    node = join("node", "a")
    node.send(frames.record(frames.BUSY, is_busy=True, is_ending=False))
    assert eventually(lambda: board.idle_since is None)
    node.send(frames.record(frames.BUSY, is_busy=False, is_ending=False))
    assert eventually(lambda: board.idle_since is not None)


def test_a_client_that_comes_when_an_idle_allocation_ends_is_refused_with_the_reason(
    join: Join, played: Played, credentials: str
) -> None:
    node = join("node", "a")
    played.board.refuse_clients("nobody has used it for 5 s")
    with End(played.port, credentials, "client") as late:
        assert late.receive(frames.REFUSED)[2] == b"nobody has used it for 5 s"
    assert played.board.idle_since is not None
    node.send(frames.record(frames.BUSY, is_busy=True, is_ending=False))  # nodes go on
    assert eventually(lambda: played.board.idle_since is None)


def test_texts_of_the_holder_reach_clients_and_nodes(join: Join, played: Played) -> None:
    node, client = join("node", "a"), join("client")
    played.board.notify_clients("its time is up in 60 s")
    played.board.stop_nodes("its time is up")
    client.send(frames.frame(frames.PING))  # the loop runs in another thread
    node.send(frames.record(frames.BUSY, is_busy=False, is_ending=False))
    assert client.receive(frames.NOTICE)[2] == b"its time is up in 60 s"
    assert node.receive(frames.STOP)[2] == b"its time is up"


def test_a_switchboard_takes_more_connections_than_its_first_limit_of_open_files(
    tmp_path: Path, credentials: str
) -> None:
    path = tmp_path / "switchboard.zip"
    path.write_bytes(pack())
    program = [sys.executable, "-I", "-S", str(path), "board", "--address", LOOPBACK]
    argv = ["sh", "-c", 'ulimit -S -n 20; exec "$@"', "sh", *program]
    board = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert board.stdin is not None
    assert board.stdout is not None
    with board.stdin as stdin:
        stdin.write(credentials.encode())
    port = json.loads(board.stdout.readline())["port"]
    ends = [welcomed(port, credentials, "node", f"n{number}") for number in range(30)]
    for end in ends:
        end.connection.close()
    board.terminate()
    board.wait()
    board.stdout.close()


def test_a_key_is_read_where_files_in_memory_cannot_be_had(
    played: Played, credentials: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")  # as on a Mac
    with End(played.port, credentials, "client") as end:
        end.receive(frames.WELCOME)


def test_a_port_of_the_range_is_taken_and_a_full_range_is_an_error(credentials: str) -> None:
    with listen_quietly() as taken:  # at a port that no other program is given
        port = taken.getsockname()[1]
        board = Board(credentials, (port, port), LOOPBACK)
        with pytest.raises(OSError, match="in use"):
            board.listen()
        board.close()
    board = Board(credentials, (port, port), LOOPBACK)
    assert board.listen() == port
    board.close()


def test_the_program_writes_its_port_and_ends_when_it_is_idle_for_long(tmp_path: Path, credentials: str) -> None:
    path = tmp_path / "switchboard.zip"
    path.write_bytes(pack())
    argv = [sys.executable, "-I", "-S", str(path), "board", "--address", LOOPBACK, "--hold", "0.1"]
    done = subprocess.run(argv, input=credentials.encode(), capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout)["port"] > 0


def test_a_node_whose_switchboard_is_gone_gives_up(credentials: str) -> None:
    with socket.socket() as closed:  # bound, and nobody listens
        closed.bind((LOOPBACK, 0))
        program = (
            "import sys; from mesh.agent.switchboard import node; node.GIVE_UP_S = 0.1; "
            f"node.Node([('{LOOPBACK}', {closed.getsockname()[1]})], 'n', sys.stdin.read()).run()"
        )
        done = subprocess.run([sys.executable, "-c", program], input=credentials.encode(), check=False, timeout=120)
    assert done.returncode == 0


class StuckLink:
    """A connection that takes and gives nothing. Its end waits as well, as that of a dead SSH connection does."""

    def __init__(self) -> None:
        self.freed = threading.Event()

    def send(self, data: bytes) -> None:
        self.freed.wait()

    def receive(self) -> bytes:
        self.freed.wait()
        return b""

    def farewell(self) -> Farewell:
        return Farewell(status=None, stderr=b"")

    def close(self, *, leave: bool = False) -> None:
        self.freed.wait()


def test_a_link_that_is_stuck_in_sending_ends_all_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_module, "SILENCE_LIMIT_S", 0.2)
    monkeypatch.setattr(line_module, "JOIN_TIMEOUT_S", 0.1)
    link = StuckLink()
    line = Line(link, make_credentials(), lambda text: None)
    try:
        channel = line.open("a", ["true"], 1 << 16)
        assert channel.receive() == b""
        assert channel.why == "the connection to the switchboard ended: no answer for 0.2 s"
        assert line.is_over
        assert line.wait_nodes({"a"}, 60.0) == set()
    finally:
        link.freed.set()
        line.close()
