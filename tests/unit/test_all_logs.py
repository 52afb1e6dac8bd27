"""mesh logs --all, and lines around a match."""

from __future__ import annotations

import json
import re
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.core.events import Output, Stream
from mesh.core.lines import MEMORY_BYTES
from mesh.rundir.grep import CONTEXT_BYTES, LineFilter
from mesh.rundir.layout import INDEX, RECORD
from tests.conftest import Home


def output(data: bytes, rank: int = 0) -> Output:
    return Output(time=1, node=0, rank=rank, stream=Stream.STDOUT, data=data)


def filtered(data: bytes, pattern: str, before: int, after: int, cut: int = 1 << 20) -> bytes:
    lines = LineFilter(re.compile(pattern), before, after)
    chunks = [output(data[at : at + cut]) for at in range(0, len(data), cut)]
    return b"".join(one.data for chunk in chunks for one in lines.feed(chunk)) + b"".join(
        one.data for one in lines.end()
    )


@given(st.text("xa", max_size=30), st.integers(0, 3), st.integers(0, 3), st.integers(1, 9))
def test_lines_around_a_match_are_those_within_reach(text: str, before: int, after: int, cut: int) -> None:
    lines = [f"{letter}{number}" for number, letter in enumerate(text)]
    matches = [place for place, letter in enumerate(text) if letter == "x"]
    near = [place for place in range(len(text)) if any(m - before <= place <= m + after for m in matches)]
    data = "".join(f"{line}\n" for line in lines).encode()
    found = filtered(data, "x", before, after, cut).decode().splitlines()
    assert [line for line in found if line != "--"] == [lines[place] for place in near]
    if before or after:
        assert found.count("--") == sum(later > place + 1 for place, later in pairwise(near))


def test_each_log_has_its_own_lines_around() -> None:
    lines = LineFilter(re.compile("x"), 1, 1)
    chunks = [output(b"a0\n"), output(b"b1\n", 1), output(b"x\n"), output(b"c1\n", 1), output(b"c0\nd0\n")]
    assert [(one.rank, one.data) for chunk in chunks for one in lines.feed(chunk)] == [(0, b"a0\nx\n"), (0, b"c0\n")]


def test_long_lines_around_a_match() -> None:
    long = b"l" * (2 * MEMORY_BYTES + 10) + b"\n"
    assert filtered(long + b"x\n" + long + b"end\n", "x", 1, 1) == b"(a line of %d bytes)\nx\n" % len(long) + long
    wide = b"w" * (CONTEXT_BYTES // 2 + 10) + b"\n"
    assert filtered(wide * 3 + b"x\n", "x", 3, 0) == wide + b"x\n"
    wide = b"w" * (CONTEXT_BYTES + 10) + b"\n"
    assert filtered(wide + b"x\n", "x", 3, 0) == b"(a line of %d bytes)\nx\n" % len(wide)


def run_of(home: Home, run: str, age: float, **texts: str) -> None:
    """A run of two hosts that ended a while ago; texts: by rank and suffix, as r0out."""
    directory = home.path / ".local/state/mesh/runs" / run
    (directory / "logs").mkdir(parents=True)
    then = time.time() - age
    about = {"run": run, "kind": "run", "hosts": ["a", "b"], "nproc": 1, "created": then, "ended": then, "exit_code": 0}
    (directory / "run.json").write_text(json.dumps({**about, "command": ["echo", run[-1]]}))
    index = b""
    for name, text in texts.items():
        rank, suffix = int(name[1]), name[2:]
        (directory / f"logs/rank-{rank:04d}.{suffix}").write_text(text)
        index += RECORD.pack(then, rank * 4 + (suffix == "err"), len(text))
    (directory / "logs" / INDEX).write_bytes(index)


@pytest.fixture
def searched(home: Home) -> Home:
    run_of(home, "20261121-101500-000001", 3 * 86400, r0out="old nan\n")
    run_of(home, "20261121-101500-000002", 7200, r0out="a\nb nan\nc\nd.n\n", r1err="e nan\n")
    run_of(home, "20261121-101500-000003", 3600, r0out="nothing\n")
    run_of(home, "20261121-101500-000004", 60, r1out="last nan")
    return home


def test_all_runs_are_searched(searched: Home) -> None:
    done = searched.mesh("logs", "--all", "--grep", "nan", "--since", "1d", "-A", "1")
    assert done.status == 0
    heads = ["==> 20261121-101500-000002: echo 2", "==> 20261121-101500-000004: echo 4"]
    assert done.out.decode().splitlines() == [heads[0], "[0] b nan", "[0] c", heads[1], "[1] last nan"]
    assert "[1] e nan" in done.err
    fixed = searched.mesh("logs", "--all", "-F", "--grep", "d.n", "--rank", "0")
    assert fixed.out.decode().splitlines() == [heads[0], "[0] d.n"]
    nothing = searched.mesh("logs", "--all", "--grep", "absent")
    assert (nothing.status, nothing.out) == (0, b"")
    assert "nothing was found in 4 runs" in nothing.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--all", "--grep", "a("], "--grep: 'a(' is no regular expression"),
        (["--all", "last"], "--all: RUN is for one run"),
        (["--all", "-f"], "--all: --follow is for one run"),
        (["--all", "--rank", "7"], "--rank: no rank 7"),
        (["--all", "-C", "2"], "--context: there is no --grep"),
        (["-A", "x", "--grep", "a"], "--after-context: expected a"),
        (["-F"], "mesh logs -F --grep TEXT"),
    ],
)
def test_bad_input(searched: Home, words: list[str], message: str) -> None:
    done = searched.mesh("logs", *words)
    assert done.status == 2
    assert message in done.err
