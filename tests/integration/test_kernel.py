"""Cells of Jupyter on all ranks: the magic in an ordinary kernel, and the kernel of `mesh repl --install-kernel`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import PATIENCE, Home
from tests.integration.test_repl import shown
from tests.lab import eventually

# Runs cells in a kernel, and prints what a front end gets of each. A text in the output has the kernel interrupted.
DRIVE = """
import json, sys
from jupyter_client import KernelManager

name, cells, interrupt, last = json.loads(sys.argv[1])
kernel = KernelManager(kernel_name=name)
kernel.start_kernel()
client = kernel.client()
client.start_channels()
client.wait_for_ready(timeout=120)
for cell in cells:
    got = {"stdout": "", "stderr": "", "result": "", "error": "", "traceback": [], "interrupts": 0}

    def take(message):
        content = message["content"]
        if message["msg_type"] == "stream":
            got[content["name"]] += content["text"]
            if interrupt in got["stdout"] and not got["interrupts"]:
                got["interrupts"] = 1
                kernel.interrupt_kernel()
        elif message["msg_type"] == "execute_result":
            got["result"] = content["data"]["text/plain"]
        elif message["msg_type"] == "error":
            got["error"], got["traceback"] = f"{content['ename']}: {content['evalue']}", content["traceback"]

    client.execute_interactive(cell, timeout=120, output_hook=take)
    print(json.dumps(got), flush=True)
if last:
    matches = []
    while not matches:  # a busy rank may not answer in time
        matches = client.complete(last, reply=True, timeout=120)["content"]["matches"]
    print(json.dumps(matches), flush=True)
    kernel.signal_kernel(9)
else:
    kernel.shutdown_kernel()
client.stop_channels()
"""
RANK = "import os; rank = int(os.environ['RANK'])"
INTERRUPTED = "print('beg' + 'un', flush=True); import time; time.sleep(1000)"


def drive(home: Home, kernel: str, cells: list[str], last: str = "") -> list[dict[str, str]]:
    """Run cells in a kernel; return what a front end gets. last: completed before SIGKILL; "": it is shut down"""
    done = subprocess.run(
        [sys.executable, "-c", DRIVE, json.dumps([kernel, cells, "begun", last])],
        cwd=home.project,
        env={**home.environ, "PYTHONWARNINGS": "", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("{", "["))]


def processes(home: Home) -> list[str]:
    """The command lines of all processes of a user."""
    found, mark = [], b"HOME=%s" % os.fsencode(home.path)
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (place / "environ").read_bytes().split(b"\0"):
                found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it has ended
            continue
    return found


def test_the_magic_runs_cells_on_all_ranks_which_end_with_the_kernel(home: Home) -> None:
    home.files(own__py="def double(n):\n    return 2 * n\n")
    loaded, begun, listed, pulled, failed, stopped, after, wrong = drive(
        home,
        "python3",
        [
            "%load_ext mesh",
            f"%%mesh --nproc 2 local:2\nfrom own import double\n{RANK}\n'all ' + 'there'",
            "%mesh",
            "%%mesh\n%pull double(rank)\n%push total = sum(_)\n%local half = sum(_) // 2\ntotal",
            "%%mesh local:2\n\n1 // (rank - 1)",
            f"%%mesh\n{INTERRUPTED}",
            "%%mesh\nprint(total + rank)",
            "%%mesh --nproc 3 local:2\nrank",
        ],
    )
    every = {0, 1, 2, 3}
    assert loaded["error"] == ""
    assert shown(begun["stdout"].encode()) == {"'all there'": every}
    assert "4 ranks ready" in begun["stderr"]
    assert listed["stdout"].startswith("local:2: 4 ranks, run ")
    assert "_ = [0, 2, 4, 6]" in pulled["stdout"]
    assert shown(pulled["stdout"].replace("_ = [0, 2, 4, 6]\n", "").encode()) == {"12": every}
    assert failed["error"] == "CellFailed: rank 1 failed"
    assert "[1] ZeroDivisionError" in failed["stderr"]
    assert "line 2" in failed["stderr"]
    assert failed["traceback"] == ["CellFailed: rank 1 failed"]
    assert stopped["error"] == "CellFailed: ranks 0-3 interrupted"
    assert "KeyboardInterrupt" in stopped["stderr"]
    assert shown(after["stdout"].encode()) == {str(12 + rank): {rank} for rank in every}
    assert wrong["error"] == "CellFailed: local:2: its ranks were started with other options"
    assert eventually(lambda: not processes(home), 3 * PATIENCE), processes(home)


def test_a_kernel_runs_its_cells_on_all_ranks_and_leaves_none_when_it_is_killed(home: Home) -> None:
    done = home.mesh("repl", "--nproc", "2", "--lease", "60", "--install-kernel", "two", "local:1")
    assert done.status == 0, done.err
    assert ".local/share/jupyter/kernels/two" in done.err
    begun, failed, stopped, after, names = drive(
        home,
        "two",
        [
            f"{RANK}\n%rank 1 print('only', rank)\nos.environ['WORLD_SIZE']",
            "the_name_here = 'kept'\nraise ValueError('same')",
            INTERRUPTED,
            "the_name_here",
        ],
        last="the_name_h",
    )
    assert shown(begun["stdout"].encode()) == {"only 1": {1}, "'2'": {0, 1}}
    assert failed["error"] == "CellFailed: ranks 0-1 failed"
    assert shown(failed["stderr"].encode())["ValueError: same"] == {0, 1}
    assert stopped["error"] == "CellFailed: ranks 0-1 interrupted"
    assert shown(after["stdout"].encode()) == {"'kept'": {0, 1}}
    assert names == ["the_name_here"]
    assert eventually(lambda: not processes(home), 3 * PATIENCE), processes(home)
