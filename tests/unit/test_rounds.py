"""The steward's audit: its child, and what becomes of machines without an owner that it has found."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import json

from mesh.api import straying
from mesh.hosts.tpu.machines import Machine, Seen
from mesh.jobs.events import AnyEvent, StraysSeen
from mesh.jobs.place import StorePlace, store_place
from mesh.jobs.rounds import RoundOptions, Rounds
from mesh.jobs.store import Store, open_store
from mesh.jobs.strays import Stray, Strays, read_strays, write_strays
from tests.job_histories import job_spec
from tests.unit.test_spending import SPEC

ORPHAN = Stray(name="train-abc123-1-g1", kind="node", zone="us-east1-d", project="lab", job=1, per_hour=8.0)
UNKNOWN = Stray(name="lost", kind="node", zone="us-east1-d", project="lab")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = open_store(StorePlace(directory=tmp_path))
    found.submit([SPEC], 1.0)
    yield found
    found.close()


class Driven:
    """Rounds whose child writes what a file has."""

    def __init__(self, store: Store, answer: bytes) -> None:
        self.events: list[tuple[int, AnyEvent]] = []
        path = store.place.directory / "answer"
        path.write_bytes(answer)
        argv = (sys.executable, "-c", "import sys; sys.stdout.write(open(sys.argv[1]).read())", str(path))
        with selectors.DefaultSelector() as selector:
            options = RoundOptions(audit=argv, interval=600.0)
            rounds = Rounds(store, options, selector, lambda job, event: self.events.append((job, event)))
            rounds.go([], time.time())
            self.was_due = bool(selector.get_map())
            rounds.go([], time.time() + 601.0)
            while selector.get_map():
                for key, _ in selector.select(60.0):
                    key.data()
            rounds.end()


def test_what_has_no_owner_is_an_event_of_its_job_and_stays_until_it_is_gone(store: Store) -> None:
    driven = Driven(store, json.encode(Strays(time=time.time(), found=(ORPHAN, UNKNOWN))))
    assert not driven.was_due  # before the interval is over
    ((job, event),) = driven.events
    assert isinstance(event, StraysSeen)
    assert (job, event.names) == (1, (ORPHAN.name,))
    store.record(job, event)
    assert read_strays(store.place.directory).found == (ORPHAN, UNKNOWN)
    found = store.job(1)
    assert found is not None
    assert found.strays == (ORPHAN.name,)
    # Another steward, after a restart: the zone gives no answer, so that nothing is known to be gone.
    Driven(store, json.encode(Strays(time=time.time(), silent=(("lab", "us-east1-d"),))))
    assert read_strays(store.place.directory).found == (ORPHAN, UNKNOWN)
    driven = Driven(store, json.encode(Strays(time=time.time())))
    assert [(job, event.names) for job, event in driven.events if isinstance(event, StraysSeen)] == [(1, ())]
    assert read_strays(store.place.directory).found == ()


def test_an_audit_without_an_answer_changes_nothing(store: Store) -> None:
    write_strays(store.place.directory, Strays(time=1.0, found=(UNKNOWN,)))
    assert Driven(store, b"").events == []
    assert read_strays(store.place.directory).found == (UNKNOWN,)


def test_without_a_job_that_makes_machines_nothing_is_asked(tmp_path: Path) -> None:
    store = open_store(StorePlace(directory=tmp_path))
    store.submit([job_spec()], 1.0)
    Driven(store, json.encode(Strays(time=5.0)))
    assert read_strays(tmp_path).time == 0.0
    store.close()


def test_the_program_that_audits_without_any_store(tmp_path: Path) -> None:
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(straying.argv(), env=environ, capture_output=True, check=True)
    found = json.decode(done.stdout, type=Strays)
    assert (found.found, found.silent) == ((), ())


def test_two_looks_must_show_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("MESH_STORE", raising=False)
    place = store_place(os.environ)
    store = open_store(place)
    store.submit([SPEC], 1.0)
    labels = {"mesh-store": store.id[:6], "mesh-job": "99", "mesh-generation": "1"}
    store.close()

    def machine(name: str) -> Machine:
        return Machine(name=name, state="READY", zone="us-east1-d", project="lab", labels=labels, created=1.0)

    answers = [
        Seen(complete=True, machines=(machine("stays"), machine("goes"))),
        Seen(complete=True, machines=(machine("stays"), machine("comes"))),
    ]
    found = straying.find_strays(look=lambda project, zone: answers.pop(0), interval=0.0)
    assert [(one.name, one.job) for one in found.found] == [("stays", None)]
    found = straying.find_strays(look=lambda project, zone: Seen(complete=False, why="no answer"), interval=0.0)
    assert (found.found, found.silent) == ((), (("lab", "us-east1-d"),))
