"""The agent's directory on a host: unpacked once for each version, checked before use, and removed when it is old."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.agent import install, version
from mesh.agent.version import PLACES
from mesh.backends.command import CommandChannel
from mesh.core.events import Output, Ready
from mesh.remote import blob
from tests.lab import eventually

from .conftest import PYTHONS, Open, Run
from .test_ending import is_running

BYTES_OF_A_RUN_MAX = 10_000  # sent to a host that has this version of the agent
MINE = Path(f"/tmp/mesh-{os.geteuid()}")


def own() -> Path:
    """Return the directory of this version of the agent."""
    return MINE / f"{version.PREFIX}{blob._key()}"


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the agent a version of its own, of which no host has a directory. Other tests run at the same time."""
    key = f"test-{os.urandom(8).hex()}"
    monkeypatch.setattr(blob, "_key", lambda: key)
    blob.opening.cache_clear()
    yield
    blob.opening.cache_clear()
    assert eventually(remove_own, 60.0)


def remove_own() -> bool:
    """Remove the directory of this version; False if an agent has written another module into it meanwhile."""
    shutil.rmtree(own(), ignore_errors=True)
    return not own().exists()


def ready(run: Run, files: contextlib.ExitStack) -> None:
    """Prepare a host, and keep its version in use: a test beside this one may remove those that are not."""
    assert isinstance(run.prepare(), Ready)
    lock = files.enter_context((own() / version.LOCK_NAME).open())
    fcntl.flock(lock, fcntl.LOCK_SH)


@pytest.fixture
def files() -> Iterator[contextlib.ExitStack]:
    """Files that stay open to the end of a test."""
    with contextlib.ExitStack() as opened:
        yield opened


@pytest.mark.parametrize("variable", ["", "1"])
def test_the_first_run_unpacks_it_and_the_next_one_imports_compiled_modules(
    fresh: None,
    opener: Open,
    any_python: str,
    variable: str,
    monkeypatch: pytest.MonkeyPatch,
    files: contextlib.ExitStack,
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", variable)
    agents = []
    for _ in range(2):
        run = opener(any_python)
        ready(run, files)
        assert run.finish().left == ()
        channel = run.session._sender.channel
        assert isinstance(channel, CommandChannel)
        agents.append(channel.process.pid)
    assert own().stat().st_mode & 0o777 == 0o700
    assert version.size_of(str(own())) == sum(map(len, blob._sources().values()))
    assert list(own().rglob("*.pyc"))
    # Other tests of this machine may unpack an agent at the same time.
    assert not [path for pid in agents for path in MINE.glob(f"{install.DRAFT_PREFIX}{pid}-*")]


def test_a_host_that_has_this_version_gets_at_most_10_kb_in_a_whole_run(
    fresh: None, opener: Open, any_python: str, monkeypatch: pytest.MonkeyPatch, files: contextlib.ExitStack
) -> None:
    sent = []
    send = CommandChannel.send

    def counted(channel: CommandChannel, data: bytes) -> None:
        sent.append(len(data))
        send(channel, data)

    monkeypatch.setattr(CommandChannel, "send", counted)
    bytes_of_runs = []
    for _ in range(2):
        sent.clear()
        run = opener(any_python)
        ready(run, files)
        run.start("true")
        assert run.result().code == 0
        bytes_of_runs.append(len(shlex.join(blob.start_command(any_python))) + sum(sent))
    first, second = bytes_of_runs
    assert first > len(blob.blob())
    print("bytes of a run", second)
    assert second <= BYTES_OF_A_RUN_MAX


def test_a_damaged_directory_is_replaced(
    fresh: None, opener: Open, any_python: str, files: contextlib.ExitStack
) -> None:
    for damage in ("nothing", "a module is gone", "a module is cut", "the lock file is gone"):
        if damage == "a module is gone":
            (own() / blob.PACKAGE / "agent/main.py").unlink()
        elif damage == "a module is cut":
            os.truncate(own() / blob.PACKAGE / "agent/main.py", 100)
        elif damage == "the lock file is gone":
            (own() / version.LOCK_NAME).unlink()
        run = opener(any_python)
        ready(run, files)
        assert run.finish().left == ()
        assert version.size_of(str(own())) == sum(map(len, blob._sources().values()))


def first_line(run: Run) -> bytes:
    while b"\n" not in run.printed():
        run.until(Output)
    return run.printed()


def test_removing_the_directory_under_a_running_agent_leaves_no_process_when_the_client_is_killed(
    fresh: None, opener: Open, any_python: str
) -> None:
    for victim in ("client", "agent"):
        run = opener(any_python, return_within=0.2, grace=0.2)
        assert isinstance(run.prepare(), Ready)
        run.start("sh", "-c", "trap '' TERM; setsid sleep 98761 & echo $! $PPID; sleep 98762")
        stray, agent = map(int, first_line(run).split())
        assert eventually(remove_own, 60.0)
        if victim == "client":
            run.session.close()
        else:
            os.kill(agent, signal.SIGKILL)
        assert eventually(lambda stray=stray, agent=agent: not is_running(stray) and not is_running(agent), 60.0)


def test_unused_versions_beyond_the_newest_three_are_removed_and_used_ones_stay(tmp_path: Path) -> None:
    def made(name: str, when: int) -> Path:
        path = tmp_path / name
        path.mkdir()
        (path / version.LOCK_NAME).touch()
        os.utime(path / version.LOCK_NAME, (when, when))
        return path

    unused = [made(f"{version.PREFIX}{number}", 1000 + number) for number in range(5)]
    draft = made(f"{install.DRAFT_PREFIX}1-x", 5000)
    young = made(f"{install.DRAFT_PREFIX}2-x", int(time.time()))  # another process is about to lock it
    used = made(f"{version.PREFIX}used", 1)
    holder = subprocess.Popen(["flock", "-s", str(used / version.LOCK_NAME), "sleep", "100"])
    try:
        assert eventually(lambda: install._is_used(str(used)))
        install._remove_unused(str(tmp_path), "own")
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(p.name for p in [*unused[2:], used, young])
        assert not draft.exists()
    finally:
        holder.kill()
        holder.wait()


def found(place: Path, size: int) -> str:
    """Return what the starter finds, in a process of its own: it keeps the directory open."""
    script = f"from mesh.agent.starter import find; print(find('k', {size}, ('/nowhere', {str(place)!r})))"
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.strip()


def test_only_a_private_directory_of_this_user_is_used(tmp_path: Path) -> None:
    private = tmp_path / f"mesh-{os.geteuid()}"
    target = private / f"{version.PREFIX}k"
    assert found(tmp_path, 4) == ""
    target.mkdir(parents=True)
    (target / version.LOCK_NAME).touch()
    (target / "a.py").write_text("pass")
    private.chmod(0o770)
    assert found(tmp_path, 4) == ""
    private.chmod(0o700)
    assert found(tmp_path, 5) == ""
    assert found(tmp_path, 4) == str(target)
    private.rename(tmp_path / "elsewhere")
    private.symlink_to("elsewhere")
    assert found(tmp_path, 4) == ""


def test_a_version_at_which_another_process_looks_is_found(tmp_path: Path) -> None:
    target = tmp_path / f"mesh-{os.geteuid()}" / f"{version.PREFIX}k"
    target.mkdir(parents=True)
    target.parent.chmod(0o700)
    (target / version.LOCK_NAME).touch()
    (target / "a.py").write_text("pass")
    looking = os.open(target / version.LOCK_NAME, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_EX)  # as _is_used does
    over = threading.Timer(0.3, os.close, [looking])
    over.start()
    assert found(tmp_path, 4) == str(target)
    over.join()


@pytest.mark.root
@pytest.mark.parametrize("disk", ["ro", "size=64k"], ids=["read-only", "full"])
def test_the_agent_runs_from_memory_where_no_directory_can_be_made(disk: str, any_python: str) -> None:
    """In a mount namespace whose places for temporary files are read-only, or have no room."""
    script = f'for place in {" ".join(PLACES)}; do mount -t tmpfs -o {disk} none $place || exit 9; done; exec "$@"'
    elsewhere = [python for python in PYTHONS.values() if not python.startswith(PLACES)]
    command = ["unshare", "-m", "sh", "-c", script, "sh", *blob.start_command((elsewhere or [any_python])[0])]
    agent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert agent.stdin is not None
    assert agent.stdout is not None
    agent.stdin.write(blob.opening())
    agent.stdin.flush()
    assert agent.stdout.readline() == b"\n"
    assert agent.stdout.readline() == blob.lacking()[1:]
    data = blob.blob()
    agent.stdin.write(b'{"type":"agent","size":%d}\n' % len(data) + data)
    agent.stdin.write(b'{"type":"no such message"}\n')
    _, err = agent.communicate(timeout=60)
    assert b"no message is called 'no such message'" in err, err
