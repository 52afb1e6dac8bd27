"""`mesh repl`: one prompt for all ranks, from a pipe and on a terminal, and nothing left of it."""

from __future__ import annotations

import json
import signal
import subprocess

from tests.conftest import Home
from tests.integration.test_attach import runs
from tests.integration.test_run_directory import problems
from tests.lab import Lab, eventually

SCRIPT = b"""
import os
rank = int(os.environ["RANK"])
from own import double

def f(n):
    if n == 5:
        raise ValueError("five")

    return double(n)

"answer"
%rank 3 print("only", rank)
%pull f(rank if rank < 5 else 0)
%local values = _
%push total = sum(values)
total
for name in ("a", "b"):
    print(name)
f(rank)
print("never")
"""


def test_cells_of_a_pipe_run_on_all_ranks_to_the_first_that_fails(home: Home) -> None:
    home.files(own__py="def double(n):\n    return 2 * n\n")
    done = home.mesh("repl", "--nproc", "3", "local:2", stdin=SCRIPT)
    assert done.status == 1, done.err
    lines = done.out.decode().splitlines()
    assert lines[:6] == ["[0-5] 'answer'", "[3] only 3", "_ = [0, 2, 4, 6, 8, 0]", "[0-5] 20", "[0-5] a", "[0-5] b"]
    assert sorted(lines[6:]) == ["[0] 0", "[1] 2", "[2] 4", "[3] 6", "[4] 8"]
    assert "[5] ValueError: five" in done.err
    assert '[5]   File "<cell' in done.err
    (directory,) = runs(home).iterdir()
    assert problems(directory) == []
    about = json.loads((directory / "run.json").read_text())
    assert about["cause"] in ("program", "completed")


def test_a_script_that_ends_well_and_a_thousand_cells_leave_no_descriptor(home: Home) -> None:
    count = "len(os.listdir('/proc/self/fd'))\n"
    cells = "import os\nx = 0\n" + count + "x += 1\n" * 100 + count + "x\n"
    done = home.mesh("repl", "local:2", stdin=cells.encode())
    assert done.status == 0, done.err
    first, second, last = done.out.decode().splitlines()
    assert (first, last) == (second, "[0-1] 100")


def test_ctrl_c_interrupts_the_cell_on_all_ranks_and_a_dead_rank_is_named(home: Home) -> None:
    with home.terminal("repl", "local:2") as terminal:
        terminal.expect(b"[0-1] >>> ")
        terminal.type(b"import os, time; rank = int(os.environ['RANK'])\n")
        terminal.type(b"print('beg' + 'in'); time.sleep(1000 * rank); 1 / rank\n")
        terminal.expect(b"rank 0 failed, rank 1 is still running: Ctrl-C interrupts them")
        terminal.type(b"\x03")
        terminal.expect(b"[1] KeyboardInterrupt")
        terminal.type(b"'still ' + 'here'\n")
        terminal.expect(b"[0-1] 'still here'")
        terminal.type(b"os._exit(3) if rank else None\n")
        terminal.expect(b"rank 1: exit 3")
        terminal.type(b"'one ' + 'left'\n")
        terminal.expect(b"[0] 'one left'")
        terminal.type(b"\x04")
        assert terminal.end() == 0, terminal.shown
    assert "'still ' + 'here'" in (home.path / ".local/state/mesh/repl-history").read_text()


def test_nothing_is_left_of_a_prompt_that_is_killed_in_a_cell(pod: Home, lab: Lab) -> None:
    cells = b"import time\nprint('up', flush=True)\ntime.sleep(1000)\n"
    client = pod.popen("repl", "pod:0-1", stdin=subprocess.PIPE)
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(cells)
    client.stdin.flush()
    assert client.stdout.readline() == b"[0-1] up\n"
    client.send_signal(signal.SIGKILL)
    client.communicate()
    for host in lab.hosts[:2]:
        assert eventually(lambda h=host: not h.processes(), 60.0), host.processes()
