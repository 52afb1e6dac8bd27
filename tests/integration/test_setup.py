"""mesh setup: the project's commands on every host, and what is said when they fail."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tests.conftest import Home
from tests.lab import Lab, TestHost, eventually

root = pytest.mark.root
sshd = pytest.mark.sshd


def commands(home: Home, *lines: str) -> None:
    home.files(mesh__yaml="commands:\n" + "".join(f"  - {line}\n" for line in lines))


def log(home: Home, host: str) -> bytes:
    (path,) = (home.path / ".local/state/mesh/runs").glob(f"*/logs/setup-{host}.log")
    return path.read_bytes()


def test_every_command_in_order_with_mesh_own_lines(home: Home) -> None:
    commands(home, "cd /; export GONE=1; echo one", "echo two $PWD $GONE >&2", "echo $NODE_RANK")
    done = home.mesh("setup", "local")
    assert done.status == 0, done.err
    # On a machine with much to do, a start that takes long is told as well.
    told = [line for line in done.err.splitlines() if "logs:" not in line and "still connecting" not in line]
    assert told[0] == "==> Setting up cluster 'local' (2 hosts)"
    assert sorted(told[1:3]) == ["==> [local-0] setup completed", "==> [local-1] setup completed"]
    assert told[3:] == ["==> Cluster 'local' setup complete"]
    own = [line.removeprefix("[local-1] ") for line in done.out.decode().splitlines() if line.startswith("[local-1]")]
    assert own == [
        "$ cd /; export GONE=1; echo one",
        "one",
        "$ echo two $PWD $GONE >&2",
        f"two {home.path}",
        "$ echo $NODE_RANK",
        "1",
    ]
    assert log(home, "local-1").decode() == "".join(f"{line}\n" for line in own)


@root
@sshd
def test_one_failing_host_of_four(pod: Home, lab: Lab) -> None:
    commands(pod, "echo first", "test $NODE_RANK != 2 || { echo no space here; exit 7; }", "touch ~/third")
    done = pod.mesh("setup", "pod")
    failing = lab.hosts[2].address
    assert done.status == 7
    assert f"==> [{failing}] setup failed in 'test $NODE_RANK != 2 || " in done.err
    assert "error: setup of cluster 'pod' failed on 1 of 4 hosts\n" in done.err
    assert f"       {failing}: exit 7 in 'test $NODE_RANK != 2 || " in done.err
    assert "\n           no space here\n       logs: " in done.err
    assert [host.path("/root/third").exists() for host in lab.hosts] == [True, True, False, True]
    assert done.err.count("setup completed") == 3
    assert "setup complete\n" not in done.err
    about = json.loads(next((pod.path / ".local/state/mesh/runs").glob("*/run.json")).read_text())
    assert (about["kind"], about["cause"], about["exit_code"]) == ("setup", "rank", 7)
    assert about["first"]["host"] == failing


@pytest.mark.parametrize(
    ("command", "status", "told"),
    [
        ("no-such-program", 127, "exit 127 in 'no-such-program'"),
        ("kill -9 $$", 137, "killed by SIGKILL in 'kill -9 $$'"),
        ("if then", 2, "exit 2 in 'if then'"),
        ("set -u; echo $NO_SUCH; touch after", 127, "exit 127 in 'set -u"),
    ],
)
def test_the_status_of_what_failed(home: Home, command: str, status: int, told: str) -> None:
    commands(home, "exit 0", "true && exit", f"'{command}'", "touch after")
    done = home.mesh("setup", "local:1")
    assert done.status == status
    assert told in done.err
    assert not (home.path / "after").exists()


def test_a_command_that_asks_for_input_gets_the_end_of_file(home: Home) -> None:
    commands(home, "read -p 'really? ' answer; echo got $?; cat; python3 -c 'input()'")
    done = home.mesh("setup", "local:1", stdin=b"yes\nyes\n")
    assert done.status == 1
    assert b"got 1\n" in done.out
    assert "EOFError" in done.err


def test_ten_megabytes_of_output(home: Home) -> None:
    commands(home, "seq 1400000")
    assert home.mesh("setup", "local:1").status == 0
    assert log(home, "local-0") == b"$ seq 1400000\n" + b"".join(b"%d\n" % n for n in range(1, 1_400_001))


def test_repeated_with_unless_and_force(home: Home) -> None:
    commands(home, "{run: echo made >> ~/made, unless: test -e ~/made}", "echo each time >> ~/each")
    for made, skipped, flags in ((1, False, []), (1, True, []), (2, False, ["--force"])):
        done = home.mesh("setup", "local:1", *flags)
        assert done.status == 0
        assert (home.path / "made").read_text() == "made\n" * made
        assert (b"(skipped: test -e ~/made)" in done.out) is skipped
    assert (home.path / "each").read_text() == "each time\n" * 3


def test_commands_that_end_no_line_and_unless_that_is_broken(home: Home) -> None:
    commands(home, "printf unfinished", "{run: echo again, unless: no-such-program}", "{run: echo no, unless: 'if'}")
    done = home.mesh("setup", "local:1")
    assert done.out.decode().splitlines() == [
        "[local-0] $ printf unfinished",
        "[local-0] unfinished",
        "[local-0] $ echo again",
        "[local-0] (unless: exit 127: no-such-program)",
        "[local-0] again",
        "[local-0] $ echo no",
        "[local-0] (unless: exit 2: if)",
        "[local-0] no",
    ]


def test_a_setup_whose_own_process_is_killed_names_the_command(home: Home) -> None:
    commands(home, "echo one", "kill -9 $PPID; sleep 60")
    done = home.mesh("setup", "local:1")
    assert done.status == 137
    assert "setup failed in 'kill -9 $PPID; sleep 60': killed by SIGKILL" in done.err


def test_a_directory_without_mesh_yaml_is_wrong_usage(home: Home) -> None:
    done = home.mesh("setup", "local")
    assert done.status == 2
    assert done.err.splitlines() == [
        f"error: {home.project}/mesh.yaml: there is no such file, here or above",
        "       `mesh init` writes one; its `commands:` are what a setup runs",
    ]
    assert not (home.path / ".local/state/mesh/runs").exists()


def test_nothing_to_do(home: Home) -> None:
    commands(home)
    done = home.mesh("setup", "local:1")
    assert done.status == 0
    assert "==> Setting up cluster 'local:1' (1 host)\n" in done.err
    assert f"==> nothing to run: there are no commands: in {home.project}/mesh.yaml\n" in done.err
    assert "==> Cluster 'local:1' setup complete\n" in done.err


def test_json(home: Home) -> None:
    commands(home, "echo hi", "'false'")
    done = home.mesh("setup", "--json", "local:1")
    events = [json.loads(line) for line in done.out.splitlines()]
    lines = [(e["host"], e["stream"], e["text"]) for e in events if e["event"] == "line"]
    assert lines == [("local-0", "stdout", text) for text in ("$ echo hi", "hi", "$ false")]
    (ended,) = [e for e in events if e["event"] == "exited"]
    assert (ended["code"], ended["during"]) == (1, "false")
    assert events[-1]["exit_code"] == 1


def commands_on(host: TestHost) -> list[str]:
    return sorted(command for _, command in host.processes())


@root
@sshd
def test_what_it_leaves_in_the_background_stays(pod: Home, lab: Lab) -> None:
    commands(pod, "nohup setsid sleep 4321 >/dev/null 2>&1 &", "(sleep 4322 &)", "test $NODE_RANK = 0")
    done = pod.mesh("setup", "pod")
    assert done.status == 1
    for host in lab.hosts:
        assert f"[{host.address}] stays in the background: pid " in done.err
        assert eventually(lambda h=host: commands_on(h) == ["sleep 4321 ", "sleep 4322 "])  # type: ignore[misc]
    assert pod.mesh("run", "pod", "true").status == 0  # the lock is free
    for host in lab.hosts:
        lab.end_all(host)


@root
@sshd
def test_an_interrupt_ends_everything_that_it_started(pod: Home, lab: Lab) -> None:
    commands(pod, "setsid sleep 4323 &", "echo ready; sleep 4324")
    process = pod.popen("setup", "pod")
    assert process.stdout is not None
    ready = 0
    while ready < 4:
        ready += process.stdout.readline().endswith(b"] ready\n")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert b"error: ended by SIGINT: the setup was stopped\n" in err
    # What it had started is gone by now, its agents are on their way out.
    assert not [command for host in lab.hosts for _, command in host.processes() if "sleep" in command]
    assert eventually(lambda: not any(host.processes() for host in lab.hosts))


@root
@sshd
def test_a_killed_client_leaves_no_setup_running(pod: Home, lab: Lab) -> None:
    commands(pod, "echo ready; sleep 4325")
    process = pod.popen("setup", "pod")
    assert process.stdout is not None
    while not process.stdout.readline().endswith(b"] ready\n"):
        pass
    process.kill()
    process.communicate()
    assert eventually(lambda: not any(host.processes() for host in lab.hosts), 30.0)


@root
@sshd
def test_the_lock_holds_for_setups_too(pod: Home) -> None:
    commands(pod, "echo ready; sleep 4326")
    process = pod.popen("setup", "pod")
    assert process.stdout is not None
    while not process.stdout.readline().endswith(b"] ready\n"):
        pass
    done = pod.mesh("run", "pod", "true")
    assert done.status == 75
    assert "mesh setup (run " in done.err
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 143


@root
@sshd
def test_an_unreachable_host_begins_nothing(pod: Home, lab: Lab) -> None:
    commands(pod, "touch ~/begun")
    pod.clusters(lab.cluster_yaml() + "    - 127.0.0.1:1\n")
    done = pod.mesh("setup", "pod")
    assert done.status == 125
    assert "error: the setup was not started\n" in done.err
    assert not lab.hosts[0].path("/root/begun").exists()


@root
@sshd
def test_a_host_that_is_lost(pod: Home, lab: Lab) -> None:
    commands(pod, "test $NODE_RANK != 1 || sleep 4327")
    process = pod.popen("setup", "pod")
    assert process.stderr is not None
    completed = 0
    while completed < 3:
        completed += process.stderr.readline().endswith(b"] setup completed\n")
    lab.end_all(lab.hosts[1])
    _, err = process.communicate()
    assert process.returncode == 125
    assert f"{lab.hosts[1].address}: lost: its agent is gone".encode() in err


def test_the_same_through_invoke(home: Home) -> None:
    commands(home, "echo from inv")
    home.files(tasks__py="from mesh.tasks import namespace\n")
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "setup", "--cluster", "local:1"],
        cwd=home.project,
        env={**home.environ, "INVOKE_RUN_ECHO": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "[local-0] from inv\n" in done.stdout
