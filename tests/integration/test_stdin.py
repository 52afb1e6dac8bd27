"""Standard input that no rank gets: said once where there is some, and left for the next program."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import Home, read_until

NOTICE = "==> stdin is not sent to any rank; use -i (rank 0) or --stdin all\n"
MESH = f"{sys.executable} -m mesh"


@pytest.mark.parametrize(
    ("script", "notices"),
    [
        ("echo data | $MESH exec local:2 true", 1),
        ("$MESH exec local:2 true <file", 1),
        ("$MESH exec --json local:2 true <file", 1),
        ("echo data | $MESH run local:1 true", 1),
        ("echo data | $MESH exec -i local:1 true", 0),
        ("echo data | $MESH exec --stdin all local:1 true", 0),
        ("echo data | $MESH exec --stdin none local:1 true", 0),
        ("true | $MESH exec local:1 true", 0),
        ("$MESH exec local:1 true </dev/null", 0),
        ("$MESH exec local:1 true </dev/zero", 0),
        ("$MESH exec local:1 true <&-", 0),
        ("$MESH exec local:1 true <empty", 0),
        ("{ cat >/dev/null; $MESH exec local:1 true; } <file", 0),
        ("mkfifo pipe; exec 3<>pipe; $MESH exec local:1 true <pipe", 0),
        ("echo data | $MESH setup local:1", 0),
    ],
)
def test_unsent_stdin_is_mentioned_once(home: Home, script: str, notices: int) -> None:
    home.files(file="data\n", empty="", mesh__yaml="")
    shell = ["sh", "-c", script.replace("$MESH", MESH)]
    environ = {**home.environ, "PYTHONWARNINGS": ""}
    done = subprocess.run(shell, cwd=home.project, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(NOTICE) == notices


@pytest.mark.parametrize("source", ["<file", "<<X\none\ntwo\nX", "cat file |"])
def test_unsent_stdin_is_left_for_the_next_program(home: Home, source: str) -> None:
    home.files(file="one\ntwo\n")
    group = f"{{ {MESH} exec local:1 true; cat; }}"
    script = f"{source} {group}" if source.endswith("|") else f"{group} {source}"
    done = subprocess.run(["sh", "-c", script], cwd=home.project, env=home.environ, capture_output=True, check=True)
    assert done.stdout == b"one\ntwo\n"


def test_unsent_stdin_that_comes_later_is_mentioned(home: Home) -> None:
    read_end, write_end = os.pipe()
    enough = home.path / "enough"
    wait = f"echo up; until [ -e {enough} ]; do sleep 0.05; done"
    process = home.popen("exec", "local:1", "sh", "-c", wait, stdin=read_end)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"[0] up\n"
        os.write(write_end, b"data\n")
        read_until(process.stderr, NOTICE.encode())
        enough.touch()
        assert b"==> stdin" not in process.communicate(timeout=60)[1]
        assert os.read(read_end, 10) == b"data\n"
    finally:
        os.close(read_end)
        os.close(write_end)


def test_detached_run_names_no_option(home: Home) -> None:
    done = home.mesh("run", "-d", "local:1", "true", stdin=b"data")
    assert done.status == 0
    assert "==> stdin is not sent to any rank\n" in done.err


def test_text_typed_on_a_terminal_is_mentioned(home: Home) -> None:
    with home.terminal("exec", "local:1", "sh", "-c", "echo up; exec sleep 1000") as terminal:
        terminal.expect(b"[0] up")
        terminal.type(b"\n")
        terminal.expect(b"rank 0 running, ")
        assert b"stdin" not in terminal.shown
        terminal.type(b"yes\n")
        terminal.expect(NOTICE[4:-1].encode())
        terminal.shown = b""
        terminal.type(b"yes\n")
        terminal.expect(b"rank 0 running, ")
        terminal.shown = b""
        terminal.type(b"\n")
        terminal.expect(b"rank 0 running, ")
        assert b"stdin" not in terminal.shown
        terminal.type(b"\x03")
        assert terminal.end() == 130
