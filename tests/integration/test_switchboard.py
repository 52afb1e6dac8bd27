"""Runs through a switchboard with real nodes and agents, and the death of each of its parts."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.backends.switchboard.backend import SwitchboardBackend
from mesh.backends.switchboard.channel import StreamChannel
from mesh.backends.switchboard.ways import tcp
from mesh.core.cluster import Host
from mesh.core.errors import ChannelClosed, HostUnreachable
from tests.conftest import Home
from tests.lab import eventually
from tests.pythons import pythons
from tests.switched import Switchboard, SwitchedHome
from tests.switched_client import LOOPBACK

ENDS_S = 60.0  # for what ends within a few seconds on a machine that is idle
OLDEST = min(pythons().items(), key=lambda one: tuple(map(int, one[0].split("."))))[1]


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Switchboard]:
    """A switchboard with the nodes a and b, on the oldest Python that there is here."""
    with Switchboard(tmp_path / "switchboard", ["a", "b"], OLDEST) as made:
        yield made


@pytest.fixture
def user(home: Home, board: Switchboard) -> SwitchedHome:
    home.clusters(board.cluster_yaml())
    return SwitchedHome(home.path, home.project, home.environ, board=board)


def running(words: str) -> list[int]:
    """The processes whose command begins with these words."""
    found, wanted = [], words.replace(" ", "\0").encode() + b"\0"
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(wanted):
                found.append(int(path.parent.name))
    return found


def nap(number: int) -> str:
    """Return a command that sleeps, which no other test run on this machine has."""
    return f"sleep {number}.{os.getpid()}"


def read_until(process: subprocess.Popen[bytes], text: bytes) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    assert process.stderr is not None
    raise AssertionError(process.stderr.read().decode())


def logged(home: Home) -> dict[str, bytes]:
    """Return the output of each rank of the only run."""
    return {path.name: path.read_bytes() for path in (home.path / ".local/state/mesh/runs").glob("*/logs/rank-*out*")}


# ---- what comes through


PRINTS = """
import os, random, sys
number = random.Random(int(os.environ["RANK"]))
for line in range(3000):
    sys.stdout.buffer.write(number.randbytes(number.choice((1, 60, 700))).replace(b"\\0\\n", b"\\0") + b"\\0\\n")
"""


def printed(rank: int) -> bytes:
    number = random.Random(rank)
    return b"".join(
        number.randbytes(number.choice((1, 60, 700))).replace(b"\0\n", b"\0") + b"\0\n" for _ in range(3000)
    )


def test_eight_ranks_print_bytes_that_all_arrive(user: SwitchedHome) -> None:
    user.files(prints__py=PRINTS)
    done = user.mesh("run", "--quiet", "--nproc", "4", "pod", "python3", "prints.py")
    assert done.status == 0, done.err
    files = logged(user)
    assert len(files) == 8
    assert sorted(files.values()) == sorted(printed(rank) for rank in range(8))


def opened(board: Switchboard, *words: str) -> tuple[SwitchboardBackend, list[StreamChannel]]:
    """Programs on both nodes, and the backend that has started them."""
    backend = SwitchboardBackend(tcp(LOOPBACK, board.port), board.credentials, ["a", "b"])
    hosts = [Host(name=name, address=name) for name in "ab"]
    found = {one.node: one.result for one in backend.open(hosts, words)}
    channels = [found[0], found[1]]
    assert all(isinstance(channel, StreamChannel) for channel in channels), channels
    return backend, [channel for channel in channels if isinstance(channel, StreamChannel)]


def test_a_hundred_megabytes_without_a_newline_arrive_byte_for_byte(board: Switchboard) -> None:
    backend, (first, _) = opened(board, "cat")
    part, came, count = random.Random(1).randbytes(1 << 20), hashlib.blake2b(), 0
    sender = threading.Thread(target=lambda: [first.send(part) for _ in range(100)])
    sender.start()
    while count < 100 << 20:
        data = first.receive()
        assert data
        came.update(data)
        count += len(data)
    sender.join()
    backend.close()
    sent = hashlib.blake2b()
    for _ in range(100):
        sent.update(part)
    assert came.digest() == sent.digest()


def test_a_reader_and_a_program_that_take_nothing_hold_up_nobody_else(board: Switchboard) -> None:
    backend, (flood, other) = opened(board, "sh", "-c", 'read word; [ "$word" = flood ] && exec yes; cat')
    flood.send(b"flood\n")  # yes(1) fills the window of the client, who does not read it

    def fill() -> None:
        with contextlib.suppress(ChannelClosed):
            while True:
                flood.send(bytes(1 << 20))  # nor does yes(1) read

    sender = threading.Thread(target=fill)
    sender.start()
    other.send(b"echo\n")
    for number in range(300):
        other.send(b"%d\n" % number)
        assert other.receive()
    second, (_, third) = opened(board, "sh", "-c", "echo here")
    assert third.receive() == b"here\n"
    second.close()
    backend.close()
    sender.join()


def test_the_last_words_of_a_client_arrive_though_it_reads_nothing(board: Switchboard, tmp_path: Path) -> None:
    script = f'yes & read word; kill $!; echo "$word" >{tmp_path}/$$; exec sleep 0'
    backend, channels = opened(board, "sh", "-c", script)
    for channel in channels:
        assert channel.receive()  # the output flows
        channel.send(b"bye\n")
        channel.close(leave=True)
    backend.close()
    assert eventually(lambda: [path.read_text() for path in tmp_path.glob("[0-9]*")] == ["bye\n", "bye\n"], ENDS_S)


def test_the_end_of_a_program_comes_with_its_status_and_stderr(board: Switchboard) -> None:
    backend, (first, second) = opened(board, "sh", "-c", "echo last; echo why >&2; exit 7")
    for channel in (first, second):
        assert (channel.receive(), channel.receive()) == (b"last\n", b"")
        farewell = channel.farewell()
        assert (farewell.status, farewell.stderr) == (7, b"why\n")
    backend.close()
    backend, (first, _) = opened(board, "/no/such/program")
    assert first.receive() == b""
    assert (first.farewell().status, first.farewell().stderr) == (127, b"/no/such/program: No such file or directory")
    backend.close()


def test_a_node_that_has_not_connected_is_waited_for_and_then_named(board: Switchboard) -> None:
    opened(board, "true")[0].close()  # a has connected
    backend = SwitchboardBackend(tcp(LOOPBACK, board.port), board.credentials, ["a", "c"], node_limit=4.0)
    found = {one.node: one.result for one in backend.open([Host(name=n, address=n) for n in "ac"], ["true"])}
    backend.close()
    assert isinstance(found[0], StreamChannel)
    assert isinstance(found[1], HostUnreachable)
    assert str(found[1]) == "c: not connected to the switchboard within 4 s"


def test_commands_of_two_clients_at_once_and_through_a_program_that_copies(user: SwitchedHome) -> None:
    user.environ["BY_BRIDGE"] = "1"
    go = user.path / "go"
    first = user.popen("exec", "pod", "sh", "-c", f"echo up; until [ -e {go} ]; do sleep 0.05; done; echo of the first")
    read_until(first, b"up")
    del user.environ["BY_BRIDGE"]
    second = user.mesh("exec", "pod", "echo", "of the second")
    assert second.status == 0, second.err
    assert second.lines == ["[0] of the second", "[1] of the second"]
    go.touch()
    out, err = first.communicate(timeout=ENDS_S)
    assert first.returncode == 0, err
    assert out.count(b"of the first") == 2


def test_a_detached_run_is_found_and_followed_by_another_client(user: SwitchedHome) -> None:
    go = user.path / "go"
    started = user.mesh(
        "run", "-d", "pod", "sh", "-c", f"echo begun; until [ -e {go} ]; do sleep 0.05; done; echo done"
    )
    assert started.status == 0, started.err
    follower = user.popen("attach", started.out.decode().strip())
    read_until(follower, b"begun")
    go.touch()
    out, err = follower.communicate(timeout=ENDS_S)
    assert follower.returncode == 0, err
    assert out.count(b"done") == 2


# ---- what dies


def test_a_switchboard_that_is_killed_and_started_again_loses_and_doubles_no_line(
    user: SwitchedHome, board: Switchboard
) -> None:
    go = user.path / "go"
    counts = f"i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo line $i; [ -e {go} ] || sleep 0.05; done"
    process = user.popen("run", "pod", "sh", "-c", counts)
    read_until(process, b"line 3")
    board.board.kill()
    board.board.wait()
    board.start_board()
    go.touch()
    _, err = process.communicate(timeout=ENDS_S)
    assert process.returncode == 0, err.decode()
    lines = b"".join(b"line %d\n" % number for number in range(1, 301))
    assert list(logged(user).values()) == [lines, lines]


def test_a_switchboard_that_is_killed_in_the_middle_of_an_upload_starts_nothing_and_the_next_run_does(
    user: SwitchedHome, board: Switchboard, tmp_path: Path
) -> None:
    data = random.Random(1).randbytes(60 << 20)
    (user.project / "big").write_bytes(data)
    process = user.popen("run", "pod", "sha256sum", "big")

    def received() -> bool:
        with contextlib.suppress(FileNotFoundError):  # it was renamed or removed in mid look
            packs = (tmp_path / "switchboard").glob("home-*/.mesh/machines/**/pack-*")
            return any(path.stat().st_size for path in packs)
        return False

    assert eventually(received, ENDS_S)
    board.board.kill()
    board.board.wait()
    board.start_board()
    _, err = process.communicate(timeout=ENDS_S)
    if process.returncode:  # 0: the upload was over just before
        assert process.returncode == 125, err.decode()
        assert "the connection to the switchboard ended" in err.decode()
        assert "its agent ended" not in err.decode()
    again = user.mesh("run", "pod", "sha256sum", "big")
    digest = hashlib.sha256(data).hexdigest()
    assert sorted(again.lines) == [f"[{rank}] {digest}  big" for rank in range(2)], again.err


def test_a_switchboard_that_stays_away_ends_the_run_and_leaves_nothing(user: SwitchedHome, board: Switchboard) -> None:
    user.client_return = 1.0
    words = ["--host-grace", "3", "--grace", "0.5"]
    sleep = nap(48151)
    process = user.popen("run", *words, "pod", "sh", "-c", f"trap '' TERM; echo up; {sleep}")
    read_until(process, b"up")
    assert eventually(lambda: len(running(sleep)) == 2, ENDS_S)
    board.board.kill()
    _, err = process.communicate(timeout=ENDS_S)
    assert process.returncode == 76, err.decode()
    assert eventually(lambda: not running(sleep), ENDS_S)
    board.board.wait()
    board.start_board()
    done = user.mesh("exec", "pod", "true")
    assert done.status == 0, done.err


@pytest.mark.parametrize("deaf", [False, True], ids=["", "ranks that ignore SIGTERM"])
def test_nothing_is_left_of_a_client_that_is_killed(user: SwitchedHome, deaf: bool) -> None:
    user.client_return = 1.0
    sleep = nap(48161)
    command = "trap '' TERM; " * deaf + f"setsid {sleep} & echo up; {sleep}; {sleep}"
    process = user.popen("run", "--grace", "0.5", "pod", "bash", "-c", command)
    read_until(process, b"up")
    assert eventually(lambda: len(running(sleep)) == 4, ENDS_S)
    process.kill()
    process.communicate()
    assert eventually(lambda: not running(sleep), ENDS_S)


def test_a_node_that_is_killed_is_named_and_its_ranks_end(user: SwitchedHome, board: Switchboard) -> None:
    user.client_return = 1.0
    words = ["--host-grace", "3", "--grace", "0.5"]
    sleep = nap(48153)
    process = user.popen("run", *words, "pod", "sh", "-c", f"echo up; exec {sleep}")
    read_until(process, b"up")
    assert eventually(lambda: len(running(sleep)) == 2, ENDS_S)
    board.nodes["b"].kill()
    _, err = process.communicate(timeout=ENDS_S)
    assert process.returncode == 76, err.decode()
    assert "host b" in err.decode()
    assert "lost contact with" in err.decode()
    assert eventually(lambda: not running(sleep), ENDS_S)
    board.nodes["b"].wait()


def test_a_node_that_is_started_again_is_reached_again(user: SwitchedHome, board: Switchboard) -> None:
    """Its agent has outlived it, and a new channel is brought to that."""
    go = user.path / "go"
    process = user.popen("run", "pod", "sh", "-c", f"echo up; until [ -e {go} ]; do sleep 0.05; done; echo done")
    read_until(process, b"up")
    board.nodes["b"].kill()
    board.nodes["b"].wait()
    board.start_node("b")
    go.touch()
    out, err = process.communicate(timeout=ENDS_S)
    assert process.returncode == 0, err.decode()
    assert out.count(b"done") == 2


SIGTERM_WHILE_A_PROGRAM_STARTS = """
import signal, sys
from mesh.agent.switchboard import node
from mesh.engine.credentials import make_credentials

class Child(node.Child):
    def __init__(self, argv):
        super().__init__(argv)
        signal.raise_signal(signal.SIGTERM)

node.Child = Child
one = node.Node([("127.0.0.1", 1)], "a", make_credentials())
one._prepare()
one._open(1, {"argv": ["sleep", "600"], "window": 1})
one.run()
print("over")
"""


def test_a_sigterm_that_comes_while_a_node_starts_a_program_ends_that_program(home: Home) -> None:
    words = [sys.executable, "-c", SIGTERM_WHILE_A_PROGRAM_STARTS]
    done = subprocess.run(words, env=home.environ, capture_output=True, text=True, timeout=ENDS_S, check=False)
    assert (done.returncode, done.stdout) == (0, "over\n"), done.stderr


def test_a_node_that_is_stopped_ends_its_agents_before_it_ends(user: SwitchedHome, board: Switchboard) -> None:
    sleep = nap(48154)
    text = f"trap 'echo saved; exit 0' TERM; echo up; {sleep} & wait"
    process = user.popen("run", "--grace", "30", "pod", "sh", "-c", text)
    read_until(process, b"up")
    assert eventually(lambda: len(running(sleep)) == 2, ENDS_S)
    board.nodes["b"].send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=ENDS_S)
    assert process.returncode != 0, err.decode()
    assert b"saved" in out
    assert board.nodes["b"].wait(ENDS_S) == 0
    assert eventually(lambda: not running(sleep), ENDS_S)
    assert board.nodes["a"].poll() is None
