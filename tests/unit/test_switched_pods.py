"""The switchboard of pods: what is rendered for it, and real programs that stand for the pods."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from mesh.agent.ask.reach import listen_quietly
from mesh.agent.switchboard.board import Board
from mesh.agent.switchboard.pods import Calls
from mesh.api.podshow import objects_text
from mesh.backends.command import CommandChannel
from mesh.backends.pods.switched import PROGRAM
from mesh.backends.switchboard.channel import StreamChannel
from mesh.backends.switchboard.line import Line
from mesh.backends.switchboard.program import pack
from mesh.config.podspec import MadePods, PodTemplate
from mesh.core.credentials import make_credentials
from mesh.core.interfaces import Farewell
from mesh.hosts.kubernetes import render
from mesh.hosts.kubernetes.render import Made
from tests.lab import eventually

WAIT_S = 300.0  # beside many other processes, each of these programs begins slowly
LOOPBACK = "127.0.0.1"
NODE = """\
import socket, sys
sys.path.insert(0, sys.argv[1])
from mesh.agent.switchboard import pods
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
pods.answer_calls(open(sys.argv[2]).read(), listener)
"""
BOARD = """\
import sys
sys.path.insert(0, sys.argv[1])
from mesh.agent.switchboard import pods
pods.NODE_PORT = int(sys.argv[3])
sys.exit(pods.run_board(open(sys.argv[2]).read()))
"""


@pytest.fixture(scope="module")
def key() -> str:
    return make_credentials()


class Pods:
    """The programs of a pod, as its holder and an exec start them."""

    def __init__(self, directory: Path) -> None:
        self.program = directory / "program"
        self.program.write_bytes(pack())
        self._directory = directory
        self._ends = contextlib.ExitStack()

    def node(self, key: str) -> int:
        """Start a node; return its port."""
        file = self._key(key)
        node = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", NODE, str(self.program), str(file)], stdout=subprocess.PIPE
        )
        assert node.stdout is not None
        self._ends.callback(node.wait)
        self._ends.callback(node.send_signal, signal.SIGKILL)
        self._ends.callback(node.stdout.close)
        return int(node.stdout.readline())

    def line(self, key: str, port: int) -> Line:
        """Start a switchboard which calls the node at a port, and connect to it as a client does."""
        argv = [sys.executable, "-I", "-S", "-c", BOARD, str(self.program), str(self._key(key)), str(port)]
        link = CommandChannel(argv, is_agent=False)
        self._ends.callback(lambda: link.reap(time.monotonic()))
        link.send(json.dumps({"nodes": {"p": LOOPBACK}}).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            data = link.receive()
            assert data, link.farewell()
            answer += data
        line = Line(link, json.loads(answer)["key"], lambda text: None)
        self._ends.callback(line.close)
        line.wait_welcome()
        return line

    def close(self) -> None:
        """End what was started."""
        self._ends.close()

    def _key(self, key: str) -> Path:
        file = self._directory / f"key-{abs(hash(key))}"
        file.write_text(key)
        return file


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    found = Pods(tmp_path)
    yield found
    found.close()


def made(nodes: int, **changes: object) -> Made:
    source = MadePods(template=PodTemplate(image="x"), nodes=nodes, **changes)  # type: ignore[arg-type]
    return Made(cluster="gpus", user="ana", source=source)


def output_of(channel: StreamChannel) -> bytes:
    return b"".join(iter(channel.receive, b""))


def test_a_stream_goes_through_a_switchboard_that_calls_the_pod(pods: Pods, key: str) -> None:
    line = pods.line(key, pods.node(key))
    assert line.wait_nodes({"p"}, WAIT_S) == {"p"}, line.why
    channel = line.open("p", ["sh", "-c", "head -c 307200 | sha256sum; seq 50000; echo no >&2; exit 5"], 65536)
    sent = bytes(range(256)) * 1200
    channel.send(sent)
    first, rest = output_of(channel).split(b"\n", 1)
    assert first.split()[0].decode() == hashlib.sha256(sent).hexdigest()
    assert rest == b"".join(b"%d\n" % number for number in range(1, 50_001))
    assert channel.farewell() == Farewell(status=5, stderr=b"no\n")


def test_a_program_outlives_its_client_and_its_node_serves_the_next_one(pods: Pods, key: str, tmp_path: Path) -> None:
    port = pods.node(key)
    first = pods.line(key, port)
    assert first.wait_nodes({"p"}, WAIT_S)
    channel = first.open("p", ["sh", "-c", f"echo up; cat >/dev/null; echo over >{tmp_path}/end"], 65536)
    assert channel.receive() == b"up\n"
    first.close()
    assert eventually((tmp_path / "end").exists, WAIT_S)
    second = pods.line(key, port)
    assert second.wait_nodes({"p"}, WAIT_S)
    assert output_of(second.open("p", ["echo", "again"], 65536)) == b"again\n"


def test_a_switchboard_without_the_key_gets_no_node(pods: Pods, key: str) -> None:
    port = pods.node(key)
    stranger = pods.line(make_credentials(), port)
    mine = pods.line(key, port)
    assert mine.wait_nodes({"p"}, WAIT_S) == {"p"}  # called later, and connected: the stranger was called before
    assert stranger.wait_nodes({"p"}, 0.0) == set()


def test_a_node_that_does_not_answer_is_called_again(key: str) -> None:
    board = Board(key, (0, 0), LOOPBACK)
    board.listen()
    with listen_quietly() as taken:  # at a port that no other program is given
        address = LOOPBACK, taken.getsockname()[1]
    calls = Calls(board, {"p": address})
    calls.turn(100.0)
    deadline = time.monotonic() + WAIT_S
    while board.has("p") and time.monotonic() < deadline:
        board.run_once(0.1)
    assert not board.has("p")
    with socket.create_server(address) as listener:
        listener.settimeout(WAIT_S)
        calls.turn(100.1)  # too early
        assert not board.has("p")
        calls.turn(101.0)
        assert board.has("p")
        listener.accept()[0].close()
    board.close()


def test_many_pods_have_the_key_from_a_secret_and_few_have_none() -> None:
    many, few = made(8, switchboard_from=8), made(7, switchboard_from=8)
    secret = json.dumps(render.secret_object(many, "uid-1", "PEM", b"zip"))
    pod = json.dumps(render.pod_object(many, 0, "uid-1"))
    assert base64.b64encode(b"PEM").decode() in secret
    assert render.secret_name(many, "uid-1") in secret
    assert f'"secretName": "{render.secret_name(many, "uid-1")}"' in pod
    assert f"{render.SWITCHBOARD_DIR}/{render.PROGRAM}" in pod
    assert "PEM" not in pod
    assert "secretName" not in json.dumps(render.pod_object(few, 0, "uid-1"))
    assert f"{render.SWITCHBOARD_DIR}/{render.PROGRAM}" == PROGRAM


def test_the_objects_that_are_shown_hold_no_key(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("gpus:\n  kubernetes: {image: x, nodes: 2, switchboard_from: 2}\n")
    shown = list(yaml.safe_load_all(objects_text("gpus", str(file))))
    assert [one["kind"] for one in shown] == ["ConfigMap", "Secret", "Pod", "Pod"]
    assert shown[1]["data"] == {"key": "", "program": ""}


def test_pods_of_few_are_others_than_pods_of_many() -> None:
    assert made(8, switchboard_from=8).digest != made(8).digest
    assert made(8, switchboard_from=9).digest == made(8).digest
