"""What the guardian makes of the end of its agent."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mesh.agent.run.view import holders
from tests.conftest import REPOSITORY

from .conftest import Open

SHOW = "for pid in $PPID $(cut -d' ' -f4 /proc/$PPID/stat); do cat /proc/$pid/comm /proc/$pid/cmdline; echo; done"


def test_agent_and_guardian_have_names_of_their_own(opener: Open, python: str) -> None:
    run = opener(python)
    run.prepare()
    run.start("sh", "-c", SHOW)
    assert run.result().code == 0
    names = run.printed().decode().replace("\0", "").split("\n")
    assert names == ["mesh-agent", "mesh-agent", "mesh-guardian", "mesh-guardian", ""]


ALONE = f"""
import os, signal, sys, time
sys.path.insert(0, {str(REPOSITORY)!r})
from mesh.agent import guardian
from mesh.agent.process.processes import descendants

guardian.become_subreaper()
reading, writing = os.pipe()
child = os.fork()
if not child:
    for _ in range(3):
        if not os.fork():
            os.setsid()
    os.write(writing, b"x")
    time.sleep(1000)
for _ in range(8):  # each of the three made twice as many
    os.read(reading, 1)
os.kill(child, signal.SIGKILL)
signal.signal(signal.SIGTERM, lambda number, frame: os.kill(child, number))
heard, _ = os.pipe()
os.set_blocking(heard, False)
assert guardian._wait_for(child, guardian.Reports(heard)) == signal.SIGKILL
os.kill(os.getpid(), signal.SIGTERM)  # it is ignored now
sys.path.clear()
sys.meta_path.clear()
found, left = descendants(os.getpid()), guardian.end_all()
assert (len(found), left) == (7, [])
assert descendants(os.getpid()) == []
begun = b'{{"run":"run","node":0,"remote_dir":"/nowhere","cgroup":"none"}}'
assert guardian._end_orphans(begun) == []
"""


def test_it_ends_what_is_left_also_where_python_is_no_more() -> None:
    """It was updated or removed while the run was on: nothing can be imported any longer."""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", ALONE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_nor_does_a_question_end_the_run_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mesh.agent.run.devices", None)
    monkeypatch.delattr("mesh.agent.run.devices", raising=False)
    assert holders(["/dev/null"]) == {}
