"""Jobs from their submit to their end, by the command line, on hosts of this machine and on real sshd hosts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mesh.jobs.locking import take_lock
from mesh.jobs.place import StorePlace
from tests.conftest import PATIENCE, Done
from tests.desk import GENEROUS_S, Desk
from tests.lab import Lab, eventually

FIELDS = (
    *("id", "name", "user", "state", "reason", "wanted", "attempt", "preemptions", "exit_code", "cause"),
    *("submitted", "started", "ended", "machines", "runs", "directory"),
)
LONG_S = 900  # of a rank that is stopped
SHORT = "machines: local:2\nrun: echo $MESH_JOB_ID $MESH_JOB_NAME $MESH_ATTEMPT $MESH_PREEMPTIONS $RANK; pwd\n"


def ranks(mark: str) -> list[str]:
    """Return the command lines of this machine's processes that have a text in them."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended
            found.append(Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace"))
    return [line for line in found if mark in line]


def until(place: Path) -> str:
    """Return shell text that waits for a file."""
    return f"until [ -e {place} ]; do sleep 0.05; done"


def test_a_job_from_its_submit_to_its_end(desk: Desk) -> None:
    (desk.home.project / "train.yaml").write_text(SHORT)
    done = desk.mesh("job", "submit", "train.yaml")
    assert done.status == 0, done.err
    assert "==> job 1 train: " in done.err
    assert re.search(r"looked after by mesh serve on this machine \(pid \d+, not started at boot", done.err)
    assert desk.mesh("job", "wait", "1").status == 0
    shown = desk.show(1)
    assert set(FIELDS) <= shown.keys()
    assert (shown["state"], shown["exit_code"], shown["cause"], shown["attempt"]) == ("succeeded", 0, "completed", 1)
    assert shown["directory"] == str(desk.place / "1")
    (run,) = shown["runs"]  # type: ignore[misc]
    assert desk.output(1).splitlines()[0] == b"1 train 1 0 0"
    assert b"/workspaces/job-" in desk.output(1).splitlines()[1]
    assert {b"[0] 1 train 1 0 0", b"[1] 1 train 1 0 1"} < set(desk.mesh("job", "logs", "1").out.splitlines())
    assert os.path.realpath(desk.place / "1/attempts/1") == str(desk.home.path / f".local/state/mesh/runs/{run}")
    assert (desk.place / "1/job.yaml").read_text() == SHORT
    (listed,) = desk.mesh("job", "list", "--json").out.splitlines()
    assert json.loads(listed) == shown
    table = desk.mesh("job", "list").out.decode()
    assert "train  succeeded" in table
    assert "run-started" in desk.mesh("job", "show", "1", "--events").out.decode()
    mirror = desk.place / "1/events.jsonl"
    told = desk.mesh("job", "show", "1", "--events", "--json").out
    assert eventually(lambda: mirror.read_bytes() == told), mirror.read_text()
    assert mirror.stat().st_mode & 0o777 == 0o600


def test_the_steward_belongs_to_nobody_and_is_alone(desk: Desk) -> None:
    desk.submit(SHORT)
    pid = desk.steward()
    assert Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"mesh\0serve\0")
    assert f"HOME={desk.home.path}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    inherited = {os.readlink(f"/proc/{pid}/fd/{number}") for number in (0, 1, 2)}
    assert inherited == {"/dev/null", str(desk.place / "serve.log")}
    assert os.getsid(pid) == pid
    second = desk.mesh("serve")
    assert second.status == 75
    assert f"pid {pid}" in second.err
    assert desk.mesh("serve", "stop").status == 0
    assert eventually(lambda: not desk.processes())
    assert desk.mesh("serve", "status").status == 125


def test_a_steward_is_started_once_the_one_that_ends_is_gone(desk: Desk) -> None:
    """A steward that is about to end has the store, and answers no more."""
    log, lock = desk.place / "serve.log", take_lock(StorePlace(directory=desk.place))
    (desk.home.project / "train.yaml").write_text(SHORT)
    submitting = desk.home.popen("job", "submit", "train.yaml")
    try:
        assert eventually(lambda: log.exists() and "another steward" in log.read_text(), GENEROUS_S)
    finally:
        os.close(lock)
        _, told = submitting.communicate(timeout=GENEROUS_S)
    assert (submitting.returncode, b"==> job 1 train: " in told) == (0, True), told
    assert desk.mesh("job", "wait", "1").status == 0


def test_ranks_have_the_users_own_python_path(desk: Desk) -> None:
    desk.home.environ["PYTHONPATH"] += ":/of/the/user"
    job = desk.submit("machines: local:1\nrun: echo $PYTHONPATH; env | grep -c MESH_PYTHONPATH\n")
    desk.mesh("job", "wait", str(job))
    path, left = desk.output(job).decode().splitlines()
    assert path.startswith(f"{desk.home.environ['PYTHONPATH']}:{desk.home.path}/.mesh/")  # the agent adds its own
    assert left == "0"


def test_a_failure_has_the_status_of_its_rank(desk: Desk) -> None:
    job = desk.submit("machines: local:2\nrun: '[ $RANK = 0 ] || exit 7; sleep 600'\n")
    assert desk.mesh("job", "wait", str(job)).status == 7
    shown = desk.show(job)
    assert (shown["state"], shown["exit_code"], shown["cause"]) == ("failed", 7, "rank")
    assert "rank 1" in str(shown["reason"])
    assert desk.mesh("job", "attach", str(job)).status == 7


def test_restarts_follow_the_rules_of_the_file(desk: Desk) -> None:
    rules = "restart: {on: failure, failures: 1, exit_codes: {again: [29], never: [2]}, backoff: [0.1, 0.1]}\n"
    job = desk.submit(f"machines: local:1\nrun: echo $MESH_ATTEMPT; [ $MESH_ATTEMPT = 3 ] || exit 29\n{rules}")
    other = desk.submit(f"machines: local:1\nrun: exit 2\n{rules}", name="never")
    third = desk.submit(f"machines: local:1\nrun: exit 5\n{rules}", name="twice")
    assert desk.mesh("job", "wait", str(job)).status == 0
    assert desk.output(job) == b"1\n2\n3\n"
    assert desk.show(job)["attempt"] == 3
    assert desk.mesh("job", "wait", str(other), str(third)).status == 2
    assert (desk.show(other)["attempt"], desk.show(third)["attempt"]) == (1, 2)
    told = desk.mesh("job", "logs", str(job))
    assert told.out.splitlines() == [b"[0] 1", b"[0] 2", b"[0] 3"]
    assert told.err.count("attempt") == 3
    assert desk.mesh("job", "logs", str(job), "--attempt", "2").out == b"[0] 2\n"


def test_dependencies_times_holds_and_priorities(desk: Desk) -> None:
    first = desk.submit(f"machines: local:1\nrun: sleep {LONG_S}\njob: {{name: first}}\n")
    desk.until(first, "running")
    later = desk.submit(f"machines: local:1\nrun: 'true'\njob: {{name: later, depends_on: {first}}}\n", name="later")
    timed = desk.submit("machines: local:1\nrun: 'true'\njob: {after: '2099-01-01'}\n", name="timed")
    assert desk.show(later)["state"] == desk.show(timed)["state"] == "queued"
    assert desk.mesh("job", "hold", "timed").out.startswith(f"job {timed} timed: held".encode())
    assert desk.mesh("job", "wait", "timed").status == 75
    assert desk.mesh("job", "release", "timed").out.startswith(f"job {timed} timed: queued".encode())
    done = desk.mesh("job", "prioritize", "timed", "--priority", "-5", "--json")
    assert json.loads(done.out)["priority"] == -5
    assert desk.mesh("job", "prioritize", "timed", "--priority", "500").status == 2
    assert desk.mesh("job", "stop", "first").status == 0
    assert desk.until(first, "stopped")["exit_code"] == 143
    blocked = desk.until(later, "held", "failed", "stopped")
    assert str(first) in str(blocked["reason"])


def test_an_array_shares_one_snapshot_and_has_a_limit(desk: Desk, tmp_path: Path) -> None:
    """The first waits for the second, so that two are there at a time."""
    place = tmp_path / "begun"
    place.mkdir()
    run = f"touch {place}/$MESH_ARRAY_INDEX; {until(place / '1')}; echo $MESH_ARRAY_INDEX"
    text = f"machines: {{cluster: 'local:4', hosts: 1}}\nrun: {run}\n"
    first = desk.submit(text, "--array", "0-5%2", name="sweep")
    rows = [json.loads(line) for line in desk.mesh("job", "list", "--json").out.splitlines()]
    assert [row["index"] for row in rows] == list(range(6))

    def have_succeeded() -> bool:
        states = [str(row["state"]) for row in desk.rows()]
        assert sum(state in ("preparing", "running", "ending") for state in states) <= 2, states
        assert not {"failed", "held"} & set(states), states
        return set(states) == {"succeeded"}

    assert eventually(have_succeeded, GENEROUS_S), desk.rows()
    assert [desk.output(first + index) for index in range(6)] == [b"%d\n" % index for index in range(6)]
    assert len(os.listdir(desk.place / "trees")) == 1
    workspaces = {path.name for path in (desk.home.path / ".mesh").rglob("workspaces/job-*")}
    assert len(workspaces) == 1


def test_the_workspace_is_that_of_the_submit(desk: Desk) -> None:
    (desk.home.project / "data").write_text("before")
    (desk.home.project / ".gitignore").write_text("*.log\n")
    (desk.home.project / "left.log").write_text("x")
    rules = "restart: {on: failure, backoff: [1, 1]}\n"
    job = desk.submit(f"machines: local:1\nrun: cat data; ls; [ $MESH_ATTEMPT = 2 ]\n{rules}")
    (desk.home.project / "data").write_text("after")
    assert desk.mesh("job", "wait", str(job)).status == 0
    assert desk.output(job) == b"beforedata\ntrain.yaml\n" * 2
    for _ in range(3):
        assert desk.mesh("job", "submit", "train.yaml", "--set", "job.after='2099-01-01'").status == 0
    assert len(os.listdir(desk.place / "trees")) == 2  # three jobs of one tree cost one


COUNT = 30
LINES = f"echo $MESH_ATTEMPT >>$STARTS; for i in $(seq {COUNT}); do echo line $i; sleep 0.1; done"


def test_a_killed_steward_has_a_successor_that_adopts_the_run(desk: Desk, tmp_path: Path) -> None:
    starts, enough = tmp_path / "starts", tmp_path / "enough"
    job = desk.submit(
        f"machines: local:1\nrun: {LINES}; {until(enough)}; echo last\njob: {{env: {{STARTS: {starts}}}}}\n"
    )
    desk.until(job, "running")
    for number in range(3):
        desk.kill(desk.processes())
        assert eventually(lambda: not desk.processes(), 120.0)
        if number:  # a steward may be killed within a line
            with (desk.place / f"{job}/events.jsonl").open("a") as mirror:
                mirror.write('{"event": "seen')
        assert desk.show(job)["state"] == "running", number
        assert eventually(lambda: desk.processes("mesh\0serve"), GENEROUS_S)
        time.sleep(0.7)  # it looks at the run meanwhile, or does not
    enough.touch()
    assert desk.mesh("job", "wait", str(job)).status == 0
    told = desk.mesh("job", "show", str(job), "--events", "--json").out
    assert eventually(lambda: (desk.place / f"{job}/events.jsonl").read_bytes() == told)
    assert desk.output(job) == b"".join(b"line %d\n" % number for number in range(1, COUNT + 1)) + b"last\n"
    assert starts.read_text() == "1\n"
    assert len(desk.show(job)["runs"]) == 1  # type: ignore[arg-type]


def test_a_stop_ends_the_ranks_and_a_resume_starts_them_again(desk: Desk, tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")  # no other test has processes with it
    job = desk.submit(f"machines: local:2\nrun: exec -a {mark} sleep {LONG_S}\n")
    desk.until(job, "running")
    assert desk.mesh("job", "stop", str(job)).status == 0
    assert desk.until(job, "stopped")["exit_code"] == 143
    assert ranks(mark) == []
    assert desk.mesh("job", "resume", str(job)).status == 0
    desk.until(job, "running")
    assert desk.mesh("job", "restart", str(job)).status == 0
    desk.until_row(job, lambda row: (row["attempt"], row["state"]) == (3, "running"))
    refused = desk.mesh("job", "delete", str(job))
    assert (refused.status, f"mesh job delete --yes {job}" in refused.err) == (2, True)
    assert desk.mesh("job", "delete", "--yes", str(job)).status == 0
    assert eventually(lambda: not desk.rows(job), GENEROUS_S)
    assert desk.mesh("job", "show", str(job)).status == 2
    assert ranks(mark) == []
    assert desk.mesh("job", "prune", "--dry-run").out.decode().endswith("would be removed: 1 job\n")
    assert desk.mesh("job", "prune").out.decode().endswith("removed: 1 job\n")
    assert not (desk.place / str(job)).exists()


def test_a_closed_terminal_changes_nothing(desk: Desk) -> None:
    enough = desk.home.path / "enough"
    (desk.home.project / "train.yaml").write_text(
        f"machines: local:1\nrun: echo begun; {until(enough)}; echo $MESH_ATTEMPT\n"
    )
    with desk.home.terminal("job", "submit", "train.yaml", "--attach") as terminal:
        terminal.expect(b"begun\r\n", GENEROUS_S)
        terminal.hang_up()
        terminal.process.wait(PATIENCE)
    enough.touch()
    assert desk.mesh("job", "wait", "1").status == 0
    assert desk.output(1) == b"begun\n1\n"


def test_without_a_steward_jobs_wait_and_are_listed(desk: Desk) -> None:
    desk.home.environ["MESH_SERVE"] = "0"
    (desk.home.project / "train.yaml").write_text(SHORT)
    done = desk.mesh("job", "submit", "train.yaml")
    assert done.status == 0, done.err
    assert "==> job 1 train: queued" in done.err
    assert "no steward looks after it, as MESH_SERVE is 0: start one with `mesh serve`" in done.err
    assert desk.show(1)["state"] == "queued"
    assert "train" in desk.mesh("job", "list").out.decode()
    assert desk.mesh("job", "hold", "1").status == 0
    assert desk.show(1)["state"] == "held"
    assert desk.mesh("job", "release", "1").status == 0
    assert not desk.processes()
    del desk.home.environ["MESH_SERVE"]
    assert desk.mesh("job", "list").status == 0
    assert desk.mesh("job", "wait", "1").status == 0


BAD = """\
machines: local:1
runn: x
run: echo ${HOME}
tpu: {accelerator: v4-8}
job: {env: {HF_TOKEN: abc}, after: soon}
restart: {on: success}
"""


def test_all_problems_of_a_file_are_shown_and_nothing_is_made(desk: Desk) -> None:
    (desk.home.project / "bad.yaml").write_text(BAD)
    done = desk.mesh("job", "submit", "bad.yaml")
    assert done.status == 2
    lines = [line.removeprefix("error: ").strip() for line in done.err.splitlines()]
    for expected in (
        "bad.yaml:2: runn: unknown key 'runn'; did you mean 'run'?",
        "bad.yaml:3: run: unknown reference ${HOME}; for a variable of the ranks write `$HOME` or `\\${HOME}`",
        "bad.yaml:4: tpu: is there beside machines:; a job has one of the two",
        "bad.yaml:4: tpu.version: is missing",
        "bad.yaml:5: job.env: HF_TOKEN would be written to the job's files; hand it on by `pass:`",
        "bad.yaml:6: restart.on: expected never or preemption or failure or always, found 'success'",
    ):
        assert expected in lines
    assert desk.mesh("job", "submit", "none.yaml").status == 2
    (desk.home.project / "pod.yaml").write_text("machines: pod\nrun: x\n")
    unknown = desk.mesh("job", "submit", "pod.yaml")
    assert (unknown.status, "pod.yaml:1: machines: no cluster 'pod'" in unknown.err) == (2, True)
    assert not desk.processes()
    assert not (desk.place / "store.db").exists()


def test_a_missing_variable_holds_the_job_and_names_it(desk: Desk) -> None:
    job = desk.submit("machines: local:1\nrun: echo $HF_TOKEN\njob: {pass: [HF_TOKEN, WANDB_*]}\n")
    assert desk.mesh("job", "wait", str(job)).status == 75
    assert "HF_TOKEN" in str(desk.show(job)["reason"])
    assert desk.mesh("serve", "stop").status == 0
    other = Desk(replace(desk.home, environ={**desk.home.environ, "HF_TOKEN": "a secret value"}))
    assert other.mesh("job", "release", str(job)).status == 0
    assert other.mesh("job", "wait", str(job)).status == 0
    assert desk.output(job) == b"a secret value\n"
    stored = b"".join(path.read_bytes() for path in desk.place.glob("store.db*"))
    assert b"a secret value" not in stored


def test_a_job_is_a_cluster(desk: Desk) -> None:
    job = desk.submit(f"machines: local:2\nrun: echo made >made-$RANK; sleep {LONG_S}\nresults: ['made-*']\n")
    desk.until(job, "running")

    def made() -> list[str]:
        return [path.read_text() for path in (desk.home.path / ".mesh").glob("local/*/workspaces/job-*/made-*")]

    assert eventually(lambda: made() == ["made\n"] * 2, GENEROUS_S)
    done = desk.mesh("exec", f"job:{job}:1", "sh", "-c", "cat made-1; echo $MESH_HOSTS")
    assert (done.status, done.out.splitlines()[0]) == (0, b"[0] made"), done.err
    other = desk.mesh("run", "-d", "local:2", "sleep", str(LONG_S))  # its machine is that of the job
    assert other.status == 0, other.err
    (run,) = desk.show(job)["runs"]  # type: ignore[misc]
    shown = desk.mesh("stacks", "--json", f"job:{job}")
    assert (shown.status, json.loads(shown.out)["run"]) == (0, run), shown.err
    signalled = desk.mesh("signal", f"job:{job}", "CONT")
    assert signalled.status == 0, signalled.err
    assert desk.mesh("stop", other.out.decode().strip()).status == 0
    assert f"job:{job}" in desk.mesh("ps", f"job:{job}").out.decode()
    assert desk.mesh("pull", f"job:{job}", "made-*", "--into", "got").status == 0
    assert (desk.home.project / "got/rank-0001/made-1").read_text() == "made\n"
    desk.mesh("job", "stop", str(job))
    desk.until(job, "stopped")
    assert (desk.place / str(job) / "results/rank-0000/made-0").read_text() == "made\n"
    assert "has had no hosts yet" in desk.mesh("exec", "job:99", "true").err


def test_modules_and_prerun_of_the_project_hold(desk: Desk) -> None:
    text = "prerun: [export FROM_PRERUN=yes]\nenv: {FROM_FILE: 1}\nvenv: {}\n"
    desk.home.files(mesh__yaml=text)
    job = desk.submit("machines: local:1\nrun: echo $FROM_PRERUN $FROM_FILE $(basename $VIRTUAL_ENV)\n")
    assert desk.mesh("job", "wait", str(job)).status == 0, desk.show(job)
    assert desk.output(job) == b"yes 1 .venv\n"


def test_the_progress_of_a_job_is_listed(desk: Desk) -> None:
    loop = "for i in $(seq 9000); do echo step $i loss 0.$i; sleep 0.1; done"
    job = desk.submit(f"machines: local:1\nrun: {loop}\nprogress: 'step (?P<step>[0-9]+) loss (?P<loss>[^ ]+)'\n")
    desk.until_row(job, lambda row: str(row["progress"]).startswith("step "))
    assert "step " in desk.mesh("job", "list").out.decode()
    desk.mesh("job", "stop", str(job))


def test_jobs_by_invoke_and_by_python(desk: Desk) -> None:
    (desk.home.project / "tasks.py").write_text("from mesh.tasks import namespace\n")
    (desk.home.project / "train.yaml").write_text(SHORT)
    argv = [desk.home.argv()[0], "-m", "invoke", "job.submit", "--file", "train.yaml"]
    done = subprocess.run(
        argv, cwd=desk.home.project, env=desk.home.environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "==> job 1 train" in done.stderr) == (0, True), done.stderr
    program = (
        "from mesh.api import jobs\nimport sys\n(job,) = jobs.submit('train.yaml')\nsys.exit(jobs.wait([1, job.id]))"
    )
    argv = [desk.home.argv()[0], "-c", program]
    done = subprocess.run(
        argv, cwd=desk.home.project, env=desk.home.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_command_needs_no_file(desk: Desk) -> None:
    done = desk.mesh("job", "submit", "--cluster", "local:1", "--name", "lr3", "--", "echo", "a b", "--all")
    assert (done.status, "==> job 1 lr3: " in done.err) == (0, True), done.err
    assert desk.mesh("job", "wait", "lr3").status == 0
    assert desk.output(1) == b"a b --all\n"
    plan = desk.mesh("job", "submit", "--cluster", "local:2", "--dry-run", "--json", "--", "echo", "x")
    assert json.loads(plan.out)["machines"] == "local:2 (local): 2 hosts"
    assert desk.mesh("job", "show", "2").status == 2


def test_a_list_that_watches_shows_each_change_and_is_painted_in_place_on_a_terminal(desk: Desk) -> None:
    enough = desk.home.project / "enough"
    job = desk.submit(f"machines: local:1\nrun: until [ -e {enough} ]; do sleep 0.05; done\n")
    watching = desk.home.popen("job", "list", "--watch", "--json")
    assert watching.stdout is not None
    seen: list[str] = []
    try:
        with desk.home.terminal("job", "list", "--watch") as terminal:
            terminal.expect(b"\x1b[H")
            terminal.expect(b"running", GENEROUS_S)
            while "running" not in seen:
                seen.append(json.loads(watching.stdout.readline())["state"])
            enough.touch()
            terminal.expect(b"train  succeeded", GENEROUS_S)
            terminal.type(b"\x03")
            assert terminal.end() == 130
        while "succeeded" not in seen:
            seen.append(json.loads(watching.stdout.readline())["state"])
    finally:
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=PATIENCE)
    assert watching.returncode == 130
    assert desk.show(job)["state"] == "succeeded"


def test_the_steward_as_a_systemd_unit(desk: Desk) -> None:
    done = desk.mesh("serve", "install")
    assert done.status == 0, done.err
    unit = desk.home.path / ".config/systemd/user/mesh-serve.service"
    assert f"wrote {unit}; now run:" in done.err
    assert done.out.decode().splitlines() == [
        "systemctl --user daemon-reload",
        "systemctl --user enable --now mesh-serve.service",
        "loginctl enable-linger",
    ]
    text = unit.read_text()
    assert re.search(r"^ExecStart=\S*python\S* -m mesh serve$", text, re.MULTILINE)
    assert "Restart=always\n" in text
    assert "KillMode=process\n" in text
    assert "disable" in desk.mesh("serve", "uninstall").out.decode()
    assert not unit.exists()
    assert desk.mesh("serve", "uninstall").status == 2


# ---- stores that cannot be used


def told_once(done: Done, *words: str) -> None:
    assert done.status != 0
    assert done.err.count("error:") == 1, done.err
    assert all(word in done.err for word in words), done.err
    assert "Traceback" not in done.err


def test_a_store_of_a_newer_version_is_refused(desk: Desk) -> None:
    import sqlite3

    desk.submit(SHORT)
    desk.mesh("job", "wait", "1")
    desk.mesh("serve", "stop")
    with sqlite3.connect(desk.place / "store.db") as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE name = 'version'")
    connection.close()
    (desk.home.project / "more").write_text("a file that no snapshot has")
    trees = os.listdir(desk.place / "trees")
    for words in (["job", "list"], ["job", "submit", "train.yaml"], ["serve"]):
        told_once(desk.mesh(*words), "newer")
    assert os.listdir(desk.place / "trees") == trees
    with sqlite3.connect(desk.place / "store.db") as connection:
        connection.execute("UPDATE meta SET value = '1' WHERE name = 'version'")
    connection.close()


def _fill(path: Path) -> None:
    """Write a file until its disk is full."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.root
def test_a_full_disk_under_the_store_is_reported_and_the_run_goes_on(desk: Desk, tiny_disk: Path) -> None:
    desk.home.environ["MESH_STORE"] = str(tiny_disk)
    enough = desk.home.path / "enough"
    job = desk.submit(f"machines: local:1\nrun: echo begun; {until(enough)}; echo $MESH_ATTEMPT\n")
    desk.until(job, "running")
    filler = tiny_disk / "filler"
    _fill(filler)
    told_once(desk.mesh("job", "submit", "train.yaml"))
    filler.unlink()
    enough.touch()
    assert desk.mesh("job", "wait", str(job)).status == 0
    assert desk.output(job) == b"begun\n1\n"
    assert len(desk.mesh("job", "list", "--all", "--json").out.splitlines()) == 1
    assert desk.mesh("serve", "stop").status == 0  # the disk is taken away
    del desk.home.environ["MESH_STORE"]


@pytest.mark.root
def test_a_read_only_store_is_reported_and_the_run_goes_on(desk: Desk, tiny_disk: Path) -> None:
    desk.home.environ["MESH_STORE"] = str(tiny_disk)
    enough = desk.home.path / "enough"
    job = desk.submit(f"machines: local:1\nrun: echo begun; {until(enough)}; echo $MESH_ATTEMPT\n")
    desk.until(job, "running")
    assert desk.mesh("serve", "stop").status == 0
    assert eventually(lambda: not desk.processes())  # no steward or hand has its files open for writing
    subprocess.run(["mount", "-o", "remount,ro", tiny_disk], check=True)
    try:
        before = sorted(tiny_disk.rglob("*"))
        told_once(desk.mesh("job", "submit", "train.yaml"), "store.db", "read-only", "MESH_STORE")
        told_once(desk.mesh("serve"))
        assert sorted(tiny_disk.rglob("*")) == before
    finally:
        subprocess.run(["mount", "-o", "remount,rw", tiny_disk], check=True)
    enough.touch()
    assert desk.mesh("job", "wait", str(job)).status == 0
    assert desk.output(job) == b"begun\n1\n"
    assert desk.mesh("serve", "stop").status == 0  # the disk is taken away
    del desk.home.environ["MESH_STORE"]


# ---- real hosts


@pytest.mark.root
@pytest.mark.sshd
def test_a_job_waits_for_hosts_that_a_person_uses(pod_desk: Desk, lab: Lab) -> None:
    desk = pod_desk
    mine = desk.mesh("run", "-d", "pod:0", "sleep", str(LONG_S))
    assert mine.status == 0, mine.err
    run = mine.out.decode().strip()
    job = desk.submit("machines: pod\nrun: hostname\n")
    desk.until_row(job, lambda row: run in str(row["reason"]))
    assert desk.show(job)["state"] == "queued"
    assert desk.mesh("stop", run).status == 0
    assert desk.mesh("job", "wait", str(job)).status == 0, desk.show(job)
    assert len(desk.show(job)["runs"]) == 1  # type: ignore[arg-type]


@pytest.mark.root
@pytest.mark.sshd
def test_a_steward_that_is_killed_leaves_runs_on_real_hosts_to_the_next(pod_desk: Desk, lab: Lab) -> None:
    desk = pod_desk
    job = desk.submit(f"machines: pod\nrun: {LINES}\njob: {{env: {{STARTS: /tmp/starts}}}}\n")
    desk.until(job, "running")
    desk.kill(desk.processes())
    assert desk.mesh("job", "list").status == 0
    assert desk.mesh("job", "wait", str(job)).status == 0
    (run,) = desk.show(job)["runs"]  # type: ignore[misc]
    expected = b"".join(b"line %d\n" % number for number in range(1, COUNT + 1))
    for rank in range(4):
        log = desk.home.path / f".local/state/mesh/runs/{run}/logs/rank-{rank:04d}.out"
        assert log.read_bytes() == expected
    done = desk.mesh("exec", f"job:{job}", "cat", "/tmp/starts")
    assert done.lines == [f"[{rank}] 1" for rank in range(4)]
