"""`mesh repl`: one prompt for all ranks, from a pipe and on a terminal, and nothing left of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from mesh.core.ranks import choose_ranks
from tests.conftest import PATIENCE, Home
from tests.full import times
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


def shown(text: bytes) -> dict[str, set[int]]:
    """The ranks that have printed each line. Equal lines that come late on a busy machine are not shown as one."""
    found: dict[str, set[int]] = {}
    for line in text.decode().splitlines():
        label, _, words = line.partition("] ")
        found.setdefault(words, set()).update(choose_ranks("", label[1:], None) if words else ())
    return found


def test_cells_of_a_pipe_run_on_all_ranks_to_the_first_that_fails(home: Home) -> None:
    home.files(own__py="def double(n):\n    return 2 * n\n")
    done = home.mesh("repl", "--nproc", "3", "local:2", stdin=SCRIPT)
    assert done.status == 1, done.err
    every = set(range(6))
    pulled = b"_ = [0, 2, 4, 6, 8, 0]\n"
    assert done.out.count(pulled) == 1
    own = {str(2 * rank): {rank} for rank in range(5)}
    assert shown(done.out.replace(pulled, b"")) == {
        "'answer'": every,
        "only 3": {3},
        "20": every,
        "a": every,
        "b": every,
        **own,
    }
    assert "[5] ValueError: five" in done.err
    assert '[5]   File "<cell' in done.err
    (directory,) = runs(home).iterdir()
    assert problems(directory) == []
    about = json.loads((directory / "run.json").read_text())
    assert about["cause"] in ("program", "completed")


def test_a_script_that_ends_well_and_many_cells_leave_no_descriptor_and_no_thread(home: Home) -> None:
    """Each cell would leave one. With MESH_TEST_FULL=1 there are a thousand."""
    count_of_cells = times(200, 1000)
    # Logs are opened once there is output, so that some are there only at the end.
    count = "len(os.listdir('/proc/self/fd')) + threading.active_count()"
    cells = (
        f"import os, threading\n%local import os, threading\nx = 0\nfirst = {count}\n%local first = {count}\n"
        + "x += 1\n" * count_of_cells
        + f"{count} <= first + 20\n%local print('here', {count} <= first + 20)\nx\n"
    )
    done = home.mesh("repl", "local:2", stdin=cells.encode(), within=5 * PATIENCE)
    assert done.status == 0, done.err
    assert done.out.count(b"here True\n") == 1
    assert shown(done.out.replace(b"here True\n", b"")) == {"True": {0, 1}, str(count_of_cells): {0, 1}}


def test_ranks_sum_with_jax_and_one_that_fails_in_a_cell_is_named(home: Home) -> None:
    """With MESH_TEST_FULL=1 there are eight."""
    nproc = times(2, 4)
    last = 2 * nproc - 1
    pytest.importorskip("jax", reason="JAX is not installed here")
    cells = (
        "import jax, meshrun\nmeshrun.initialize_jax()\nfrom jax.experimental import multihost_utils\n"
        "rank = jax.process_index()\n"
        "int(multihost_utils.process_allgather(jax.numpy.array([rank])).sum()), jax.process_count()\n"
        f"1 // (rank - {last})\n'never'\n"
    )
    words = ("repl", "--python", sys.executable, "--env", "JAX_PLATFORMS=cpu", "--nproc", f"{nproc}", "local:2")
    done = home.mesh(*words, stdin=cells.encode(), within=5 * PATIENCE)
    assert done.status == 1, done.err
    found = shown(b"\n".join(line for line in done.out.splitlines() if b"[Gloo]" not in line))
    assert found.pop(str((sum(range(last + 1)), last + 1))) == set(range(last + 1)), done.err
    assert "'never'" not in found
    assert f"[{last}] ZeroDivisionError" in done.err


def test_sync_brings_changed_files_and_loads_changed_modules_again(home: Home) -> None:
    home.files(own__py="def f():\n    return 'old'\n", other__py="from own import f\n", gone__txt="x")
    script = home.project / "edit.sh"
    script.write_text("printf 'def f():\\n    return \"new\"\\n' > own.py; rm gone.txt; printf later > more.txt\n")
    cells = (
        "import os, other, pathlib\nfrom own import f\nf(), other.f()\n"
        "%local import subprocess; _ = subprocess.run(['sh', 'edit.sh'], check=True)\n%sync\n"
        "f(), other.f(), pathlib.Path('more.txt').read_text(), os.path.exists('gone.txt')\n"
        "%local _ = subprocess.run(['sh', '-c', 'echo 1/0 >> own.py'], check=True)\n%sync\n'never'\n"
    )
    done = home.mesh("repl", "--nproc", "2", "local:2", stdin=cells.encode())
    every = set(range(4))
    assert shown(done.out) == {
        "('old', 'old')": every,
        "['own']": every,
        "('new', 'new', 'later', False)": every,
    }, done.err
    assert done.status == 1
    assert "sent 2 files, removed 1 path on 2 hosts" in done.err
    assert "ZeroDivisionError" in done.err


def test_ctrl_c_interrupts_the_cell_on_all_ranks_and_a_dead_rank_is_named(home: Home) -> None:
    with home.terminal("repl", "local:2") as terminal:
        terminal.expect(b"[0-1] >>> ")
        terminal.type(b"import os, time; rank = int(os.environ['RANK'])\n")
        terminal.type(b"print('beg' + 'in'); time.sleep(1000 * rank); 1 / rank\n")
        terminal.expect(b"rank 0 failed, rank 1 is still running: Ctrl-C interrupts them")
        terminal.type(b"\x03")
        terminal.expect(b"[1] KeyboardInterrupt")
        terminal.type(b"'still ' + 'here'\n")
        terminal.expect(b"] 'still here'")
        terminal.type(b"os._exit(3) if rank else None\n")
        terminal.expect(b"rank 1: exit 3")
        terminal.type(b"'one ' + 'left'\n")
        terminal.expect(b"[0] 'one left'")
        terminal.shown = terminal.shown.partition(b"[0] 'one left'")[2]
        terminal.expect(b"[0] >>> ")  # Ctrl-D that is typed before a prompt is lost
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
    assert b"up" in client.stdout.readline()
    client.send_signal(signal.SIGKILL)
    client.communicate()
    for host in lab.hosts[:2]:
        assert eventually(lambda h=host: not h.processes(), 60.0), host.processes()
