"""A sync is a process of its own, which never outlasts the run."""

from __future__ import annotations

import fcntl
import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mesh.agent.process.processes import descendants
from mesh.backends.command import CommandChannel
from mesh.core.events import Gone, Synced
from mesh.workspace.listing import DIRECTORY
from mesh.workspace.manifest import Entry, Manifest, changes, manifest_of
from tests.lab import eventually

from .conftest import Open, Run
from .test_ending import is_running


def tree(*names: str) -> Manifest:
    """Directories and nothing in them."""
    return manifest_of(Entry(name, DIRECTORY, 0o755, 0, 0, "") for name in names)


IDLE = 2  # processes of an agent that does nothing
OLD, NEW = tree("old"), tree("new", "new/one", "old")


def told(base: Manifest | None, new: Manifest) -> bytes:
    return changes(base, new).to_bytes()


@contextmanager
def somebody_syncs(remote_dir: Path) -> Iterator[None]:
    """As where hosts share a home directory: within, whoever wants to sync waits."""
    with (remote_dir / "workspaces" / ".p.sync").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def processes_of(run: Run) -> int:
    """Return how many processes an agent has, itself and its guardian among them."""
    channel = run.session._sender.channel
    assert isinstance(channel, CommandChannel)
    return len(descendants(channel.process.pid)) + is_running(channel.process.pid)


def synced_once(run: Run) -> None:
    run.lock()
    run.session.send_changes(told(None, OLD), attempt=0, fresh=False)
    run.until(Synced)
    assert eventually(lambda: processes_of(run) == IDLE)


def test_a_sync_that_waits_for_another_host_is_one_process_more(
    opener: Open, any_python: str, remote_dir: Path
) -> None:
    run = opener(any_python)
    synced_once(run)
    run.session.attempt = 1
    with somebody_syncs(remote_dir):
        run.session.send_changes(told(OLD, NEW), attempt=1, fresh=False)
        assert eventually(lambda: processes_of(run) == IDLE + 1)
    event = run.until(Synced)
    assert isinstance(event, Synced)
    assert event.tree == NEW.tree
    assert (remote_dir / "workspaces/p/new/one").is_dir()
    assert eventually(lambda: processes_of(run) == IDLE)
    assert run.finish().left == ()


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_sync_that_waits_ends_with_its_run(
    opener: Open, any_python: str, remote_dir: Path, fresh: bool, number: signal.Signals
) -> None:
    run = opener(any_python)
    synced_once(run)
    with somebody_syncs(remote_dir):
        run.session.send_changes(told(OLD, NEW), attempt=0, fresh=fresh)
        assert eventually(lambda: processes_of(run) == IDLE + 1)
        run.session.beat()
        run.session.finish(number, math.inf)  # whatever takes no heed of signals would stay for ever
        gone = run.until(Gone)
        assert isinstance(gone, Gone)
        assert gone.left == ()
        assert run.session.round_trip < math.inf  # the agent does not wait with it
        assert eventually(lambda: processes_of(run) == 0)
    assert not (remote_dir / "workspaces/p/new").exists()


def test_a_sync_in_a_copy_is_a_process(opener: Open, any_python: str, remote_dir: Path) -> None:
    """The copy is removed with the run."""
    run = opener(any_python, share=True)
    synced_once(run)
    (mark,) = remote_dir.rglob(".p.sync")
    with mark.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        run.session.send_changes(told(OLD, NEW), attempt=0, fresh=False)
        assert eventually(lambda: processes_of(run) == IDLE + 1)
        assert run.finish().left == ()
    assert not mark.parent.exists()
