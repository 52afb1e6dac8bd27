"""The store of a team in PostgreSQL: the same tables, leases by its clock, writers at once. The server is Debian's."""

from __future__ import annotations

import glob
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy

from mesh.core.errors import MeshError
from mesh.core.tasks import TaskList, TaskSpec
from mesh.jobs.database import StoreFailed
from mesh.jobs.events import Fetched, Granted, PriorityChanged, RunEnded, RunStarted
from mesh.jobs.fold import fold_all
from mesh.jobs.leases import Lease, LeaseLost
from mesh.jobs.place import StorePlace
from mesh.jobs.reading import Selection
from mesh.jobs.requests import Steward, serving_pid
from mesh.jobs.store import open_store
from mesh.jobs.values import State
from tests.desk import GENEROUS_S
from tests.full import times
from tests.job_histories import job_spec
from tests.jobs_crowd import crowd
from tests.jobs_world import ROOT, Host, overlaps
from tests.jobs_world import job_spec as world_spec
from tests.lab import eventually

PROGRAMS = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
REPOSITORY = Path(__file__).parents[2]
LONG_S = 600.0  # of a lease that is not to be over

pytestmark = [
    pytest.mark.root,  # the server refuses to run as root, so that the test must be able to become its user
    pytest.mark.skipif(not PROGRAMS, reason="needs PostgreSQL"),
]
psycopg = pytest.importorskip("psycopg")
NUMBERS = itertools.count()  # of databases


@pytest.fixture(scope="module")
def directory() -> Iterator[str]:
    """The directory of a server, with its files and its Unix socket; it listens on nothing else."""
    user = pwd.getpwnam("postgres")
    where = tempfile.mkdtemp(prefix="mesh-pg-")
    os.chown(where, user.pw_uid, user.pw_gid)
    programs = os.path.dirname(PROGRAMS[-1])
    quiet = {"stdout": subprocess.DEVNULL, "user": user.pw_uid, "group": user.pw_gid, "cwd": where, "check": True}
    subprocess.run([f"{programs}/initdb", "-D", f"{where}/data", "-A", "trust", "-U", "mesh", "-N"], **quiet)  # type: ignore[call-overload]
    control = [f"{programs}/pg_ctl", "-D", f"{where}/data", "-w", "-l", f"{where}/log"]
    subprocess.run([*control, "-o", f"-c listen_addresses='' -k {where}", "start"], **quiet)  # type: ignore[call-overload]
    yield where
    subprocess.run([*control, "-m", "immediate", "stop"], **quiet)  # type: ignore[call-overload]
    shutil.rmtree(where)


@pytest.fixture
def server(directory: str) -> str:
    """The address of a new database on the server."""
    name = f"mesh{next(NUMBERS)}"
    with psycopg.connect(f"postgresql://mesh@/postgres?host={directory}", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"postgresql://mesh@/{name}?host={directory}"


def place_of(server: str, tmp_path: Path) -> StorePlace:
    return StorePlace(directory=tmp_path, url=server)


def test_a_job_lives_in_postgresql_as_in_sqlite(server: str, tmp_path: Path) -> None:
    store = open_store(place_of(server, tmp_path))
    job = store.submit([job_spec(user="life")], 1.0)[0].id
    decided = store.record(job, Granted(time=2.0, hosts=("h0", "h1"), keys=("l0", "l1")))
    run = decided.job.attempts[-1].run
    store.record(job, RunStarted(time=3.0, op=1, run=run))
    store.record(job, RunEnded(time=4.0, run=run, exit_code=0, cause="completed"))
    done = store.record(job, Fetched(time=5.0, op=2, run=run)).job
    assert done.state is State.SUCCEEDED
    assert fold_all(store.events(job)) == done == store.job(job)
    assert [number for number, _ in store.rows(Selection(user="life"))] == [job]
    assert store.usage(5.0)["life"] == pytest.approx(6.0)  # two hosts for three seconds
    store.close()


def test_the_server_ends_the_transaction_of_a_frozen_process(server: str, tmp_path: Path) -> None:
    store = open_store(place_of(server, tmp_path))
    with store._database.engine.connect() as connection:
        found = connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar()
    assert found == "10s"
    store.close()


def test_many_rows_are_one_statement_and_no_pipeline(server: str, tmp_path: Path) -> None:
    """The server does not end the transaction of a process that was frozen within a pipeline."""
    store = open_store(place_of(server, tmp_path))
    piped: list[str] = []
    sqlalchemy.event.listen(
        store._database.engine, "do_executemany", lambda cursor, statement, values, context: piped.append(statement)
    )
    first, _, _ = store.submit([job_spec()] * 3, 1.0)
    decided = store.record(first.id, Granted(time=2.0, hosts=("h0", "h1"), keys=("k0", "k1")))
    store.close()
    assert len(decided.events) > 1
    assert not piped


def test_no_machine_has_two_jobs_whatever_two_stewards_decide(server: str, tmp_path: Path) -> None:
    store = open_store(place_of(server, tmp_path))
    first, second = store.submit([job_spec(), job_spec()], 1.0)
    store.record(first.id, Granted(time=2.0, hosts=("h0", "h1"), keys=("k0", "k1")))
    with pytest.raises(StoreFailed):
        store.record(second.id, Granted(time=2.0, hosts=("h1", "h2"), keys=("k1", "k2")))
    found = store.job(second.id)
    assert found is not None
    assert found.state is State.QUEUED
    store.close()


def test_a_replaced_steward_writes_nothing_more(server: str, tmp_path: Path) -> None:
    store, other = open_store(place_of(server, tmp_path)), open_store(place_of(server, tmp_path))
    job = store.submit([job_spec()], 1.0)[0].id
    first = store.leases.take("steward:me", "first", LONG_S)
    assert first is not None
    assert other.leases.take("steward:me", "second", LONG_S) is None
    assert store.leases.renew(first, 0.1)
    taken: list[Lease] = []

    def is_over() -> bool:
        taken[:] = filter(None, [other.leases.take("steward:me", "second", LONG_S)])
        return bool(taken)

    assert eventually(is_over, GENEROUS_S)
    (second,) = taken
    with pytest.raises(LeaseLost):
        store.record(job, PriorityChanged(time=2.0, priority=1), first)
    assert other.record(job, PriorityChanged(time=2.0, priority=1), second).job.priority == 1
    store.close()
    other.close()


TAKE = """
import sys, time
from pathlib import Path
from mesh.core.tasks import WorkerSpec
from mesh.jobs import events
from mesh.jobs.place import StorePlace
from mesh.jobs.store import open_store
from tests.job_histories import job_spec
store = open_store(StorePlace(directory=Path("/nowhere"), url=sys.argv[1]))
job = store.submit([job_spec(worker=WorkerSpec(tasks=Path("/x/tasks.yaml")))], 1.0)[0].id
store.record(job, events.TasksSeen(time=2.0, has_tasks=True))
store.record(job, events.Granted(time=3.0, hosts=("h",), keys=(f"key-{job}",)))
now = 4.0
while (given := store.give_task(job, now)) is not None:
    now += 1.0
    attempt, op = given.job.attempts[-1], given.job.ops
    print(attempt.part.name)
    store.record(job, events.RunStarted(time=now, op=op, run=attempt.run))
    store.record(job, events.RunEnded(time=now, run=attempt.run, exit_code=0, cause="completed"))
    store.record(job, events.Fetched(time=now, op=op + 1, run=attempt.run))
store.close()
"""


def test_workers_of_several_processes_share_a_task_file_in_postgresql(server: str, tmp_path: Path) -> None:
    store = open_store(place_of(server, tmp_path))
    names = [f"t{number}" for number in range(times(24, full=40))]
    tasks = tuple(TaskSpec(id=name, run="true", accelerator="v4-8") for name in names)
    key = "/x/tasks.yaml"
    store.tasks.load(key, "1", TaskList(path=Path("/x/tasks.yaml"), tasks=tasks))
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    argv = [sys.executable, "-c", TAKE, server]
    count = times(4, full=6)
    workers = [subprocess.Popen(argv, cwd=REPOSITORY, env=environ, **pipes) for _ in range(count)]  # type: ignore[call-overload]
    said = [worker.communicate(timeout=300) for worker in workers]
    assert [(worker.returncode, errors) for worker, (_, errors) in zip(workers, said, strict=True)] == [(0, "")] * count
    assert sorted(name for taken, _ in said for name in taken.split()) == sorted(names)
    state = store.tasks.state(key)
    assert state is not None
    assert all(record.is_done and record.runs == 1 and not record.running for record in state.records.values())
    assert store.audit() == []
    store.close()


def test_a_crowd_submits_at_once_and_all_of_it_is_stopped_at_once(server: str, tmp_path: Path) -> None:
    for index in range(4):
        Host(tmp_path, f"h{index}").make()
    path = str(tmp_path / "sock")
    environ = {**os.environ, ROOT: str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    argv = [sys.executable, "-m", "tests.jobs_world", "steward", str(tmp_path), path, str(tmp_path / "first"), server]
    steward = subprocess.Popen(argv, cwd=REPOSITORY, env=environ)
    try:
        assert eventually(lambda: serving_pid(Steward(path=path)) > 0, GENEROUS_S)
        print(f"stopped in {crowd(tmp_path / 'first', server, path):.1f} s")
    finally:
        steward.terminate()
        steward.wait()
    assert list(overlaps(tmp_path)) == []


def activity(server: str) -> str:
    """Return how the connections of a server are."""
    query = (
        "SELECT pid, state, wait_event_type, wait_event, now() - state_change, pg_blocking_pids(pid), query "
        "FROM pg_stat_activity WHERE backend_type = 'client backend'"
    )
    with psycopg.connect(server, autocommit=True) as connection:
        return "\n".join(map(str, connection.execute(query).fetchall()))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_second_steward_takes_over_from_one_that_is(server: str, tmp_path: Path, number: signal.Signals) -> None:
    for index in range(4):
        Host(tmp_path, f"h{index}").make()
    store = open_store(StorePlace(directory=tmp_path, url=server))
    jobs = store.submit(
        [world_spec(f"job-{index}", ["0.5:ok"], hosts=1 + index % 2) for index in range(8)], time.time()
    )
    environ = {**os.environ, ROOT: str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    stewards: list[subprocess.Popen[bytes]] = []

    def states() -> set[str]:
        return set(store.states([job.id for job in jobs]).values())

    try:
        for name in ("first", "second"):
            argv = [sys.executable, "-m", "tests.jobs_world", "steward", str(tmp_path), str(tmp_path / f"{name}.sock")]
            stewards.append(subprocess.Popen([*argv, str(tmp_path / name), server], cwd=REPOSITORY, env=environ))
            assert eventually(lambda: states() != {"queued"}, GENEROUS_S)
        stewards[0].send_signal(number)
        second = Steward(path=str(tmp_path / "second.sock"))
        assert eventually(lambda: serving_pid(second) == stewards[1].pid, GENEROUS_S)  # once it has the lease
        assert eventually(lambda: states() == {"succeeded"}, GENEROUS_S), f"{states()}\n{activity(server)}"
        if number is signal.SIGSTOP:
            stewards[0].send_signal(signal.SIGCONT)
            assert stewards[0].wait(GENEROUS_S)  # it ends, as its lease is lost
        assert store.audit() == []
        assert list(overlaps(tmp_path)) == []
    finally:
        for steward in stewards:
            steward.kill()
            steward.wait()
        store.close()


def test_a_server_that_is_not_there_is_named_without_its_password(tmp_path: Path) -> None:
    place = StorePlace(directory=tmp_path, url="postgresql://me:secret@127.0.0.1:1/mesh")
    with pytest.raises(MeshError) as caught:
        open_store(place)
    assert "postgresql://me@127.0.0.1:1/mesh" in str(caught.value)
    assert "secret" not in str(caught.value)
