"""`mesh stacks` as a user sees it: ranks of which one is somewhere else, 16 of them with MESH_TEST_FULL=1."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, REPOSITORY, Home
from tests.full import times
from tests.lab import eventually

TRAIN = """\
import os, sys, threading
from data import DataLoader
def psum(): threading.Event().wait()
print("up", flush=True)
if os.environ["RANK"] == "7":
    for batch in DataLoader(): pass
psum()
"""
DATA = """\
import time
class DataLoader:
    def __iter__(self): return self
    def __next__(self): time.sleep(1000)
"""
NPROC = times(2, 4)
OTHERS = "[0-6]" if NPROC == 2 else "[0-6,8-15]"
SHELL = "echo up; if [ $RANK = 7 ]; then exec sleep 1000; else exec cat $FIFO; fi"


def without_py_spy(home: Home) -> None:
    """Have none here: neither the package nor on PATH."""
    empty = home.path / "empty/py_spy-0.dist-info"
    empty.mkdir(parents=True)
    (empty / "METADATA").write_text("Metadata-Version: 2.1\nName: py-spy\nVersion: 0\n")
    (empty / "RECORD").write_text("")
    home.environ["PYTHONPATH"] = f"{empty.parent}:{home.environ['PYTHONPATH']}"
    home.environ["PATH"] = "/usr/bin:/bin"


@contextlib.contextmanager
def running(home: Home, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run whose ranks have all said that they are up; it is stopped at the end."""
    process = home.popen("run", "--nproc", str(NPROC), *words)
    assert process.stdout is not None
    for _ in range(4 * NPROC):
        assert process.stdout.readline()
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


def shown_once(home: Home, *patterns: str) -> list[str]:
    """Wait until `mesh stacks` shows lines as these, and return them: a rank may be on its way there."""
    found: list[str] = []

    def are_shown() -> bool:
        found[:] = home.mesh("stacks").out.decode().splitlines()
        return len(found) == len(patterns) and all(map(re.fullmatch, patterns, found))

    assert eventually(are_shown, PATIENCE), found
    return found


def test_the_readmes_install_brings_py_spy() -> None:
    """The README installs mesh without extras."""
    text = (REPOSITORY / "pyproject.toml").read_text()
    dependencies = text.partition("\ndependencies = [\n")[2].partition("\n]\n")[0]
    assert '"py-spy>=' in dependencies


@pytest.mark.parametrize("how", ["py-spy", "faulthandler"])
def test_the_odd_one_of_many_ranks(home: Home, how: str) -> None:
    home.files(train__py=TRAIN, data__py=DATA)
    if how == "py-spy":
        # The path of a virtual environment's python would have py-spy beside it.
        home.environ["PATH"] = "/usr/bin:/bin"
    else:
        without_py_spy(home)
    with running(home, *(["--stacks"] if how == "faulthandler" else []), "local:4", "python3", "train.py"):
        # A rank that has not lived for half a second yet is asked nothing.
        odd, _ = shown_once(
            home,
            r"\[7\] (DataLoader\.)?__next__ at data\.py:4",
            rf"{re.escape(OTHERS)} psum at train\.py:3, in (Condition\.)?wait at threading\.py:\d+",
        )
        found = json.loads(home.mesh("stacks", "--json", "last").out)
        assert [group["ranks"] for group in found["groups"]] == [[7], [*range(7), *range(8, 4 * NPROC)]]
        assert {group["how"] for group in found["groups"]} == {how}
        if how == "faulthandler":
            full = home.mesh("stacks", "--full", found["run"][:-3]).out.decode().splitlines()
            assert full[:3] == [f"[7] train.py, by {how}", f"    {odd[4:]}", "    <module> at train.py:6"]


def test_the_kernels_word_on_what_is_no_python(home: Home) -> None:
    without_py_spy(home)
    fifo = home.path / "fifo"
    subprocess.run(["mkfifo", fifo], check=True)
    with fifo.open("r+b", buffering=0), running(home, "--env", f"FIFO={fifo}", "local:4", "sh", "-c", SHELL):
        shown_once(home, r"\[7\] sleep: in .*", rf"{re.escape(OTHERS)} cat: in read of {fifo}.*")
        assert "py-spy" not in home.mesh("stacks").err  # there is no Python to trace
    done = home.mesh("stacks")
    assert done.status == 2
    assert "no rank of run" in done.err


def test_stacks_before_a_timeout_ends_the_run(home: Home) -> None:
    without_py_spy(home)
    home.files(train__py=TRAIN, data__py=DATA)
    # In this time all ranks are where they wait, on any machine.
    words = ("--nproc", "2", "--timeout", "12", "--stacks", "--stacks-on-timeout", "local:4", "python3", "train.py")
    done = home.mesh("run", *words)
    assert done.status == 124
    lines = done.err.splitlines()
    shown = lines.index("==> [7] train.py, by faulthandler")
    assert lines[shown + 1] == "==>     __next__ at data.py:4"
    assert "==> [0-6] train.py, by faulthandler" in lines
    assert shown < next(number for number, line in enumerate(lines) if "stopping 8 ranks" in line)
    assert home.mesh("run", "--stacks-on-timeout", "local", "true").status == 2
    bin_directories = Path(home.path).glob(".mesh/local/*/machines/*/bin-*")
    assert list(bin_directories) == []
