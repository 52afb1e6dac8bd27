"""Workers that share a task file, by the command line, on hosts of this machine and on real sshd hosts."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from mesh.jobs.place import STORE_FILE, StorePlace
from mesh.jobs.reading import Selection, rows
from mesh.jobs.store import open_store
from mesh.jobs.tasking import TaskState, statuses
from tests.desk import Desk
from tests.full import times
from tests.lab import Lab, eventually

# Each argument is a command line of mesh; the result is JSON.
SEVERAL = """
import contextlib, io, json, shlex, sys
from mesh.cli.program import run
found = []
for line in sys.argv[1:]:
    out, err = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = run(["mesh", *shlex.split(line)])
        except SystemExit as end:
            status = end.code or 0
    for one in (out, err):
        one.flush()
    found.append((status, out.buffer.getvalue().decode(), err.buffer.getvalue().decode()))
print(json.dumps(found))
"""
ONE = {"config": "tasks.yaml", "end": True}
WITHIN_S = 600.0


class Queue:
    """A task file of a desk, and its workers."""

    def __init__(self, desk: Desk, out: Path) -> None:
        self.desk, self.out = desk, out
        self.path = desk.home.project / "tasks.yaml"

    def write(self, *tasks: dict[str, object], **more: object) -> None:
        """Write the file in one piece, as editors do."""
        groups = {"v4-8": {"tasks": list(tasks)}}
        beside = self.path.with_suffix(".new")
        beside.write_text(yaml.safe_dump({"accelerators": groups, **more}, sort_keys=False))
        beside.rename(self.path)

    def worker(self, name: str, machines: object = None, **more: object) -> int:
        """Submit a worker; return its id."""
        queue = {**ONE, **more}
        place = machines or {"cluster": "local:2", "hosts": 1}
        return self.desk.submit(yaml.safe_dump({"machines": place, "job": {"queue": queue}}), name=name)

    def now(self) -> dict[str, TaskState]:
        """Return the states of the tasks in the store, without a command."""
        store = open_store(StorePlace(directory=self.desk.place))
        try:
            state = store.tasks.state(str(self.path))
        finally:
            store.close()
        return {one.record.id: one.state for one in statuses(state.tasks, state.records)} if state else {}

    def named(self) -> list[str]:
        """Return the ids of the tasks as the steward has read them last."""
        store = open_store(StorePlace(directory=self.desk.place))
        try:
            state = store.tasks.state(str(self.path))
        finally:
            store.close()
        return [task.id for task in state.tasks.tasks] if state else []

    def reason(self, job: int) -> str:
        """Return the reason of a worker's state, without a command."""
        return rows(self.desk.place / STORE_FILE, Selection(ids=(job,)))[0].reason

    def rows(self) -> dict[str, dict[str, object]]:
        """Return the tasks as `mesh job queue --json --show-all` has them."""
        done = self.desk.mesh("job", "queue", "tasks.yaml", "--json", "--show-all")
        assert done.status == 0, done.err
        return {str(row["id"]): row for row in map(json.loads, done.out.splitlines())}

    def until(self, name: str, wanted: str) -> None:
        """Wait until a task has a state."""
        assert eventually(lambda: self.now().get(name) is TaskState(wanted), WITHIN_S), (self.now(), self.log())

    def commands(self, *lines: str) -> list[tuple[int, str, str]]:
        """Run several mesh commands in one process; return the status, stdout and stderr of each."""
        argv = [sys.executable, "-c", SEVERAL, *lines]
        done = subprocess.run(argv, cwd=self.desk.home.project, env=self.desk.home.environ, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        return [(int(status), out, err) for status, out, err in json.loads(done.stdout)]

    def log(self) -> str:
        listed = self.desk.mesh("job", "list", "--all").out.decode()
        return listed + (self.desk.place / "serve.log").read_text()[-3000:]

    def finish(self, *workers: int) -> int:
        """Wait until workers have ended; return the status."""
        words = ("job", "wait", *map(str, workers), "--timeout", str(WITHIN_S))
        return self.desk.mesh(*words, within=WITHIN_S + 60.0).status

    def lines(self) -> list[str]:
        return self.out.read_text().splitlines() if self.out.exists() else []


@pytest.fixture
def queue(desk: Desk, tmp_path: Path) -> Queue:
    return Queue(desk, tmp_path / "out")


def states(rows: dict[str, dict[str, object]]) -> str:
    return " ".join(f"{name}:{row['state']}" for name, row in rows.items())


def test_two_workers_share_a_file_until_nothing_is_left(queue: Queue) -> None:
    # No task ends before a second one has begun, so that each worker gets one.
    both = f"until [ $(grep -c begin {queue.out}) -ge 2 ]; do sleep 0.1; done"
    note = f"echo begin $MESH_TASK_ID >>{queue.out}; {both}; echo end $MESH_TASK_ID >>{queue.out}; echo out of $X"
    names = [f"t{number}" for number in range(4)]
    queue.write(*({"id": name, "run": note, "env": {"X": name}} for name in names))
    workers = [queue.worker(name) for name in ("one", "two")]
    assert queue.finish(*workers) == 0, queue.log()
    lines = queue.lines()
    assert sorted(lines) == sorted(f"{what} {name}" for name in names for what in ("begin", "end"))
    rows = queue.rows()
    assert states(rows) == " ".join(f"{name}:done" for name in names)
    assert all(row["runs"] == 1 for row in rows.values())
    listed = queue.desk.mesh("job", "queue", "tasks.yaml").out.decode()
    assert "4 tasks: 4 done" in listed
    by = {int(one["job"]) for row in rows.values() for one in row["history"]}  # type: ignore[attr-defined]
    assert by == set(workers)
    (log,) = (queue.desk.place / "tasks/t3").glob("run_001_job*_worker_0.log")
    assert log.read_text() == "out of t3\n"
    (meta,) = (queue.desk.place / "tasks/t3").glob("run_001_job*_meta.yaml")
    assert yaml.safe_load(meta.read_text())["task"] == "t3"
    mirror = queue.path.parent / "tasks_state.yaml"
    assert eventually(lambda: mirror.read_text().count("done: true") == 4, WITHIN_S)
    mirror = yaml.safe_load(mirror.read_text())["tasks"]
    assert mirror["t0"]["history"][0]["status"] == "completed"


def test_failures_are_tried_again_and_dependencies_wait(queue: Queue) -> None:
    again = f"echo a >>{queue.out}; [ $(grep -cx a {queue.out}) = 2 ]"
    queue.write(
        {"id": "late", "run": f"echo late >>{queue.out}", "depends_on": "a"},
        {"id": "a", "run": again},
        {"id": "bad", "run": f"echo bad >>{queue.out}; exit 7", "max_retries": 2},
        {"id": "never", "run": f"echo never >>{queue.out}", "depends_on": ["bad"]},
        {"id": "nowhere", "run": "true", "workers": [9], "max_retries": 1},
        defaults={"backoff": [0.1, 0.1]},
    )
    assert queue.finish(queue.worker("one")) == 1, queue.log()
    rows = queue.rows()
    assert states(rows) == "late:done a:done bad:failed never:blocked nowhere:failed"
    assert (rows["a"]["runs"], rows["bad"]["runs"], rows["bad"]["failures"]) == (2, 2, 2)
    assert sorted(queue.lines()) == ["a", "a", "bad", "bad", "late"]
    history = rows["bad"]["history"]
    assert [one["exit_code"] for one in history] == [7, 7]  # type: ignore[attr-defined]
    shown = queue.desk.mesh("job", "queue", "tasks.yaml", "--task", "bad").out.decode()
    assert "run 2      failed, exit 7: " in shown


def test_a_file_is_read_anew_and_a_wrong_one_changes_nothing(queue: Queue) -> None:
    queue.write({"id": "a", "run": f"echo a >>{queue.out}"})
    worker = queue.worker("one", end=False, idle="1h")
    queue.until("a", "done")
    queue.path.write_text("accelerators: {v4-8: {tasks: [{id: a}]}}")
    assert eventually(lambda: "tasks.yaml:1: " in queue.reason(worker), WITHIN_S), queue.log()
    queue.write({"id": "a", "run": "true"}, {"id": "b", "run": f"echo b >>{queue.out}; sleep 900"})
    queue.until("b", "running")
    assert eventually(lambda: queue.lines() == ["a", "b"], WITHIN_S)
    queue.write({"id": "a", "run": "true"})
    assert eventually(lambda: [*queue.named()] == ["a"], WITHIN_S), queue.log()
    assert "removed from the file" in queue.desk.mesh("job", "queue", "tasks.yaml").out.decode()
    queue.desk.mesh("job", "stop", str(worker))
    queue.desk.until(worker, "stopped")
    assert list(queue.rows()) == ["a"]


def test_a_requeued_task_ends_first_and_waits_behind_the_others(queue: Queue) -> None:
    sleeper = f"trap 'sleep 0.5; echo ended a >>{queue.out}; exit 1' TERM; echo a >>{queue.out}; sleep 900 & wait"
    queue.write({"id": "a", "run": sleeper, "max_retries": 1}, {"id": "b", "run": f"echo b >>{queue.out}; sleep 900"})
    worker = queue.worker("one")
    queue.until("a", "running")
    assert eventually(lambda: queue.lines() == ["a"], WITHIN_S)
    assert queue.desk.show(worker)["task"] == "a"
    assert queue.desk.mesh("job", "requeue", "z").status == 2
    done = queue.desk.mesh("jobman", "requeue", f"{worker:06d}")
    assert done.status == 0, done.err
    queue.until("b", "running")
    assert eventually(lambda: queue.lines() == ["a", "ended a", "b"], WITHIN_S), queue.lines()
    row = queue.rows()["a"]
    assert (row["state"], row["failures"]) == ("pending", 0)
    queue.desk.mesh("job", "stop", str(worker))
    assert queue.desk.until(worker, "stopped")["task"] == ""
    assert queue.rows()["b"]["state"] == "pending"


def test_idle_machines_are_given_back_and_taken_again(queue: Queue) -> None:
    queue.write({"id": "a", "run": "true"})
    worker = queue.worker("one", end=False, idle=1)
    queue.until("a", "done")
    assert queue.desk.until(worker, "queued", within=WITHIN_S)["machines"] == []
    other = queue.desk.submit("machines: local:2\nrun: 'true'\n", name="other")
    assert queue.desk.mesh("job", "wait", str(other)).status == 0, queue.log()
    queue.write({"id": "a", "run": "true"}, {"id": "b", "run": "true"})
    queue.until("b", "done")


def test_changes_by_hand(queue: Queue) -> None:
    run = f"echo $MESH_TASK_ID >>{queue.out}"
    queue.write(
        {"id": "x-1", "run": run},
        {"id": "y", "run": run, "hide": True},
        {"id": "z", "run": f"{run}; exit 3", "max_retries": 1},
    )
    first = queue.commands("jobman queue tasks.yaml --done x-1", "jobman queue tasks.yaml --prioritize z")
    assert [one[:2] for one in first] == [(0, "task x-1: done\n"), (0, "task z: pending\n")]
    assert queue.finish(queue.worker("one")) == 1, queue.log()
    assert queue.lines() == ["z", "y"]
    lines = ["", "--done --json", "--reset-failed", "--reset-pattern x-*", "--reset y", "--reset-all", "--cleanup"]
    lines += ["--task z", "--show-all"]
    wrong = ["--reset w", "--task w", "--reset-pattern w*", "--reset-all --reset-failed"]
    found = queue.commands(
        *(f"jobman queue tasks.yaml {words}" for words in lines),
        *(f"job queue tasks.yaml {words}" for words in wrong),
        "job queue tasks.yaml",
        "jobman queue tasks.yaml",
        "jobman requeue 000001",  # it has ended, and has no task
    )
    done = [out for _, out, _ in found]
    assert "3 tasks: 2 done, 1 failed (1 hidden: --show-all)" in done[0]
    assert "y " not in done[0]
    assert len(done[1].splitlines()) == 1
    assert done[2:5] == ["task z: pending\n", "task x-1: pending\n", "task y: pending\n"]
    assert done[5].count("pending") == 3
    assert done[6] == "nothing to do\n"
    assert "run 1      failed, exit 3: " in done[7]
    assert "y " in done[8]
    assert [status for status, _, _ in found] == [0] * 9 + [2] * 4 + [0, 0, 2], found
    assert done[13] == done[14] != ""
    assert (queue.desk.place / "tasks/hide/y").is_dir()
    log = queue.desk.place / "1/logs/queue.log"
    assert eventually(lambda: log.read_text().endswith(" no task is left\n"), WITHIN_S), log.read_text()
    assert " task z: rank 0 on local-0: exit 3\n" in log.read_text()


def test_a_file_that_does_not_answer_delays_no_other_job(queue: Queue) -> None:
    queue.write({"id": "a", "run": "true"})
    worker = queue.worker("one", {"cluster": "local:3", "hosts": 1}, end=False, idle="1h")
    queue.until("a", "done")
    pipe = queue.path.with_suffix(".pipe")
    os.mkfifo(pipe)
    pipe.rename(queue.path)  # whoever opens it waits, as for a mount whose server is gone
    other = queue.desk.submit("machines: {cluster: 'local:3', hosts: 1}\nrun: 'true'\n", name="other")
    assert queue.finish(other) == 0, queue.log()
    assert eventually(lambda: "has not answered" in queue.reason(worker), WITHIN_S), queue.log()
    queue.write({"id": "a", "run": "true"}, {"id": "b", "run": "true"})
    assert queue.now()["a"] is TaskState.DONE
    queue.desk.mesh("job", "stop", str(worker))
    queue.desk.until(worker, "stopped", within=WITHIN_S)


def test_steps_run_once_before_the_tasks_and_a_required_one_holds(queue: Queue) -> None:
    queue.write(*({"id": name, "run": f"echo {name} >>{queue.out}"} for name in "ab"))
    steps = [{"name": "one", "run": f"echo one >>{queue.out}"}, {"run": "exit 3"}]
    assert queue.finish(queue.worker("steps", prefix=steps)) == 0, queue.log()
    assert queue.lines() == ["one", "a", "b"]
    queue.write(*({"id": name, "run": f"echo {name} >>{queue.out}"} for name in "abc"))
    needed = {"name": "needed", "run": f"echo needed >>{queue.out}; [ -e {queue.out}.mended ]", "required": True}
    held = queue.worker("held", prefix=[needed])
    found = queue.desk.until(held, "held", within=WITHIN_S)
    assert str(found["reason"]).startswith("prefix failed: needed")
    assert queue.desk.mesh("jobman", "list").out.split()[-1] == b"PREFIX_FAIL"
    assert queue.lines()[3:] == ["needed"]
    queue.out.with_suffix(".mended").touch()
    ran = queue.desk.mesh("jobman", "run", str(held), "--force-prefix", within=WITHIN_S)
    assert ran.status == 0, ran.err
    assert queue.lines()[3:] == ["needed", "needed", "c"]


def test_the_repository_of_a_task_is_cloned_by_commit(queue: Queue, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    git = ["git", "-C", str(repo), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "init", "-q", "-b", "main", str(repo)], check=True)
    (repo / "train.sh").write_text("echo first $(pwd)\n")
    for words in (["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    mine = Path(queue.desk.home.path) / "code"
    mine.mkdir()
    (mine / "kept").touch()
    tasks = [{"id": "a", "run": "bash train.sh; echo '$5'", "repo": "code"}]
    tasks.append({"id": "b", "run": "true", "repo": "code", "branch": "none", "max_retries": 1})
    queue.write(*tasks, repos={"code": str(repo)}, defaults={"branch": "main", "workdir": "code"})  # type: ignore[arg-type]
    assert queue.finish(queue.worker("one")) == 1, queue.log()
    assert states(queue.rows()) == "a:done b:failed"
    (log,) = (queue.desk.place / "tasks/a").glob("run_001_*_worker_0.log")
    first, last = log.read_text().splitlines()
    commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    assert first.startswith("first ")
    assert first.endswith(f"/tasks/a/{commit[:12]}")
    assert last == "$5"
    assert (mine / "kept").exists()


def test_a_queue_of_jobman_goes_on(queue: Queue) -> None:
    queue.write(*({"id": name, "run": f"echo {name} >>{queue.out}"} for name in "abc"))
    (queue.path.parent / "tasks_state.yaml").write_text(
        "tasks:\n"
        "  a: {done: true, running: [], run_count: 2, history: [{job_id: '000045', status: completed}]}\n"
        "  b: {done: true, fail_count: 3, run_count: 3, history: [{job_id: '000045', status: failed}]}\n"
        "  c: {done: false, run_count: 1, running: [{job_id: '000048', started: '2025-01-15T14:35:00'}]}\n"
    )
    assert queue.finish(queue.worker("one")) == 1, queue.log()
    assert states(queue.rows()) == "a:done b:failed c:done"
    assert queue.lines() == ["c"]
    assert queue.rows()["c"]["runs"] == 2


def test_a_wrong_file_is_refused_at_submit(queue: Queue) -> None:
    queue.write({"id": "a", "run": "x", "depends_on": "b"})
    (queue.desk.home.project / "w.yaml").write_text("machines: local:1\njob: {queue: {config: tasks.yaml}}\n")
    done = queue.desk.mesh("job", "submit", "w.yaml")
    assert (done.status, "a.depends_on: there is no task b" in done.err) == (2, True), done.err
    (queue.desk.home.project / "w.yaml").write_text("machines: local:1\njob: {queue: {config: none.yaml}}\n")
    assert queue.desk.mesh("job", "submit", "w.yaml").status == 2
    (queue.desk.home.project / "w.yaml").write_text("machines: local:1\njob: {queue: {enabled: true}}\n")
    assert "w.yaml:2: job.queue: has no config:" in queue.desk.mesh("job", "submit", "w.yaml").err


# ---- deaths

# Each task fails if it lives twice at once: mkdir succeeds for one of two. A task that mesh ends leaves no directory.
ALONE = "trap 'rmdir {out}.$MESH_TASK_ID; exit 143' TERM; "
ALONE += "mkdir {out}.$MESH_TASK_ID || {{ echo twice $MESH_TASK_ID >>{out}; exit 9; }}; sleep 0.5; "
ALONE += "rmdir {out}.$MESH_TASK_ID; echo $MESH_TASK_ID >>{out}"
KILLS = times(4, full=20)


def test_stewards_and_hands_are_killed_and_no_task_runs_twice_or_is_lost(queue: Queue) -> None:
    seed = int(os.environ.get("MESH_TEST_SEED", "") or random.randrange(1 << 30))
    print(f"MESH_TEST_SEED={seed}")
    chance = random.Random(seed)
    names = [f"t{number}" for number in range(6)]
    run = ALONE.format(out=queue.out)
    queue.write(*({"id": name, "run": run, "max_retries": 1} for name in names))
    workers = [queue.worker(name, {"cluster": "local:3", "hosts": 1}) for name in ("one", "two", "three")]
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.2, 2.5))  # the moment of a death is the point here
        victims = queue.desk.processes(chance.choice(["mesh\0serve", "mesh-hand"]))
        queue.desk.kill([pid for pid in victims if chance.random() < 0.8])
        assert queue.desk.mesh("job", "list").status == 0  # it starts a steward where none runs
    assert queue.finish(*workers) == 0, (seed, queue.lines(), queue.log())
    lines = queue.lines()
    assert sorted(set(lines)) == names, seed
    rows = queue.rows()
    assert states(rows) == " ".join(f"{name}:done" for name in names), seed
    assert all(not row["running"] for row in rows.values()), seed


@pytest.mark.root
@pytest.mark.sshd
def test_two_workers_share_a_file_on_real_hosts(pod_desk: Desk, lab: Lab, tmp_path: Path) -> None:
    queue = Queue(pod_desk, tmp_path / "out")
    wait = "until [ -e /tmp/enough ]; do sleep 0.1; done"
    queue.write(
        {"id": "a", "run": f"hostname; {wait}"},
        {"id": "b", "run": f"hostname; {wait}"},
        {"id": "both", "run": "echo $RANK of $WORLD_SIZE", "workers": "all", "depends_on": ["a", "b"]},
        {"id": "late", "run": "hostname", "depends_on": "both"},
    )
    workers = [queue.worker(name, {"cluster": "pod", "hosts": 2}) for name in ("one", "two")]
    for name in "ab":  # at once, so that each worker has one
        queue.until(name, "running")
    for host in lab.hosts:
        host.path("/tmp/enough").touch()
    assert queue.finish(*workers) == 0, queue.log()
    tasks = queue.desk.place / "tasks"
    hosts = {next((tasks / name).glob("run_001_*_worker_0.log")).read_text() for name in "ab"}
    assert len(hosts) == 2
    both = sorted((tasks / "both").glob("run_001_*_worker_*.log"))
    assert [path.read_text() for path in both] == ["0 of 2\n", "1 of 2\n"]
