"""A sync is a process of its own, which never outlasts the run."""

from __future__ import annotations

import fcntl
import math
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mesh.agent.process.processes import descendants
from mesh.core.events import Gone, Synced
from mesh.workspace.listing import DIRECTORY
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


def at_work() -> int:
    """Return how many processes agents have here."""
    return len(descendants(os.getpid()))


def synced_once(run: Run) -> None:
    run.lock()
    run.session.send_changes(told(None, OLD), attempt=0, fresh=False)
    run.until(Synced)


def test_a_sync_that_waits_for_another_host_is_one_process_more(
    opener: Open, any_python: str, remote_dir: Path
) -> None:
    run = opener(any_python)
    synced_once(run)
    processes = at_work()
    run.session.attempt = 1
    with somebody_syncs(remote_dir):
        run.session.send_changes(told(OLD, NEW), attempt=1, fresh=False)
        assert eventually(lambda: at_work() == processes + 1)
    event = run.until(Synced)
    assert isinstance(event, Synced)
    assert event.tree == NEW.tree
    assert (remote_dir / "workspaces/p/new/one").is_dir()
    assert eventually(lambda: at_work() == processes)
    assert run.finish().left == ()


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_sync_that_waits_ends_with_its_run(
    opener: Open, any_python: str, remote_dir: Path, fresh: bool, number: signal.Signals
) -> None:
    others = at_work()  # the hosts of tests that came before
    run = opener(any_python)
    synced_once(run)
    processes = at_work()
    with somebody_syncs(remote_dir):
        run.session.send_changes(told(OLD, NEW), attempt=0, fresh=fresh)
        assert eventually(lambda: at_work() == processes + 1)
        run.session.beat()
        run.session.finish(number, math.inf)  # whatever takes no heed of signals would stay for ever
        gone = run.until(Gone)
        assert isinstance(gone, Gone)
        assert gone.left == ()
        assert run.session.round_trip < math.inf  # the agent does not wait with it
        assert eventually(lambda: at_work() == others)
    assert not (remote_dir / "workspaces/p/new").exists()


def test_a_sync_in_a_copy_is_a_process(opener: Open, any_python: str, remote_dir: Path) -> None:
    """The copy is removed with the run."""
    run = opener(any_python, share=True)
    synced_once(run)
    processes = at_work()
    (mark,) = remote_dir.rglob(".p.sync")
    with mark.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        run.session.send_changes(told(OLD, NEW), attempt=0, fresh=False)
        assert eventually(lambda: at_work() == processes + 1)
        assert run.finish().left == ()
    assert not mark.parent.exists()
