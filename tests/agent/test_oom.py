"""A rank that the kernel kills for lack of memory is told from one that somebody killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.agent.process import cgroups
from mesh.agent.process.oom import Memory, count_in, victims_in
from mesh.core.events import Exited
from mesh.remote.blob import start_command
from tests.lab import eventually

from .conftest import Open, Run

GREEDY = f"exec {sys.executable} -c 'x = [bytearray(1 << 20) for n in range(500)]'"
LIMIT = str(100 << 20)

EVENTS = "low 0\nhigh 0\nmax 41\noom 3\noom_kill 2\noom_group_kill 0\n"
MACHINE = "pgmigrate_fail 0\noom_kill 1\nthp_zero_page 0\n"
GLOBAL = b"3,812,5006,-;Out of memory: Killed process 2213 (python3) total-vm:9kB, anon-rss:8kB, file-rss:0kB, UID:0"
TASK = (
    b"6,811,5005,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
    b"task_memcg=/user.slice,task=python3,pid=2213,uid=1000"
)


def test_counters() -> None:
    assert [count_in(text) for text in (EVENTS, MACHINE, "", "oom_killer 1\n")] == [2, 1, 0, 0]


def test_the_kernel_log() -> None:
    assert [victims_in(text) for text in (GLOBAL, TASK, b"6,1,1,-;eth0: link up, pid=3")] == [{2213}, {2213}, set()]


def test_what_counts(tmp_path: Path) -> None:
    """Without a log; the group's own counter goes before that of the machine."""
    counter = tmp_path / "memory.events"
    counter.write_text("oom_kill 4\n")
    (tmp_path / "group").mkdir()
    memory = Memory(str(tmp_path / "group"))
    if memory._log >= 0:
        os.close(memory._log)
        memory._log = -1
    assert not memory.explains(1, 9)
    counter.write_text("oom_kill 5\n")
    assert [memory.explains(1, 0), memory.explains(2, 15), memory.explains(3, 9)] == [False, True, True]
    assert [memory.explains(4, 9), memory.explains(5, 256)] == [False, False]  # that kill is told


def test_a_kill_somewhere_on_the_machine_is_no_reason_for_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = tmp_path / "vmstat"
    counter.write_text(MACHINE)
    monkeypatch.setattr("mesh.agent.process.oom.MACHINE", str(counter))
    monkeypatch.setattr("mesh.agent.process.oom._counter_of_v1", lambda: "")
    memory = Memory("")
    if memory._log >= 0:
        os.close(memory._log)
        memory._log = -1
    counter.write_text(MACHINE.replace("oom_kill 1", "oom_kill 2"))
    assert [memory.explains(1, 256), memory.explains(2, 9)] == [False, True]


def memory_group() -> tuple[Path, str] | None:
    """Where a cgroup with a limit of memory can be made, and the name of the limit."""
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path(cgroups.own() or "/nowhere")
    if os.access(v1 / "cgroup.procs", os.W_OK):
        return v1, "memory.limit_in_bytes"
    control = v2 / "cgroup.subtree_control"
    if os.access(control, os.W_OK) and "memory" in control.read_text().split():
        return v2, "memory.max"
    return None


def within(place: Path, argv: list[str]) -> list[str]:
    return ["sh", "-c", f'echo $$ >{place}/cgroup.procs && exec "$@"', "sh", *argv]


@pytest.fixture
def narrow(opener: Open, any_python: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """An agent on a host that has little memory."""
    import tests.agent.conftest as module

    found = memory_group()
    if found is None:
        pytest.skip("no memory cgroup is ours")
    place = found[0] / f"mesh-test-{os.getpid()}"
    place.mkdir()
    (place / found[1]).write_text(LIMIT)
    monkeypatch.setattr(module, "start_command", lambda python: within(place, start_command(python)))
    yield opener(any_python)
    assert eventually(lambda: not (place / "cgroup.procs").read_text())
    place.rmdir()


@pytest.mark.root
def test_a_rank_that_is_out_of_memory(narrow: Run) -> None:
    narrow.prepare()
    narrow.start("sh", "-c", GREEDY)
    exited = narrow.result()
    assert (exited.signal, exited.oom) == (9, True)
    assert exited.told() == "killed by the kernel: out of memory"


@pytest.mark.root
def test_a_rank_whose_child_is_out_of_memory(narrow: Run) -> None:
    narrow.prepare()
    narrow.start("sh", "-c", f"({GREEDY}); exit 3")
    exited = narrow.result()
    assert (exited.code, exited.oom) == (3, True)
    assert exited.told().startswith("exit 3 (the kernel has killed a process there for lack of memory")


@pytest.mark.root
def test_the_next_one_was_killed_by_somebody(narrow: Run) -> None:
    narrow.prepare()
    narrow.start("sh", "-c", f"[ $RANK = 1 ] || {{ {GREEDY}; }}; read x; kill -9 $$", nproc=2, stdin=True)
    first, second = narrow.until(Exited), None
    narrow.session.stdin(1, b"\n")
    second = narrow.until(Exited)
    assert isinstance(first, Exited)
    assert isinstance(second, Exited)
    assert [(e.rank, e.signal, e.oom) for e in (first, second)] == [(0, 9, True), (1, 9, False)]
    assert narrow.finish().left == ()


def test_a_rank_that_somebody_has_killed(agent: Run) -> None:
    agent.prepare()
    agent.start("sh", "-c", "kill -9 $$")
    exited = agent.result()
    assert (exited.signal, exited.oom) == (9, False)
    assert exited.told() == "killed by SIGKILL"
