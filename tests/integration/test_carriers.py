"""A carrier is one module and one entry: a prefix backend, in place of those that mesh has."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mesh.app import carriers
from mesh.app.assemble import Parts, launch, new_run_id
from mesh.app.screen import Showing
from mesh.core.cluster import Cluster, Host
from mesh.core.events import Event, HostNotice, Lost, Output, PrepareFailed, Started
from mesh.core.outcome import Outcome
from tests.prefix import PrefixBackend
from tests.specs import spec_of


class Events:
    """A sink that keeps every event, and acts on the first one of a kind."""

    def __init__(self, kind: type[Event] = Event, act: Callable[[], object] = lambda: None) -> None:
        self.all: list[Event] = []
        self._kind, self._act = kind, act

    def handle(self, event: Event) -> None:
        if isinstance(event, self._kind) and not any(isinstance(other, self._kind) for other in self.all):
            self._act()
        self.all.append(event)

    def idle(self) -> None: ...

    def close(self) -> None: ...


Launch = Callable[..., Outcome]


@pytest.fixture
def run_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    monkeypatch.setenv("HOME", str(tmp_path))

    def run(backend: PrefixBackend, events: Events, *command: str) -> Outcome:
        monkeypatch.setattr(carriers, "CARRIERS", {"prefix": carriers.Carrier(open=lambda cluster, means: backend)})
        host = Host(name="h", address="127.0.0.1", remote_dir=str(tmp_path / "remote"))
        spec = spec_of(run=new_run_id(), workspace=tmp_path, command=command, sync=False, grace=0.5, host_grace=900.0)
        cluster = Cluster(name="prefixed", hosts=(host,), backend="prefix")
        parts = Parts(spec=spec, cluster=cluster, showing=Showing(quiet=True, kept=False), sinks=(events,))
        outcome, _, _ = launch(parts)
        return outcome

    return run


def test_one_module_and_one_entry_run_a_command(run_with: Launch) -> None:
    events = Events()
    outcome = run_with(PrefixBackend(["env", "MET=1"]), events, "sh", "-c", "echo $MET")
    assert outcome.exit_code == 0
    assert b"".join(event.data for event in events.all if isinstance(event, Output)) == b"1\n"
    assert [event.text for event in events.all if isinstance(event, HostNotice)] == ["its time ends at noon"]


def test_a_host_that_is_gone_for_good_is_lost_at_once_with_the_reason_of_its_backend(run_with: Launch) -> None:
    backend = PrefixBackend(["env"], reason="evicted: the node was low on memory")
    killed = []

    def kill() -> None:
        pid = backend.channels[0].process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        killed.append(time.monotonic())
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for one in (pid, *map(int, children)):  # guardian and agent, and what the agent has started
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, number)

    events = Events(Started, kill)
    outcome = run_with(backend, events, "sh", "-c", "exec sleep 8")
    assert outcome.exit_code == 76
    (lost,) = [event for event in events.all if isinstance(event, Lost)]
    assert lost.reason == "evicted: the node was low on memory (the host was deleted)"
    assert time.monotonic() - killed[0] < 300  # --host-grace is 900 s


def test_the_backend_says_why_no_agent_has_started(run_with: Launch) -> None:
    events = Events()
    assert run_with(PrefixBackend(["sh", "-c", "exit 4"]), events, "true").exit_code == 125
    (failed,) = [event for event in events.all if isinstance(event, PrepareFailed)]
    assert (failed.message, failed.step) == ("the prefix ended (exit 4)", "python")
