"""Nodes of a switchboard that are played in one process, a thousand and more, each with agents that are played.

python -m benchmarks.switchboard_nodes PORT COUNT LINES EQUAL    (the key on stdin)
"""

from __future__ import annotations

import json
import resource
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from mesh.agent.link.tls import tls_context
from mesh.agent.switchboard import frames
from mesh.agent.switchboard.connection import READ_BYTES, Connection, ConnectionEnded
from mesh.agent.switchboard.flow import Credit, Taken
from mesh.agent.switchboard.main import read_credentials
from mesh.backends.switchboard.backend import SwitchboardBackend
from mesh.backends.switchboard.program import pack
from mesh.backends.switchboard.ways import tcp
from mesh.engine.credentials import make_credentials
from tests.lab import peak_memory
from tests.scripted import Play, ScriptedChannel, prints

LOOPBACK = "127.0.0.1"
TURN_S = 2.0  # in which each node reports


def name_of(number: int) -> str:
    """The name of a host that is played."""
    return f"host-{number:05d}"


class _Agent:
    """The stream of one agent that is played."""

    def __init__(self, channel: ScriptedChannel, window: int) -> None:
        self.channel, self.credit, self.taken = channel, Credit(window), Taken(window)
        self.rest = b""

    def pieces(self) -> Iterator[bytes]:
        """Yield what it sends now, as far as the client takes it."""
        while self.credit.left and (data := self.rest or self.channel.ready()):
            size = self.credit.take(min(len(data), frames.DATA_BYTES))
            self.rest = data[size:]
            yield data[:size]


class _Node:
    """A node: a connection, and its agents."""

    def __init__(self, number: int, connection: Connection, play: Play) -> None:
        self.connection, self._number, self._play = connection, number, play
        self._agents: dict[int, _Agent] = {}
        hello = {"version": frames.SWITCHBOARD_VERSION, "role": frames.NODE_ROLE, "name": name_of(number)}
        connection.out.put(frames.record(frames.HELLO, 0, **hello))

    def report(self) -> None:
        self.connection.out.put(frames.record(frames.BUSY, is_busy=bool(self._agents), is_ending=False))

    def handle(self, kind: bytes, stream: int, data: bytes) -> None:
        put = self.connection.out.put
        if kind == frames.OPEN:
            window = frames.read_record(data)["window"]
            assert isinstance(window, int)
            self._agents[stream] = _Agent(ScriptedChannel(self._number, self._play, {}, None), window)
        elif kind == frames.END:
            self._agents.pop(stream, None)
        elif stream in self._agents:
            agent = self._agents[stream]
            if kind == frames.TAKEN:
                agent.credit.widen(frames.read_count(data))
            else:
                agent.channel.send(data)
                if taken := agent.taken.add(len(data)):
                    put(frames.frame(frames.TAKEN, stream, frames.COUNT.pack(taken)))
            for piece in agent.pieces():
                put(frames.frame(frames.DATA, stream, piece), stream)


def play(port: int, count: int, run: Play, credentials: str) -> None:
    """Play nodes until the switchboard ends; write a line once all have connected."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    context, poll, buffer = tls_context(credentials, server=False), select.epoll(), memoryview(bytearray(READ_BYTES))
    nodes: dict[int, _Node] = {}
    report_at = time.monotonic() + TURN_S
    for number in range(count):
        own = socket.create_connection((LOOPBACK, port), 60)
        node = nodes[own.fileno()] = _Node(number, Connection(own, context, server=False), run)
        node.connection.flush()
        poll.register(own.fileno(), select.EPOLLIN)
        report_at = _report(poll, nodes, report_at)
    strangers = count
    while nodes:
        ready = poll.poll(TURN_S)
        for descriptor, _ in ready:
            node = nodes[descriptor]
            try:
                for frame in node.connection.receive(buffer):
                    node.handle(*frame)
                    if frame[0] == frames.WELCOME:
                        strangers -= 1
                        if not strangers:
                            print("connected", flush=True)
                _flush(poll, node)
            except ConnectionEnded:
                poll.unregister(descriptor)
                nodes.pop(descriptor).connection.close()
        report_at = _report(poll, nodes, report_at)


def _report(poll: select.epoll, nodes: dict[int, _Node], due: float) -> float:
    """Have all nodes report, if that is due; return when it is due next."""
    if time.monotonic() < due:
        return due
    for node in nodes.values():
        node.report()
        _flush(poll, node)
    return time.monotonic() + TURN_S


def _flush(poll: select.epoll, node: _Node) -> None:
    node.connection.flush()
    poll.modify(
        node.connection.socket.fileno(), select.EPOLLIN | (select.EPOLLOUT if node.connection.wants_to_write else 0)
    )


class PlayedNodes:
    """A switchboard, and nodes that are played."""

    def __init__(self, count: int, lines: int, *, equal: bool) -> None:
        self._count, self._lines, self._equal = count, lines, equal
        self._credentials = make_credentials()

    def __enter__(self) -> PlayedNodes:
        with tempfile.NamedTemporaryFile(suffix=".zip") as file:
            file.write(pack())
            file.flush()
            argv = [sys.executable, "-I", "-S", file.name, "board", "--address", LOOPBACK]
            self._board = self._start(argv)
            assert self._board.stdout is not None
            self.port = json.loads(self._board.stdout.readline())["port"]
        words = [str(self.port), str(self._count), str(self._lines), str(int(self._equal))]
        self._nodes = self._start([sys.executable, "-m", "benchmarks.switchboard_nodes", *words])
        assert self._nodes.stdout is not None
        self._nodes.stdout.readline()  # all have connected
        return self

    def __exit__(self, *why: object) -> None:
        for process in (self._board, self._nodes):
            process.terminate()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def backend(self, hosts: int) -> SwitchboardBackend:
        """The client's end."""
        return SwitchboardBackend(tcp(LOOPBACK, self.port), self._credentials, list(map(name_of, range(hosts))))

    def costs(self) -> dict[str, float]:
        """CPU seconds and MB of the switchboard."""
        fields = Path(f"/proc/{self._board.pid}/stat").read_text().rpartition(")")[2].split()
        return {"board cpu": (int(fields[11]) + int(fields[12])) / 100, "board memory": peak_memory(self._board.pid)}

    def _start(self, argv: list[str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        with process.stdin as stdin:
            stdin.write(self._credentials.encode())
        return process


def main() -> None:
    port, count, lines, equal = map(int, sys.argv[1:])
    run = prints(lines, lambda rank, line: b"rank %d step %d\n" % (0 if equal else rank, line))
    play(port, count, run, read_credentials(0))


if __name__ == "__main__":
    main()
