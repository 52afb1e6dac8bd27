"""Commands that are done by a process which has imported everything before."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mesh.config.private import AT_START
from tests.conftest import REPOSITORY, Home
from tests.lab import eventually
from tests.screen import Screen

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

UNTIL_OVER = ("sh", "-c", "echo up; while ! [ -e $MESH_OVER ]; do sleep 0.02; done; echo done")


@pytest.fixture
def server(home: Home, own_place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """One that waits; the end of its stdin is the keeper's."""
    process = started(home)
    yield process
    end(process)


def started(home: Home) -> subprocess.Popen[bytes]:
    home.environ["MESH_OVER"] = str(home.path / "over")
    argv = [sys.executable, "-m", "mesh.cli.forkserver"]
    process = subprocess.Popen(argv, env=home.environ, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.wait(20)
    process.stdout.close()


def workers(server: subprocess.Popen[bytes]) -> list[int]:
    """The processes that do commands now."""
    return [int(pid) for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()]


def begun(home: Home, *words: str, **options: object) -> subprocess.Popen[bytes]:
    """A command, once its first line is there."""
    client = home.popen(*words, **options)
    assert client.stdout is not None
    assert client.stdout.readline()
    return client


def over(home: Home, client: subprocess.Popen[bytes]) -> None:
    """Let it end, and see that all is well."""
    (home.path / "over").touch()
    out, err = client.communicate(timeout=30)
    assert (client.returncode, out) == (0, b"[0] done\n"), err
    (home.path / "over").unlink()


def test_it_is_as_if_done_here(home: Home, server: subprocess.Popen[bytes]) -> None:
    """Streams, arguments, directory, environment, umask, exit status, and what is left of it."""
    home.files(here="of the project\n")
    home.environ["MESH_MARK"] = "of the client"
    script = 'read line; echo $line "$1"; umask; cat here; echo err >&2; exit 3'
    words = ["run", "--output", "all", "--stdin", "rank0", "local:1", "sh", "-c", script, "sh", "two  words"]
    found = []
    for environ in (home.environ, {**home.environ, "MESH_KEEP": "0"}):
        client = begun(home, "exec", "local:1", *UNTIL_OVER, env=environ)
        assert bool(workers(server)) == (environ is home.environ)
        over(home, client)
        done = home.mesh(*words, stdin=b"typed\n", env=environ, umask=0o027)
        (directory, *_) = sorted((home.path / ".local/state/mesh/runs").iterdir(), reverse=True)
        modes = sorted((path.name, oct(path.stat().st_mode)) for path in directory.rglob("*"))
        lines = [re.sub(r"[0-9.]+ s", "some time", line.strip()) for line in done.err.splitlines()]
        summary = [line for line in lines if not line.startswith(("==>", "logs:"))]
        found.append((done.status, done.out, summary, modes))
    assert found[0] == found[1]
    assert found[0][:2] == (3, b"[0] typed two  words\n[0] 0027\n[0] of the project\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_its_signals_reach_the_command(home: Home, server: subprocess.Popen[bytes], number: signal.Signals) -> None:
    script = f"trap 'echo got; exit 0' {number:d}; {UNTIL_OVER[-1]}"
    client = begun(home, "exec", "--grace", "5", "local:1", "sh", "-c", script)
    assert workers(server)
    client.send_signal(number)
    out, err = client.communicate(timeout=30)
    assert client.returncode == 128 + number, err
    assert eventually(lambda: not workers(server))
    if number == signal.SIGINT:
        assert b"got" in out


def test_a_hangup_that_is_ignored(home: Home, server: subprocess.Popen[bytes]) -> None:
    def nohup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    client = begun(home, "exec", "local:1", *UNTIL_OVER, preexec_fn=nohup)
    assert workers(server)
    client.send_signal(signal.SIGHUP)
    over(home, client)


def test_an_interrupt_that_was_ignored(home: Home, server: subprocess.Popen[bytes]) -> None:
    """As in the background of a script: who asks for it means it."""

    def background() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    client = begun(home, "exec", "local:1", *UNTIL_OVER, preexec_fn=background)
    assert workers(server)
    client.send_signal(signal.SIGINT)
    client.communicate(timeout=30)
    assert client.returncode == 128 + signal.SIGINT


def test_an_early_interrupt_ends_the_command_alone(home: Home, server: subprocess.Popen[bytes]) -> None:
    for moment in range(24):
        client = home.popen("exec", "local:1", "true")
        time.sleep(0.005 * moment)
        client.send_signal(signal.SIGINT)
        _, err = client.communicate(timeout=30)
        assert b"forkserver" not in err
    client = begun(home, "exec", "local:1", *UNTIL_OVER)
    assert workers(server)
    over(home, client)


def test_errors_that_nobody_can_be_told(home: Home, server: subprocess.Popen[bytes]) -> None:
    with open("/dev/full", "wb") as full:
        client = home.popen("exec", "--nope", "local:1", "true", stdin=subprocess.PIPE, stderr=full)
        assert client.wait(30)
        client.communicate()
    assert eventually(lambda: not workers(server))
    client = begun(home, "exec", "local:1", *UNTIL_OVER)
    assert workers(server)
    over(home, client)


def test_who_is_killed_ends_the_command(home: Home, server: subprocess.Popen[bytes]) -> None:
    client = begun(home, "exec", "local:1", "sh", "-c", "echo $$; exec sleep 4331")
    (worker,) = workers(server)
    client.kill()
    client.communicate()
    assert eventually(lambda: not Path(f"/proc/{worker}").exists())
    assert eventually(lambda: not running("sleep 4331"))


def test_the_end_of_the_one_who_does_it_is_told(home: Home, server: subprocess.Popen[bytes]) -> None:
    client = begun(home, "exec", "local:1", "sh", "-c", "echo up; exec sleep 4332")
    os.kill(*workers(server), signal.SIGKILL)
    _, err = client.communicate(timeout=30)
    assert client.returncode == 125
    assert b"error: the process that did this was killed" in err
    assert eventually(lambda: not running("sleep 4332"))


def test_the_server_ends_and_the_command_goes_on(home: Home, own_place: Path) -> None:
    server = started(home)
    client = begun(home, "exec", "local:1", *UNTIL_OVER)
    server.kill()
    end(server)
    assert os.listdir(own_place)  # nobody listens there, and what is asked for there waits for nothing
    assert home.mesh("exec", "local:1", "echo", "up").out == b"[0] up\n"
    over(home, client)
    server = started(home)  # in its place
    client = begun(home, "exec", "local:1", *UNTIL_OVER)
    assert workers(server)
    over(home, client)
    end(server)


ELSEWHERE: dict[str, Callable[[], object]] = {
    "memory": lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 34, 1 << 34)),
    "priority": lambda: os.nice(1),
    "scheduler": lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)),
    "badness": lambda: Path("/proc/self/oom_score_adj").write_text("500"),
    "privileges": lambda: ctypes.CDLL(None).prctl(38, 1, 0, 0, 0),  # PR_SET_NO_NEW_PRIVS of prctl(2)
    "closed": lambda: os.close(2),
}
VARIABLES = {"PYTHONPATH": f"/nowhere:{REPOSITORY}", "PYTHONWARNINGS": "error", "LD_LIBRARY_PATH": "/nowhere"}


@pytest.mark.parametrize("what", [*ELSEWHERE, *VARIABLES])
def test_who_comes_from_elsewhere_does_it_himself(home: Home, server: subprocess.Popen[bytes], what: str) -> None:
    environ = {**home.environ, **{name: value for name, value in VARIABLES.items() if name == what}}
    client = begun(home, "exec", "local:1", *UNTIL_OVER, env=environ, preexec_fn=ELSEWHERE.get(what))
    assert not workers(server)
    over(home, client)


def test_what_only_the_client_can_open(home: Home, server: subprocess.Popen[bytes]) -> None:
    mesh = shlex.join(home.argv("exec", "--dry-run", "--clusters"))
    script = f"{mesh} <(printf 'p:\\n  hosts: [a.invalid]\\n') p true"
    done = subprocess.run(["bash", "-c", script], env=home.environ, capture_output=True, cwd=home.project, check=False)
    assert (done.returncode, b"a.invalid" in done.stdout + done.stderr) == (0, True), done


def test_clusters_that_are_written_anew(home: Home, own_place: Path) -> None:
    home.clusters("one: {hosts: [h]}\n")
    process = started(home)
    for name in ("one", "two"):
        home.clusters(f"{name}: {{hosts: [h]}}\n")
        assert f"'{name}'" in home.mesh("exec", "none", "true").err
    end(process)


def test_clusters_in_a_pipe_are_for_the_command(home: Home, own_place: Path) -> None:
    pipe = home.path / "pipe"
    os.mkfifo(pipe)
    home.environ["MESH_CLUSTERS"] = str(pipe)
    end(started(home))


def test_a_server_that_is_told_to_end_leaves_nothing(home: Home, own_place: Path) -> None:
    server = started(home)
    client = begun(home, "exec", "local:1", *UNTIL_OVER)
    server.terminate()
    end(server)
    assert not os.listdir(own_place)
    over(home, client)


@pytest.mark.parametrize("module", ["__init__", "remote/agent/ranks"])
def test_other_code_is_not_run(home: Home, own_place: Path, tmp_path: Path, module: str) -> None:
    shutil.copytree(REPOSITORY / "mesh", tmp_path / "code/mesh")
    home.environ["PYTHONPATH"] = str(tmp_path / "code")
    server = started(home)
    with (tmp_path / f"code/mesh/{module}.py").open("a") as file:
        file.write('\n__version__ = "newer"\n')
    assert home.mesh("exec", "local:1", "echo", "up").out == b"[0] up\n"
    assert server.wait(20) == 0
    end(server)


def test_on_a_terminal(home: Home, server: subprocess.Popen[bytes]) -> None:
    """Enter asks, and in the background what is typed is for the shell."""
    # A terminal has our own environment as well.
    others = [name for name in os.environ if name.startswith(AT_START) and name not in home.environ]
    bare = ["env", *(f"--unset={name}" for name in others)]
    with Screen([*bare, *home.argv("exec", "local:2", "sleep", "4333")], home.project, home.environ) as screen:
        screen.expect("2 ranks running")
        assert workers(server)
        screen.type("Enter")
        screen.expect("ranks 0-1 running, no output for")
        screen.type("C-c")
        screen.wait()
    mesh = shlex.join([*bare, *home.argv("exec", "local:1", *UNTIL_OVER)])
    # Where a question for a password would be asked at /dev/tty, which a worker does not have.
    with Screen(["sh", "-c", f"{mesh} 2>err"], home.project, home.environ) as screen:
        screen.expect("] up")
        assert not workers(server)
        (home.path / "over").touch()
        screen.wait()
    (home.path / "over").unlink()
    script = f"{mesh} & read line; jobs; read line; echo typed $line; touch $MESH_OVER; wait; echo over"
    with Screen(["bash", "-mc", script], home.project, home.environ) as screen:
        screen.expect("] up")
        assert not workers(server)  # who reads a terminal in the background must be stopped by it
        screen.type("Enter")
        screen.expect("Running")
        screen.type("something", "Enter")
        screen.expect("typed something")
        screen.expect("over")
        assert "running" not in screen.text().replace("Running", "")


def running(command: str) -> list[str]:
    """The processes of this machine with exactly this command."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if file.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip() == command:
                found.append(file.parent.name)
        except OSError:
            pass
    return found
