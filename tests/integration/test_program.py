"""Programs as processes: calls, faults, the end, restarts; on hosts of this machine and on those of the lab."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest

from mesh import api
from mesh.agent.base.directories import private_directories
from mesh.config.clusters import load_clusters
from mesh.config.settings import Options
from mesh.core.errors import MeshError, UsageError
from mesh.program import CallTimeout, Command, Handle, NodeLost, Program, RemoteError, connect, has
from mesh.program.running import Running
from tests.conftest import PATIENCE, REPOSITORY, Home
from tests.integration import program_nodes as nodes
from tests.integration import program_plain as nodes_of_any_python
from tests.lab import state_of
from tests.pythons import pythons


@pytest.fixture(autouse=True)
def _new_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home of its own, and a directory that is no project."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    before, threads = node_processes(), set(threading.enumerate())
    yield
    assert eventually(lambda: node_processes() <= before)
    assert eventually(lambda: set(threading.enumerate()) <= threads), set(threading.enumerate()) - threads
    assert eventually(lambda: not results_left()), results_left()


def results_left() -> list[Path]:
    """The results of this test's nodes that no agent has taken. Other tests may have theirs beside them just now."""
    runs = [path.name for path in Path(os.environ["HOME"], ".local/state/mesh/runs").glob("*")]
    places = map(Path, private_directories())
    return [path for place in places for run in runs for path in place.glob(f"{run}-*.nodes/result-*")]


def node_processes() -> set[str]:
    """The processes of nodes on this machine that belong to this test's process."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes()
            environ = (path / "environ").read_bytes()
        except OSError:
            continue
        if b"mesh.program.runtime.node" in words and f"HOME={os.environ['HOME']}\0".encode() in environ:
            found.add(path.name)
    return found


def eventually(condition: Callable[[], object]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def launch(program: Program) -> Running:
    return program.launch("local")


def new_program(name: str = "test") -> Program:
    return Program(name, python=sys.executable)


def test_a_program_on_hosts_of_this_machine() -> None:
    program = new_program("impala")
    servers = program.add(nodes.Server, on="tpu-[0-1]", per_host=2)
    program.add(nodes.Learner, servers, on="gpu-0")
    program.add(nodes.returns, 7, on="tpu-0")
    program.add(nodes.waits, on="tpu-1")
    with launch(program) as running:
        result = running.wait(PATIENCE)
        found = running.result("learner")
    assert (result.exit_code, result.reason, result.why, result.label) == (0, "stop", "learned", "learner")
    assert isinstance(found, list)
    assert [one[:2] for one in found] == [
        ("server/0", "tpu-0"),
        ("server/1", "tpu-0"),
        ("server/2", "tpu-1"),
        ("server/3", "tpu-1"),
    ]
    assert len({one[3] for one in found} | {os.getpid()}) == 5
    assert running.result("returns") == (7, "tpu-0")
    assert running.result("waits") == "stop"


def test_the_client_calls_nodes_and_gets_their_exceptions() -> None:
    program = new_program()
    server = program.add(nodes.Server, env={"COLOUR": "blue"})
    assert isinstance(server, Handle)
    with launch(program) as running:
        array = numpy.random.default_rng(1).random(300_000)
        assert (server.echo(array) == array).all()
        assert list(server.stream.count(100)) == list(range(100))
        assert [future.result(PATIENCE) for future in [server.futures.echo(n) for n in range(50)]] == list(range(50))
        assert server.environ("COLOUR") == "blue"
        with pytest.raises(nodes.Strange, match="1 and 2") as caught:
            server.fail()
        assert isinstance(caught.value, RemoteError)
        assert "program_nodes.py" in caught.value.traceback
        assert running.stop().ok


@pytest.mark.parametrize(
    ("call", "how"),
    [
        (lambda server: server.futures.kill(), "SIGKILL"),
        (lambda server: server.futures.leave(3), "exit 3"),
        (lambda server: server.futures.leave(0), "ended"),
    ],
    ids=["SIGKILL", "exit 3", "exit 0"],
)
def test_the_loss_of_a_node_fails_every_call_to_it(call: Callable[[Handle[nodes.Server]], object], how: str) -> None:
    program = new_program()
    server = program.add(nodes.Server, on="a", on_failure="ignore", concurrency=4)
    caller = program.add(nodes.Caller, server, on="b", concurrency=2)
    program.add(nodes.waits, on="b")
    with launch(program) as running:
        here, there = server.futures.hang(), caller.futures.hang_there()
        call(server)  # type: ignore[arg-type]
        for future in (here, there):
            error = future.exception(PATIENCE)
            assert isinstance(error, NodeLost), error
            assert "server on a: " in str(error)
        assert how in str(here.exception())
        assert eventually(lambda: running.nodes[0].state.value in ("failed", "ended"))
        with pytest.raises(NodeLost, match=f"server on a: .*{how}"):
            server.where()
        with pytest.raises(NodeLost, match="server on a"):
            caller.where_there()
        assert running.stop().ok


def test_a_failing_node_ends_the_program_and_is_named() -> None:
    program = new_program()
    program.add(nodes.waits, on="a")
    program.add(nodes.raises, on="b")
    with launch(program) as running:
        result = running.wait(PATIENCE)
        assert running.result("waits") == "failure"
    assert (result.exit_code, result.reason, result.label) == (1, "failure", "raises")
    with pytest.raises(nodes.Strange, match="3 and 4"):
        result.raise_for_failure()


SLOW = """
import os
import sys
import time

while not os.path.exists(GO):
    time.sleep(0.05)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_a_node_whose_interpreter_starts_behind_the_stop_has_its_reason(tmp_path: Path) -> None:
    """The signal that ends nodes waits until a node has a handler for it."""
    go, slow = tmp_path / "go", tmp_path / "slow-python"
    slow.write_text(f"#!{sys.executable}\nGO = {str(go)!r}\n{SLOW}")
    slow.chmod(0o755)
    program = new_program()
    program.add(nodes.waits, on="a", python=str(slow))
    program.add(nodes.raises, on="b")
    with launch(program) as running:  # a failure ends the wait for the others
        go.touch()
        assert running.wait(PATIENCE).label == "raises"
        assert running.result("waits") == "failure"


def test_the_exit_status_of_a_node_is_that_of_the_program() -> None:
    program = new_program()
    program.add(nodes.exits, 7)
    with launch(program) as running:
        assert running.wait(PATIENCE).exit_code == 7
        assert running.nodes[0].exit_code == 7


def test_stop_with_a_status_from_a_method() -> None:
    program = new_program()
    server = program.add(nodes.Server, on="a")
    program.add(nodes.waits, on="b", count=2)
    with launch(program) as running:
        server.stop_all(5)
        result = running.wait(PATIENCE)
    assert (result.exit_code, result.reason, result.why) == (5, "stop", "asked to")
    assert running.result("waits") == ["stop", "stop"]


def test_a_node_is_started_again_and_handles_go_on() -> None:
    program = new_program()
    server = program.add(nodes.Server, on="a", on_failure="restart", restarts=1, concurrency=2)
    caller = program.add(nodes.Caller, server, on="b", concurrency=2)
    with launch(program) as running:
        assert caller.where_there()[2] == 1  # type: ignore[index]
        hanging = caller.futures.hang_there()
        assert eventually(lambda: server.hanging() == 1)
        with pytest.raises(NodeLost):
            server.kill()
        assert isinstance(hanging.exception(PATIENCE), NodeLost)  # the caller knows as well, and its next call is new
        assert eventually(lambda: running.nodes[0].attempt == 2)
        assert server.where()[2] == 2  # type: ignore[index]
        assert caller.where_there()[2] == 2  # type: ignore[index]
        with pytest.raises(NodeLost):
            server.kill()
        result = running.wait(PATIENCE)
    assert (result.reason, result.label) == ("failure", "server")


def test_a_node_is_started_again_by_hand_and_its_stacks_and_logs_are_there() -> None:
    program = new_program()
    server = program.add(nodes.Server, on="a", concurrency=2)
    assert isinstance(server, Handle)
    caller = program.add(nodes.Caller, server, on="b")
    program.add(nodes.waits, on="b", on_failure="ignore")
    with launch(program) as running:
        server.say("before")
        hanging = caller.futures.hang_there()
        server.echo(1)
        assert eventually(lambda: "hang" in str(running.stacks("server").groups))
        assert "waits" not in str(running.stacks(server).groups)
        assert eventually(lambda: "function='waits'" in str(running.stacks().groups))  # it runs once it was ready
        running.restart(server)  # it has no restarts of its own
        assert isinstance(hanging.exception(PATIENCE), NodeLost)
        assert (running.nodes[0].attempt, server.where()[2], caller.where_there()[2]) == (2, 2, 2)
        running.restart("server")
        assert caller.where_there()[2] == 3
        server.say("after")
        assert eventually(lambda: running.logs(server).endswith("after\n"))
        lines = running.logs("server", stderr=True).splitlines()
        assert [line for line in lines if "started again" in line] == [
            f"mesh: server/0: started again after signal 9, attempt {attempt}" for attempt in (1, 2)
        ]
        assert "[server] before" in running.logs().splitlines()
        with pytest.raises(KeyError):
            running.restart("nobody")
        with pytest.raises(NodeLost):
            server.kill()
        assert running.wait(PATIENCE).label == "server"  # a restart by hand does not count, and allows no failure
        with pytest.raises(MeshError, match="server: cannot be started again"):
            running.restart(server)


def test_a_program_with_other_names_on_this_machine_is_not_left() -> None:
    program = new_program()
    program.add(nodes.Server, on="a")
    with launch(program) as running, pytest.raises(UsageError, match="names that `mesh attach` does not find"):
        running.detach()


def test_nodes_begin_after_others_and_calls_that_allow_it_are_repeated(tmp_path: Path) -> None:
    place, calls = str(tmp_path / "ready"), str(tmp_path / "calls")
    program = new_program()
    late = program.add(nodes.Late, place, on="a")
    short = program.add(nodes.returns, 7, on="b")
    readers = program.add(nodes.Reader, place, on="b", count=2, after=[late, short, "returns"])
    server = program.add(nodes.Server, on="a", on_failure="restart", restarts=1, after=readers)
    program.add(nodes.waits, on="b")
    assert isinstance(server, Handle)
    with launch(program) as running:
        assert readers.read() == ["ready", "ready"]  # type: ignore[union-attr]
        assert server.options(retries=1).die_first(calls) == 2
        with pytest.raises(NodeLost):
            server.options(retries=5).kill()
        assert running.wait(PATIENCE).label == "server"


def test_nodes_on_the_client_are_called_by_nodes_on_hosts() -> None:
    program = new_program()
    log = program.add(nodes.Log, on="client")
    writers = program.add(nodes.Writer, log, on="a,b", per_host=1, on_failure="restart", restarts=1)
    assert isinstance(log, Handle)
    with launch(program) as running:
        assert [node.host for node in running.nodes] == ["client", "a", "b"]
        assert sorted(map(str, log.read())) == ["writer/0", "writer/1"]
        assert writers[0].use() == (list(range(40)), "1 and 2")  # type: ignore[union-attr, index]
        assert sorted(writers.write(1)) == [3, 4]  # type: ignore[union-attr]
        with pytest.raises(NodeLost):
            writers[1].kill()  # type: ignore[union-attr, index]
        assert eventually(lambda: running.nodes[2].attempt == 2)
        count = writers[1].write("again")  # type: ignore[union-attr, index]
        assert log.read()[count - 1] == "again"  # type: ignore[index, operator]
        with pytest.raises(UsageError, match="is on the client"):
            running.detach()
        assert running.stop().ok


def test_the_program_goes_on_as_long_as_a_node_runs_on_the_client() -> None:
    program = new_program()
    log = program.add(nodes.Log, on="client")
    writers = program.add(nodes.Writer, log, on="a", count=2)
    program.add(nodes.returns, 7, on="a")
    program.add(nodes.Conductor, writers, on="client")
    with launch(program) as running:
        result = running.wait(PATIENCE)
        found = running.result("conductor")
    assert (result.exit_code, result.reason) == (0, "stop")
    assert isinstance(found, tuple)
    assert (max(found[0]), found[1:]) == (4, (os.getpid(), "client"))


def test_no_node_waits_for_one_on_the_client_that_has_ended() -> None:
    program = new_program()
    first = program.add(nodes.returns, 7, on="client")
    program.add(nodes.returns, 8, on="a", label="later", after=first)
    with launch(program) as running:
        assert running.wait(PATIENCE).exit_code == 0
        assert running.results == {"returns": (7, "client"), "later": (8, "a")}


def test_a_failure_on_the_client_ends_the_program() -> None:
    program = new_program()
    program.add(nodes.waits, on="a")
    program.add(nodes.raises, on="client")
    with launch(program) as running:
        result = running.wait(PATIENCE)
    assert (result.exit_code, result.reason, result.label) == (1, "failure", "raises")


def test_commands_are_nodes_too() -> None:
    program = new_program()
    program.add(Command("sh", "-c", "echo from $MESH_LABEL; exit 4"), label="shell")
    with launch(program) as running:
        assert running.wait(PATIENCE).exit_code == 4


def test_a_constructor_that_raises_fails_the_launch() -> None:
    program = new_program()
    program.add(nodes.Reader, "/nowhere")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        launch(program)


def test_a_host_that_is_not_there_is_named_with_the_nearest() -> None:
    program = Program("wrong", cluster="local:2")
    program.add(nodes.Server, on="local-11")
    with pytest.raises(UsageError, match="no host 'local-11'") as caught:
        program.launch()
    assert caught.value.hint == "the nearest is local-1"


@pytest.mark.parametrize("python", pythons().values(), ids=pythons())
def test_a_node_runs_on_each_python(python: str) -> None:
    program = new_program()
    plain = program.add(nodes_of_any_python.Plain, on="a", python=python)
    assert isinstance(plain, Handle)
    with launch(program):
        version = plain.version()
        assert os.path.realpath(python).split("/python")[-1].startswith(f"{version[0]}.{version[1]}")  # type: ignore[index]
        assert plain.echo({"one": [1, 2.5, b"3", {4}]}) == {"one": [1, 2.5, b"3", {4}]}
        assert plain.double(4) == 8
        assert list(plain.stream.count(50)) == list(range(50))
        with pytest.raises(nodes_of_any_python.Strange, match="1 and 2") as caught:
            plain.fail()
        assert isinstance(caught.value, RemoteError)


def test_a_signal_that_comes_while_a_node_starts_a_thread_stops_it() -> None:
    """In Python 3.8 a thread that starts holds a lock that its own handler of signals cannot take again."""
    oldest = min(pythons().items(), key=lambda found: tuple(map(int, found[0].split("."))))[1]
    program = new_program()
    program.add(nodes_of_any_python.signalled, on="a", python=oldest)
    with launch(program) as running:
        assert running.result("signalled", PATIENCE) == "signal"


def test_a_node_that_is_stopped_costs_its_callers_their_timeouts_only() -> None:
    program = new_program()
    server = program.add(nodes.Server, on="a")
    other = program.add(nodes.Server, on="b", label="other")
    with launch(program):
        pid = int(str(server.where()[3]))  # type: ignore[index]
        os.kill(pid, signal.SIGSTOP)
        try:
            # The thread that takes the signal may run later than another one, which answers calls.
            assert eventually(lambda: all(state_of(one) == "T" for one in Path(f"/proc/{pid}/task").iterdir()))
            with pytest.raises(CallTimeout, match="server on a"):
                server.options(timeout=0.2).echo(1)
            assert other.echo(2) == 2
        finally:
            os.kill(pid, signal.SIGCONT)
        assert server.echo(3) == 3


@pytest.mark.parametrize("where", ["a", "b"], ids=["unix", "TLS"])
def test_a_process_that_a_node_forks_makes_no_calls_and_harms_none(where: str) -> None:
    program = new_program()
    server = program.add(nodes.Server, on="a", concurrency=4)
    forker = program.add(nodes.Forker, server, on=where)
    assert isinstance(forker, Handle)
    with launch(program) as running:
        errors = forker.errors_of_child()
        assert isinstance(errors, list)
        assert len(errors) == 3
        for error in errors:
            assert "NotLaunched: forker: process" in error
            assert "was forked from process" in error
        assert forker.terminated() == {-signal.SIGTERM}
        assert forker.other_program() == 0
        assert forker.call(b"x" * 100_000) == b"x" * 100_000
        assert running.stop().ok


NOTEBOOK = """
import sys
from mesh.program import Program, here

class Cell:
    def __init__(self, f):
        self.f = f
    def call(self, value):
        return self.f(value), here().host

factor = 3
program = Program("notebook", python=sys.argv[1])
cell = program.add(Cell, lambda value: value * factor, on="a")
with program.launch("local"):
    print("FOUND", cell.call(7))
"""


def run_notebook(python: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", NOTEBOOK, python]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)


def test_classes_without_a_file_travel_by_value() -> None:
    done = run_notebook(sys.executable)
    assert "FOUND (21, 'a')" in done.stdout, done.stderr


def test_classes_without_a_file_need_the_same_python() -> None:
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    others = [path for version, path in pythons().items() if version != own]
    if not others:
        pytest.skip("there is one Python only")
    done = run_notebook(others[0])
    assert done.returncode == 1
    assert f"cannot read byte code of Python {own} of the client" in done.stderr


KILLED = """
import sys
sys.path.insert(0, sys.argv[1])
from mesh.program import Program
from tests.integration import program_nodes as nodes
from tests.integration import program_plain as nodes_of_any_python
from tests.pythons import pythons

program = Program("killed", python=sys.executable)
server = program.add(nodes.Server, on="a", count=2)
with program.launch("local") as running:
    print("READY", flush=True)
    running.wait()
"""


def test_a_killed_client_leaves_no_node() -> None:
    words = [sys.executable, "-c", KILLED, str(REPOSITORY)]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "MESH_LEASE": "30"}
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert any(line == "READY\n" for line in client.stdout)
        assert node_processes()
        client.kill()
    assert eventually(lambda: not node_processes())


DETACHED = """
import sys
sys.path.insert(0, sys.argv[1])
from mesh.config.settings import Options
from mesh.core.errors import MeshError
from mesh.program import Program
from tests.integration import program_nodes as nodes

program = Program("detached", python=sys.executable, options=Options(detach=True))
server = program.add(nodes.Server, on="local-0")
program.add(nodes.stops_later, server, sys.argv[2], on="local-1")
running = program.launch("local")
result = running.wait()
print(result.exit_code, result.reason, running.run)
try:
    running.result(running.nodes[1].label)
except MeshError as error:
    print(error)
"""


def test_a_detached_program_goes_on_and_stops_by_itself(tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    words = [sys.executable, "-c", DETACHED, str(REPOSITORY), str(enough)]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    first, _, last = done.stdout.partition("\n")
    code, reason, run = first.split()
    assert (code, reason) == ("0", "detached"), done.stderr
    assert last.endswith(": has no result here (the program was left to its hosts)\n")
    assert node_processes()
    enough.touch()
    assert api.attach(run, quiet=True).exit_code == 6
    assert not node_processes()


LEFT = """
import sys
sys.path.insert(0, sys.argv[1])
from mesh.program import NotLaunched, Program
from tests.integration import program_nodes as nodes

program = Program("left", python=sys.executable)
server = program.add(nodes.Server, on="local-0")
program.add(nodes.stops_later, server, sys.argv[2], on="local-1")
program.add(nodes.returns, 7, on="local-1")
with program.launch("local") as running:
    assert server.echo(1) == 1
    assert running.result("returns") == (7, "local-1")
    result = running.detach()
    try:
        server.echo(1)
    except NotLaunched:
        print(result.exit_code, result.reason, running.run)
"""


def test_a_program_is_left_to_its_hosts(tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    words = [sys.executable, "-c", LEFT, str(REPOSITORY), str(enough)]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    code, reason, run = done.stdout.split()
    assert (code, reason) == ("0", "detached"), done.stderr
    with connect(run) as connected:
        assert connected.handle("server").echo([1]) == [1]
        assert connected.result("returns", PATIENCE) == (7, "local-1")
    enough.touch()
    assert api.attach(run, quiet=True).exit_code == 6
    assert not node_processes()
    with connect(run) as connected:
        assert connected.result("returns", PATIENCE) == (7, "local-1")  # its host keeps it beside the output
        with pytest.raises(MeshError, match="server on local-0: the run has ended, and its host has no result"):
            connected.result("server", PATIENCE)
        with pytest.raises(NodeLost, match="server on local-0: cannot connect: the node does not listen"):
            connected.handle("server").echo(1)


CONNECTED = """
import sys
sys.path.insert(0, sys.argv[1])
from mesh.program import NodeLost, connect
from tests.integration import program_nodes as nodes

with connect(sys.argv[2]) as connected:
    servers = connected.handle("server")
    print([found[1] for found in servers.where()], connected.handle("caller").where_there()[0])
    print(list(connected.handle("server/1").stream.count(3)), connected.result("returns"))
    try:
        servers[0].fail()
    except nodes.Strange as error:
        print(error)
    try:
        connected.result("raises")
    except nodes.Strange as error:
        print(error)
    connected.stop(4, "from another process")
"""


def test_another_process_takes_the_handles_of_a_running_program() -> None:
    program = new_program()
    servers = program.add(nodes.Server, on="a,b", per_host=1)
    program.add(nodes.Caller, servers[1], label="caller", on="a")  # type: ignore[index]
    program.add(nodes.returns, 7, on="b")
    program.add(nodes.raises, on="b", on_failure="ignore")
    program.add(nodes.waits, on="a")
    with launch(program) as running:
        words = [sys.executable, "-c", CONNECTED, str(REPOSITORY), running.run]
        environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
        assert done.stdout.splitlines() == [
            "['a', 'b'] server/1",
            "[0, 1, 2] (7, 'b')",
            "1 and 2",
            "3 and 4",
        ], done.stderr
        result = running.wait(PATIENCE)
    assert (result.exit_code, result.why) == (4, "from another process")
    with pytest.raises(UsageError, match="no run 'nothing' was started"):
        connect("nothing")


def test_a_detached_program_on_this_machine_needs_names_that_attach_finds() -> None:
    program = Program("detached", options=Options(detach=True))
    program.add(nodes.Server, on="tpu-0")
    with pytest.raises(UsageError, match="detach"):
        launch(program)


def test_too_few_gpus_are_refused_with_sums() -> None:
    program = new_program()
    program.add(nodes.Server, on="a", count=2, gpus=4)
    with pytest.raises(UsageError, match=r"a: its nodes ask for 8 GPUs, and it has \d"):
        launch(program)


def test_a_wish_for_more_memory_than_any_host_has_names_the_largest() -> None:
    program = new_program()
    server = program.add(nodes.Server, on=has(memory=1 << 20))
    program.add(nodes.Server, on=has(memory="900TB"), label="huge")
    with pytest.raises(UsageError, match="huge: no host has what it asks for") as caught:
        launch(program)
    assert caught.value.hint.startswith("the largest is local with ")
    assert isinstance(server, Handle)


SCRIPT = """
import sys

from mesh.program import Program, here, stop


class Server:
    def where(self):
        return here().label, here().host


class Learner:
    def __init__(self, servers):
        self.servers = servers

    def run(self):
        for step in range(50):
            found = self.servers.where()
        stop()
        return found


if __name__ == "__main__":
    program = Program("script", cluster="pod", python=sys.argv[1])
    servers = program.add(Server, per_host=2, on=sys.argv[2])
    learner = program.add(Learner, servers, on=sys.argv[3])
    with program.launch() as running:
        result = running.wait(60)
        print("FOUND", running.result("learner"))
    sys.exit(result.exit_code)
"""


@pytest.mark.root
@pytest.mark.sshd
def test_a_program_of_a_file_on_four_hosts(pod: Home) -> None:
    pod.files(train__py=SCRIPT)
    names = pod_names(pod)
    done = subprocess.run(
        [sys.executable, "train.py", sys.executable, ",".join(names[:3]), names[3]],
        cwd=pod.project,
        env={**pod.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = [(f"server/{index}", names[index // 2]) for index in range(6)]
    assert f"FOUND {expected}" in done.stdout


CONNECTED_SCRIPT = """
import sys
import time

from mesh.program import Program, connect, here, wait_for_stop


class Log:
    def write(self, value):
        return value, here().host


class Server:
    def __init__(self, log):
        self.log = log

    def where(self):
        return self.log.write(here().host)


def returns():
    return here().host


def waits():
    wait_for_stop()


if __name__ == "__main__":
    program = Program("script", cluster="pod", python=sys.argv[1])
    servers = program.add(Server, program.add(Log, on="client"), per_host=1, on=sys.argv[2])
    program.add(returns, on=servers[1])
    program.add(waits, on=servers[1])  # otherwise the program ends with its last function
    with program.launch() as running, connect(running.run) as connected:
        print("FOUND", connected.handle("server").where(), connected.result("returns", 60))
        running.restart("server/1")
        print("AGAIN", servers[1].where())
        while "server/1: started again" not in running.logs(stderr=True):  # it is written a moment later
            time.sleep(0.05)
"""


@pytest.mark.root
@pytest.mark.sshd
def test_hosts_call_the_client_and_others_connect_to_them(pod: Home) -> None:
    pod.files(train__py=CONNECTED_SCRIPT)
    names = pod_names(pod)[:2]
    done = subprocess.run(
        [sys.executable, "train.py", sys.executable, ",".join(names)],
        cwd=pod.project,
        env={**pod.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = [(name, "client") for name in names]
    assert f"FOUND {expected} {names[1]}" in done.stdout
    assert f"AGAIN {expected[1]}\n" in done.stdout


def pod_names(pod: Home) -> list[str]:
    """The names of the hosts of the lab."""
    return [
        host.name for host in load_clusters(pod.path / ".config/mesh/cluster.yaml", required=True).clusters["pod"].hosts
    ]
