"""mesh run over four real sshd hosts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
from pathlib import Path

import pytest

from tests.conftest import Home, read_until
from tests.lab import Lab, TestHost, eventually, is_agent

pytestmark = [pytest.mark.root, pytest.mark.sshd]


def run_directory(home: Home) -> Path:
    (found,) = (home.path / ".local/state/mesh/runs").iterdir()
    return found


def about(home: Home) -> dict[str, object]:
    loaded = json.loads((run_directory(home) / "run.json").read_text())
    assert isinstance(loaded, dict)
    return loaded


def test_every_rank_once_on_the_right_host(pod: Home, lab: Lab) -> None:
    done = pod.mesh("run", "pod", "sh", "-c", "echo $RANK $(hostname) $WORLD_SIZE $NODE_RANK $NNODES $LOCAL_RANK")
    assert done.status == 0, done.err
    assert done.lines == [f"[{n}] {n} h0{n} 4 {n} 4 0" for n in range(4)]


def test_addresses_of_the_rendezvous(pod: Home, lab: Lab) -> None:
    done = pod.mesh("run", "pod", "sh", "-c", "echo $MASTER_ADDR $MESH_HOSTS $PYTHONUNBUFFERED; echo $MASTER_PORT >&2")
    addresses = [host.address for host in lab.hosts]
    assert {line[4:] for line in done.lines} == {f"{addresses[0]} {','.join(addresses)} 1"}
    assert len(set(re.findall(r"^\[\d\] (\d+)$", done.err, re.MULTILINE))) == 1


def test_several_ranks_on_each_host(pod: Home, lab: Lab) -> None:
    done = pod.mesh("run", "--nproc", "3", "pod", "sh", "-c", "echo $RANK $(hostname) $LOCAL_RANK $LOCAL_WORLD_SIZE")
    assert done.lines == [f"[{n:02d}] {n} h0{n // 3} {n % 3} 3" for n in range(12)]


def test_the_workspace_is_there(pod: Home, lab: Lab) -> None:
    pod.files(
        main__sh="echo from $1 $(cat data.txt)", data__txt="the data", mesh__yaml="ignore: ['*.log']\n", a__log="x"
    )
    done = pod.mesh("run", "pod", "sh", "main.sh", "here")
    assert done.lines == [f"[{n}] from here the data" for n in range(4)]
    (project,) = lab.hosts[0].path("/root/.mesh/workspaces").glob("[!.]*")
    assert {path.name for path in project.iterdir()} == {"main.sh", "data.txt", "mesh.yaml"}


def test_what_hosts_made_stays_and_what_was_deleted_here_goes(pod: Home, lab: Lab) -> None:
    pod.files(one__txt="1", two__txt="2")
    assert pod.mesh("run", "pod", "sh", "-c", "echo made > checkpoint").status == 0
    (pod.project / "two.txt").unlink()
    done = pod.mesh("run", "--hosts", lab.hosts[0].address, "pod", "ls")
    assert done.lines == ["[0] checkpoint", "[0] one.txt"]


def test_some_of_the_hosts_are_the_world(pod: Home, lab: Lab) -> None:
    show = ["pod", "sh", "-c", "echo $RANK $WORLD_SIZE $(hostname)"]
    assert pod.mesh("run", "--ranks", "1-3", "--exclude", lab.hosts[2].address, *show).lines == [
        "[0] 0 2 h01",
        "[1] 1 2 h03",
    ]


def test_the_first_failure_decides_and_stops_the_others(pod: Home) -> None:
    done = pod.mesh("run", "pod", "sh", "-c", "test $RANK = 2 && { echo broken >&2; exit 7; }; exec sleep 1000")
    assert done.status == 7
    assert "rank 2 on" in done.err
    assert "failed first: exit 7" in done.err
    assert "           broken\n" in done.err
    assert "ranks 0-1,3 stopped by mesh" in done.err
    told = about(pod)
    assert (told["exit_code"], told["cause"]) == (7, "rank")
    assert told["ranks"] == [
        {"rank": n, "host": told["hosts"][n], "ended": told["ranks"][n]["ended"], **how}  # type: ignore[index]
        for n, how in enumerate([{"signal": 15}, {"signal": 15}, {"code": 7}, {"signal": 15}])
    ]


def test_a_rank_killed_by_a_signal(pod: Home) -> None:
    assert pod.mesh("run", "pod", "sh", "-c", "test $RANK = 1 && kill -9 $$; exec sleep 1000").status == 137


def test_keep_going(pod: Home) -> None:
    done = pod.mesh("run", "--keep-going", "pod", "sh", "-c", "test $RANK = 1 && exit 4; sleep 0.5; echo $RANK")
    assert done.status == 4
    assert done.lines == ["[0] 0", "[2] 2", "[3] 3"]


@pytest.mark.parametrize("how", ["run", "exec"])
@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["no-such-command"], 127, "no-such-command: no such command on any of 4 hosts"),
        (["./nowhere/x"], 127, "./nowhere/x: no such command on any of 4 hosts"),
        (["/etc/passwd"], 126, "/etc/passwd: not executable on any of 4 hosts"),
        (["/etc"], 126, "/etc: not executable on any of 4 hosts"),
    ],
)
def test_a_command_that_cannot_be_executed(pod: Home, how: str, words: list[str], status: int, told: str) -> None:
    done = pod.mesh(how, "pod", *words)
    assert done.status == status
    assert f"error: the command was not started: {told}\n" in done.err
    assert len([*done.lines, *done.said.splitlines()]) <= 5
    record = about(pod)
    assert (record["exit_code"], record["cause"], record["started"]) == (status, "rank", None)


def test_exec_goes_on_without_hosts_that_cannot_be_reached(pod: Home, lab: Lab) -> None:
    """The cable of one is cut, and another one refuses the connection: those that answer run, under their own ranks."""
    yaml = lab.cluster_yaml()
    pod.clusters(yaml.replace(f"- {lab.hosts[1].address}\n", f'- "{lab.hosts[1].address}:9"\n'))
    lab.hosts[3].cut()
    show = ["pod", "sh", "-c", "echo $RANK/$WORLD_SIZE $MESH_HOSTS; exit 0"]
    process = pod.popen("exec", "--keep-going", *show)
    paste = f"mesh exec --exclude {lab.hosts[1].address},{lab.hosts[3].address} --keep-going {shlex.join(show)}\n"
    connecting = read_until(process.stderr, b"not reached after 10 s: ").decode()
    assert "the ranks start" not in connecting
    late = connecting.rpartition("not reached after 10 s: ")[2]  # on a busy machine others are late as well
    assert lab.hosts[1].address in late
    assert lab.hosts[3].address in late
    assert process.stderr is not None
    rest = process.stderr.read()  # with all that was read ahead, which communicate() passes over
    out, _ = process.communicate(timeout=60)
    addresses = ",".join(host.address for host in lab.hosts)
    assert sorted(out.decode().splitlines()) == [f"[{n}] {n}/4 {addresses}" for n in (0, 2)]
    assert process.returncode == 76
    assert "the ranks start on 2 of 4 hosts\n" in rest.decode()
    assert "error: ranks 1,3 did not run: 2 of 4 hosts could not be reached\n" in rest.decode()
    assert f"to leave them out: {paste}" in rest.decode()
    told = about(pod)
    assert (told["exit_code"], told["cause"]) == (76, "lost")
    words = shlex.split(paste)[1:]
    assert pod.mesh(*words).lines == [f"[{n}] {n}/2 {lab.hosts[0].address},{lab.hosts[2].address}" for n in (0, 1)]


def test_a_failed_rank_is_named_beside_the_hosts_that_were_not_reached(pod: Home, lab: Lab) -> None:
    pod.clusters(lab.cluster_yaml().replace(f"- {lab.hosts[0].address}\n", f'- "{lab.hosts[0].address}:9"\n'))
    done = pod.mesh("exec", "--keep-going", "pod", "sh", "-c", "[ $RANK = 2 ] && exit 5; exit 0")
    assert done.status == 76
    assert f"rank 2 on {lab.hosts[2].address} failed first: exit 5" in done.err
    assert "rank 0 did not run: 1 of 4 hosts could not be reached\n" in done.err


@pytest.mark.parametrize("how", ["run", "exec"])
def test_hosts_that_cannot_be_reached_are_named_with_the_command_to_go_on(pod: Home, lab: Lab, how: str) -> None:
    lab.hosts[3].cut()
    process = pod.popen(how, "pod", "echo", "it's")
    err = read_until(process.stderr, b"pod echo 'it").decode()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    late = r"[0-9., ]*" + re.escape(lab.hosts[3].address)  # on a busy machine others are late as well
    told = rf"""==> not reached after 10 s: {late}; to leave (it|them) out:\n    mesh {how} --exclude {late} """
    assert re.search(told + re.escape("""pod echo 'it'"'"'s'\n"""), err), err


def install(host: TestHost, *names: str) -> None:
    """Put programs that leave a trace into the user's own directory of programs."""
    for name in names:
        host.script(
            f"mkdir -p .local/bin; printf '#!/bin/sh\\ntouch ~/ran' > .local/bin/{name}; chmod +x .local/bin/{name}"
        )


@pytest.mark.parametrize("how", ["run", "exec"])
def test_a_missing_command_is_named_once_with_the_nearest_name(pod: Home, lab: Lab, how: str) -> None:
    for host in lab.hosts:
        install(host, "launcher3", "unlike-it")
    done = pod.mesh(how, "--env", "A=b c", "pod", "launcher", "--name", "it's")
    assert done.status == 127
    paste = f"""mesh {how} --env 'A=b c' pod launcher3 --name 'it'"'"'s'"""
    assert f"the nearest name there is launcher3: {paste}\n" in done.err
    assert done.err.count("no such command") == 1
    assert len([*done.lines, *done.said.splitlines()]) <= 5


def test_no_rank_starts_where_some_hosts_lack_the_command(pod: Home, lab: Lab) -> None:
    for host in lab.hosts[:2]:
        install(host, "launcher")
    for how in ("run", "exec"):
        done = pod.mesh(how, "pod", "launcher")
        assert done.status == 127
        names = ", ".join(host.address for host in lab.hosts[2:])
        assert f"launcher: no such command on 2 of 4 hosts ({names})\n" in done.err
    assert [host.path("/root/ran").exists() for host in lab.hosts] == [False] * 4


def test_prerun_may_make_the_command(pod: Home, lab: Lab) -> None:
    make = "mkdir bin own; printf '#!/bin/sh\\\\necho made' > bin/tool; chmod +x bin/tool"
    pod.files(mesh__yaml=f'prerun: ["{make}; export PATH=$PWD/bin:$PATH; cd own; cp ../bin/tool here"]\n')
    assert pod.mesh("run", "pod", "tool").lines == [f"[{n}] made" for n in range(4)]
    pod.files(mesh__yaml='prerun: ["cd own"]\n')  # where prerun ends, the command is looked for
    assert pod.mesh("run", "pod", "./here").status == 0
    done = pod.mesh("run", "pod", "here")
    assert done.status == 127
    assert "the nearest name there is ./here: mesh run pod ./here\n" in done.err


def test_the_words_of_shell_text_are_left_to_the_shell(pod: Home) -> None:
    done = pod.mesh("exec", "pod", "no-such-command || echo other")
    assert (done.status, done.lines) == (0, [f"[{n}] other" for n in range(4)])


def test_the_time_is_out(pod: Home) -> None:
    done = pod.mesh("run", "--timeout", "0.5", "pod", "sleep", "1000")
    assert done.status == 124
    assert about(pod)["cause"] == "timeout"


@pytest.mark.parametrize(
    ("number", "status", "cause"), [(signal.SIGINT, 130, "2"), (signal.SIGTERM, 143, "15"), (signal.SIGHUP, 129, "15")]
)
def test_a_signal_is_passed_on_and_ends_the_run(pod: Home, number: int, status: int, cause: str) -> None:
    script = "trap 'echo got 2; exit' INT; trap 'echo got 15; exit' TERM; echo up; while :; do sleep 0.05; done"
    process = pod.popen("run", "pod", "bash", "-c", script)
    assert process.stdout is not None
    up = [process.stdout.readline() for _ in range(4)]
    assert {line[4:] for line in up} == {b"up\n"}
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    assert sorted(out.splitlines()) == [b"[%d] got %s" % (n, cause.encode()) for n in range(4)]


def test_a_second_interrupt_kills_at_once(pod: Home) -> None:
    process = pod.popen(
        "run", "--grace", "3600", "pod", "bash", "-c", "trap '' INT TERM; echo up; while :; do sleep 0.05; done"
    )
    assert process.stdout is not None
    for _ in range(4):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    read_until(process.stderr, b"stopping 4 ranks")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


def test_a_killed_client_leaves_nothing(pod: Home, lab: Lab) -> None:
    script = "trap '' TERM; setsid sleep 9876 & echo up; sleep 9876"
    process = pod.popen("run", "--grace", "0.5", "pod", "bash", "-c", script)
    assert process.stdout is not None
    for _ in range(4):
        process.stdout.readline()
    assert all(len(host.processes()) >= 3 for host in lab.hosts)
    process.kill()
    process.communicate()
    assert eventually(lambda: not any(host.processes() for host in lab.hosts))


def test_a_closed_stdout_ends_the_run_without_a_word(pod: Home) -> None:
    process = pod.popen("run", "pod", "sh", "-c", "while echo line; do sleep 0.02; done")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.wait(timeout=30)
    assert process.returncode == 141
    assert process.stderr is not None
    assert "error" not in process.stderr.read().decode()
    process.stderr.close()


def test_a_reader_that_goes_while_the_ranks_are_silent(pod: Home) -> None:
    process = pod.popen("run", "pod", "sleep", "1000")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=30) == 141
    assert process.stderr is not None
    process.stderr.close()


def test_prerun_holds_for_the_command(pod: Home) -> None:
    pod.files(mesh__yaml="prerun:\n  - export WHO=host-$RANK\n  - mkdir -p sub && cd sub\nenv:\n  RATE: 1e-3\n")
    done = pod.mesh("run", "pod", "sh", "-c", "echo $WHO $RATE $(basename $PWD)")
    assert done.lines == [f"[{n}] host-{n} 1e-3 sub" for n in range(4)]


def test_prerun_that_fails_on_one_host_starts_nothing(pod: Home, lab: Lab) -> None:
    pod.files(mesh__yaml="prerun:\n  - 'test $RANK != 2 || { echo no wheel for you; false; }'\n")
    done = pod.mesh("run", "pod", "sh", "-c", "echo started")
    assert done.status == 125
    assert done.out == b""
    assert f"{lab.hosts[2].address}: prerun[0] of mesh.yaml: exit 1 in " in done.err
    assert "no wheel for you" in done.err
    assert about(pod)["cause"] == "prepare"


def test_a_second_run_is_told_who_is_there(pod: Home) -> None:
    first = pod.popen("run", "pod", "sh", "-c", "echo up; exec sleep 1000")
    assert first.stdout is not None
    for _ in range(4):
        first.stdout.readline()
    second = pod.mesh("run", "pod", "true")
    assert second.status == 75
    assert "sleep 1000" in second.err
    assert " since " in second.err
    beside = pod.mesh("exec", "pod", "sh", "-c", "ls; echo $RANK")
    assert (beside.status, beside.lines) == (0, [f"[{n}] {n}" for n in range(4)])
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    assert first.returncode == 130
    assert pod.mesh("run", "pod", "true").status == 0


def test_exec_has_no_sync_no_prerun_and_the_same_statuses(pod: Home, lab: Lab) -> None:
    pod.files(data__txt="x", mesh__yaml="prerun: ['false']\nenv: {A: b}\n")
    done = pod.mesh("exec", "--keep-going", "pod", "sh", "-c", "ls; echo $A; exit $RANK")
    assert done.status in (1, 2, 3)
    assert "synced" not in done.err
    assert "[0] b" in done.lines
    assert not any("data.txt" in line for line in done.lines)


def test_unreachable_hosts_are_all_named(pod: Home, lab: Lab) -> None:
    text = lab.cluster_yaml().replace(lab.hosts[1].address + "\n", lab.hosts[1].address + ":1\n")
    text = text.replace(lab.hosts[3].address + "\n", lab.hosts[3].address + ":2\n")
    pod.clusters(text)
    done = pod.mesh("run", "pod", "true")
    assert done.status == 125
    for host, port in ((lab.hosts[1], 1), (lab.hosts[3], 2)):
        assert f"cannot connect to root@{host.address} port {port}: Connection refused (3 tries" in done.err
        assert f"try by hand: ssh -p {port} -i {lab.identity} root@{host.address} true" in done.err


def test_a_lost_host_ends_the_run_with_76(pod: Home, lab: Lab) -> None:
    process = pod.popen("run", "--grace", "1", "pod", "sh", "-c", "echo up; exec sleep 1000")
    assert process.stdout is not None
    for _ in range(4):
        process.stdout.readline()
    for pid, command in lab.hosts[2].processes():
        if is_agent(command):
            with contextlib.suppress(ProcessLookupError):  # one ends when another has ended
                os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 76, err
    assert f"{lab.hosts[2].address} lost" in err.decode()
    assert about(pod)["cause"] == "lost"


def test_what_ranks_leave_behind_is_gone(pod: Home, lab: Lab) -> None:
    script = "( setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & ) ; sleep 0.1; echo ended"
    done = pod.mesh("run", "--grace", "0.5", "pod", "bash", "-c", script)
    assert done.status == 0
    # At once nothing of the run, and the agents within 2 s.
    assert not [command for host in lab.hosts for _, command in host.processes() if not is_agent(command)]
    assert eventually(lambda: not any(host.processes() for host in lab.hosts))


def test_stdin_for_rank_0_and_for_all(pod: Home) -> None:
    count = ["pod", "sh", "-c", "wc -c"]
    data = b"x" * 500_000
    assert pod.mesh("run", "-i", *count, stdin=data).lines == ["[0] 500000", "[1] 0", "[2] 0", "[3] 0"]
    assert pod.mesh("run", "--stdin", "all", *count, stdin=data).lines == [f"[{n}] 500000" for n in range(4)]
    assert pod.mesh("run", *count, stdin=data).lines == [f"[{n}] 0" for n in range(4)]


def test_events_as_json(pod: Home, lab: Lab) -> None:
    done = pod.mesh("run", "--json", "--keep-going", "pod", "sh", "-c", "echo out; echo err >&2; exit $RANK")
    events = [json.loads(line) for line in done.out.splitlines()]
    assert all({"event", "time"} <= event.keys() for event in events)
    names = [event["event"] for event in events]
    assert {"connected", "synced", "started", "line", "exited", "finished"} <= set(names)
    assert {(e["rank"], e["host"]) for e in events if e["event"] == "started"} == {
        (n, host.address) for n, host in enumerate(lab.hosts)
    }
    assert {(e["rank"], e["stream"], e["text"]) for e in events if e["event"] == "line"} == {
        (n, stream, text) for n in range(4) for stream, text in (("stdout", "out"), ("stderr", "err"))
    }
    assert events[-1]["event"] == "finished"
    assert events[-1]["exit_code"] == done.status != 0
    assert events[-1]["run"] == run_directory(pod).name


def test_rank0_alone_is_shown_and_all_are_kept(pod: Home) -> None:
    done = pod.mesh("run", "--output", "rank0", "pod", "sh", "-c", "printf 'rank %s' $RANK")
    assert done.out == b"rank 0"
    logs = run_directory(pod) / "logs"
    assert [(logs / f"rank-000{n}.out").read_bytes() for n in range(4)] == [b"rank %d" % n for n in range(4)]
    assert (run_directory(pod).stat().st_mode & 0o777) == 0o700


def test_a_dry_run_does_nothing(pod: Home, lab: Lab) -> None:
    pod.files(mesh__yaml="prerun: [touch /tmp/was-here]\nenv: {TOKEN: secret}\n")
    done = pod.mesh("run", "--dry-run", "pod", "echo", "a b")
    assert done.status == 0
    text = done.out.decode()
    assert lab.hosts[3].address in text
    assert "echo 'a b'" in text
    assert "touch /tmp/was-here" in text
    assert "TOKEN" in text
    assert "secret" not in text
    assert not lab.hosts[0].path("/root/.mesh").exists()
    assert not (pod.path / ".local/state/mesh").exists()


def test_no_value_stands_in_an_argv(pod: Home, lab: Lab) -> None:
    pod.files(mesh__yaml="env:\n  TOKEN: very-secret-value\n")
    process = pod.popen("run", "pod", "sh", "-c", "echo up; exec sleep 1000")
    assert process.stdout is not None
    for _ in range(4):
        process.stdout.readline()
    commands = [command for host in lab.hosts for _, command in host.processes(with_sshd=True)]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert len(commands) > 8
    assert not any("very-secret-value" in command for command in commands)
    assert "very-secret-value" not in (run_directory(pod) / "run.json").read_text()
