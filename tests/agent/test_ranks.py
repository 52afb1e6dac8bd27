"""What reaches a rank, and what comes back from it."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path

import pytest

from mesh.core.events import Exited, Output, Ready, Started, Stream
from tests.full import times

from .conftest import Open, Run

SHOW = "import json,os,sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"


def test_words_environment_and_directory_on_each_python(opener: Open, python: str, remote_dir: Path) -> None:
    run = opener(python)
    words = ["", "a b", "'\"$HOME\\", "line\nbreak", "ünï", "\udcff\udc80", "--lr", "1e-3"]
    run.prepare(env={"TOKEN": "s'p a\nce", "BYTES": "\udcfe"})
    run.start(sys.executable, "-c", SHOW, *words)
    assert run.result().status == 0
    argv, environment = json.loads(run.printed())
    assert argv == words
    assert environment["TOKEN"] == "s'p a\nce"
    assert environment["BYTES"] == "\udcfe"
    assert environment["PWD"] == str(remote_dir / "workspaces" / "p")
    # Where there is docker, a script of ours stands before it.
    assert next(path for path in environment["PATH"].split(":")[:2] if "/bin-run-" not in path).endswith("/.local/bin")


def test_any_words_arrive_byte_for_byte(agent: Run) -> None:
    """Each byte alone and in a word, and words of any bytes and length, an empty one too."""
    dice = random.Random(1)
    words = [bytes([byte]) for byte in range(1, 256)] + [b"a%cz" % byte for byte in range(1, 256)] + [b""]
    words += [dice.randbytes(dice.randrange(41)).replace(b"\0", b"") for _ in range(300)]
    agent.prepare()
    show = "import os,sys; sys.stdout.buffer.write(repr([os.fsencode(w) for w in sys.argv[1:]]).encode())"
    agent.start(sys.executable, "-c", show, *(word.decode("utf-8", "surrogateescape") for word in words))
    agent.result()
    assert agent.printed() == repr(words).encode()


def test_each_rank_has_its_own_variables(agent: Run) -> None:
    agent.prepare()
    agent.start("sh", "-c", "echo $RANK $LOCAL_RANK", nproc=3)
    for _ in range(3):
        agent.until(Exited)
    agent.finish()
    assert [agent.printed(rank=rank) for rank in range(3)] == [b"0 0\n", b"1 1\n", b"2 2\n"]


def test_nothing_is_on_stdin(agent: Run) -> None:
    agent.prepare()
    agent.start("sh", "-c", "readlink /proc/self/fd/0; cat")
    assert agent.result().status == 0
    assert agent.printed() == b"/dev/null\n"


def test_stdin_reaches_a_rank_and_ends(agent: Run) -> None:
    agent.prepare()
    agent.start("cat", stdin=True)
    data = os.urandom(300_000)
    agent.session.stdin(0, data)
    agent.session.stdin(0, b"")
    assert agent.result().status == 0
    assert agent.printed() == data
    assert sum(count for _, count in agent.taken) == len(data)


def test_a_rank_that_does_not_read_its_stdin_holds_nobody_up(agent: Run) -> None:
    agent.prepare()
    agent.start("sh", "-c", "exec <&-; echo closed; exec sleep 1000", stdin=True)
    agent.until(Output)
    agent.session.stdin(0, b"x" * 200_000)
    agent.session.kill()
    agent.result()
    assert sum(count for _, count in agent.taken) == 200_000


def test_output_is_complete_and_in_order(agent: Run) -> None:
    agent.prepare()
    agent.start("sh", "-c", "seq 200000; seq 100000 >&2; printf 'no newline'; exit 5")
    assert agent.result().status == 5
    expected = "".join(f"{n}\n" for n in range(1, 200_001)).encode() + b"no newline"
    assert agent.printed() == expected
    assert agent.printed(Stream.STDERR) == "".join(f"{n}\n" for n in range(1, 100_001)).encode()


def test_many_megabytes_without_a_newline(agent: Run) -> None:
    expected = times(20_000_000, full=100_000_000)  # several times what agent and client hold
    agent.prepare()
    agent.start("head", "-c", str(expected), "/dev/zero")
    size = 0
    while isinstance(event := agent.until(Exited, Output), Output):
        size += len(event.data)
        agent.events.clear()
    assert size == expected
    assert agent.finish().left == ()


def test_the_bytes_before_a_kill_are_not_lost(agent: Run) -> None:
    agent.prepare()
    agent.start("sh", "-c", "printf last; kill -9 $$")
    exited = agent.result()
    assert (exited.signal, exited.status) == (signal.SIGKILL, 137)
    assert agent.printed() == b"last"


@pytest.mark.parametrize(
    ("program", "status", "nearest"),
    [
        ("true", 0, ""),
        ("./here", 0, ""),
        ("here", 127, "./here"),
        ("tool", 127, "tool3"),
        ("nothing-like-it", 127, ""),
        ("", 0, ""),
        ("plain", 126, ""),
        ("./plain/x", 127, ""),
        ("./hero", 127, "./here"),
    ],
)
def test_the_program_is_looked_for_when_the_host_is_ready(
    opener: Open, python: str, tmp_path: Path, program: str, status: int, nearest: str
) -> None:
    (tmp_path / "bin").mkdir()
    for name, mode in (("bin/tool3", 0o755), ("bin/tool2", 0o644), ("here", 0o755), ("plain", 0o644)):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(mode)
    path = f"{tmp_path}/bin:{tmp_path}/nowhere:{'.:' * (program == 'plain')}/usr/bin:/bin"
    ready = opener(python).prepare([f"cd {tmp_path}"], {"PATH": path}, program=program)
    assert isinstance(ready, Ready)
    assert (ready.status, ready.nearest) == (status, nearest)


def test_a_command_that_does_not_exist(agent: Run) -> None:
    agent.prepare()
    agent.start("no-such-command", "x")
    assert agent.result().status == 127
    assert b"no-such-command" in agent.printed(Stream.STDERR)


def test_a_directory_of_path_that_may_not_be_read_holds_nothing(agent: Run) -> None:
    agent.prepare(env={"PATH": "/proc/1/root/nowhere:/etc/passwd:/nonexistent:/usr/bin:/bin"})
    agent.start("no-such-command")
    assert agent.result().status == 127


def test_a_command_that_may_not_be_executed(agent: Run, tmp_path: Path) -> None:
    agent.prepare()
    file = tmp_path / "plain"
    file.write_text("no program")
    agent.start(str(file), "x")
    assert agent.result().status == 126


def test_a_command_that_is_no_program(agent: Run, tmp_path: Path) -> None:
    agent.prepare()
    file = tmp_path / "plain"
    file.write_text("no program")
    file.chmod(0o755)
    agent.start(str(file), "x")
    assert agent.result().status == 126


def test_signals_are_at_their_defaults_in_a_rank(agent: Run) -> None:
    agent.prepare()
    agent.start("sh", "-c", "grep -E 'Sig(Ign|Blk)' /proc/self/status")
    agent.result()
    masks = [int(line.split()[1], 16) for line in agent.printed().splitlines()]
    assert masks == [0, 0]


def test_no_descriptor_of_the_agent_is_open_in_a_rank(agent: Run) -> None:
    agent.prepare(["true"])
    agent.start("sh", "-c", "ls /proc/self/fd | wc -l")
    agent.result()
    assert int(agent.printed()) == 4  # 0, 1, 2 and the directory that ls reads


def test_a_started_rank_tells_its_pid(agent: Run) -> None:
    agent.prepare()
    agent.start("sh", "-c", "echo $$")
    agent.result()
    (started,) = [event for event in agent.events if isinstance(event, Started)]
    assert int(agent.printed()) == started.pid
