"""The steward of `mesh serve`, which looks at jobs and machines at short intervals.

    python -m tests.tpu_steward [hand OPERATION | audit]

Evidence of absence takes two looks 20 s apart in mesh; here 2 s. A job is looked at every 3 s in mesh; here every
second. Hosts that are gone keep a look for 60 s in mesh; here 15 s. With MESH_TEST_AUDIT_S it audits at that interval,
by two looks that follow each other. While the file HELD_FETCH is in the home directory, fetches wait. All else is the
program's own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from mesh.app.evidence import Pace
from mesh.app.jobhosts import Makers
from mesh.jobs import children
from mesh.jobs.children import DEADLINES
from tests.desk import Desk
from tests.lab import eventually

PACE = Pace(
    absent_again=2.0, lost_again=0.4, list_interval=0.4, queue_interval=0.4, hurried_interval=0.4, probe_interval=0.3
)
HELD_FETCH = "held-fetch"  # a file; a hand that waits for its removal has put its process id into it
HELD_POLL_S = 0.05
LOOK_DEADLINE_S, LOOK_START_S = 15.0, 120.0  # the latter as long as a busy machine may need
LOOK_S, URGENT_LOOK_S = 1.0, 0.5  # between two looks of the steward at one job
START_S, END_S = 120.0, 60.0  # a busy machine takes long
REPOSITORY = Path(__file__).parents[1]


@contextlib.contextmanager
def steward(desk: Desk) -> Iterator[subprocess.Popen[bytes]]:
    """Have a steward look after the jobs of a desk."""
    environ = {**desk.home.environ, "PYTHONPATH": str(REPOSITORY), "MESH_PYTHONPATH": ""}
    desk.place.mkdir(parents=True, exist_ok=True, mode=0o700)
    argv = [sys.executable, "-m", "tests.tpu_steward"]
    with (desk.place / "serve.log").open("ab") as log:
        process = subprocess.Popen(
            argv, cwd=REPOSITORY, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        assert eventually(lambda: desk.serving() == process.pid or process.poll() is not None, START_S)
        assert process.poll() is None, (desk.place / "serve.log").read_text()
        yield process
    finally:
        process.terminate()
        process.wait(END_S)


def main() -> None:
    """Be the steward, or a hand of it."""
    from mesh.api import serving

    me = (sys.executable, "-m", "tests.tpu_steward")
    if sys.argv[1:2] == ["audit"]:
        from mesh.api.straying import find_strays
        from mesh.jobs.coding import encode

        sys.stdout.write(encode(find_strays(interval=0.0)))
        return
    if sys.argv[1:2] != ["hand"]:
        DEADLINES["look"], children.LOOK_START_S = LOOK_DEADLINE_S, LOOK_START_S
        serving.LOOK_S, serving.URGENT_LOOK_S = LOOK_S, URGENT_LOOK_S
        serving.hand_argv = lambda: (*me, "hand")
        interval = os.environ.get("MESH_TEST_AUDIT_S", "")
        serving.AUDIT_INTERVAL_S = float(interval or 0.0)
        serving.serve((*me, "audit") if interval else ())
        return
    from mesh.api.hand import use_users_path
    from mesh.api.hands import JobHands
    from mesh.core.title import set_title
    from mesh.jobs.child import serve

    set_title(f"mesh-hand {sys.argv[-1]}")
    use_users_path()
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    if sys.argv[-1] == "fetch":
        wait_for_release(Path.home() / HELD_FETCH)
    serve(JobHands(), Makers(PACE))


def wait_for_release(path: Path) -> None:
    """Wait while a test has a file, after writing into it that this process waits."""
    with contextlib.suppress(FileNotFoundError), open(path, "r+") as file:  # never made anew
        file.write(str(os.getpid()))
    while path.exists():
        time.sleep(HELD_POLL_S)


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    main()
