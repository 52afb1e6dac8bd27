"""Stewards and hands that are killed or stopped at random times: no rank runs twice at once, and no line is lost.

MESH_KILLS, MESH_SHORT_JOBS and MESH_KILL_SEED choose how often and when; a failure prints the seed.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from mesh.jobs.reading import FINAL
from tests.desk import Desk
from tests.full import times
from tests.lab import eventually

KILLS = int(os.environ.get("MESH_KILLS", "") or times(12, full=50))
SHORT_JOBS = int(os.environ.get("MESH_SHORT_JOBS", "") or times(3, full=12))  # each is hurt once, while it starts
SEED = int(os.environ.get("MESH_KILL_SEED", "1"))
FREEZE_S = 2.0
ENDS_S = 600.0

# Prints numbered lines, and writes them beside; holds a lock that a second process of the same rank would want.
# A signal that ends it waits until a line stands at both places.
RANK = """
import fcntl, os, signal, sys, time
place, job, rank = os.environ["PLACE"], os.environ["MESH_JOB_ID"], os.environ["RANK"]
lock = open(f"{place}/lock-{job}-{rank}", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    open(f"{place}/double-{job}-{rank}", "w").close()
with open(f"{place}/out-{os.environ['MESH_RUN_ID']}-{rank}", "a") as copy:
    for number in range(25):
        line = f"{os.environ['MESH_ATTEMPT']} line {number}\\n"
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        copy.write(line)
        copy.flush()
        sys.stdout.write(line)
        sys.stdout.flush()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        time.sleep(0.1)
statuses = dict(pair.split("=") for pair in sys.argv[1:])
sys.exit(int(statuses.get(os.environ["MESH_ATTEMPT"], "0")))
"""
RULES = "restart: {on: failure, failures: 1, exit_codes: {again: [29], never: [9]}, backoff: [0.2, 0.2]}\n"
# Words of the rank's program (attempt=status), and the status that the job ends with.
SCHEDULES = {"fine": ("", 0), "twice": ("1=3", 0), "again": ("1=29 2=29", 0), "never": ("1=9", 9)}


def test_random_kills(desk: Desk, tmp_path: Path) -> None:
    chance, place = random.Random(SEED), tmp_path / "place"
    place.mkdir()
    desk.home.files(rank__py=RANK)
    jobs = {}
    for name, (words, _) in SCHEDULES.items():
        command = f"machines: local:2\nrun: python3 rank.py {words}\n"
        jobs[name] = desk.submit(f"{command}job: {{env: {{PLACE: {place}}}}}\n{RULES}", name=name)
    done = 0
    while done < KILLS and any(row["state"] not in FINAL for row in desk.rows(*jobs.values())):
        time.sleep(chance.uniform(0.0, 1.5))
        done += _hurt(desk, chance)
        assert desk.mesh("job", "list").status == 0
    print(f"seed {SEED}: {done} kills")
    desk.mesh("job", "wait", *map(str, jobs.values()), "--timeout", str(ENDS_S), within=ENDS_S + 30)
    ends = {name: desk.show(job)["exit_code"] for name, job in jobs.items()}
    assert ends == {name: status for name, (_, status) in SCHEDULES.items()}
    assert list(place.glob("double-*")) == []
    for job in jobs.values():
        for run in desk.show(job)["runs"]:  # type: ignore[attr-defined]
            for rank in range(2):
                log = desk.home.path / f".local/state/mesh/runs/{run}/logs/rank-{rank:04d}.out"
                assert content(log) == content(place / f"out-{run}-{rank}"), run


def content(path: Path) -> bytes:
    """Return what a file has; a rank that ended before its first line has none."""
    return path.read_bytes() if path.exists() else b""


SHORT = """
import os, sys, time
path = f"{os.environ['PLACE']}/short-{os.environ['MESH_JOB_ID']}"
def note(what):
    with open(path, "a") as file:
        file.write(f"{what} {os.environ['MESH_RUN_ID']}\\n")
note("begin")
print("begins", flush=True)
time.sleep(float(sys.argv[1]))
note("end")
print("ends", flush=True)
"""


def test_a_task_that_ended_before_its_hand_left_is_not_started_again(desk: Desk, tmp_path: Path) -> None:
    chance, place = random.Random(SEED), tmp_path / "place"
    place.mkdir()
    desk.home.files(short__py=SHORT)
    seconds = [round(chance.uniform(0.0, 1.0), 2) for _ in range(SHORT_JOBS)]
    done = 0
    for index, wanted in enumerate(seconds):
        text = f"machines: {{cluster: 'local:4', hosts: 1}}\nrun: python3 short.py {wanted}\n"
        job = desk.submit(f"{text}job: {{env: {{PLACE: {place}}}}}\n", name=f"short{index}")
        notes = place / f"short-{job}"
        until = time.monotonic() + ENDS_S
        victims: list[int] = []
        while not notes.exists():  # the hand is to be hit before it leaves, so that it is looked for before
            assert time.monotonic() < until, desk.show(job)
            victims = desk.processes()
        time.sleep(chance.uniform(0.0, 0.04))
        desk.kill(victims)
        done += len(victims)
        assert desk.mesh("job", "list").status == 0
        assert desk.mesh("job", "wait", str(job), "--timeout", str(ENDS_S), within=ENDS_S + 30).status == 0
        ends = [line for line in notes.read_text().splitlines() if line.startswith("end")]
        assert len(ends) == 1, (SEED, notes.read_text(), desk.mesh("job", "show", str(job), "--events").out.decode())
        assert desk.output(job).endswith(b"ends\n"), SEED
    print(f"seed {SEED}: {done} kills")


def _hurt(desk: Desk, chance: random.Random) -> int:
    """Kill the steward, a hand or all, or stop the steward for a while; return how many were hit."""
    stewards, hands = desk.processes("mesh\0serve"), desk.processes("mesh-hand")
    victims = chance.choice([stewards, chance.sample(hands, min(1, len(hands))), [*stewards, *hands]])
    freezes = victims == stewards and chance.random() < 0.2
    desk.kill(victims, signal.SIGSTOP if freezes else signal.SIGKILL)
    if freezes:
        time.sleep(FREEZE_S)
        desk.kill(victims, signal.SIGCONT)
    else:
        assert eventually(lambda: not set(victims) & set(desk.processes()), 120.0)
    return len(victims)
