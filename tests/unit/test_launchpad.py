"""Launchpad's API: nodes, handles, batches, colocations, addresses and the end, in threads of the test."""

from __future__ import annotations

import datetime
import socket
import subprocess
import sys
import threading
import types
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest

from mesh import launchpad as lp
from mesh.config.settings import Options
from mesh.core.errors import UsageError
from mesh.launchpad import exiting, lp_ssh
from mesh.launchpad.hosts import find_hosts
from mesh.launchpad.launching import options_of
from mesh.launchpad.nodes import PyNode
from mesh.launchpad.runtime import flags
from mesh.launchpad.runtime.batching import Batcher
from mesh.launchpad.terminals import check_terminal, kill_tmux, open_windows
from mesh.launchpad.translating import Plan, translate
from mesh.launchpad.wishes import hosts_named, with_project
from mesh.program import NotServed, RemoteError
from mesh.remote.programs import program_library
from tests.conftest import PATIENCE, Home
from tests.lab import eventually
from tests.pythons import pythons

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@pytest.fixture
def case() -> Iterator[unittest.TestCase]:
    """A test case as unittest's, whose clean-up is run."""
    found = unittest.TestCase()
    yield found
    found.doCleanups()


Launch = Callable[..., lp.Launched]


@pytest.fixture
def launch(case: unittest.TestCase) -> Launch:
    """Launch a program as a test; it is stopped at the end."""

    def launch(program: lp.Program) -> lp.Launched:
        found = lp.launch(program, launch_type="test_mt", test_case=case)
        assert isinstance(found, lp.Launched)
        return found

    return launch


class Counter:
    """Serves, and runs only if it is let."""

    def __init__(self, step: int = 1) -> None:
        self.step_size, self.total = step, 0

    def step(self) -> int:
        self.total += self.step_size
        return self.total

    def _hidden(self) -> None: ...

    def __call__(self, value: int) -> int:
        return value + self.step_size

    def fail(self) -> None:
        raise KeyError("lost")

    def wait(self) -> None:
        lp.wait_for_stop()

    def run(self) -> str:
        self.total = 1000
        return "run"


def counters(*steps: int) -> tuple[lp.Program, list[lp.CourierHandle]]:
    """Return a program with a counter for each step, whose ``run()`` is disabled."""
    program, handles = lp.Program("counters"), []
    with program.group("counter"):
        for step in steps:
            node = lp.CourierNode(Counter, step)
            node.disable_run()
            handles.append(program.add_node(node))
    return program, handles


def test_a_test_steps_nodes_by_their_handles(launch: Launch) -> None:
    program, handles = counters(1, 10)
    launch(program)
    one, other = (handle.dereference() for handle in handles)
    assert [one.step(), other.step(), one.step()] == [1, 10, 2]
    assert other.futures.step().result(PATIENCE) == 20
    assert (one(5), other.futures(5).result(PATIENCE)) == (6, 15)
    assert lp.list_methods(one) == ["__call__", "fail", "run", "step", "wait"]
    assert one.run() == "run"
    assert one.step() == 1001


def test_errors_arrive_as_themselves(launch: Launch) -> None:
    program, (handle,) = counters(1)
    launch(program)
    client = handle.dereference()
    with pytest.raises(KeyError) as caught:
        client.fail()
    assert isinstance(caught.value, RemoteError)
    with pytest.raises(NotServed, match=r"no method 'stepp'.*'step'"):
        client.stepp()
    with pytest.raises(AttributeError):
        client._hidden()


def test_a_call_timeout_of_the_node_counts_for_every_client(launch: Launch) -> None:
    program = lp.Program("slow")
    node = lp.CourierNode(Counter, courier_client_kwargs={"call_timeout": datetime.timedelta(milliseconds=50)})
    node.disable_run()
    handle = program.add_node(node, label="counter")
    launch(program)
    with pytest.raises(TimeoutError):
        handle.dereference().wait()


def test_a_handle_before_the_launch() -> None:
    _, (handle,) = counters(1)
    with pytest.raises(RuntimeError, match="was launched"):
        handle.dereference()


def test_groups_and_labels() -> None:
    program = lp.Program("labels")
    with program.group("actor"):
        program.add_node(lp.PyNode(print))
        with pytest.raises(ValueError, match="'other' within the group 'actor'"):
            program.add_node(lp.PyNode(print), label="other")
        with pytest.raises(ValueError, match="nested"), program.group("inner"):
            pass
        program.add_node(lp.PyNode(print), label="actor")
    with pytest.raises(ValueError, match="label"):
        program.add_node(lp.PyNode(print))
    assert [len(nodes) for nodes in program.groups.values()] == [2]
    assert len(program.get_all_nodes()) == 2
    assert (program.name, program.current_group) == ("labels", None)
    made = lp.make_program(lp.PyNode(print), lp.CourierNode(Counter), name="made")
    assert list(made.groups) == ["print", "counter"]


class Circle:
    """Has a handle of the other one."""

    def __init__(self, other: lp.CourierClient, nested: dict[str, list[lp.CourierClient]]) -> None:
        self.other, self.nested = other, nested

    def name(self) -> str:
        return "circle"

    def ask(self) -> list[object]:
        return [self.other.name(), *(one.name() for one in self.nested["all"])]


def test_nodes_in_a_circle_and_handles_in_containers(launch: Launch) -> None:
    program = lp.Program("circle")
    one, other = lp.CourierNode(Circle), lp.CourierNode(Circle)
    one.configure(other.create_handle(), nested={"all": [one.create_handle(), other.create_handle()]})
    other.configure(one.create_handle(), nested={"all": []})
    program.add_node(one, label="one")
    program.add_node(other, label="other")
    launch(program)
    assert one.create_handle().dereference().ask() == ["circle"] * 3


class Averages:
    """Counts the calls of its batches."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.mean = lp.batched_handler(batch_size=3, timeout=None)(self.mean)  # type: ignore[method-assign]

    def mean(self, values: numpy.ndarray) -> list[float]:
        self.sizes.append(len(values))
        return [float(numpy.mean(values))] * len(values)

    @lp.batched_handler(batch_size=4, timeout=0.01, pad_batch=True)
    def padded(self, values: list[int]) -> list[int]:
        self.sizes.append(len(values))
        return [value + 1 for value in values]

    def seen(self) -> list[int]:
        return self.sizes


def test_batches_hold_no_thread(launch: Launch) -> None:
    """Three calls wait for each other though the node runs one method at a time."""
    program = lp.Program("batches")
    handle = program.add_node(lp.CourierNode(Averages, courier_kwargs={"thread_pool_size": 1}), label="server")
    launch(program)
    client = handle.dereference()
    futures = [client.futures.mean(numpy.float64(value)) for value in (1, 2, 6)]
    assert [future.result(PATIENCE) for future in futures] == [3.0, 3.0, 3.0]
    assert client.padded(7) == 8
    assert client.seen() == [3, 4]


def test_a_failing_batch_fails_its_own_calls() -> None:
    batcher = Batcher(lambda values: [1 / value for value in values], 2, 1, None, False)
    futures = [batcher.submit((value,), {}) for value in (0, 1, 2, 4)]
    assert [type(future.exception(PATIENCE)) for future in futures] == [ZeroDivisionError] * 2 + [type(None)] * 2
    assert [future.result() for future in futures[2:]] == [0.5, 0.25]


class Ends:
    """Its run returns at once."""

    def run(self) -> None:
        pass


def waits(log: list[str]) -> None:
    lp.wait_for_stop()


class Stopper:
    """Stops the program from a thread of its own, once another node has called it."""

    def stop(self) -> None:
        threading.Thread(target=lp.stop, daemon=True).start()


def registers(stopper: lp.CourierClient) -> str:
    called = threading.Event()
    unwanted = threading.Event()
    lp.register_stop_handler(called.set)
    lp.register_stop_handler(unwanted.set)
    lp.unregister_stop_handler(unwanted.set)
    assert not lp.wait_for_stop(0)
    stopper.futures.stop()
    assert lp.stop_event().wait(PATIENCE)
    assert called.wait(PATIENCE)
    return f"unwanted: {unwanted.is_set()}"


def test_the_end_from_a_thread_of_a_node_without_a_run(launch: Launch) -> None:
    program = lp.Program("end")
    stopper = program.add_node(lp.CourierNode(Stopper), label="stopper")
    program.add_node(lp.PyNode(registers, stopper), label="registers")
    result = launch(program).wait(PATIENCE)
    assert (result.exit_code, result.reason) == (0, "stop")


def test_a_program_ends_once_all_of_its_nodes_have_ended(launch: Launch) -> None:
    program = lp.Program("ends")
    program.add_node(lp.PyClassNode(Ends), label="ends")
    program.add_node(lp.CourierNode(Ends), label="served")
    assert launch(program).wait(PATIENCE).ok


def raises() -> None:
    raise RuntimeError("planted")


def test_a_failure_is_raised_in_the_test() -> None:
    case = unittest.TestCase()
    program = lp.Program("failing")
    program.add_node(lp.PyNode(raises), label="raises")
    launched = lp.launch(program, launch_type="test_mt", test_case=case)
    assert isinstance(launched, lp.Launched)
    with pytest.raises(RuntimeError, match="planted"):
        launched.wait(PATIENCE)
    with pytest.raises(RuntimeError, match="planted"):
        launched.close()
    function, _, _ = case._cleanups.pop()  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="planted"):
        function()


def test_a_constructor_that_fails_fails_the_calls_that_wait_for_it(case: unittest.TestCase) -> None:
    program = lp.Program("constructor")
    handle = program.add_node(lp.CourierNode(Counter, unknown=1), label="counter")
    launched = lp.launch(program, launch_type="test_mt")
    assert isinstance(launched, lp.Launched)
    with pytest.raises(TypeError, match="unknown"):
        launched.wait(PATIENCE)
    with pytest.raises((RuntimeError, ConnectionError, TypeError)):
        handle.dereference().step()


class Left:
    """Answers within a colocation."""

    def side(self) -> str:
        return "left"


class Right:
    """Asks the other node of its colocation."""

    def __init__(self, left: lp.CourierClient) -> None:
        self._left = left

    def side(self) -> str:
        return f"right of {self._left.side()}"

    def __call__(self) -> str:
        return "called"


def test_nodes_of_a_colocation_serve_calls(launch: Launch) -> None:
    program = lp.Program("together")
    left = lp.CourierNode(Left)
    right = lp.CourierNode(Right, left.create_handle())
    program.add_node(lp.MultiThreadingColocation([left, right]), label="both")
    launch(program)
    client = right.create_handle().dereference()
    assert (client.side(), client(), lp.list_methods(client)) == ("right of left", "called", ["__call__", "side"])


def test_a_colocation_ends_with_its_first_or_last_node(launch: Launch) -> None:
    program = lp.Program("first")
    inner = [lp.PyClassNode(Ends), lp.PyNode(waits, [])]
    program.add_node(lp.MultiThreadingColocation(inner, return_on_first_completed=True), label="both")
    assert launch(program).wait(PATIENCE).ok
    with pytest.raises(ValueError, match="not str"):
        lp.MultiThreadingColocation(["node"])  # type: ignore[list-item]


def test_a_node_of_a_colocation_that_exits_leaves_the_others(launch: Launch) -> None:
    program = lp.Program("exits")
    program.add_node(lp.MultiThreadingColocation([lp.PyNode(sys.exit, 0), lp.CourierNode(Left)]), label="both")
    with pytest.raises(TimeoutError):
        launch(program).wait(0.5)


class Listens:
    """Binds its address."""

    def __init__(self, address: lp.Address) -> None:
        self.socket = socket.socket()
        self.socket.bind(("", lp.get_port_from_address(address.resolve())))
        self.socket.listen()

    def port(self) -> int:
        port: int = self.socket.getsockname()[1]
        self.socket.close()
        return port


class Resolves:
    """Resolves the address of another node, in its constructor."""

    def __init__(self, address: lp.Address) -> None:
        self.address = address.resolve()

    def port(self) -> int:
        return lp.get_port_from_address(self.address)


def test_addresses_belong_to_one_node_and_are_resolved_by_all(launch: Launch) -> None:
    program = lp.Program("addresses")
    first, second = lp.Address("first"), lp.Address()
    node = lp.CourierNode(Listens, first)
    handle = program.add_node(node, label="listens")
    first.assign(node)
    second.assign(node)
    others = [
        program.add_node(lp.CourierNode(Resolves, address), label=label)
        for address, label in ((first, "one"), (second, "two"))
    ]
    launch(program)
    ports = [one.dereference().port() for one in others]
    assert ports[0] == handle.dereference().port() != ports[1]
    with pytest.raises(ValueError, match="another node"):
        first.assign(lp.CourierNode(Counter))
    with pytest.raises(ValueError, match="expected letters"):
        lp.Address("1-2")
    with pytest.raises(RuntimeError, match="assign"):
        lp.Address().resolve()
    bound = lp.Address()
    bound.bind(lp.SimpleLocalAddressBuilder())
    assert lp.get_port_from_address(bound.resolve()) > 0


class Owner:
    """Has Courier's server, and binds another method."""

    def set_courier_server(self, server: object) -> None:
        self.server = server

    def run(self) -> None:
        server: object = self.server
        server.Bind("more", lambda: f"more, {server.has_started}")  # type: ignore[attr-defined]
        server.Start()  # type: ignore[attr-defined]
        server.Join()  # type: ignore[attr-defined]


def test_an_object_that_owns_its_server(launch: Launch) -> None:
    program = lp.Program("owner")
    handle = program.add_node(lp.CourierNode(Owner), label="owner")
    launch(program)
    assert handle.dereference().more() == "more, True"


def deferred(made: list[int], again: list[int]) -> None:
    assert made is again
    assert made == [1]


def test_a_deferred_value_is_made_once(launch: Launch) -> None:
    program = lp.Program("deferred")
    value = lp.Deferred(list, (1,))
    program.add_node(lp.PyNode(deferred, value, again=value), label="node")
    assert launch(program).wait(PATIENCE).ok
    with pytest.raises(RuntimeError, match="int of a Deferred failed"):
        lp.Deferred(int, "x").dereference()
    assert lp.maybe_dereference(3) == 3


def test_launch_types() -> None:
    program = lp.Program("types")
    program.add_node(lp.PyNode(raises), label="node")
    for name in ("vertex_ai", "local_docker", "unknown"):
        with pytest.raises(UsageError, match=name):
            lp.launch(program, launch_type=name)
    assert lp.is_local_launch("local_mp")
    assert not lp.is_local_launch("test_mt")
    assert lp.is_local_launch_or_test(lp.LaunchType.TEST_MULTI_THREADING)
    with pytest.raises(UsageError, match="no nodes"):
        lp.launch(lp.Program("empty"), launch_type="test_mt")
    with pytest.raises(UsageError, match="ssh_tmux_session"):
        check_terminal("byobu")
    with pytest.raises(UsageError, match="session"):
        kill_tmux()


# ---- TLaunch


def placed(program: lp.Program, plan: Plan) -> list[tuple[str, tuple[str, ...]]]:
    """Return the labels of a program, and the hosts of their nodes."""
    return [(node.wish.label, node.wish.hosts) for node in translate(program, plan).nodes]


def test_nodes_of_one_label_on_several_hosts_are_numbered_as_ranks_are() -> None:
    program = lp_ssh.Program("hosts", None)
    nodes = [lp_ssh.SSHNode(Ends).to_host(host) for host in ("b", "a", "b")]
    for node in nodes:
        program.add_node(node, label="work")
    assert placed(program, Plan(cluster="pod", hosts=("a", "b"))) == [("work", ("a", "b", "b"))]
    assert [node.port.label for node in nodes] == ["work/1", "work/0", "work/2"]
    program.add_node(lp.PyNode(print), label="work")
    with pytest.raises(UsageError, match="some of its nodes name a host"):
        translate(program, Plan())


def test_the_nodes_of_a_process_colocation_share_a_host_and_are_restarted() -> None:
    program = lp.Program("processes")
    inner = [lp.CourierNode(Left), lp.PyNode(waits, [])]
    program.add_node(lp.MultiProcessingColocation(inner, num_retries_on_failure=2), label="both")
    (node,) = translate(program, Plan(cluster="pod", hosts=("a", "b"))).nodes
    assert node.wish.hosts == ("a", "a")
    assert (node.options.on_failure, node.options.restarts) == ("restart", 2)


def test_the_choices_of_a_label() -> None:
    program = lp.Program("choices")
    program.add_node(lp.PyNode(print), label="10.0.0.1 worker")
    where = {"10.0.0.1 worker": lp.Where(on="tpu-[1-2]", gpus=1, python="python3.11", env={"A": "1"})}
    processes = {"10.0.0.1 worker": lp.PythonProcess(args={"steps": 3}, env={"B": 2})}
    (node,) = translate(program, Plan(where=where, processes=processes)).nodes
    assert (node.wish.label, node.wish.hosts, node.wish.gpus) == ("_10.0.0.1-worker", ("tpu-1", "tpu-2"), 1)
    assert (node.options.env, node.options.python) == ({"A": "1", "B": "2"}, "python3.11")
    (parts,) = node.args
    assert [part.argv for part in parts] == [("--steps=3",)]  # type: ignore[attr-defined]


def test_hosts_of_labels_in_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The launch wins; labels of other programs are left alone, and a label that is misspelt is named."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mesh.yaml").write_text(
        "program:\n"
        "  actor: {on: 'tpu-[1-2],tpu-5', gpus: 2, python: python3.11, env: {A: 1}}\n"
        "  learner: {on: [tpu-7]}\n"
        "  servre:\n"
        "    gpus: 1\n"
        "  other-thing: {on: x}\n"
    )
    found = with_project({"learner": lp.Where(on="tpu-[8-9]")}, ["actor", "learner", "server"])
    assert found == {
        "actor": lp.Where(on="tpu-[1-2],tpu-5", gpus=2, python="python3.11", env={"A": "1"}),
        "learner": lp.Where(on="tpu-[8-9]"),
    }
    assert hosts_named(found) == ["tpu-8", "tpu-9", "tpu-1", "tpu-2", "tpu-5"]
    text = "program.servre: the program has no label 'servre'; the nearest is 'server'"
    assert capsys.readouterr().err == f"mesh: mesh.yaml:4: {text}\n"
    with pytest.raises(UsageError, match="actor: "):
        hosts_named({"actor": lp.Where(on="tpu-[3-1]")})


def test_how_hosts_may_be_written(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host may be a name of cluster.yaml, an alias of ssh_config, or user, host and port."""
    monkeypatch.setenv("HOME", str(home.path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(home.project)
    home.clusters("other:\n  hosts: [x]\npod:\n  hosts: ['tpu-[1-2]']\n")
    (home.path / ".ssh").mkdir(exist_ok=True)
    (home.path / ".ssh/config").write_text("Host trainer other\n  HostName 127.0.0.1\n")
    found = find_hosts("", ["tpu-2"], Options())
    assert (found.cluster, found.hosts, found.names) == ("pod", ("tpu-1", "tpu-2"), {"tpu-2": "tpu-2"})
    found = find_hosts("", ["trainer", "me@127.0.0.2:2222"], Options())
    assert (found.cluster, found.hosts) == ("@trainer,me@127.0.0.2:2222", ("trainer", "127.0.0.2"))
    for named, text in ((["tpu-1", "tpu-22"], "no host 'tpu-22' in pod; the nearest is tpu-2"), ([], "neither")):
        with pytest.raises(UsageError, match=text):
            find_hosts("", named, Options())
    with pytest.raises(UsageError, match="no host 'trianer': it has no address; the nearest is trainer"):
        find_hosts("", ["trianer"], Options())


def test_arguments_of_a_shared_directory_are_not_needed() -> None:
    node = lp_ssh.SSHNode(Ends, share_temp_dir="/nfs").to_host("a", share_entry_script_path="/nfs/entry.py")
    assert (node.host, node.part().kwargs) == ("a", {})
    assert isinstance(lp_ssh.RLTransmitNode(["--x"], 3).to_host("a"), lp_ssh.TransmitNode)


def test_several_programs_are_launched_together(case: unittest.TestCase) -> None:
    programs = []
    for name in ("one", "other"):
        programs.append(lp.Program(name))
        programs[-1].add_node(lp.PyClassNode(Ends), label=name)
    found = lp.launch(programs, launch_type="test_mt", test_case=case)
    assert isinstance(found, list)
    assert [[node.label for node in one.running.nodes] for one in found] == [["one"], ["other"]]
    assert all(one.wait(PATIENCE).ok for one in found)


def test_run_can_be_turned_on_again(launch: Launch) -> None:
    program, (handle,) = counters(1)
    for node in program.get_all_nodes():
        assert isinstance(node, lp.CourierNode)
        node.enable_run()
    assert launch(program).wait(PATIENCE).ok
    del handle


def test_options_of_clients_that_links_do_not_have(launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    program = lp.Program("options")
    node = lp.CourierNode(Counter, courier_client_kwargs={"compress": True, "wait_for_ready": True})
    node.disable_run()
    handle = program.add_node(node, label="counter")
    launch(program)
    assert handle.dereference().step() == 1
    assert "mesh.launchpad: compress: ignored" in capsys.readouterr().err
    assert isinstance(node.courier_address, lp.Address)
    with pytest.raises(TypeError, match="no option 'unknown'"):
        lp.CourierClient(node.port, unknown=1)


@pytest.mark.parametrize("terminal", ["xterm", "gnome-terminal", "gnome-terminal-tabs"])
def test_windows_of_a_desktop_show_logs(
    terminal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / terminal.removesuffix("-tabs")
    program.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/opened\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    open_windows(terminal, "session", "RUN", ["actor/0"])
    assert f"no windows for terminal={terminal!r} (there is no display)" in capsys.readouterr().err
    monkeypatch.setenv("DISPLAY", ":0")
    open_windows(terminal, "session", "RUN", ["actor/0", "learner"])
    opened = tmp_path / "opened"
    assert eventually(lambda: opened.exists() and len(opened.read_text().splitlines()) == 2, PATIENCE)
    lines = sorted(opened.read_text().splitlines())
    for line, label in zip(lines, ("actor/0", "learner"), strict=True):
        assert line.endswith(f"{sys.executable} -m mesh logs --follow --rank {label} RUN")


def test_the_seconds_to_the_kill_are_those_of_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    for notice, grace in ((10, None), (3, 3.0), (-1, None)):
        values = types.SimpleNamespace(
            lp_launch_type="local_mp", lp_termination_notice_secs=notice, tmux_session_name="x", is_parsed=lambda: True
        )
        monkeypatch.setattr(flags, "FLAGS", values)
        assert options_of(None).grace == grace
        assert options_of(Options(grace=5.0)).grace == 5.0
    assert lp.LAUNCH_TYPE.value == "local_mp"


def test_transmit_nodes(launch: Launch) -> None:
    program = lp.Program("transmit")
    handle = program.add_node(lp_ssh.TransmitNode().to_host("host1"), label="host1")
    launch(program)
    one, other = handle.dereference(), handle.dereference()
    one.send_info({"a": 1})
    assert one.get_info() == other.get_info() == {"a": 1}
    one.send_info({"a": 2})
    assert one.get_info() == {"a": 2}
    assert one.get_info() == {"a": 2}  # again after a second
    one.insert_weight({"actor": {"layer": 3.0}, "episode": 5}, {"weights": 1.0})
    assert other.sample_weight(["actor@layer"], 5, "weights") == {"actor": {"layer": 3.0}}
    with pytest.raises(UsageError, match="reverb"):
        lp_ssh.TransmitNode(list)


def asks(client: object) -> None:
    assert client == "client of localhost"


def test_reverb_where_the_host_has_it(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    class Server:
        def __init__(self, tables: list[object], port: int, checkpointer: object) -> None:
            assert (tables, checkpointer) == (["table"], None)
            assert port > 0

        def stop(self) -> None:
            ended.set()

    module = types.SimpleNamespace(Server=Server, Client=lambda address: f"client of {address.partition(':')[0]}")
    monkeypatch.setitem(sys.modules, "reverb", module)
    program = lp.Program("reverb")
    handle = program.add_node(lp.ReverbNode(lambda: ["table"]), label="replay")
    program.add_node(lp.PyNode(asks, handle), label="asks")
    launched = launch(program)
    launched.running.result("asks", PATIENCE)
    launched.stop()
    assert ended.is_set()


def test_a_host_without_reverb(case: unittest.TestCase) -> None:
    program = lp.Program("reverb")
    program.add_node(lp.ReverbNode(list), label="replay")
    launched = lp.launch(program, launch_type="test_mt")
    assert isinstance(launched, lp.Launched)
    with pytest.raises(ImportError, match="dm-reverb"):
        launched.wait(PATIENCE)


def test_every_name_of_the_page_is_there() -> None:
    for name in lp.__all__:
        assert getattr(lp, name) is not None
    for name in lp_ssh.__all__:
        assert getattr(lp_ssh, name) is not None
    assert issubclass(lp_ssh.SSHNode, PyNode)


def test_a_host_has_all_names(tmp_path: Path) -> None:
    """A program's file imports them there as well; those of the client raise when they are used."""
    (tmp_path / "library.zip").write_bytes(program_library())
    script = (
        "from mesh.program import ItemFailed, MailboxHandle, Program, all_reduce, barrier, executor, has, map\n"
        "from mesh.launchpad import CourierNode, launch, lp_ssh, stop\n"
        "from mesh.launchpad.lp_ssh import Program, SSHNode, TransmitNode\n"
        "from mesh.launchpad import lp_k8s\n"
        "from mesh.launchpad.lp_k8s import Config, Container, GitSource, Resource, ResourceRange, Source, stop\n"
        "from mesh.launchpad.lp_k8s.util import get_namespace\n"
        "assert get_namespace() == 'default'\n"
        "assert Config(Container(resources=Resource(cpu='1'))).container.resources.requests == {'cpu': '1'}\n"
        "import mesh.launchpad.runtime.nodes, mesh.launchpad.runtime.reverb, mesh.launchpad.runtime.transmit\n"
        "for one in (CourierNode, launch, Program, SSHNode, executor, map, lp_k8s.launch, lp_k8s.CourierNode):\n"
        "    try:\n"
        "        one()\n"
        "    except RuntimeError as error:\n"
        "        assert 'launched from your machine' in str(error)\n"
        "    else:\n"
        "        raise SystemExit(one)\n"
    )
    for python in pythons().values():
        done = subprocess.run(
            [python, "-S", "-c", script],
            cwd=tmp_path,
            env={"PYTHONPATH": "library.zip"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (python, done.stderr)


@pytest.mark.parametrize(
    ("last", "status", "error"),
    [("pass", 0, ""), ("sys.exit(3)", 3, ""), ("raise ValueError('why')", 1, "ValueError: why\n")],
)
def test_the_end_of_a_main_program_comes_while_threads_can_start(
    tmp_path: Path, last: str, status: int, error: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import importlib.util, sys, threading\n"
        f"spec = importlib.util.spec_from_file_location('exiting', {exiting.__file__!r})\n"
        "exiting = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(exiting)\n"
        "def ended(error):\n"
        "    thread = threading.Thread(target=lambda: print('ended'))\n"
        "    thread.start()\n"
        "    thread.join()\n"
        "def main():\n"
        "    exiting.at_end(ended)\n"
        "    try:\n"
        "        raise KeyError\n"
        "    except KeyError:\n"
        "        print('goes on')\n"
        f"    {last}\n"
        "main()\n"
    )
    for version, python in pythons().items():
        if tuple(map(int, version.split("."))) >= (3, 10):
            done = subprocess.run([python, script], capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout) == (status, "goes on\nended\n"), (python, done.stderr)
            assert done.stderr.endswith(error), (python, done.stderr)
            assert done.stderr.count(error or "Traceback") == bool(error), (python, done.stderr)


def test_a_program_whose_end_is_an_error_is_no_success_of_its_interpreter() -> None:
    script = (
        "from mesh.core.errors import MeshError\n"
        "from mesh.launchpad.leaving import wait_at_exit\n"
        "from mesh.program.ledger import Ledger\n"
        "from mesh.program.running import Running\n"
        "class Unreachable:\n"
        "    def close(self):\n"
        "        raise MeshError('no host answers')\n"
        "for _ in range(2):\n"
        "    running = Running({}, Ledger({}))\n"
        "    running.attach(Unreachable())\n"
        "    running.finish()\n"
        "    wait_at_exit(running)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (125, 2 * "mesh: the program: no host answers\n")
