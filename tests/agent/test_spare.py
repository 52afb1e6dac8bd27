"""What waits to become a rank: it becomes what a fork would have, and nothing of it stays where none is wanted."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from mesh.backends.command import CommandBackend, CommandChannel
from mesh.core.events import Exited, Ready, Stream
from mesh.remote.agent import cgroups
from mesh.remote.agent.frames import encode
from mesh.remote.blob import opening, start_command
from tests.lab import eventually

from .conftest import HOST, Open, Run, kept_groups, wait_for_spare
from .test_ending import is_running

PROBE = """
import json, os, resource, sys
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
group = [line.strip().rpartition("/")[2].rpartition("mesh-")[1] for line in open("/proc/self/cgroup")]
mask = os.umask(0)
kinds = [os.readlink(f"/proc/self/fd/{n}").partition(":")[0] for n in (0, 1, 2)]
print(json.dumps({
    "environment": {name: value for name, value in os.environ.items() if name != "MESH_RUN_ID"},
    "directory": os.getcwd(), "umask": mask, "kinds": kinds, "arguments": sys.argv,
    "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
    "open": len(os.listdir("/proc/self/fd")), "leads": os.getsid(0) == os.getpid(), "group": sorted(group),
    "limits": [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")],
}), os.getpid())
"""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def known(opener: Open, any_python: str) -> str:
    """A Python for which the agent is compiled already."""
    run = opener(any_python)
    run.prepare()
    assert run.finish().left == ()
    return any_python


def probed(run: Run, *arguments: str) -> tuple[dict[str, object], int]:
    run.prepare(env={"GIVEN": "caf\udce9 =x"})
    run.start("/usr/bin/python3", "-I", "-S", "-c", PROBE, *arguments)
    assert run.result().code == 0
    told, pid = run.printed().decode().rsplit(" ", 1)
    return json.loads(told), int(pid)


def test_it_becomes_what_a_fork_would_have(opener: Open, python: str) -> None:
    by_fork, _ = probed(opener(python), "caf\udce9", "")
    run = opener(python, waits=True)
    spare = run.spare
    assert probed(run, "caf\udce9", "") == (by_fork, spare)


def test_only_one_rank_comes_of_it(opener: Open, known: str) -> None:
    run = opener(known, waits=True)
    spare = run.spare
    run.prepare()
    run.start("sh", "-c", "echo $RANK $$", nproc=2)
    for _ in range(2):
        run.until(Exited)
    assert run.finish().left == ()
    first, second = (run.printed(rank=rank).split() for rank in (0, 1))
    assert (first, second[0]) == ([b"0", b"%d" % spare], b"1")
    assert second[1] != first[1]


@pytest.mark.parametrize("size", [100, 100_000], ids=["killed", "too much to tell"])
def test_where_it_cannot_serve_there_is_a_fork(opener: Open, known: str, size: int) -> None:
    run = opener(known, waits=True)
    spare = run.spare
    if size == 100:
        os.kill(spare, signal.SIGKILL)
    run.prepare()
    run.start("sh", "-c", "echo $$ ${#1} ${#2}", "sh", "x" * size, "y" * size)
    assert run.result().code == 0
    pid, *sizes = map(int, run.printed().split())
    assert sizes == [size, size]
    assert pid != spare
    assert eventually(lambda: not is_running(spare))


def test_a_program_that_cannot_be_run(opener: Open, known: str) -> None:
    run = opener(known, waits=True)
    run.prepare()
    run.start("no-such-program")
    assert run.result().code == 127
    assert b"cannot run 'no-such-program'" in run.printed(Stream.STDERR)


def test_it_is_no_process_of_the_run_before(opener: Open, known: str) -> None:
    """What prerun, a signal or the end of a run has to do with is the run's."""
    run = opener(known, waits=True)
    spare = run.spare
    assert isinstance(run.prepare(["trap '' TERM; true"]), Ready)
    assert not is_running(spare)
    run.start("true")
    assert run.result().code == 0


@pytest.mark.parametrize("how", ["finish", "signal", "hang up", "kill"])
def test_nothing_stays_where_none_is_wanted(opener: Open, known: str, how: str) -> None:
    run = opener(known, waits=True)
    spare = run.spare
    agent = parent_of(run.spare)
    assert isinstance(run.prepare(), Ready)
    if how == "signal":
        run.session.signal(signal.SIGUSR1, 10.0)
    if how in ("finish", "signal"):
        assert run.finish().left == ()
    elif how == "kill":
        os.kill(agent, signal.SIGKILL)
    else:
        run.session.close()
    assert eventually(lambda: not is_running(spare) and not is_running(agent), 20.0)


def kill_both_while_it_waits(backend: CommandBackend, python: str) -> CommandChannel:
    """Have an agent wait, and kill it and its guardian so that neither sees the end of the other."""
    (opened,) = backend.open([HOST], start_command(python))
    channel = opened.result
    assert isinstance(channel, CommandChannel)
    spare = wait_for_spare(channel)
    agent = parent_of(spare)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in (parent_of(agent), agent):
            os.kill(pid, number)
    assert eventually(lambda: not is_running(spare))
    return channel


@pytest.mark.root
@pytest.mark.parametrize("how", ["an agent that waits", "a sweep"])
def test_group_of_agent_and_guardian_killed_together_is_removed_by_the_next(known: str, how: str) -> None:
    backend = CommandBackend()
    try:
        killed = kill_both_while_it_waits(backend, known)
        if not cgroups.own():
            pytest.skip("no control group is ours")
        assert kept_groups(killed)
        (opened,) = backend.open([HOST], start_command(known))
        channel = opened.result
        assert isinstance(channel, CommandChannel)
        if how == "a sweep":
            about = {"run": "none", "node": 0, "have": 0, "remote_dir": "/nowhere", "cgroup": ""}
            channel.send(opening() + encode({"type": "channel", "marker": "m", **about}))
        else:
            wait_for_spare(channel)
        assert eventually(lambda: not kept_groups(killed), 20.0)
        channel.close()
        assert eventually(lambda: not kept_groups(channel), 20.0)
    finally:
        backend.close()


@pytest.mark.parametrize("how", ["hang up", "kill", "kill its guardian", "tell it to end", "bring a channel"])
def test_nothing_stays_of_what_no_run_has_wanted(known: str, how: str) -> None:
    backend = CommandBackend()
    try:
        (opened,) = backend.open([HOST], start_command(known))
        channel = opened.result
        assert isinstance(channel, CommandChannel)
        spare = wait_for_spare(channel)
        agent = parent_of(spare)
        if how == "kill":
            os.kill(agent, signal.SIGKILL)
        elif how == "kill its guardian":
            os.kill(parent_of(agent), signal.SIGKILL)
        elif how == "tell it to end":
            os.kill(agent, signal.SIGTERM)
        elif how == "hang up":
            channel.close()
        else:
            about = {"run": "none", "node": 0, "have": 0, "remote_dir": "/nowhere", "cgroup": ""}
            channel.send(opening() + encode({"type": "channel", "marker": "m", **about}))
        assert eventually(lambda: not is_running(spare) and not is_running(agent), 20.0)
        assert eventually(lambda: not kept_groups(channel), 20.0)
    finally:
        backend.close()
