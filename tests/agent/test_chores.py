"""Syncs on a host: a little one is a thread of the agent's, another one a process; neither outlasts the run."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mesh.core.events import Synced
from mesh.remote.agent.processes import descendants
from mesh.remote.agent.state import State
from mesh.remote.agent.sync import LITTLE, Stopped, Sync
from mesh.workspace.listing import DIRECTORY
from mesh.workspace.manifest import Entry, Manifest, changes, manifest_of
from tests.lab import eventually

from .conftest import Open, Run


def tree(*names: str) -> Manifest:
    """Directories and nothing in them."""
    return manifest_of(Entry(name, DIRECTORY, 0o755, 0, 0, "") for name in names)


def send(run: Run, manifest: Manifest, *, fresh: bool = False) -> None:
    run.session.send_changes(changes(None, manifest).to_bytes(), attempt=0, fresh=fresh)


@contextmanager
def somebody_syncs(remote_dir: Path) -> Iterator[None]:
    """As where hosts share a home directory: within, whoever wants to sync waits."""
    with (remote_dir / "workspaces" / ".p.sync").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def at_work() -> tuple[int, int]:
    """How many processes agents have here, and how many threads beside their first ones."""
    found = [process.pid for process in descendants(os.getpid())]
    return len(found), sum(len(os.listdir(f"/proc/{pid}/task")) - 1 for pid in found)


def test_a_little_sync_is_a_thread(opener: Open, python: str, remote_dir: Path) -> None:
    run = opener(python)
    run.lock()
    processes, _ = at_work()
    manifest = tree("a", "a/b")
    with somebody_syncs(remote_dir):
        send(run, manifest)
        assert eventually(lambda: at_work() == (processes, 1))
    event = run.until(Synced)
    assert isinstance(event, Synced)
    assert event.tree == manifest.tree
    assert (remote_dir / "workspaces/p/a/b").is_dir()
    assert eventually(lambda: at_work() == (processes, 0))
    assert run.finish().left == ()


@pytest.mark.parametrize("fresh", [False, True], ids=["thread", "process"])
def test_a_sync_that_waits_ends_with_its_run(opener: Open, any_python: str, remote_dir: Path, fresh: bool) -> None:
    run = opener(any_python)
    run.lock()
    processes, _ = at_work()
    with somebody_syncs(remote_dir):
        send(run, tree("a"), fresh=fresh)
        assert eventually(lambda: at_work() == (processes + fresh, not fresh))
        run.session.beat()
        assert run.finish().left == ()
        assert run.session.round_trip < float("inf")  # the agent does not wait with it
        assert eventually(lambda: not at_work()[0])
    assert not (remote_dir / "workspaces/p/a").exists()


def test_a_sync_that_was_stopped_changes_nothing_any_more(tmp_path: Path) -> None:
    state = State(str(tmp_path), "p")
    state.make()
    for is_stopped in (True, False):
        sync = Sync(state, "run", fresh=False)
        sync.add_changes(changes(None, tree("a")).to_bytes())
        assert sync.is_little()
        if is_stopped:
            sync.stop()
            with pytest.raises(Stopped):
                sync.work()
            assert os.listdir(state.workspace) == []
        else:
            assert sync.work()["tree"] == tree("a").tree
        sync.drop()


def test_much_is_not_little(tmp_path: Path) -> None:
    state = State(str(tmp_path), "p")
    state.make()
    sync = Sync(state, "run", fresh=False)
    sync.add(bytes(LITTLE))
    assert sync.is_little()
    sync.add_changes(b"1")
    assert not sync.is_little()
    sync.drop()
    Path(state.beside("record")).write_bytes(bytes(LITTLE + 1))
    assert not Sync(state, "run", fresh=False).is_little()
