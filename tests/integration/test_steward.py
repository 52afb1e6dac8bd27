"""A steward in a process of its own, with scripted hands: its socket, its lock, writes of other processes, its end."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from mesh.core.errors import MeshError
from mesh.core.job import NotifySpec
from mesh.core.notify import Moment
from mesh.jobs import orders, requests
from mesh.jobs.children import CHILDREN_COUNT, SLOW_CHILDREN_COUNT, Children
from mesh.jobs.events import AnyAnswer, HoldChanged, NotAsked, Wished
from mesh.jobs.fold import fold_all
from mesh.jobs.interfaces import Request
from mesh.jobs.locking import AlreadyServed, take_lock
from mesh.jobs.place import StorePlace
from mesh.jobs.reading import Selection, rows
from mesh.jobs.requests import rows_of, serving_pid
from mesh.jobs.sockets import connect, listen, socket_path
from mesh.jobs.starting import ensure, may_start
from mesh.jobs.store import open_store
from mesh.jobs.values import Row, Wanted
from tests.job_histories import History
from tests.job_histories import job_spec as history_spec
from tests.jobs_crowd import crowd
from tests.jobs_world import ROOT, Host, job_spec, overlaps
from tests.lab import eventually

REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 240.0


class World:
    """A world with a steward."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for index in range(4):
            Host(root, f"h{index}").make()
        self.place = StorePlace(directory=root / "jobs")
        self.steward = requests.Steward(path=str(root / "socket"))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environ = {**os.environ, ROOT: str(self.root), "PYTHONPATH": str(REPOSITORY)}
        argv = [sys.executable, "-m", "tests.jobs_world", "steward", str(self.root)]
        self.process = subprocess.Popen(argv, env=environ, cwd=REPOSITORY)
        assert eventually(lambda: serving_pid(self.steward) > 0, PATIENCE_S)

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(PATIENCE_S)
            self.process = None

    def rows(self) -> list[Row]:
        return rows(self.place.file)

    def trouble(self) -> tuple[str, ...]:
        """Return the errors of the steward itself."""
        about = self.steward.ask(requests.AskAbout()).about
        assert about is not None
        return about.trouble

    def ends(self, run: str) -> list[object]:
        """Return the state of a run on each host that has it."""
        records = [Host(self.root, f"h{index}").record(run) for index in range(4)]
        return [record["state"] for record in records if record]

    def wait_for(self, states: list[str]) -> None:
        found = eventually(lambda: [row.state for row in self.rows()] == states, PATIENCE_S)
        assert found, [(row.state, row.reason) for row in self.rows()]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.end()
    assert list(overlaps(tmp_path)) == []


def test_jobs_are_submitted_watched_and_stopped_through_the_socket(world: World) -> None:
    world.start()
    about = world.steward.ask(requests.AskAbout()).about
    assert about is not None
    assert about.pid == world.process.pid if world.process else False
    assert about.store == str(world.place.file)
    watching = world.steward.listen(requests.Watch(selection=Selection()))
    assert rows_of(next(watching).rows) == []
    specs = (job_spec("a", ["0.2:ok"]), job_spec("b", ["60:ok"]), job_spec("c", ["0.1:ok"], hosts=4))
    made = rows_of(world.steward.ask(requests.Submit(specs=specs)).rows)
    assert [row.id for row in made] == [1, 2, 3]
    seen: list[tuple[int, str]] = []
    for reply in watching:
        seen += [(row.id, row.state) for row in rows_of(reply.rows)]
        if (1, "succeeded") in seen and (2, "running") in seen:
            break
    watching.close()  # type: ignore[attr-defined]
    waiting = rows_of(world.steward.ask(requests.AskRows(selection=Selection(ids=(3,)))).rows)[0]
    assert waiting.reason == "pod: 2 of 4 hosts busy; first in the queue"
    stopped = world.steward.ask(requests.Record(jobs=(2,), event=Wished(time=time.time(), wanted=Wanted.STOP, by="me")))
    assert [row.state for row in rows_of(stopped.rows)] == ["ending"]
    world.wait_for(["succeeded", "stopped", "succeeded"])
    assert [row.exit_code for row in world.rows()] == [0, 143, 0]


def test_a_crowd_submits_at_once_and_all_of_it_is_stopped_at_once(world: World) -> None:
    world.start()
    print(f"stopped in {crowd(world.place.directory, '', world.steward.path):.1f} s")


def test_errors_reach_the_command_with_their_hints(world: World) -> None:
    world.start()
    with pytest.raises(MeshError, match="no job 77") as caught:
        world.steward.ask(requests.Record(jobs=(77,), event=HoldChanged(is_on_hold=True)))
    assert caught.value.hint == "mesh job list --all"
    with connect(world.steward.path) as way:
        way.sendall(b'{"do": "what"}\n')
        assert b"cannot read this request" in way.recv(4096)


def test_writes_of_other_processes_are_carried_out(world: World) -> None:
    store = open_store(world.place)
    world.start()
    first, second = store.submit([job_spec("a", ["0.2:ok"]), job_spec("b", ["60:ok"])], time.time())
    world.wait_for(["succeeded", "running"])
    store.record(second.id, Wished(time=time.time(), wanted=Wanted.STOP))
    world.wait_for(["succeeded", "stopped"])
    for job in (first, second):
        assert fold_all(store.events(job.id)) == store.job(job.id)
    store.close()


def test_a_job_waits_for_another_one(world: World) -> None:
    world.start()
    world.steward.ask(requests.Submit(specs=(job_spec("a", ["0.3:ok"]), job_spec("fails", ["0.1:2"]))))
    after = [replace(job_spec(f"after-{other}", ["0.1:ok"]), depends_on=(other,)) for other in (1, 2)]
    world.steward.ask(requests.Submit(specs=tuple(after)))
    world.wait_for(["succeeded", "failed", "succeeded", "held"])
    assert world.rows()[3].reason == "job 2 did not succeed"


def test_runs_outlive_their_steward_and_are_adopted(world: World) -> None:
    world.start()
    world.steward.ask(requests.Submit(specs=(job_spec("a", ["enough:ok"]),)))
    world.wait_for(["running"])
    run = world.rows()[0].runs
    world.end(signal.SIGKILL)
    world.start()
    assert world.rows()[0].state == "running"
    (world.root / "enough").touch()
    world.wait_for(["succeeded"])
    assert world.rows()[0].runs == run
    assert world.rows()[0].attempt == 1


def test_a_second_steward_names_the_first(world: World) -> None:
    world.start()
    assert world.process is not None
    with pytest.raises(AlreadyServed, match=f"pid {world.process.pid}") as caught:
        take_lock(world.place, patience=0.2)
    assert caught.value.exit_code == 75
    pid = world.process.pid
    world.end(signal.SIGKILL)
    lock = take_lock(world.place)
    assert Path(world.place.directory, "serve.lock").read_text() != f"{pid}\n"
    os.close(lock)


def test_a_stopped_steward_leaves_at_once(world: World) -> None:
    world.start()
    world.steward.ask(requests.StopSteward())
    assert world.process is not None
    assert world.process.wait(PATIENCE_S) == 0
    world.process = None


def test_a_hanging_notification_delays_nobody(world: World, tmp_path: Path) -> None:
    world.start()
    slow = NotifySpec(on=(Moment.END,), command=("sleep", "600"))
    quick = NotifySpec(on=(Moment.END,), command=("touch", str(tmp_path / "told-{job}")))
    specs = (
        replace(job_spec("a", ["0.1:ok"]), notify=(slow,)),
        replace(job_spec("b", ["0.1:ok"]), notify=(quick,)),
    )
    world.steward.ask(requests.Submit(specs=specs))
    world.wait_for(["succeeded", "succeeded"])
    assert eventually(lambda: (tmp_path / "told-2").exists(), PATIENCE_S)
    store = open_store(world.place)
    # The notice of job 1 still hangs, or is tried again. That of job 2 is gone once its command has ended.
    assert eventually(lambda: [notice.news.job for _, _, notice in store.notices()] == [1])
    store.close()


def test_notices_of_a_job_come_in_order_and_none_is_lost_with_a_killed_steward(world: World, tmp_path: Path) -> None:
    world.start()
    sent = tmp_path / "sent"

    def lines() -> list[str]:
        return sent.read_text().splitlines() if sent.exists() else []

    tell = ("sh", "-c", f"sleep 0.2; echo {{job}} {{state}} {{attempt}} >>{sent}")
    notify = (NotifySpec(on=(Moment.END, Moment.PREEMPTED), command=tell),)
    jobs = (job_spec("a", ["0.1:lost", "0.1:lost", "0.1:ok"]), job_spec("b", ["0.1:lost", "0.1:5", "0.1:5", "0.1:5"]))
    world.steward.ask(requests.Submit(specs=tuple(replace(one, notify=notify) for one in jobs)))
    for count in (0, 1, 3):  # of notices that have come, while the next is on its way
        assert eventually(lambda count=count: len(lines()) >= count, 2 * PATIENCE_S), lines()
        time.sleep(0.2)
        world.end(signal.SIGKILL)
        world.start()
    over = ["succeeded", "failed"]
    assert eventually(lambda: [row.state for row in world.rows()] == over, 4 * PATIENCE_S), world.rows()
    expected = {
        "1": ["1 queued 1", "1 queued 2", "1 succeeded 3"],
        "2": ["2 queued 1", "2 failed 4"],
    }

    def told(job: str) -> list[str]:
        """Return what has come about a job, without the second of two equal lines: each comes at least once."""
        return list(dict.fromkeys(line for line in lines() if line.startswith(job)))

    assert eventually(lambda: {job: told(job) for job in expected} == expected, 2 * PATIENCE_S), sent.read_text()


def test_the_socket_is_private(tmp_path: Path) -> None:
    place = StorePlace(directory=tmp_path)
    os.chmod(tmp_path, 0o700)
    path = socket_path({"XDG_RUNTIME_DIR": str(tmp_path)}, place)
    assert path.startswith(str(tmp_path)) or len(str(tmp_path)) > 60
    other = socket_path({"XDG_RUNTIME_DIR": str(tmp_path)}, StorePlace(directory=tmp_path / "other"))
    assert other != path
    os.chmod(tmp_path, 0o755)  # others can enter it
    assert socket_path({"XDG_RUNTIME_DIR": str(tmp_path)}, place).startswith(f"/tmp/mesh-{os.geteuid()}/")
    assert stat.S_IMODE(os.lstat(f"/tmp/mesh-{os.geteuid()}").st_mode) == 0o700
    listener = listen(str(tmp_path / "s"))
    assert stat.S_IMODE(os.lstat(tmp_path / "s").st_mode) == 0o600
    listener.close()
    with pytest.raises(OSError, match="refused"):
        connect(str(tmp_path / "s"))


def fill(descriptor: int) -> None:
    while True:
        os.write(descriptor, bytes(4096))


@pytest.mark.root
def test_a_full_disk_under_the_store_delays_and_loses_nothing(world: World) -> None:
    world.place.directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", world.place.directory], check=True)
    try:
        world.start()
        world.steward.ask(requests.Submit(specs=(job_spec("a", ["enough:ok"]), job_spec("b", ["0.1:ok"], hosts=4))))
        world.wait_for(["running", "queued"])
        filler = world.place.directory / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            fill(file.fileno())
        with pytest.raises(MeshError, match=r"full|disk") as caught:
            world.steward.ask(requests.Submit(specs=tuple(job_spec("c", ["0.1:ok"]) for _ in range(200))))
        assert "space" in caught.value.hint
        (world.root / "enough").touch()
        (run,) = world.rows()[0].runs
        assert eventually(lambda: world.ends(run) == ["ended"] * 2, PATIENCE_S)
        time.sleep(1.0)  # the steward looks at it meanwhile, every 0.2 s
        assert [row.state for row in world.rows()] == ["running", "queued"]
        assert eventually(lambda: any("full" in text or "disk" in text for text in world.trouble()), PATIENCE_S)
        filler.unlink()
        world.wait_for(["succeeded", "succeeded"])
        assert [row.attempt for row in world.rows()] == [1, 1]
        world.end()
    finally:
        world.end(signal.SIGKILL)
        subprocess.run(["umount", "-l", world.place.directory], check=True)


def test_a_steward_is_started_once_and_outlives_the_command(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o700)
    for index in range(4):
        Host(tmp_path, f"h{index}").make()
    place = StorePlace(directory=tmp_path / "jobs")
    environ = {**os.environ, ROOT: str(tmp_path), "PYTHONPATH": str(REPOSITORY), "XDG_RUNTIME_DIR": str(tmp_path)}
    path = socket_path(environ, place)
    argv = [sys.executable, "-m", "tests.jobs_world", "steward", str(tmp_path), path]
    pid = ensure(place, argv, environ)
    try:
        assert ensure(place, argv, environ) == pid
        assert Path(f"/proc/{pid}/cwd").resolve() == Path("/")
        held = []
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # it was that of a connection
                held.append(os.readlink(f"/proc/{pid}/fd/{number}"))
        assert held
        assert not [target for target in held if target.startswith("/dev/pts")]
    finally:
        os.kill(pid, signal.SIGTERM)
        assert eventually(lambda: not serving_pid(requests.Steward(path=path)), PATIENCE_S)
    with pytest.raises(MeshError, match="ended at once"):
        ensure(place, [sys.executable, "-c", "import sys; sys.exit('no')"], environ)
    assert not may_start({"MESH_SERVE": "0"})


def test_a_child_that_hangs_is_killed_at_its_deadline(tmp_path: Path) -> None:
    answers: list[AnyAnswer | None] = []
    with selectors.DefaultSelector() as selector:
        program = [sys.executable, "-c", "import time; time.sleep(600)"]
        children = Children(program, os.environ, selector, lambda request, answer: answers.append(answer))
        children.deadlines["start"] = 0.5
        job = History(history_spec()).play("granted").job
        children.give([Request(op=1, order=job.open[0].order, job=job, directory=tmp_path)])
        assert children.is_busy(job.id, 1)
        while not answers:
            time.sleep(0.05)
            children.look_at_the_clock()
        assert isinstance(answers[0], NotAsked)
        assert answers[0].why == "no answer within 0.5 s"
        children.give([Request(op=1, order=job.open[0].order, job=job, directory=tmp_path)])
        children.stop_starts(job.id)
        assert len(answers) == 2
        assert not len(children)
        children.end()


def test_long_starts_leave_room_for_stops_and_a_stopped_job_starts_no_more(tmp_path: Path) -> None:
    answers: list[tuple[int, AnyAnswer | None]] = []
    with selectors.DefaultSelector() as selector:
        program = [sys.executable, "-c", "import time; time.sleep(600)"]
        children = Children(program, os.environ, selector, lambda request, answer: answers.append((request.op, answer)))
        job = History(history_spec()).play("granted").job
        others = [replace(job, id=number) for number in range(100, 100 + CHILDREN_COUNT)]
        for op, one in enumerate([*others, job], 1):
            children.give([Request(op=op, order=job.open[0].order, job=one, directory=tmp_path)])
        assert len(children) == SLOW_CHILDREN_COUNT
        stop = orders.Stop(run="20260101-000000-abcdef", hosts=("h",))
        children.give([Request(op=99, order=stop, job=job, directory=tmp_path)])
        assert len(children) == SLOW_CHILDREN_COUNT + 1
        last = len(others) + 1
        assert children.is_busy(job.id, last)
        children.stop_starts(job.id)
        assert not children.is_busy(job.id, last)
        assert [op for op, _ in answers] == [last]
        assert isinstance(answers[0][1], NotAsked)
        assert len(children) == SLOW_CHILDREN_COUNT + 1
        children.end()


def test_a_slow_reader_is_no_burden(world: World) -> None:
    world.start()
    ways: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            way = stack.enter_context(connect(world.steward.path))
            way.sendall(b'{"do":"watch"}\n')
            ways.append(way)
        world.steward.ask(requests.Submit(specs=(job_spec("a", ["0.1:ok"]),)))
        world.wait_for(["succeeded"])
