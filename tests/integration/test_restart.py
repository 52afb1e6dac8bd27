"""`mesh restart`: a new process in the place of one rank, attached and detached, and what is refused."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.conftest import Home
from tests.integration.test_attach import left, runs
from tests.integration.test_run_directory import problems
from tests.lab import Lab, TestHost, eventually

# A rank that goes on after SIGTERM, with a child of its own, until a file says that it is enough. It ends by itself
# after 10 min, as no other client ends a detached run whose test has failed.
WORK = """
import os, signal, subprocess, sys, time
rank, attempt = os.environ["RANK"], os.environ["MESH_ATTEMPT"]
signal.signal(signal.SIGTERM, lambda *_: print("term", flush=True))
child = subprocess.Popen(["sleep", "98762"])
print("up", rank, attempt, flush=True)
end = time.monotonic() + 600
while not os.path.exists(os.environ["ENOUGH"]) and time.monotonic() < end:
    time.sleep(0.05)
child.kill()
if rank == "1":
    sys.exit("ValueError: in attempt " + attempt)
"""


def log(home: Home, rank: int) -> str:
    (file,) = runs(home).glob(f"*/logs/rank-{rank:04d}.out")
    return file.read_text()


def has_printed(home: Home, rank: int, text: str) -> bool:
    return any(text in file.read_text() for file in runs(home).glob(f"*/logs/rank-{rank:04d}.out"))


def of_ranks(host: TestHost) -> list[tuple[int, str]]:
    """The processes of ranks on a host: agents that have answered a question may be on their way out."""
    return [one for one in host.processes() if "work.py" in one[1] or "98762" in one[1]]


def test_a_rank_gets_a_new_process_and_the_other_ranks_keep_theirs(pod: Home, lab: Lab) -> None:
    pod.files(work__py=WORK)
    client = pod.popen("run", "--env", "ENOUGH=/root/enough", "pod:0-1", "python3", "work.py")
    assert eventually(lambda: all(has_printed(pod, rank, "up") for rank in (0, 1)), 60.0)
    before = [of_ranks(host) for host in lab.hosts[:2]]
    done = pod.mesh("restart", "last", "--rank", "1", "--on", lab.hosts[1].address, "--grace", "8")
    assert (done.status, done.out.startswith(b"rank 1 started again on ")) == (0, True), done.err
    assert eventually(lambda: has_printed(pod, 1, "up 1 1"), 60.0)
    now = [of_ranks(host) for host in lab.hosts[:2]]
    assert now[0] == before[0]
    assert [len([one for one in there if "sleep 98762" in one[1]]) for there in now] == [1, 1]
    refused = pod.mesh("restart", "last", "--rank", "1", "--on", "nowhere")
    assert (refused.status, "nowhere is no host of" in refused.err) == (2, True), refused.err
    for host in lab.hosts[:2]:
        host.script("touch enough")
    _, err = client.communicate(timeout=60)
    assert client.returncode == 1, err
    assert b"ValueError: in attempt 1" in err
    assert b"started again after signal 9, attempt 1" in err
    (directory,) = runs(pod).iterdir()
    about = json.loads((directory / "run.json").read_text())
    assert about["verdict"]["first"]["said"] == ["ValueError: in attempt 1"]
    assert log(pod, 0) == "up 0 0\n"
    assert log(pod, 1) == "up 1 0\nterm\nup 1 1\n"
    assert problems(directory) == []
    ended = pod.mesh("restart", "last", "--rank", "1")
    assert (ended.status, "exit 1" in ended.err) == (125, True), ended.err


def test_a_rank_of_a_detached_run_is_started_again_and_what_cannot_be_is_refused(home: Home, tmp_path: Path) -> None:
    enough, short = tmp_path / "enough", tmp_path / "short"
    home.files(work__py=WORK)
    script = f"[ $RANK != 2 ] || {{ echo $$ >{short}.new; mv {short}.new {short}; exit; }}; exec python3 work.py"
    run = left(home, "--env", f"ENOUGH={enough}", "local:3", "sh", "-c", script)
    assert eventually(lambda: b"up 1" in home.mesh("logs", run, "--rank", "1").out, 60.0)
    assert eventually(lambda: short.exists() and not Path(f"/proc/{short.read_text().strip()}").exists(), 60.0)
    ended = home.mesh("restart", run, "--rank", "2")
    assert (ended.status, "rank 2 on local-2: not started again (it has ended)" in ended.err) == (125, True), ended.err
    unknown = home.mesh("restart", run, "--rank", "0,7")
    assert (unknown.status, "no rank 7" in unknown.err) == (2, True), unknown.err
    elsewhere = home.mesh("restart", run, "--rank", "0", "--on", "local-1")
    assert (elsewhere.status, "rank 0 is on local-0" in elsewhere.err) == (2, True), elsewhere.err
    again = home.mesh("restart", run, "--rank", "0-1", "--grace", "0.2")
    assert (again.status, again.out.count(b"started again")) == (0, 2), again.err
    assert eventually(lambda: b"up 1 1" in home.mesh("logs", run, "--rank", "1").out, 60.0)
    enough.touch()
    done = home.mesh("attach", run, "--from", "start")
    assert done.status == 1, done.err
    assert "ValueError: in attempt 1" in done.err
    events = [json.loads(line)["event"] for line in (runs(home) / run / "events.jsonl").read_text().splitlines()]
    assert (events.count("restarting"), events.count("restarted")) == (2, 2)
    assert problems(runs(home) / run) == []


def test_nothing_is_left_of_clients_that_are_killed_in_the_middle(pod: Home, lab: Lab) -> None:
    """The command that has asked goes first, in the grace of the old process; then the client of the run goes."""
    pod.files(work__py=WORK)
    client = pod.popen("run", "--grace", "1", "--env", "ENOUGH=/root/enough", "pod:0-1", "python3", "work.py")
    assert eventually(lambda: all(has_printed(pod, rank, "up") for rank in (0, 1)), 60.0)
    asking = pod.popen("restart", "last", "--rank", "1", "--grace", "600")
    assert eventually(lambda: "term" in log(pod, 1), 60.0)
    asking.send_signal(signal.SIGKILL)
    asking.communicate()
    client.send_signal(signal.SIGKILL)
    client.communicate()
    for host in lab.hosts[:2]:
        assert eventually(lambda h=host: not h.processes(), 60.0), host.processes()
    assert "up 1 1" not in log(pod, 1)


def test_orphans_of_a_launcher_in_another_rank_are_spared_though_they_have_the_same_rank(
    home: Home, tmp_path: Path
) -> None:
    """torchrun and others give their workers a RANK of their own; a worker is an orphan once its launcher has ended."""
    enough, worker = tmp_path / "enough", tmp_path / "worker"
    script = (
        f"[ $RANK = 1 ] || (RANK=1 setsid sleep 98764 & echo $! >{worker}); echo up $RANK $MESH_ATTEMPT; "
        f"while [ ! -e {enough} ]; do sleep 0.05; done"
    )
    client = home.popen("run", "--nproc", "2", "local:1", "sh", "-c", script)
    assert eventually(lambda: has_printed(home, 0, "up 0 0") and has_printed(home, 1, "up 1 0"), 60.0)
    place = Path(f"/proc/{worker.read_text().strip()}")
    assert eventually(lambda: b"98764" in (place / "cmdline").read_bytes(), 60.0)
    done = home.mesh("restart", "last", "--rank", "1", "--grace", "0")
    assert done.status == 0, done.err
    assert eventually(lambda: has_printed(home, 1, "up 1 1"), 60.0)
    assert b"98764" in (place / "cmdline").read_bytes()
    enough.touch()
    _, err = client.communicate(timeout=60)
    assert client.returncode == 0, err
    assert eventually(lambda: not place.exists())  # the end of the run ends it as well; the kernel reaps it later
