"""mesh logs, mesh runs and mesh runs prune, on the built-in cluster."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from mesh.rundir.layout import INDEX, RECORD
from tests.conftest import PATIENCE, Home
from tests.lab import eventually

TALK = "echo out $RANK; echo err $RANK >&2"
UNTIL_TOLD = "echo up; while ! test -e {go}; do sleep 0.05; done; echo down; exit 3"
OLD = "20200101-000000-"


def runs_of(home: Home) -> Path:
    return home.path / ".local/state/mesh/runs"


def newest(home: Home) -> Path:
    return max(runs_of(home).glob("2*"))


def old_run(home: Home, number: int, *, days: float, **more: object) -> Path:
    """A run directory as a run that ended some days ago left it."""
    run = f"{OLD}{number:06x}"
    directory = runs_of(home) / run
    (directory / "logs").mkdir(parents=True)
    (directory / "events.jsonl").touch()
    (directory / "logs/rank-0000.out").write_text("old\n")
    ended = time.time() - days * 86400
    about = {"version": 2, "run": run, "hosts": ["a"], "nproc": 1, "created": ended, "ended": ended, **more}
    (directory / "run.json").write_text(json.dumps(about))
    return directory


def has_said(directory: Path, text: bytes, ranks: int) -> bool:
    """Whether the logs of so many ranks hold a text."""
    return sum(text in path.read_bytes() for path in directory.glob("*/logs/rank*")) == ranks


# ---- logs


def test_logs_show_what_run_has_shown(home: Home) -> None:
    script = "for i in 1 2 3; do echo out $RANK $i; echo err $RANK $i >&2; done; printf 'no end'"
    run = home.mesh("run", "local:3", "sh", "-c", script)
    done = home.mesh("logs")
    assert done.status == 0
    assert done.out.count(b"\n") == 12
    assert sorted(done.out.splitlines()) == sorted(run.out.splitlines())
    assert done.err == "".join(line + "\n" for line in run.err.splitlines() if line.startswith("["))
    assert home.mesh("logs", "--stderr", "--rank", "0,2").err.count("err") == 6
    assert home.mesh("logs", "--stderr").out == b""
    assert home.mesh("logs", "--grep", "t [12] 3$").lines == ["[1] out 1 3", "[2] out 2 3"]
    assert home.mesh("logs", "--output", "rank0").out == b"out 0 1\nout 0 2\nout 0 3\nno end"
    assert home.mesh("logs", "--label", "host", "--rank", "1").lines[0] == "[local-1:1] no end"
    assert home.mesh("logs", "--since", "1h").out == done.out
    assert home.mesh("logs", "--since", "0").out == b""
    assert home.mesh("logs", newest(home).name[:-2]).out == done.out


def test_logs_are_folded_by_the_time_at_which_lines_came(home: Home) -> None:
    """The times are written here: when ranks print on a busy machine is not known."""
    directory = old_run(home, 1, days=1, hosts=["a", "b", "c"])
    begin, index = time.time() - 86400, b""
    for rank in range(3):
        (directory / f"logs/rank-{rank:04d}.out").write_text(f"rank {rank} of 3\ndone\n")
        index += RECORD.pack(begin + 0.01 * rank, 4 * rank, len("rank 0 of 3\n"))
    for rank in (1, 0, 2):
        index += RECORD.pack(begin + 2 + 0.01 * rank, 4 * rank, len("rank 0 of 3\ndone\n"))
    (directory / "logs" / INDEX).write_bytes(index)
    done = home.mesh("logs", "--output", "fold")
    assert done.out == b"[0-2] rank 0..2 of 3\n[0-2] done\n"
    assert home.mesh("logs", "--output", "fold", "--fold", "exact").out.count(b"rank") == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nonsense"], "error: no run 'nonsense' was started on this machine\n"),
        (["20"], "error: '20' may be any of 2 runs:\n"),
        (["--rank", "2"], "error: --rank: no rank 2 in run "),
        (["--rank", "x"], "error: --rank: 'x' names no rank"),
        (["--since", "soon"], "error: --since: expected seconds, or a time"),
        (["--grep", "a(b"], "error: --grep: 'a(b' is no regular expression: missing ), unterminated subpattern\n"),
        (["--grep", "a{2"], ""),
        (["--output", "some"], "error: --output: expected all, fold, rank0, none"),
        (["--output", "rank0", "--rank", "1"], "error: --output rank0 shows rank 0 alone"),
        (["one", "two"], "error: unexpected word 'two'"),
    ],
)
def test_words_that_are_wrong(home: Home, words: list[str], message: str) -> None:
    old_run(home, 1, days=1)
    old_run(home, 2, days=1, nproc=2)
    done = home.mesh("logs", *words)
    assert done.status == (2 if message else 0), done.err
    assert done.err.startswith(message)


def test_no_run_at_all(home: Home) -> None:
    assert home.mesh("logs").status == 2
    assert home.mesh("runs").lines == ["this machine has started no run yet"]
    assert home.mesh("runs", "prune").lines == ["removed: 0 runs, 0 B"]


def test_a_reader_that_leaves(home: Home) -> None:
    home.mesh("run", "--output", "none", "local", "seq", "1000000")
    process = home.popen("logs")
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"[")
    process.stdout.close()
    assert process.wait(PATIENCE) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()


def test_following_a_run_to_its_end(home: Home, tmp_path: Path) -> None:
    go = tmp_path / "go"
    process = home.popen("run", "--keep-going", "--output", "none", "local:2", "sh", "-c", UNTIL_TOLD.format(go=go))
    assert eventually(lambda: has_said(runs_of(home), b"up", 2))
    assert "  running  " in home.mesh("runs").lines[0]
    assert eventually(lambda: home.mesh("logs").lines == ["[0] up", "[1] up"], PATIENCE)
    follower = home.popen("logs", "-f", "last", "--rank", "1")
    assert follower.stdout is not None
    assert follower.stdout.readline() == b"[1] up\n"
    go.touch()
    out, err = follower.communicate(timeout=60)
    process.communicate(timeout=60)
    assert (out, follower.returncode) == (b"[1] down\n", 0)
    assert err.decode() == f"==> {newest(home).name} has ended: exit 3\n"


def test_following_a_run_whose_client_is_killed(home: Home) -> None:
    process = home.popen("run", "--output", "none", "local:2", "sh", "-c", "echo up; sleep 60")
    assert eventually(lambda: has_said(runs_of(home), b"up", 2))
    follower = home.popen("logs", "-f")
    assert follower.stdout is not None
    assert {follower.stdout.readline(), follower.stdout.readline()} == {b"[0] up\n", b"[1] up\n"}
    process.kill()
    process.communicate()
    _, err = follower.communicate(timeout=60)
    assert follower.returncode == 0
    assert "its client has died" in err.decode()
    assert " client died " in home.mesh("runs").out.decode()
    assert json.loads(home.mesh("runs", "--json").out)["state"] == "died"
    assert home.mesh("stop", "last").status == 0


def test_an_interrupted_follower(home: Home) -> None:
    process = home.popen("run", "--output", "none", "local:1", "sh", "-c", "echo up; sleep 60")
    assert eventually(lambda: list(runs_of(home).glob("*/logs/rank-0000.out")))
    follower = home.popen("logs", "-f")
    assert follower.stdout is not None
    follower.stdout.readline()
    follower.send_signal(signal.SIGINT)
    assert follower.communicate(timeout=60) == (b"", b"")
    assert follower.returncode == 130
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)


def test_prerun_and_setup(home: Home) -> None:
    home.files(mesh__yaml="prerun: ['echo installing $RANK']\ncommands: [echo prepared]\n")
    assert home.mesh("run", "local", "true").status == 0
    done = home.mesh("logs")
    assert done.out == b""
    assert "--prerun` shows what prerun printed" in done.err
    assert home.mesh("logs", "--prerun").lines == ["[local-0] installing 0", "[local-1] installing 1"]
    assert home.mesh("setup", "local").status == 0
    run = newest(home).name
    shown = home.mesh("logs", run).lines
    assert [line for line in shown if "$" not in line] == ["[local-0] prepared", "[local-1] prepared"]
    assert home.mesh("logs", run, "--stderr").status == 2
    home.mesh("push", "local")
    assert home.mesh("logs").out == b""  # the last run is still that of `mesh run`


def test_old_directories_have_no_index(home: Home) -> None:
    old_run(home, 1, days=1)
    assert home.mesh("logs").out == b"[0] old\n"
    done = home.mesh("logs", "--since", "3d")
    assert done.status == 2
    assert "has no record of what came when" in done.err


def test_long_lines_and_bytes_of_all_kinds(home: Home) -> None:
    program = "import os\nos.write(1, b'x')\nfor i in range(10): os.write(1, b'x' * 999_999)\n"
    home.files(long__py=program + "os.write(1, b'\\n\\xff\\x1b[2J\\0\\n')")
    home.mesh("run", "--output", "none", "local:1", "python3", str(home.project / "long.py"))
    done = home.mesh("logs")
    assert done.out == b"[0] " + b"x" * 9_999_991 + b"\n[0] \xff\x1b[2J\0\n"
    assert home.mesh("logs", "--grep", "x{9}$").out == b"[0] " + b"x" * 9_999_991 + b"\n"
    with home.terminal("logs", "--grep", "^.$") as terminal:
        assert terminal.end() == 0
        assert terminal.shown.replace(b"\r", b"") == "[0] \ufffd\n".encode()


# ---- runs


def test_the_table_and_json(home: Home) -> None:
    home.mesh("exec", "local", "true")
    home.mesh("exec", "local:3", "sh", "-c", "exit 4")
    (runs_of(home) / "no-run").mkdir()
    (runs_of(home) / "20200101-000000-000001").mkdir()
    head, *rows = home.mesh("runs").out.decode().splitlines()
    assert head.split() == ["run", "cluster", "began", "took", "status", "size", "kind", "command"]
    assert [row.split()[1] for row in rows] == ["local:3", "local", "-"]
    ends = ["failed, exit 4", "done", "client died"]
    assert [f"  {end}  " in row for row, end in zip(rows, ends, strict=True)] == [True] * 3
    assert [" exec " in row for row in rows] == [True, True, False]
    objects = [json.loads(line) for line in home.mesh("runs", "--json").out.splitlines()]
    assert [(one["state"], one["verb"]) for one in objects] == [("ended", "exec"), ("ended", "exec"), ("died", "")]
    assert (objects[0]["exit_code"], objects[0]["command"]) == (4, ["sh", "-c", "exit 4"])
    assert objects[0]["size"] > 0
    assert home.mesh("runs", "--keep", "3").status == 2
    assert home.mesh("runs", "remove").status == 2


def test_prune_keeps_what_is_young_and_the_newest(home: Home) -> None:
    for number in range(4):
        old_run(home, number, days=40)
    old_run(home, 4, days=3)
    assert home.mesh("runs", "prune").lines == ["removed: 0 runs, 0 B"]  # they are among the last 50
    done = home.mesh("runs", "prune", "--older-than", "30d", "--keep", "3", "--dry-run")
    assert [line.split()[0] for line in done.lines[:-1]] == [f"{OLD}000000", f"{OLD}000001"]
    assert len(list(runs_of(home).iterdir())) == 5
    done = home.mesh("runs", "prune", "--older-than", "30d", "--keep", "3")
    assert done.out.decode().splitlines()[-1].startswith("removed: 2 runs, ")
    assert home.mesh("runs", "prune", "--older-than", "30d").out.count(b"\n") == 3
    assert [path.name for path in runs_of(home).iterdir()] == [f"{OLD}000004"]
    assert home.mesh("runs", "prune", "--keep", "x").status == 2


def test_prune_removes_run_directories_and_nothing_else(home: Home, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("mine")
    directory = old_run(home, 1, days=40)
    (directory / "logs/link").symlink_to(kept)
    (runs_of(home) / f"{OLD}000002").symlink_to(kept)
    (runs_of(home) / "notes").mkdir()
    (runs_of(home) / f"{OLD}000003").write_text("a file")
    (runs_of(home) / f".{OLD}000004.removed").mkdir()
    assert home.mesh("runs", "prune", "--keep", "0").status == 0
    assert sorted(path.name for path in runs_of(home).iterdir()) == [f"{OLD}000002", f"{OLD}000003", "notes"]
    assert (kept / "file").read_text() == "mine"


def test_prune_beside_a_run_and_beside_others(home: Home) -> None:
    process = home.popen("exec", "local:1", "sh", "-c", "echo up; sleep 60")
    assert process.stdout is not None
    process.stdout.readline()
    on = newest(home)
    for number in range(30):
        old_run(home, number, days=1)
    pruning = [home.popen("runs", "prune", "--keep", "0") for _ in range(3)]
    told = [one.communicate(timeout=60) for one in pruning]
    assert [(one.returncode, err) for one, (_, err) in zip(pruning, told, strict=True)] == [(0, b"")] * 3
    removed = [line.split()[0] for out, _ in told for line in out.splitlines() if line.startswith(b"2")]
    assert len(removed) == len(set(removed)) == 30
    assert list(runs_of(home).iterdir()) == [on]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert json.loads((on / "run.json").read_text())["exit_code"] == 130
    assert home.mesh("runs", "prune", "--keep", "0").out.count(b"\n") == 2


# ---- crashes and full disks


def told_size(directory: Path) -> int:
    """How many bytes its ranks had written by the last records of the index."""
    index = sorted((directory / "logs").glob("index*"))[-1].read_bytes()
    return max((end for _, _, end in RECORD.iter_unpack(index[: len(index) // RECORD.size * RECORD.size])), default=0)


def test_a_client_killed_at_any_moment_leaves_what_can_be_read(home: Home) -> None:
    home.files(mesh__yaml="logs: 200 KB\n")
    flood = "i=0; while :; do echo line $i of $RANK xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; i=$((i+1)); done"
    for size in (0, 1, 100_000, 400_000):
        before = set(runs_of(home).glob("*"))
        process = home.popen("exec", "--output", "none", "local:2", "bash", "-c", flood)

        def has_grown(before: set[Path] = before, size: int = size) -> bool:
            new = set(runs_of(home).glob("*")) - before
            with contextlib.suppress(OSError, IndexError):  # its parts come and go
                return bool(new) and told_size(new.pop()) >= size
            return False

        assert eventually(has_grown)
        process.kill()
        process.communicate()
        (directory,) = set(runs_of(home).glob("*")) - before
        run = directory.name
        done = [home.mesh(*words) for words in (["logs", run, "--since", "1h", "--rank", "1"], ["stop", run])]
        assert [(one.status, "Traceback" in one.err) for one in done] == [(0, False)] * 2
        lines = [line for line in done[0].out.splitlines() if line.endswith(b"xxxx")]
        numbers = [int(line.split()[2]) for line in lines if line.startswith(b"[1] line ")]
        assert numbers == sorted(set(numbers))
        assert sum(path.stat().st_size for path in directory.rglob("*")) < 500_000
    assert len(home.mesh("runs").lines) == 5  # with a head


@pytest.mark.root
def test_a_full_disk_ends_nothing_and_is_told(home: Home, tiny_disk: Path) -> None:
    home.environ["XDG_STATE_HOME"] = str(tiny_disk)
    script = "seq 1000000; echo last of $RANK; exit 3"
    done = home.mesh("run", "--keep-going", "--output", "none", "local:2", "sh", "-c", script)
    assert done.status == 3
    assert "left out of the logs: " in done.err
    assert "last of" in done.err
    assert "incomplete" not in done.err
    assert os.statvfs(tiny_disk).f_bavail > 0
    assert home.mesh("logs", "--grep", "last").lines == ["[0] last of 0", "[1] last of 1"]
    assert home.mesh("runs", "prune", "--keep", "0").status == 0
    subprocess.run(["dd", "if=/dev/zero", f"of={tiny_disk}/fill", "bs=4k"], stderr=subprocess.DEVNULL, check=False)
    done = home.mesh("exec", "--keep-going", "local:2", "sh", "-c", "echo hi $RANK; exit 4")
    assert (done.status, done.lines) == (4, ["[0] hi 0", "[1] hi 1"])
    assert "the run continues, but its logs are incomplete: No space left on device" in done.err
    assert home.mesh("runs").status == 0
    (directory,) = tiny_disk.glob("mesh/runs/2*")
    assert home.mesh("logs", directory.name).status == 0


@pytest.mark.root
def test_a_disk_that_others_fill_meanwhile(home: Home, tiny_disk: Path, tmp_path: Path) -> None:
    home.environ["XDG_STATE_HOME"] = str(tiny_disk)
    go = tmp_path / "go"
    process = home.popen("exec", "--output", "none", "local:2", "sh", "-c", UNTIL_TOLD.format(go=go))
    assert eventually(lambda: has_said(tiny_disk / "mesh/runs", b"up", 2))
    subprocess.run(["dd", "if=/dev/zero", f"of={tiny_disk}/fill", "bs=4k"], stderr=subprocess.DEVNULL, check=False)
    go.touch()
    process.communicate(timeout=60)
    assert process.returncode == 3
    about = json.loads(next(tiny_disk.glob("mesh/runs/*/run.json")).read_text())
    assert (about["exit_code"], about["cause"]) == (3, "rank")
    assert " exit 3 " in home.mesh("runs").lines[0]
