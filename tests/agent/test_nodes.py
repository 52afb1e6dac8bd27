"""The nodes of a program on one host: their sockets, control sockets, files, restarts and relayed connections."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mesh.agent.ask.reach import listen_quietly
from mesh.core.cluster import Host, NodeSockets, place_ranks
from mesh.core.events import Connected, Exited, Gone, Locked, Output, PrepareFailed, Ready, Started, Stream
from mesh.core.nodes import NodeResult, ProgramStopped, RankReady, Restarted, Restarting
from mesh.engine.relaying import Relay
from mesh.protocol.nodes import Node, NodeAddress
from mesh.protocol.requests import RankStart
from mesh.remote.programs import program_library
from tests.firsts import finds, prepare_request
from tests.lab import eventually

from .conftest import Open, Run

# A node that does what its payload has it do, with the standard library alone.
NODE = """
import json, os, signal, socket, sys
control = socket.socket(fileno=int(os.environ["MESH_CONTROL_FD"]))
sockets = {name: socket.socket(fileno=number) for name, number in json.loads(os.environ["MESH_NODE_SOCKETS"]).items()}
book = json.load(open(os.environ["MESH_ADDRESS_BOOK"]))
label, attempt = os.environ["MESH_LABEL"], int(os.environ["MESH_ATTEMPT"])
def up(**message): control.send(json.dumps(message).encode())
def down(): return json.loads(control.recv(65536))
def say(*words): print(*words, flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
exec(open(os.environ["MESH_PAYLOAD"]).read())
"""
ECHO = """
while True:
    peer, _ = sockets["unix"].accept()
    peer.sendall(b"%s %d:" % (label.encode(), attempt))
    while data := peer.recv(65536):
        if data == b"die": os._exit(3)
        peer.sendall(data)
    peer.close()
"""
HEAR = "if label == 'echo/1':\n    while True: say(down())"
WAIT = """
while True:
    message = down()
    if "stop" in message: say(message); sys.exit(5)
"""
MEET = "while down().get('news') != 'echo/1': pass"


class Program:
    """A program of nodes on one agent."""

    def __init__(self, run: Run, nodes: list[Node], payload: str) -> None:
        self.run, self.nodes = run, nodes
        run.until(Connected)
        run.session.lock()
        locked = run.until(Locked)
        assert isinstance(locked, Locked)
        self.sockets: dict[int, NodeSockets] = {one.rank: one for one in locked.sockets}
        book = [
            NodeAddress(
                label=node.label,
                host=0,
                address="127.0.0.1",
                unix=found.unix,
                ports=found.ports,
                remote=node.remote,
            )
            for node in nodes
            for found in [self.sockets[node.rank]]
        ]
        run.session.bring_program(book, "secret key", {"ab": payload.encode()})
        run.session.prepare(prepare_request((), finds({"RANK": "0"})))
        run.until(Ready)
        env = [{"RANK": str(node.rank), "MESH_LABEL": node.label} for node in nodes]
        ranks = [RankStart(rank=node.rank, env=env[place], stdin=False) for place, node in enumerate(nodes)]
        run.session.start([sys.executable, "-c", NODE], ranks)
        for _ in nodes:
            run.until(Started)

    @property
    def directory(self) -> Path:
        return Path(self.sockets[self.nodes[0].rank].unix).parent

    def call(self, rank: int, data: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(60.0)
            peer.connect(self.sockets[rank].unix)
            peer.sendall(data)
            found = b""
            while len(found) < len(data) + 8 and (piece := peer.recv(65536)):
                found += piece
            return found


def node(rank: int, **changes: object) -> Node:
    return Node(rank=rank, label=f"echo/{rank}", sockets=1, payload="ab").replaced(**changes)


Start = Callable[..., Program]


@pytest.fixture
def begin(opener: Open, python: str) -> Start:
    def start(nodes: list[Node], payload: str, **changes: object) -> Program:
        return Program(opener(python, nodes=nodes, **changes), nodes, payload)

    return start


def test_a_node_has_its_sockets_files_and_variables_and_nothing_of_them_stays(begin: Start) -> None:
    show = "key = open(os.environ['MESH_LINK_KEY']).read()\n"
    show += "masked = sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))\n"
    show += "say(json.dumps([book, key, sorted(sockets), sys.argv, masked, dict(os.environ)]))"
    program = begin([node(0, remote=True), node(1, sockets=2)], f"{show}\nup(ready=True)\n{WAIT}")
    run, directory = program.run, program.directory
    run.until(RankReady)
    run.until(RankReady)
    files = [path for path in directory.iterdir() if not path.is_socket()]
    assert {path.name for path in files} == {"nodes.json", "plan.json"}  # the key and payloads are in memory
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for rank, names in enumerate((["tcp", "unix"], ["tcp-1", "unix"])):
        while b"\n" not in run.printed(rank=rank):
            run.until(Output)
        book, key, sockets, argv, masked, environment = json.loads(run.printed(rank=rank).splitlines()[0])
        assert (key, sockets, argv) == ("secret key", names, ["-c"])
        assert masked == [signal.SIGINT, signal.SIGTERM]  # until it has handlers
        assert book[f"echo/{rank}"]["unix"] == program.sockets[rank].unix
        assert environment["MESH_LABEL"] == f"echo/{rank}"
        assert (environment["MESH_ATTEMPT"], "secret" in str(environment)) == ("0", False)
    assert book["echo/0"]["tcp"] == ["127.0.0.1", program.sockets[0].ports[0]]
    assert book["echo/1"] == {
        "host": 0,
        "unix": program.sockets[1].unix,
        "tcp": None,
        "more": [["127.0.0.1", program.sockets[1].ports[0]]],
    }
    assert run.finish().left == ()
    ends = {event.rank: event.code for event in run.events if isinstance(event, Exited)}
    assert ends == {0: 5, 1: 5}
    assert run.printed(rank=0).splitlines()[1:] == [b"{'stop': 'stop'}"]
    assert eventually(lambda: not directory.exists())


def test_callers_may_connect_before_the_node_is_there_and_a_restart_keeps_the_sockets(begin: Start) -> None:
    program = begin([node(0, restarts=2), node(1)], f"up(ready=True)\n{HEAR}\n{ECHO}")
    run = program.run
    assert program.call(0, b"hello") == b"echo/0 0:hello"
    assert program.call(0, b"die") == b"echo/0 0:"
    event = run.until(Restarting)
    assert isinstance(event, Restarting)
    assert (event.rank, event.attempt, event.code) == (0, 1, 3)
    assert program.call(0, b"again") == b"echo/0 1:again"  # it waited in the backlog
    assert isinstance(event := run.until(Restarted), Restarted)
    assert event.attempt == 1
    run.until(RankReady, where=lambda event: isinstance(event, RankReady) and event.attempt == 1)
    assert b"mesh: echo/0: started again after exit 3, attempt 1\n" in run.printed(Stream.STDERR)
    assert program.call(0, b"die") == b"echo/0 1:"
    assert program.call(0, b"third") == b"echo/0 2:third"
    assert program.call(0, b"die") == b"echo/0 2:"
    exited = run.until(Exited)
    assert isinstance(exited, Exited)
    assert (exited.rank, exited.code) == (0, 3)
    with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
        program.call(0, b"gone")
    while b"{'news': 'echo/0', 'state': 'restarting', 'attempt': 1, 'why': 'exit 3'}" not in run.printed(rank=1):
        run.until(Output)
    assert run.finish(grace=0.2).left == ()


def test_nodes_listen_at_the_ports_of_the_cluster_or_the_range_is_named(opener: Open, any_python: str) -> None:
    with listen_quietly() as taken:  # at a port that no other program is given
        first = taken.getsockname()[1]
        run = opener(any_python, nodes=[node(0, remote=True)], node_ports=[first, first])
        run.until(Connected)
        run.session.lock()
        failed = run.until(PrepareFailed)
        assert isinstance(failed, PrepareFailed)
        assert failed.message == f"the sockets of nodes cannot be opened: no port from {first} to {first} is free"
        assert "ss -tlnp" in failed.hint
        run.finish()
    again = opener(any_python, nodes=[node(0, remote=True)], node_ports=[first, first])
    again.until(Connected)
    again.session.lock()
    locked = again.until(Locked)
    assert isinstance(locked, Locked)
    assert [one.ports for one in locked.sockets] == [(first,)]
    again.finish()


def test_a_restart_by_hand_comes_at_once_and_is_no_failure(begin: Start) -> None:
    program = begin([node(0), node(1)], f"up(ready=True)\n{ECHO}")
    run = program.run
    for attempt in (1, 2):
        run.until(RankReady, where=lambda event, last=attempt - 1: event.attempt == last)  # type: ignore[attr-defined, misc]
        run.session.restart(0)
        event = run.until(Restarting)
        assert isinstance(event, Restarting)
        assert (event.rank, event.attempt, event.signal, event.seconds) == (0, attempt, signal.SIGKILL, 0.0)
        assert program.call(0, b"again") == b"echo/0 %d:again" % attempt
    assert program.call(0, b"die") == b"echo/0 2:"
    exited = run.until(Exited)
    assert isinstance(exited, Exited)
    assert (exited.rank, exited.code) == (0, 3)
    run.session.restart(0)  # it has ended for good
    assert run.finish(grace=0.2).left == ()
    assert [event.attempt for event in run.events if isinstance(event, Restarted)] == [1, 2]


def test_a_node_stops_its_program_with_a_status(begin: Start) -> None:
    stop = f"up(ready=True)\nif label == 'echo/0':\n    {MEET}\n    up(stop=7, why='enough')\n{WAIT}"
    program = begin([node(0), node(1)], stop)
    run = program.run
    event = run.until(ProgramStopped)
    assert isinstance(event, ProgramStopped)
    assert (event.rank, event.code, event.why) == (0, 7, "enough")
    run.until(Exited)
    run.until(Exited)  # without any order of the client
    assert run.printed(rank=1).splitlines() == [b"{'stop': 'stop'}"]
    assert run.finish().left == ()


def test_a_stop_that_is_the_last_act_of_a_node_counts(begin: Start) -> None:
    program = begin(
        [node(0), node(1)], f"up(ready=True)\nif label == 'echo/0':\n    {MEET}\n    up(stop=0); os._exit(0)\n{WAIT}"
    )
    assert isinstance(program.run.until(ProgramStopped), ProgramStopped)
    for _ in range(2):
        program.run.until(Exited)
    program.run.finish()


def test_a_node_whose_end_is_the_end_of_the_program(begin: Start) -> None:
    program = begin([node(0, ends_run=True), node(1)], f"if label == 'echo/0': sys.exit(0)\n{WAIT}")
    event = program.run.until(ProgramStopped)
    assert isinstance(event, ProgramStopped)
    assert (event.code, event.why) == (0, "echo/0 has ended")
    while len([one for one in program.run.events if isinstance(one, Exited)]) < 2:
        program.run.until(Exited)
    program.run.finish()


def test_no_restart_comes_after_the_order_to_end(opener: Open, any_python: str) -> None:
    nodes = [node(0, restarts=9)]
    program = Program(opener(any_python, nodes=nodes), nodes, "os._exit(3)")
    # Its next start is 8 s away, so that the order comes before it.
    program.run.until(Restarting, where=lambda event: isinstance(event, Restarting) and event.attempt == 4)
    gone = program.run.finish()
    assert gone.left == ()
    ends = [event for event in program.run.events if isinstance(event, Exited)]
    assert [(end.rank, end.code) for end in ends] == [(0, 3)]
    assert [event.attempt for event in program.run.events if isinstance(event, Restarted)] == [1, 2, 3]


def test_a_result_is_fetched_and_only_from_the_private_directory(begin: Start, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("not a result")
    write = f"""
up(result={str(other)!r})
place = os.path.join(os.path.dirname(os.environ["MESH_ADDRESS_BOOK"]), "result")
open(place, "wb").write(bytes(200000))
up(result=place)
"""
    program = begin([node(0)], write)
    run = program.run
    run.until(NodeResult, where=lambda event: isinstance(event, NodeResult) and event.is_last)
    data = b"".join(event.data for event in run.events if isinstance(event, NodeResult))
    assert data == bytes(200_000)
    assert other.exists()
    run.finish()


def test_bytes_of_a_client_reach_a_node_through_the_channel_and_come_back(opener: Open, any_python: str) -> None:
    run = opener(any_python, nodes=[node(0)])
    program = Program(run, [node(0)], f"up(ready=True)\n{ECHO}")
    run.until(RankReady)
    placement = place_ranks((Host(name="here", address=""),), labels=("echo",))
    threads: list[threading.Thread] = []

    def start(name: str, work: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=work, name=name, daemon=True))
        threads[-1].start()

    relay = Relay(placement, {0: run.session}, start)
    run.session._callbacks = run.session._callbacks.__class__(relay=relay.take)
    ended: queue.Queue[Gone] = queue.Queue()
    reader = threading.Thread(target=lambda: ended.put(run.until(Gone)), daemon=True)  # type: ignore[arg-type]
    reader.start()
    with relay.connect("echo/0") as peer:
        peer.settimeout(60.0)
        data = os.urandom(3_000_000)
        sender = threading.Thread(target=lambda: peer.sendall(data))
        sender.start()
        found = b""
        while len(found) < len(data) + 9:
            found += peer.recv(1 << 20)
        sender.join()
        assert found == b"echo/0 0:" + data
    relay.close()
    run.session.finish(15, 0.2)
    assert ended.get(timeout=60.0).left == ()
    reader.join()
    for thread in threads:
        thread.join(60.0)
    assert not [thread for thread in threads if thread.is_alive()]
    assert program.directory


def test_nothing_stays_after_a_client_that_is_gone(begin: Start) -> None:
    program = begin([node(0)], f"up(ready=True)\n{WAIT}")
    program.run.until(RankReady)
    directory = program.directory
    program.run.session._sender.channel.close()
    assert eventually(lambda: not directory.exists())


def test_nothing_stays_after_an_agent_that_is_killed(begin: Start) -> None:
    program = begin([node(0)], f"up(ready=True)\n{WAIT}")
    program.run.until(RankReady)
    (started,) = [event for event in program.run.events if isinstance(event, Started)]
    agent = int(Path(f"/proc/{started.pid}/stat").read_text().rpartition(")")[2].split()[1])
    directory = program.directory
    os.kill(agent, signal.SIGKILL)
    assert eventually(lambda: not directory.exists() and not Path(f"/proc/{started.pid}").exists())


def test_the_library_of_programs_is_found_by_each_python_and_kept(
    opener: Open, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)  # which may lead to another mesh
    run = opener(python)
    run.prepare(library=program_library())
    run.start(python, "-c", "import meshrun, mesh.program.runtime.links as links; print(links.__file__)")
    assert run.result().status == 0, run.printed(Stream.STDERR)
    place = run.printed().decode().partition(".zip/")[0] + ".zip"
    assert Path(place).read_bytes() == program_library()
