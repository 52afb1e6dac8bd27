"""A crowd of processes that submit jobs at once, and one that stops all of them.

MESH_CROWD_JOBS and MESH_CROWD_PROCESSES choose how many there are: with MESH_TEST_FULL=1 200 jobs of 20 processes, by
hand 1000.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from mesh.jobs import requests
from mesh.jobs.events import Wished
from mesh.jobs.requests import rows_of
from mesh.jobs.values import Wanted
from tests.full import times
from tests.lab import eventually

JOBS = int(os.environ.get("MESH_CROWD_JOBS", "") or times(24, full=200))
SUBMITTERS = int(os.environ.get("MESH_CROWD_PROCESSES", "") or times(6, full=20))
STOP_LIMIT_S = 60.0  # for 200 jobs
REPOSITORY = Path(__file__).parents[1]
SUBMIT = """
import sys, time
from pathlib import Path
from mesh.jobs.place import StorePlace
from mesh.jobs import requests
from mesh.jobs.store import open_store
from tests.jobs_world import job_spec
place, path, count = StorePlace(directory=Path(sys.argv[1]), url=sys.argv[2]), sys.argv[3], int(sys.argv[4])
store = open_store(place)
for index in range(count):
    spec = job_spec("crowd", ["600:ok"], hosts=1)
    if index % 2:  # through the steward, and past it
        print(requests.rows_of(requests.Steward(path=path).ask(requests.Submit(specs=(spec,))).rows)[0].id)
    else:
        print(store.submit([spec], time.time())[0].id)
store.close()
"""


def submit_at_once(directory: Path, url: str, path: str) -> list[int]:
    """Have all processes submit; return the ids. path: of the steward's socket"""
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    argv = [sys.executable, "-c", SUBMIT, str(directory), url, path, str(JOBS // SUBMITTERS)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen(argv, cwd=REPOSITORY, env=environ, **pipes) for _ in range(SUBMITTERS)]  # type: ignore[call-overload]
    said = [writer.communicate(timeout=300) for writer in writers]
    errors = [(writer.returncode, text) for writer, (_, text) in zip(writers, said, strict=True)]
    assert errors == [(0, "")] * SUBMITTERS
    return [int(number) for numbers, _ in said for number in numbers.split()]


def crowd(directory: Path, url: str, path: str, *, limit: float = 5 * STOP_LIMIT_S) -> float:
    """Have a crowd submit, and stop all jobs at once; return the seconds until the last had stopped."""
    steward = requests.Steward(path=path)
    ids = submit_at_once(directory, url, path)
    count = JOBS // SUBMITTERS * SUBMITTERS
    assert len(set(ids)) == len(ids) == count

    def states() -> list[str]:
        return [row.state for row in rows_of(steward.ask(requests.AskRows()).rows)]

    assert eventually(lambda: len(states()) == count and states().count("running") == 4, 240.0), states()
    begun = time.monotonic()
    steward.ask(requests.Record(jobs=tuple(ids), event=Wished(time=time.time(), wanted=Wanted.STOP, by="me")))
    assert eventually(lambda: set(states()) == {"stopped"}, limit), states()
    took = time.monotonic() - begun
    about = steward.ask(requests.AskAbout()).about
    assert about is not None
    assert about.trouble == ()
    return took
