"""The store: many writers, a full disk, a store that is read-only or newer, leases, notices, the quick reader."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from msgspec.structs import replace
from sqlalchemy import update

from mesh.core.errors import MeshError, UsageError
from mesh.core.job import ArraySpec, Format, JobSpec, NotifySpec
from mesh.core.notify import Moment
from mesh.jobs import database, events, place, reading, tables
from mesh.jobs.coding import decode, encode
from mesh.jobs.database import StoreFailed
from mesh.jobs.decide import decide
from mesh.jobs.events import Granted, PriorityChanged, RunEnded, RunStarted, Wished
from mesh.jobs.fold import fold_all
from mesh.jobs.interfaces import Request
from mesh.jobs.leases import LeaseLost
from mesh.jobs.notices import News, Notice, notices, send
from mesh.jobs.place import StorePlace, store_place
from mesh.jobs.store import Store, open_store
from mesh.jobs.values import Row, State, Wanted
from tests.job_histories import History, job_spec

REPOSITORY = Path(__file__).parents[2]
# Each process opens the store by itself. They have imported what they need before.
SUBMIT = """
import os, sys, time
from pathlib import Path
from mesh.jobs.place import StorePlace
from mesh.jobs.store import open_store
from tests.job_histories import job_spec
processes, each = int(sys.argv[2]), int(sys.argv[3])
children = []
for _ in range(processes):
    children.append(os.fork())
    if not children[-1]:
        store = open_store(StorePlace(directory=Path(sys.argv[1])))
        for _ in range(each):
            os.write(1, b"%d\\n" % store.submit([job_spec()], time.time())[0].id)
        store.close()
        os._exit(0)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = open_store(StorePlace(directory=tmp_path / "jobs"))
    yield found
    found.close()


def play(store: Store, spec: JobSpec) -> int:
    """Bring a job to its end through the store; return its id."""
    job = store.submit([spec], 1.0)[0].id
    history = History(spec)
    history.job = store.submit([spec], 1.0)[0]
    decided = store.record(job, Granted(time=2.0, hosts=("h0", "h1"), keys=("h0", "h1")))
    run = decided.job.attempts[-1].run
    assert store.open_orders(job) == [1]
    store.record(job, RunStarted(time=3.0, op=1, run=run))
    assert store.open_orders(job) == []
    store.record(job, RunEnded(time=4.0, run=run, exit_code=0, cause="completed"))
    store.record(job, events.Fetched(time=5.0, op=2, run=run))
    return job


def test_a_row_is_the_fold_of_its_events(store: Store) -> None:
    job = play(store, job_spec())
    found = store.job(job)
    assert found is not None
    assert found.state is State.SUCCEEDED
    assert fold_all(store.events(job)) == found
    assert decode(reading.json_rows(store.place.file)[0], Row).exit_code == 0
    assert reading.read_job(store.place.file, job) == found
    assert reading.read_events(store.place.file, job, after=2) == store.events(job)[2:]


def test_an_event_that_changes_nothing_is_not_written(store: Store) -> None:
    job = play(store, job_spec())
    before = len(store.events(job))
    assert not store.record(job, Wished(time=9.0, wanted=Wanted.STOP)).events
    assert len(store.events(job)) == before


def test_a_job_that_there_is_not_is_named(store: Store) -> None:
    with pytest.raises(MeshError, match="no job 9"):
        store.record(9, Wished(time=1.0, wanted=Wanted.STOP))
    with pytest.raises(MeshError, match="no job 9"):
        store.submit([job_spec(depends_on=(9,))], 1.0)
    assert store.jobs() == []


def test_an_array_is_one_transaction_and_names_its_first_member(store: Store) -> None:
    specs = [job_spec(array=ArraySpec(index=index, limit=4)) for index in range(32)]
    made = store.submit(specs, 1.0)
    assert [job.spec.array.first for job in made if job.spec.array] == [made[0].id] * 32
    with pytest.raises(MeshError):
        store.submit([*specs, job_spec(depends_on=(999,))], 1.0)
    assert len(store.jobs()) == 32


def test_a_dependency_that_has_succeeded_is_not_waited_for(store: Store) -> None:
    done = play(store, job_spec())
    waiting = store.submit([job_spec()], 1.0)[0].id
    job = store.submit([job_spec(depends_on=(done, waiting))], 1.0)[0]
    assert job.depends_on == (waiting,)


def test_twenty_processes_submit_two_hundred_jobs_at_once(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    argv = [sys.executable, "-c", SUBMIT, str(tmp_path / "jobs"), "20", "10"]
    done = subprocess.run(argv, cwd=REPOSITORY, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(map(int, done.stdout.split())) == list(range(1, 201))
    found = open_store(StorePlace(directory=tmp_path / "jobs"))
    assert [job.id for job in found.jobs()] == list(range(1, 201))
    found.close()


def test_a_full_disk_is_told_and_nothing_is_half_written(store: Store) -> None:
    job = store.submit([job_spec()], 1.0)[0].id
    with store._database.engine.connect() as connection:
        raw = connection.connection.driver_connection
        assert isinstance(raw, sqlite3.Connection)
        pages = raw.execute("PRAGMA page_count").fetchone()[0]
        raw.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(StoreFailed, match="full") as caught:
        store.submit([job_spec(file="x" * 20000)] * 50, 1.0)
    assert "space" in caught.value.hint
    assert [one.id for one in store.jobs()] == [job]
    for found in store.jobs():
        assert fold_all(store.events(found.id)) == found


def test_a_store_that_cannot_be_written_is_named(store: Store) -> None:
    with store._database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA query_only = ON")
    with pytest.raises(StoreFailed, match=r"store\.db: attempt to write a readonly database") as caught:
        store.submit([job_spec()], 1.0)
    assert caught.value.hint


def test_a_place_that_is_no_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreFailed, match="cannot be made"):
        open_store(StorePlace(directory=tmp_path / "file" / "jobs"))


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"no database, but long enough to be looked at as one" * 40)
    with pytest.raises(StoreFailed, match="not a database"):
        open_store(StorePlace(directory=tmp_path))
    with pytest.raises(MeshError, match="not a database"):
        reading.json_rows(tmp_path / "store.db")


def test_a_newer_store_is_refused_by_writers_and_readers(store: Store) -> None:
    with sqlite3.connect(store.place.file) as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE name = 'version'")
    connection.close()
    with pytest.raises(MeshError, match="a newer mesh made this store") as caught:
        open_store(store.place)
    assert "newer" in caught.value.hint
    with pytest.raises(MeshError, match="a newer mesh made this store"):
        reading.json_rows(store.place.file)


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "file_system_of", lambda path, info: "nfs4")
    with pytest.raises(UsageError, match="cannot be on nfs4") as caught:
        open_store(StorePlace(directory=tmp_path))
    assert "postgresql" in caught.value.hint


def test_a_reader_finds_no_jobs_where_there_is_no_store(tmp_path: Path) -> None:
    assert reading.json_rows(tmp_path / "store.db") == []
    assert reading.read_job(tmp_path / "store.db", 1) is None


def test_the_quick_reader_imports_no_sqlalchemy() -> None:
    code = "import sys, mesh.jobs.reading, mesh.jobs.requests; print('sqlalchemy' in sys.modules)"
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    assert subprocess.check_output([sys.executable, "-c", code], env=environ, text=True) == "False\n"


def test_lists_choose_by_state_user_and_time(store: Store) -> None:
    done = play(store, job_spec())
    other = store.submit([job_spec(user="you")], 50.0)[0].id
    file = store.place.file

    def ids(**wanted: object) -> list[int]:
        selection = reading.Selection(**wanted)  # type: ignore[arg-type]
        quick = [row.id for row in reading.rows(file, selection)]
        assert [number for number, _ in store.rows(selection)] == quick
        return quick

    assert ids(states=("succeeded",)) == [done]
    assert ids(user="you") == [other]
    assert ids(since=10.0) == [other]
    assert done not in ids(active_only=True)
    assert ids(ids=(done, 77)) == [done]
    store.record(done, Wished(time=60.0, wanted=Wanted.DELETE))
    assert done not in ids()
    assert done in ids(deleted=True)


def test_pruning_forgets_old_and_deleted_jobs_and_keeps_the_newest(store: Store) -> None:
    old = [play(store, job_spec()) for _ in range(3)]
    store.record(old[2], Wished(time=60.0, wanted=Wanted.DELETE))
    assert store.prune(before=100.0, keep=1) == [old[0], old[2]]
    assert store.job(old[1]) is not None
    assert store.job(old[0]) is None
    assert store.events(old[0]) == []
    assert store.submit([job_spec()], 1.0)[0].id > old[2]  # an id is never used again


def test_a_change_by_another_process_is_noticed(store: Store) -> None:
    before = store.change_count()
    assert store.change_count() == before
    other = open_store(store.place)
    other.submit([job_spec()], 1.0)
    other.close()
    assert store.change_count() != before


# ---- leases


def test_a_steward_whose_lease_was_taken_over_writes_nothing_more(store: Store) -> None:
    job = store.submit([job_spec()], 1.0)[0].id
    first = store.leases.take("steward:me", "first", 600.0)
    assert first is not None
    assert store.leases.take("steward:me", "second", 30.0) is None
    assert store.leases.holder("steward:me") == "first"
    with store._database.writing() as connection:  # as after 600 s, in which the first one was frozen
        connection.execute(update(tables.leases).values(until=1.0))
    second = store.leases.take("steward:me", "second", 30.0)
    assert second is not None
    assert second.epoch == first.epoch + 1
    with pytest.raises(LeaseLost):
        store.record(job, PriorityChanged(time=2.0, priority=1), first)
    assert not store.leases.renew(first)
    assert store.record(job, PriorityChanged(time=2.0, priority=1), second).job.priority == 1
    store.leases.give_back(second)
    assert store.leases.take("steward:me", "third", 30.0) is not None


# ---- notices

ALWAYS = NotifySpec(on=(Moment.END, Moment.HELD, Moment.PREEMPTED), command=("true",))
NEWS = News(
    job=4, name="lr", state="failed", before="ending", reason="exit 3", attempt=1, exit_code=3, user="me", time=1.0
)


def test_notices_are_written_with_the_change_and_kept_in_order_until_they_are_sent(store: Store) -> None:
    job = play(store, job_spec(notify=(ALWAYS, ALWAYS)))
    other = play(store, job_spec(notify=(ALWAYS,)))
    found = store.notices()
    assert [notice.news.job for _, _, notice in found] == [job, other]  # of each job the oldest alone
    assert found[0][2].news.state == "succeeded"
    store.note_notice(found[0][0], 1, is_done=True, problem="")
    assert [number for number, _, notice in store.notices() if notice.news.job == job] == [found[0][0] + 1]


def test_notices_are_due_by_moment() -> None:
    spec = job_spec(notify=(replace(ALWAYS, on=(Moment.FAILED,)), replace(ALWAYS, on=(Moment.PREEMPTED,))))
    history = History(spec).play("granted started")
    before = history.job
    job, _ = decide(before, history.event("ended:3"))
    assert notices(before, job, history.event("ended:3")) == []  # it is still ending
    done = History(spec).play("granted started ended:3 fetched").job
    assert [notice.to.on for notice in notices(job, done, events.Timer(time=1.0))] == [(Moment.FAILED,)]
    again, _ = decide(before, history.event("ended:76"))
    (preempted,) = notices(before, again, events.Timer(time=1.0))
    assert (preempted.to.on, preempted.news.before, preempted.news.state) == ((Moment.PREEMPTED,), "running", "queued")


def test_a_command_gets_the_news_on_its_input_and_in_its_words(tmp_path: Path) -> None:
    to = NotifySpec(command=("bash", "-c", f"cat > {tmp_path}/body; echo '{{job}} {{state}}' > {tmp_path}/words"))
    assert send(Notice(to=to, news=NEWS), {}) == ""
    assert (tmp_path / "words").read_text() == "4 failed\n"
    assert '"reason":"exit 3"' in (tmp_path / "body").read_text()
    failing = NotifySpec(command=("bash", "-c", "echo no >&2; exit 3"))
    assert send(Notice(to=failing, news=NEWS), {}) == "bash: exit 3 (no)"
    assert "timed out" in send(Notice(to=NotifySpec(command=("sleep", "9")), news=NEWS), {}, limit=0.1)
    assert "No such file" in send(Notice(to=NotifySpec(command=("./nothing",)), news=NEWS), {})


def test_a_webhook_gets_json_or_what_slack_reads() -> None:
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200 if len(bodies) < 3 else 500)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    environ = {"HOOK": f"http://127.0.0.1:{server.server_port}/secret"}
    plain = NotifySpec(url_env="HOOK")
    try:
        assert send(Notice(to=plain, news=NEWS), environ) == ""
        assert send(Notice(to=replace(plain, format=Format.SLACK), news=NEWS), environ) == ""
        problem = send(Notice(to=plain, news=NEWS), environ)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert b'"exit_code":3' in bodies[0]
    assert bodies[1] == b'{"text":"mesh: job 4 lr: failed (exit 3)"}'
    assert problem == "HOOK: the server answered with status 500"
    assert send(Notice(to=plain, news=NEWS), {}) == "HOOK: is not set where the steward runs"


# ---- values


def test_requests_travel_as_json() -> None:
    job = History(job_spec()).play("granted").job
    request = Request(op=1, order=job.open[0].order, job=job, directory=Path("/x"))
    assert decode(encode([request]), list[Request]) == [request]


def test_addresses_of_stores(tmp_path: Path) -> None:
    assert store_place({"MESH_STORE": str(tmp_path)}).directory == tmp_path
    assert store_place({"XDG_STATE_HOME": "/s"}).file == Path("/s/mesh/jobs/store.db")
    assert store_place({"MESH_STORE": "postgresql://db/x"}).url
    with pytest.raises(UsageError):
        store_place({"MESH_STORE": "mysql://db"})
    assert database.BUSY_TIMEOUT_S == 60.0
