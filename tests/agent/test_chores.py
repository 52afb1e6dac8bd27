"""Syncs on a host: a little one is a thread of the agent's, another one a process; neither outlasts the run."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mesh.core.events import Gone, Synced
from mesh.remote.agent.processes import descendants
from mesh.remote.agent.state import State
from mesh.remote.agent.sync import FEW, LITTLE, Stopped, Sync
from mesh.workspace.listing import DIRECTORY, FILE
from mesh.workspace.manifest import Entry, Manifest, changes, manifest_of
from tests.lab import eventually

from .conftest import Open, Run


def tree(*names: str) -> Manifest:
    """Directories and nothing in them."""
    return manifest_of(Entry(name, DIRECTORY, 0o755, 0, 0, "") for name in names)


OLD, NEW = tree("old"), tree("new", "new/one", "old")


def told(base: Manifest | None, new: Manifest) -> bytes:
    return changes(base, new).to_bytes()


@contextmanager
def somebody_syncs(remote_dir: Path) -> Iterator[None]:
    """As where hosts share a home directory: within, whoever wants to sync waits."""
    with (remote_dir / "workspaces" / ".p.sync").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def at_work() -> tuple[int, int]:
    """How many processes agents have here, and how many threads beside their first ones."""
    found = [process.pid for process in descendants(os.getpid())]
    threads = 0
    for pid in found:
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            threads += len(os.listdir(f"/proc/{pid}/task")) - 1
    return len(found), threads


def synced_once(run: Run) -> None:
    """The first sync is none of the little ones."""
    run.lock()
    run.session.send_changes(told(None, OLD), attempt=0, fresh=False)
    run.until(Synced)


def test_a_little_sync_is_a_thread(opener: Open, python: str, remote_dir: Path) -> None:
    run = opener(python)
    synced_once(run)
    processes, _ = at_work()
    run.session.attempt = 1
    with somebody_syncs(remote_dir):
        run.session.send_changes(told(OLD, NEW), attempt=1, fresh=False)
        assert eventually(lambda: at_work() == (processes, 1))
    event = run.until(Synced)
    assert isinstance(event, Synced)
    assert event.tree == NEW.tree
    assert (remote_dir / "workspaces/p/new/one").is_dir()
    assert eventually(lambda: at_work() == (processes, 0))
    assert run.finish().left == ()


@pytest.mark.parametrize("fresh", [False, True], ids=["thread", "process"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_sync_that_waits_ends_with_its_run(
    opener: Open, any_python: str, remote_dir: Path, fresh: bool, number: signal.Signals
) -> None:
    others, _ = at_work()  # the hosts of tests that came before
    run = opener(any_python)
    synced_once(run)
    processes, _ = at_work()
    with somebody_syncs(remote_dir):
        run.session.send_changes(told(OLD, NEW), attempt=0, fresh=fresh)
        assert eventually(lambda: at_work() == (processes + fresh, not fresh))
        run.session.beat()
        run.session.finish(number, math.inf)  # whatever takes no heed of signals would stay for ever
        gone = run.until(Gone)
        assert isinstance(gone, Gone)
        assert gone.left == ()
        assert run.session.round_trip < math.inf  # the agent does not wait with it
        assert eventually(lambda: at_work()[0] == others)
    assert not (remote_dir / "workspaces/p/new").exists()


def test_a_sync_in_a_copy_is_a_process(opener: Open, any_python: str, remote_dir: Path) -> None:
    """The copy is removed with the run."""
    run = opener(any_python, share=True)
    synced_once(run)
    processes, _ = at_work()
    (mark,) = remote_dir.rglob(".p.sync")
    with mark.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        run.session.send_changes(told(OLD, NEW), attempt=0, fresh=False)
        assert eventually(lambda: at_work() == (processes + 1, 0))
        assert run.finish().left == ()
    assert not mark.parent.exists()


def sync_of(state: State, *pieces: bytes) -> Sync:
    sync = Sync(state, "run", fresh=False)
    for piece in pieces:
        sync.add_changes(piece)
    return sync


@pytest.fixture
def state(tmp_path: Path) -> State:
    """With a workspace that was synced once."""
    state = State(str(tmp_path), "p")
    state.make()
    first = sync_of(state, told(None, OLD))
    assert not first.is_little()
    assert first.work()["tree"] == OLD.tree
    return state


def test_a_sync_that_was_stopped_changes_nothing_any_more(state: State) -> None:
    sync = sync_of(state, told(OLD, NEW))
    assert sync.is_little()
    sync.stop()
    with pytest.raises(Stopped):
        sync.work()
    assert os.listdir(state.workspace) == ["old"]
    assert sync_of(state, told(OLD, NEW)).work()["tree"] == NEW.tree


def file(size: int) -> Manifest:
    return manifest_of([Entry("file", FILE, 0o644, 0, size, "0" * 40), *OLD.entries])


@pytest.mark.parametrize(
    ("pieces", "is_little"),
    [
        ([told(OLD, file(LITTLE))], True),
        ([told(OLD, file(LITTLE + 1))], False),
        ([told(OLD, tree(*map(str, range(FEW)), "old"))], True),
        ([told(OLD, tree(*map(str, range(FEW + 1)), "old"))], False),
        ([told(OLD, tree("0" * LITTLE, "old"))], False),
        ([told(OLD, NEW)[:9], told(OLD, NEW)[9:]], True),
        ([told(OLD, NEW)[:9]], False),
        ([b"nonsense"], False),
    ],
    ids=["bytes", "one more", "paths", "one more of them", "a long one", "pieces", "a part", "nonsense"],
)
def test_what_is_little(state: State, pieces: list[bytes], is_little: bool) -> None:
    assert sync_of(state, *pieces).is_little() is is_little


def test_a_large_record_is_not_little(state: State) -> None:
    with open(state.beside("record"), "ab") as record:
        record.truncate(LITTLE)
        assert sync_of(state, told(OLD, NEW)).is_little()
        record.truncate(LITTLE + 1)
        assert not sync_of(state, told(OLD, NEW)).is_little()
