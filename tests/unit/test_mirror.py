"""Files in the directory of a job: its events and its log of machines, each line once, whoever writes them."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import replace

from mesh.core.tasks import TaskSpec
from mesh.core.tpu import TpuSpec
from mesh.jobs import events, orders
from mesh.jobs.events import (
    MachinesAbsent,
    MachinesPending,
    MachinesReady,
    Made,
    NotAsked,
    Refusal,
    Refused,
    RunEnded,
    RunStarted,
)
from mesh.jobs.machinelog import MachineLog
from mesh.jobs.mirror import EVENTS_FILE, TPU_FILE, Log, Mirror
from mesh.jobs.place import StorePlace
from mesh.jobs.queuelog import QueueLog
from mesh.jobs.store import Store, open_store
from mesh.jobs.turns import Turn
from tests.job_histories import job_spec

MAKE = events.Intended(op=1, order=orders.Make(generation=1, name="me-abc123-1-g1"))
LIFE = (
    MAKE,
    Made(op=1, generation=1),
    MachinesPending(generation=1, state="WAITING_FOR_RESOURCES"),
    NotAsked(what="us-east1-d", why="503", of_maker=True),
    NotAsked(what="us-east1-d", why="503", of_maker=True),
    NotAsked(what="mesh-hand", why="killed"),
    MachinesReady(generation=1, hosts=("w0", "w1")),
    Refused(op=7, kind=Refusal.BUSY, why="another run is there"),
    events.Intended(op=2, order=orders.Delete(generation=1, name="me-abc123-1-g1")),
    Refused(op=2, kind=Refusal.PERSON, why="no right to delete"),
    MachinesAbsent(generation=1, evidence="not listed"),
)


def test_the_log_of_machines_has_a_line_for_each_change() -> None:
    log = Log(MachineLog().text)
    lines = [*log.lines(LIFE[:5]), *log.lines(LIFE[5:])]
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in lines)
    assert [line[20:-1] for line in lines] == [
        "generation 1: request me-abc123-1-g1",
        "generation 1: the request is accepted",
        "generation 1: WAITING_FOR_RESOURCES",
        "no answer from us-east1-d (503)",
        "generation 1: ready (w0, w1)",
        "generation 1: delete me-abc123-1-g1",
        "generation 1: refused (no right to delete)",
        "generation 1: gone (not listed)",
    ]


def test_the_log_of_a_worker_names_its_tasks() -> None:
    turn = Turn(task=TaskSpec(id="a", run="true", accelerator="v4-8"), number=1, since=0.0)
    life: list[events.AnyEvent] = [
        events.TasksSeen(has_tasks=True),
        RunStarted(run="r0"),
        RunEnded(run="r0", exit_code=0, cause="completed"),
        events.TaskGiven(turn=turn),
        RunStarted(run="r1"),
        RunEnded(run="r1", exit_code=3, cause="rank", reason="exit 3"),
        events.TaskGiven(turn=turn),
        RunStarted(run="r2"),
        events.TaskReturnAsked(task="a", by="me"),
        RunEnded(run="r2", exit_code=143, cause="signal"),
        events.TasksSeen(has_tasks=False, is_over=True),
        events.TasksSeen(has_tasks=False, is_over=True),
    ]
    assert [line[20:-1] for line in Log(QueueLog().text).lines(life)] == [
        "prefix: run r0 has started",
        "prefix: done",
        "task a: taken",
        "task a: run r1 has started",
        "task a: exit 3",
        "task a: taken",
        "task a: run r2 has started",
        "task a: given back for me",
        "task a: exit 143",
        "no task is left",
    ]


def test_the_log_of_a_worker_calls_no_step_a_task_and_no_end_twice() -> None:
    turn = Turn(task=TaskSpec(id="a", run="true", accelerator="v4-8"), number=1, since=0.0)
    ready = events.Granted(), MachinesReady(generation=1, hosts=("w0",))
    life: list[events.AnyEvent] = [
        *ready,
        events.TaskGiven(turn=turn),
        RunStarted(run="r1"),
        MachinesAbsent(generation=1, evidence="preempted"),  # which ends the run
        *ready,
        RunStarted(run="r2"),
        RunEnded(run="r2", exit_code=0, cause="completed"),
        events.TaskGiven(turn=turn),
        RunEnded(run="r3", exit_code=143, cause="signal"),  # cut off with the hand that started it
        RunStarted(run="r4"),
        RunEnded(run="r4", exit_code=0, cause="completed"),
        RunEnded(op=7, run="r4", exit_code=0, cause="completed"),
        *ready,
    ]
    assert [line[20:-1] for line in Log(QueueLog().text).lines(life)] == [
        "task a: taken",
        "task a: run r1 has started",
        "task a: interrupted",
        "prefix: run r2 has started",
        "prefix: done",
        "task a: taken",
        "task a: exit 143",
        "task a: run r4 has started",
        "task a: done",
    ]


def happen(store: Store, mirror: Mirror, job: int, *facts: events.AnyEvent) -> None:
    for fact in facts:
        mirror.write([store.record(job, fact).job])


def test_another_steward_writes_no_line_again(tmp_path: Path) -> None:
    store = open_store(StorePlace(directory=tmp_path))
    tpu = TpuSpec(accelerator="v4-8", runtime="v", project="p", zones=("z",))
    spec = job_spec(made=True)
    job = store.submit([replace(spec, machines=replace(spec.machines, tpu=tpu))], 1.0)[0].id
    mirror = Mirror(store)
    happen(store, mirror, job, events.Granted(time=2.0, pool="v4/z/spot"))  # there is no directory yet
    place = store.place.of_job(job)
    assert not place.exists()
    place.mkdir(parents=True)
    happen(store, mirror, job, Made(time=3.0, op=1, generation=1))
    mirror = Mirror(store)
    happen(store, mirror, job, MachinesPending(time=4.0, generation=1, state="CREATING"))
    with (place / TPU_FILE).open("a") as file:
        file.write("2026-01-01 half a li")  # its steward was killed
    happen(store, Mirror(store), job, MachinesReady(time=5.0, generation=1, hosts=("w0",), keys=("k0",)))
    found = [line[20:] for line in (place / TPU_FILE).read_text().splitlines()]
    assert [line.partition(": ")[2].partition(" ")[0] for line in found] == ["request", "the", "CREATING", "ready"]
    assert (place / TPU_FILE).stat().st_mode & 0o777 == 0o600
    assert len((place / EVENTS_FILE).read_text().splitlines()) == len(store.events(job))
    store.close()
