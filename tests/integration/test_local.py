"""Random words, through both backends and back, byte for byte; and what the built-in cluster does."""

from __future__ import annotations

import ast
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh.api.records import find_record
from mesh.api.stopping import has_ended_meanwhile
from tests.conftest import PATIENCE, Home
from tests.full import times
from tests.lab import eventually

SHOW = "import os, sys; print([os.fsencode(word) for word in sys.argv[1:]])"
PIECES = st.sampled_from(
    [b"'", b'"', b"\\", b"\n", b" ", b"$HOME", b"`x`", b"!", b"*", b"--", b"\xff", "é✓".encode(), b"{}", b"\t", b";"]
)
WORDS = st.lists(
    st.lists(PIECES | st.binary(max_size=4), max_size=5).map(lambda parts: b"".join(parts).replace(b"\0", b"")),
    min_size=1,
    max_size=24,
)
EFFORT = settings(
    max_examples=times(3, full=20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def come_back(home: Home, cluster: str, words: list[bytes]) -> None:
    done = home.mesh("run", "--output", "rank0", cluster, "python3", "-c", SHOW, *map(os.fsdecode, words))
    assert done.status == 0, done.err
    assert ast.literal_eval(done.out.decode()) == words


@EFFORT
@given(words=WORDS)
def test_words_through_the_built_in_cluster(home: Home, words: list[bytes]) -> None:
    come_back(home, "local:1", words)


@pytest.mark.sshd
@EFFORT
@given(words=WORDS)
def test_words_through_ssh(plain_pod: Home, words: list[bytes]) -> None:
    come_back(plain_pod, "pod", words)


def test_words_in_a_locale_that_is_not_utf_8(home: Home) -> None:
    home.environ |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    come_back(home, "local:1", ["é✓".encode(), b"\xff\n"])


def test_the_built_in_cluster_has_a_directory_per_host(home: Home) -> None:
    home.files(a__txt="x")
    done = home.mesh("run", "local:3", "sh", "-c", "touch mine-$RANK; pwd; ls")
    assert done.status == 0, done.err
    directories = [line[4:] for line in done.lines if "/" in line]
    assert len(set(directories)) == 3
    assert all(path.startswith(str(home.path)) for path in directories)
    assert [line for line in done.lines if "mine" in line] == ["[0] mine-0", "[1] mine-1", "[2] mine-2"]


def test_a_command_on_a_path_of_the_users_is_found(home: Home) -> None:
    """`mesh exec` looks for the command before its ranks have their environment."""
    tool = home.path / "tools" / "my-tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    for command in ("exec", "run"):
        done = home.mesh(command, "--env", f"PATH={tool.parent}:/usr/bin:/bin", "local:1", "my-tool")
        assert (done.status, done.lines) == (0, ["[0] found"]), done.err


def test_two_local_runs_at_once(home: Home) -> None:
    first = home.popen("run", "local", "sh", "-c", "echo up; exec sleep 1000")
    assert first.stdout is not None
    first.stdout.readline()
    assert home.mesh("run", "local", "true").status == 0
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    assert first.returncode == 130


def test_an_interrupt_from_the_terminal_reaches_the_agents_through_mesh_alone(home: Home) -> None:
    """Ctrl-C signals mesh's whole process group: local agents must not be in it."""
    script = "trap 'echo once >> log; exit 5' INT; echo up; while :; do sleep 0.05; done"
    process = home.popen("run", "local:1", "bash", "-c", script)
    assert process.stdout is not None
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    (log,) = (home.path / ".mesh/local/0/workspaces").glob("*/log")
    assert log.read_text() == "once\n"


def test_as_many_ranks_as_gpus_each_bound_to_one(home: Home) -> None:
    """nvidia-smi tells, as it is before the first use of a driver: there are no device files yet."""
    tool = home.path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: A'\necho 'GPU 1: A'\n")
    tool.chmod(0o755)
    home.environ["PATH"] = f"{home.path}:{home.environ['PATH']}"
    done = home.mesh("run", "--nproc", "auto", "--bind", "local", "sh", "-c", "echo $WORLD_SIZE $CUDA_VISIBLE_DEVICES")
    assert (done.status, done.lines) == (0, ["[0] 4 0", "[1] 4 1", "[2] 4 0", "[3] 4 1"]), done.err
    tool.write_text("#!/bin/sh\nexit 9\n")
    done = home.mesh("run", "--nproc", "auto", "local", "echo", "started")
    assert (done.status, done.out) == (125, b"")
    assert "--nproc auto: no GPU on local-0, local-1" in done.err


SIZES: dict[Path, int] = {}


def stands_still(paths: Iterator[Path]) -> bool:
    """Whether files with something in them have the size that they had when we looked last."""
    now = {path: path.stat().st_size for path in paths}
    same = any(now.values()) and all(SIZES.get(path) == size for path, size in now.items())
    SIZES.update(now)
    return same


def test_a_reader_that_stands_still_does_not_keep_ranks_alive(home: Home) -> None:
    """The time runs out, or Ctrl-C is typed, while nobody reads what the ranks print."""
    # More than all queues between the rank and the reader take; then slowly, to leave the processor to others.
    flood = "echo $$ >pid; seq 2000000; while :; do seq 1000; sleep 0.05; done"
    for words, number, status in ((["--timeout", "5"], 0, 124), ([], signal.SIGINT, 130)):
        process = home.popen("run", *words, "local:1", "sh", "-c", flood)
        found: list[Path] = []

        def has_begun(found: list[Path] = found) -> bool:
            found[:] = [path for path in (home.path / ".mesh").glob("local/*/workspaces/*/pid") if path.read_text()]
            return bool(found)

        assert eventually(has_begun)
        pid = found[0].read_text().strip()
        if number:
            # Until every queue between the rank and us is full.
            assert eventually(lambda: stands_still((home.path / ".local").rglob("rank-0000.out")))
            process.send_signal(number)
        assert eventually(lambda pid=pid: not Path(f"/proc/{pid}").exists())
        if number:  # who has had enough does not want to see the rest: one Ctrl-C is enough
            assert process.wait(PATIENCE) == status
        _, err = process.communicate(timeout=60)
        assert process.returncode == status
        assert b"/logs\n" in err
        found[0].unlink()


@pytest.mark.parametrize("out", ["pipe", "terminal"])
@pytest.mark.parametrize("err", ["with it", "elsewhere"])
def test_one_interrupt_is_enough_where_nobody_reads(home: Home, tmp_path: Path, out: str, err: str) -> None:
    """Whatever can still be said is said."""
    reader, writer = os.pipe() if out == "pipe" else os.openpty()
    try:
        with (tmp_path / "err").open("wb") as file:
            to = writer if err == "with it" else file
            words = ("run", "--output", "all", "local:1", "sh", "-c", "seq 20000; exec sleep 4567")
            process = home.popen(*words, stdout=writer, stderr=to)
        logs = (home.path / ".local").rglob
        assert eventually(lambda: any(path.read_bytes().endswith(b"\n20000\n") for path in logs("rank-0000.out")))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    finally:
        os.close(reader)
        os.close(writer)
    said = (tmp_path / "err").read_bytes()
    assert b"/logs\n==> 1/1 host clean in " in said if err == "elsewhere" else not said


def test_a_killed_client_ends_a_local_run(home: Home) -> None:
    marker = f"sleep 98{os.getpid() % 100000}"
    process = home.popen("run", "--grace", "0.3", "local", "sh", "-c", f"trap '' TERM; echo up; {marker}; true")
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.communicate()

    def running() -> bool:
        pattern = marker.replace(" ", "\0").encode() + b"\0"
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    with open(f"/proc/{entry}/cmdline", "rb") as file:
                        if pattern in file.read():
                            return True
                except OSError:
                    continue
        return False

    assert eventually(lambda: not running())


@pytest.mark.sshd
def test_a_host_has_a_home_of_its_own(plain_pod: Home) -> None:
    done = plain_pod.mesh(
        "run", "pod", "sh", "-c", "echo $HOME | grep -c mesh-lab; echo $PATH | cut -d: -f1,2 | grep -c '/.local/bin'"
    )
    assert done.lines == ["[0] 1", "[0] 1", "[1] 1", "[1] 1"]


ENTRIES = """
prerun:
  - echo always >>../always
  - run: echo once >>../once; cat requirements*.txt >made
    inputs: ["requirements*.txt", src, uv.lock]
  - export MADE=$(cat made)
"""
SKIPPED = 'prerun: "echo once >>../once; cat requirements*.txt >made" skipped on 2 hosts: its inputs have not changed'


def test_prerun_that_need_not_run_again(home: Home) -> None:
    home.files(mesh__yaml=ENTRIES, requirements__txt="jax")
    (home.project / "src").mkdir()
    (home.project / "src/a.py").write_text("import a")
    skipped = f"==> {SKIPPED} (not there: uv.lock)\n"

    def made(*options: str) -> str:
        """What two ranks found, and whether the entry was skipped."""
        done = home.mesh("run", *options, "local", "sh", "-c", "mkdir -p src/__pycache__; echo $MADE")
        assert done.status == 0, done.err
        assert done.err.count("prerun: ") == done.err.count(skipped) <= 1
        (found,) = {line[4:] for line in done.lines}
        return f"{found}, skipped" if skipped in done.err else found

    assert made() == "jax"
    assert made() == "jax, skipped"
    home.files(requirements__txt="flax")
    assert made() == "flax"
    os.utime(home.project / "requirements.txt", (0, 0))
    assert made() == "flax, skipped"
    home.files(**{"requirements-dev__txt": "pytest"})
    assert made() == "pytestflax"
    (home.project / "src/a.py").write_text("import b")
    assert made() == "pytestflax"
    assert made() == "pytestflax, skipped"
    assert made("--prerun") == "pytestflax"
    assert made("--fresh") == "pytestflax"
    assert made("--share") == "pytestflax"
    assert made() == "pytestflax, skipped"
    for host in (home.path / ".mesh/local").iterdir():
        # A shared run has its workspace elsewhere.
        assert (host / "workspaces/always").read_text() == "always\n" * 10
        assert (host / "workspaces/once").read_text() == "once\n" * 6


def test_a_push_that_removes_what_prerun_has_made(home: Home) -> None:
    home.files(mesh__yaml="prerun:\n  - run: touch made\n    inputs: [mesh.yaml]\n")
    for _ in range(2):
        assert home.mesh("run", "local:1", "test", "-e", "made").status == 0
    assert home.mesh("push", "--fresh", "local:1").status == 0
    assert home.mesh("run", "local:1", "test", "-e", "made").status == 0


def test_the_plan_tells_what_would_be_skipped(home: Home) -> None:
    home.files(mesh__yaml="prerun:\n  - {run: make, inputs: [src, Makefile]}\n  - true && true\n")
    lines = home.mesh("run", "--dry-run", "local:1", "true").out.decode().splitlines()
    assert "prerun     make  (skipped where it succeeded with the same src, Makefile)" in lines
    assert "prerun     true && true" in lines
    assert "prerun     make" in home.mesh("run", "--prerun", "--dry-run", "local:1", "true").out.decode().splitlines()


def test_a_signal_that_comes_late(home: Home) -> None:
    """The client was stopped for longer than it waits for events: Python before 3.13 then waits for ever."""
    for pause in (0.05, 0.1, 0.15, 0.2):
        process = home.popen("run", "local:1", "sh", "-c", "echo up; exec sleep 300")
        assert process.stdout is not None
        assert process.stdout.readline().endswith(b"up\n")
        for number in (signal.SIGSTOP, signal.SIGINT):
            process.send_signal(number)
        time.sleep(pause)  # the fault itself
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=60)
        assert process.returncode == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_stop_whose_hosts_are_gone_goes_by_the_end_that_the_client_writes(
    home: Home, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    for name, value in home.environ.items():
        monkeypatch.setenv(name, value)
    client = home.popen("run", "--grace", "1", "local:1", "sh", "-c", "echo up; exec sleep 1000")
    assert client.stdout is not None
    assert client.stdout.readline() == b"[0] up\n"
    record = find_record("last")
    assert record is not None
    client.send_signal(number)
    try:
        assert has_ended_meanwhile(record, within=PATIENCE) == (number == signal.SIGINT)
    finally:
        client.communicate(timeout=60)
