"""Faults of programs, each planted and named: label and host, no process left, and no call that hangs.

Others of the specification's list stand in test_program.py (SIGKILL, exit 3, exit 0 in a method, SIGSTOP, a killed
client, an exception that cannot be pickled, other versions of Python, forks, too few GPUs), test_program_firewall.py,
test_nodes.py (a node that is never ready), test_program_trust.py (wrong key, other program, hostile bytes) and
test_program_threads.py (a failure without a caller).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from mesh.config.settings import Options
from mesh.core.errors import MeshError, UsageError
from mesh.program import CallTimeout, CannotTravel, Handle, NodeLost, Program, RemoteError
from mesh.program.running import Running
from tests.conftest import PATIENCE, Home
from tests.integration import program_nodes as nodes
from tests.integration.test_nodes import nothing_is_there
from tests.integration.test_program import (
    _new_user,  # noqa: F401
    _nothing_is_left,  # noqa: F401
    launch,
    new_program,
    pod_names,
)
from tests.lab import Lab, eventually


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# ---- on this machine


def test_a_killed_agent_fails_its_calls_and_ends_the_program() -> None:
    program = new_program()
    server = program.add(nodes.Server, on="a", concurrency=2)
    program.add(nodes.waits, on="b")
    assert isinstance(server, Handle)
    with launch(program) as running:
        pending = server.futures.hang()
        os.kill(parent(int(str(server.where()[3]))), signal.SIGKILL)  # type: ignore[index]
        error = pending.exception(PATIENCE)  # type: ignore[attr-defined]
        assert isinstance(error, NodeLost), error
        assert str(error).startswith("server on a: ")
        result = running.wait(PATIENCE)
    assert (result.reason, result.label) == ("failure", "server")
    assert "its host is lost" in result.why


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of 100 MB."""
    place, limit = Path(f"/sys/fs/cgroup/memory/mesh-program-{os.getpid()}"), "memory.limit_in_bytes"
    if not place.parent.is_dir():
        place, limit = Path(f"/sys/fs/cgroup/mesh-program-{os.getpid()}"), "memory.max"
    try:
        place.mkdir()
    except OSError:
        pytest.skip("no memory cgroup is ours")
    try:
        (place / limit).write_text(str(100 << 20))
        yield place
    finally:
        assert eventually(lambda: not (place / "cgroup.procs").read_text())
        place.rmdir()


@pytest.mark.root
def test_a_node_that_is_out_of_memory_is_named_with_the_reason(group: Path) -> None:
    program = new_program()
    server = program.add(nodes.Greedy, on="a")
    assert isinstance(server, Handle)
    with launch(program) as running:
        with pytest.raises(NodeLost, match="greedy on a: ended by SIGKILL: out of memory"):
            server.eat(str(group))
        result = running.wait(PATIENCE)
    assert (result.reason, result.label, result.exit_code) == ("failure", "greedy", 137)


def test_the_loss_of_a_node_has_its_last_lines() -> None:
    program = new_program()
    server = program.add(nodes.Server, on="a", on_failure="ignore")
    program.add(nodes.waits, on="b")
    assert isinstance(server, Handle)
    with launch(program) as running:
        server.say("\n".join(f"line {number}" for number in range(12)))
        with pytest.raises(NodeLost, match="server on a"):
            server.kill()
        assert eventually(lambda: running.nodes[0].exit_code == 137)
        with pytest.raises(NodeLost) as lost:
            server.echo(1)
        assert running.stop().ok
    assert str(lost.value).splitlines() == [
        "server on a: ended by SIGKILL",
        *(f"    line {number}" for number in range(2, 12)),
    ]


def test_two_calls_that_wait_for_each_other_end_at_their_timeouts() -> None:
    program = new_program()
    one = program.add(nodes.Twin, on="a", label="one")
    other = program.add(nodes.Twin, on="b", label="other")
    assert isinstance(one, Handle)
    with launch(program) as running:
        with pytest.raises(CallTimeout, match=r"one on a: no answer within 0.5 s") as caught:
            one.call(other, one)
        assert isinstance(caught.value, RemoteError)
        assert (one.name(), other.name()) == ("one", "other")
        assert running.stop().ok


def test_a_result_that_is_too_large_fails_its_node() -> None:
    program = new_program()
    program.add(nodes.has_size, 70 << 20, on="a")
    with launch(program) as running:
        result = running.wait(PATIENCE)
    assert (result.reason, result.label) == ("failure", "has_size")
    with pytest.raises(CannotTravel, match=r"has_size on a: its result has 73,.* bytes; at most"):
        result.raise_for_failure()


def test_arguments_that_are_too_large_are_refused_before_the_start() -> None:
    program = new_program()
    program.add(nodes.has_size, bytes(70 << 20), on="a")
    with pytest.raises(UsageError, match=r"has_size: its arguments have 73,.* bytes; at most 64 MB are sent"):
        launch(program)


def test_a_constructor_that_ends_its_process_is_named() -> None:
    program = new_program()
    program.add(nodes.Leaver, 3, on="a")
    with pytest.raises(MeshError, match="leaver on a: exit 3"):
        launch(program)


def test_an_interpreter_that_is_not_there_is_named() -> None:
    program = new_program()
    program.add(nodes.Server, on="a", python="/nowhere/python3")
    with pytest.raises(MeshError, match=r"server.*/nowhere/python3") as caught:
        launch(program)
    assert "a" in str(caught.value)


def test_the_loss_of_a_node_ends_its_streams() -> None:
    program = new_program()
    server = program.add(nodes.Server, on="a", on_failure="ignore", concurrency=2)
    program.add(nodes.waits, on="b")
    assert isinstance(server, Handle)
    with launch(program) as running:
        pid = int(str(server.where()[3]))  # type: ignore[index]
        items = server.options(buffer=1).stream.count(10)
        assert next(items) == 0  # type: ignore[call-overload]
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(NodeLost, match=r"server on a: .*SIGKILL"):
            list(items)  # type: ignore[call-overload]
        with pytest.raises(NodeLost, match=r"server on a: .*SIGKILL"):
            server.echo(1)
        assert running.stop().ok


# ---- on hosts of the lab


class OnHosts:
    """A program with a server on the first host, and a caller of it on the second; a call to it hangs on both ways."""

    def __init__(self, module: ModuleType, names: list[str], options: Options) -> None:
        program = Program("faults", cluster="pod", python=sys.executable, options=options)
        server = program.add(module.Server, on=names[0], concurrency=4)
        caller = program.add(module.Caller, server, on=names[1], concurrency=2)
        assert isinstance(server, Handle)
        assert isinstance(caller, Handle)
        self.host, self.server, self.caller = names[0], server, caller
        self.running: Running = program.launch()
        self.pending = [server.futures.hang(), caller.futures.hang_there()]

    def check_loss(self) -> None:
        """Check that every call fails in time, and that the loss has its label and host."""
        errors = [future.exception(PATIENCE) for future in self.pending]  # type: ignore[attr-defined]
        assert all(isinstance(error, NodeLost) for error in errors), errors
        assert str(errors[0]).startswith(f"server on {self.host}: its host is lost")
        result = self.running.wait(PATIENCE)
        assert (result.reason, result.label, result.exit_code) == ("failure", "server", 76)


@pytest.fixture
def module(pod: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The nodes as a module of the project, which the sync brings to the hosts."""
    monkeypatch.setenv("HOME", str(pod.path))
    monkeypatch.chdir(pod.project)
    pod.files(fault_nodes__py=Path(str(nodes.__file__)).read_text())
    monkeypatch.syspath_prepend(pod.project)
    yield importlib.import_module("fault_nodes")
    del sys.modules["fault_nodes"]


@pytest.mark.root
@pytest.mark.sshd
def test_a_host_whose_cable_is_cut_fails_all_calls_to_its_nodes(pod: Home, lab: Lab, module: ModuleType) -> None:
    scene = OnHosts(module, pod_names(pod), Options(host_grace=12.0))  # the other host may be slow, and is not lost
    lab.hosts[0].cut()
    try:
        scene.check_loss()
    finally:
        lab.hosts[0].mend()
    assert eventually(lambda: nothing_is_there(lab), 120.0)  # its agent sends again after as long as it was cut off


@pytest.mark.root
@pytest.mark.sshd
def test_a_broken_connection_of_the_client_costs_no_call(pod: Home, lab: Lab, module: ModuleType) -> None:
    scene = OnHosts(module, pod_names(pod), Options(host_grace=30.0))
    assert eventually(lambda: scene.server.echo(1) == 1)
    for pid, command in lab.hosts[0].processes(with_sshd=True):
        if command.startswith("sshd: ") and "listener" not in command:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert scene.server.options(timeout=PATIENCE).echo(2) == 2
    assert scene.caller.options(timeout=PATIENCE).where_there()[0] == "server"  # type: ignore[index]
    assert not any(future.done() for future in scene.pending)  # type: ignore[attr-defined]
    assert scene.running.stop().ok
    errors = [future.exception(PATIENCE) for future in scene.pending]  # type: ignore[attr-defined]
    assert all(isinstance(error, NodeLost) for error in errors), errors


@pytest.mark.root
@pytest.mark.sshd
def test_a_full_disk_fails_the_node_that_writes_its_result(pod: Home, lab: Lab, module: ModuleType) -> None:
    names = pod_names(pod)
    program = Program("full", cluster="pod", python=sys.executable)
    program.add(module.has_size, 50 << 20, on=names[0])
    for place in ("/run", "/tmp"):
        lab.hosts[0].run("mount", "-o", "remount,size=24m", place)
    try:
        with program.launch() as running:
            result = running.wait(PATIENCE)
    finally:
        for place in ("/run", "/tmp"):
            lab.hosts[0].run("mount", "-o", "remount,size=50%", place)
    assert (result.reason, result.label, result.exit_code) == ("failure", "has_size", 1)
    assert eventually(lambda: nothing_is_there(lab))
