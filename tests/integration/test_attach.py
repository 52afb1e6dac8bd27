"""Runs that outlive their client: left, found again from here and elsewhere, byte for byte."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, Home
from tests.full import times
from tests.integration.test_run_directory import problems
from tests.lab import eventually

NPROC = times(2, full=4)
RUN_ID = re.compile(rb"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}\n")

# Prints bytes that follow from the rank alone, until somebody says that it is enough.
NOISE = """
import os, random, time
number, count = random.Random(int(os.environ["RANK"])), 0
while not os.path.exists(os.environ["ENOUGH"]):
    data = memoryview(number.randbytes(number.choice((1, 100, 9000))))
    descriptor = number.choice((1, 2))
    count += 1
    while data:
        data = data[os.write(descriptor, data):]
    time.sleep(0.01)
with open("count-" + os.environ["RANK"], "w") as file:
    file.write(str(count))
"""


def noise(rank: int, count: int) -> dict[int, bytes]:
    """What a rank has printed."""
    number, printed = random.Random(rank), {1: bytearray(), 2: bytearray()}
    for _ in range(count):
        data = number.randbytes(number.choice((1, 100, 9000)))
        printed[number.choice((1, 2))] += data
    return {descriptor: bytes(data) for descriptor, data in printed.items()}


def runs(home: Home) -> Path:
    return home.path / ".local/state/mesh/runs"


def size(directory: Path) -> int:
    """Bytes that the ranks have printed, as far as they are here."""
    return sum(file.stat().st_size for file in directory.glob("logs/rank-*"))


def left(home: Home, *words: str) -> str:
    """Start a run that goes on by itself; return its id."""
    done = home.mesh("run", "-d", *words)
    assert done.status == 0, done.err
    assert RUN_ID.fullmatch(done.out), done.out
    run = done.out.decode().strip()
    assert f"mesh attach {run}" in done.err
    return run


def elsewhere(home: Home, place: Path) -> Home:
    """The same user on a machine that knows nothing of the run."""
    place.mkdir()
    return replace(home, environ={**home.environ, "XDG_STATE_HOME": str(place)})


# How clients come back, and how they are made to leave.
COMING: list[list[str]] = [["attach"], ["attach", "--from", "start"], ["logs", "-f"], ["attach", "--from", "now"]]
LEAVING = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def test_every_byte_arrives_once_however_often_clients_are_killed_detached_and_attached(
    home: Home, tmp_path: Path
) -> None:
    """4 ranks, or 8; clients come and go at random moments, also while they are coming."""
    enough, chance = tmp_path / "enough", random.Random(1)
    home.files(noise__py=NOISE)
    client = home.popen("run", "--nproc", str(NPROC), "--env", f"ENOUGH={enough}", "local:2", "python3", "noise.py")
    assert eventually(lambda: any(file.stat().st_size > 9000 for file in runs(home).glob("*/logs/rank-*")))
    (directory,) = runs(home).iterdir()
    assert home.mesh("detach").status == 0
    client.communicate(timeout=60)
    assert client.returncode == 0
    for number in range(times(8, full=20)):
        least = size(directory) + chance.choice((0, chance.randrange(300_000)))
        come = COMING[number % len(COMING)]
        looking = home.popen(*come, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if least > size(directory):
            assert eventually(lambda least=least: size(directory) > least, PATIENCE)
        else:
            assert eventually(lambda looking=looking: len(os.listdir(f"/proc/{looking.pid}/task")) > 1, PATIENCE)
        looking.send_signal(chance.choice(LEAVING))
        looking.wait(PATIENCE)
    enough.touch()
    assert home.mesh("attach", "--output", "none").status == 0
    for rank in range(2 * NPROC):
        (told,) = (home.path / ".mesh").rglob(f"count-{rank}")
        printed = noise(rank, int(told.read_text()))
        assert (directory / f"logs/rank-{rank:04d}.out").read_bytes() == printed[1]
        assert (directory / f"logs/rank-{rank:04d}.err").read_bytes() == printed[2]
    assert problems(directory) == []


def test_a_run_is_found_from_elsewhere_and_long_after_its_end(home: Home, tmp_path: Path) -> None:
    other = elsewhere(home, tmp_path / "state")
    enough = tmp_path / "enough"
    script = f"echo up $RANK; while ! [ -e {enough} ]; do sleep 0.05; done; [ $RANK = 0 ] || exit 7; exec sleep 1000"
    run = left(home, "local:2", "sh", "-c", script)
    looking = other.popen("attach", run[:-2])
    assert looking.stdout is not None
    assert sorted(looking.stdout.readline() for _ in range(2)) == [b"[0] up 0\n", b"[1] up 1\n"]
    assert "running, detached" in home.mesh("ps", "local").out.decode()
    enough.touch()
    _, err = looking.communicate(timeout=60)
    assert looking.returncode == 7
    assert b"rank 1 on local-1 failed first" in err
    late = home.mesh("attach", "--json")
    events = [json.loads(line) for line in late.out.splitlines()]
    assert late.status == 7
    assert [event["text"] for event in events if event["event"] == "line"].count("up 0") == 1
    assert (events[-1]["exit_code"], events[-1]["cause"]) == (7, "rank")
    for state in (runs(home) / run, tmp_path / "state/mesh/runs" / run):
        assert problems(state) == []
        about = json.loads((state / "run.json").read_text())
        assert (about["exit_code"], about["cause"], about["stopped"]) == (7, "rank", [0])
        assert [(state / f"logs/rank-000{rank}.out").read_text() for rank in (0, 1)] == ["up 0\n", "up 1\n"]
    again = home.mesh("attach", "--from", "start")
    assert (again.status, again.lines) == (7, ["[0] up 0", "[1] up 1"])
    # A dry run, as root of this machine owns the processes on the hosts of all labs.
    assert home.mesh("clean", "--dry-run", "local").out.count(b"tape-") == 2


@pytest.mark.parametrize("how", ["attach", "logs"])
def test_a_run_whose_ranks_end_at_once_is_left_all_the_same(home: Home, how: str) -> None:
    """However fast that is: the status tells that they have started, and those who come hear all the rest."""
    for number in (0, 3):
        run = left(home, "--keep-going", "local:2", "sh", "-c", f"echo out; echo err >&2; exit {number}")
        done = home.mesh(how)
        assert sorted(done.lines) == ["[0] out", "[1] out"], done.err
        assert done.err.count("] err\n") == 2
        assert home.mesh("attach", "--output", "none").status == number
        assert problems(runs(home) / run) == []


def test_logs_bring_what_is_missing_here_and_change_nothing_for_the_run(home: Home, tmp_path: Path) -> None:
    other = elsewhere(home, tmp_path / "state")
    enough = tmp_path / "enough"
    script = f"echo up; while ! [ -e {enough} ]; do sleep 0.05; done; echo down; exit 3"
    run = left(home, "--keep-going", "local:2", "sh", "-c", script)
    assert eventually(lambda: home.mesh("logs").lines == ["[0] up", "[1] up"], PATIENCE)
    assert home.mesh("logs", "--local").lines == ["[0] up", "[1] up"]
    unknown = other.mesh("logs", "--local", run)
    assert (unknown.status, "was started on this machine" in unknown.err) == (2, True)
    done = other.mesh("logs", "--rank", "1", run[:-2])
    assert (done.lines, done.said) == (
        ["[1] up"],
        f"==> {run} is still running, detached: `mesh logs -f {run}` follows it\n",
    )
    followers = [home.popen("logs", "-f"), other.popen("logs", "--follow", "--cluster", "local:2")]
    for follower in followers:
        assert follower.stdout is not None
        assert {follower.stdout.readline() for _ in range(2)} == {b"[0] up\n", b"[1] up\n"}
    followers[1].send_signal(signal.SIGINT)
    followers[1].communicate(timeout=60)
    assert followers[1].returncode == 130
    enough.touch()
    out, err = followers[0].communicate(timeout=60)
    assert (sorted(out.splitlines()), followers[0].returncode) == ([b"[0] down", b"[1] down"], 0)
    assert f"==> {run} has ended: exit 3\n" in err.decode()
    late = other.mesh("logs", run)
    assert (sorted(late.lines), late.said) == (["[0] down", "[0] up", "[1] down", "[1] up"], "")
    for state in (runs(home) / run, tmp_path / "state/mesh/runs" / run):
        assert problems(state) == []
        about = json.loads((state / "run.json").read_text())
        assert (about["exit_code"], about["cause"], about["stopped"]) == (3, "rank", [])


def test_a_run_that_was_stopped_is_listed_with_its_end(home: Home, tmp_path: Path) -> None:
    run = left(home, "local:2", "sh", "-c", "echo up; exec sleep 1000")
    assert eventually(lambda: home.mesh("logs").lines == ["[0] up", "[1] up"], PATIENCE)
    other = left(home, "--keep-going", "local:2", "sh", "-c", "echo other; exit 3")
    assert "detached" in home.mesh("runs").out.decode()
    assert home.mesh("stop", run).status == 0
    assert eventually(lambda: other not in home.mesh("ps", "local").out.decode(), PATIENCE)
    assert home.mesh("stop", other).status == 0  # it has ended by itself
    listed = {line.split()[0]: line for line in home.mesh("runs").out.decode().splitlines()}
    assert " stopped " in listed[run]
    assert " exit 3 " in listed[other]
    about = json.loads((runs(home) / run / "run.json").read_text())
    assert [rank["signal"] for rank in about["ranks"]] == [15, 15]
    assert b"tape-" not in home.mesh("clean", "--dry-run", "local:2").out  # nobody has fetched the output yet
    done = home.mesh("logs", other)  # what it printed is still brought from its hosts
    assert done.lines == ["[0] other", "[1] other"], done.err
    for directory in (runs(home) / run, runs(home) / other):
        assert home.mesh("attach", directory.name, "--output", "none").status in (3, 143)
        assert problems(directory) == []
        assert "unfetched" not in json.loads((directory / "run.json").read_text())


def test_the_end_of_a_stopped_run_is_kept_where_its_output_cannot_be_fetched(home: Home, tmp_path: Path) -> None:
    run = left(home, "local:2", "sh", "-c", "echo up; exec sleep 1000")
    assert home.mesh("stop", run).status == 0

    def are_removed() -> bool:
        """Remove the journals, into which the agents may still write that they end."""
        found = list((home.path / ".mesh").rglob("tape-*"))
        for tape in found:
            shutil.rmtree(tape, ignore_errors=True)
        return not found

    assert eventually(are_removed)
    home.mesh("logs", run)
    (listed,) = home.mesh("runs").out.decode().splitlines()[1:]
    assert " stopped " in listed


def test_what_is_shown_begins_where_it_was_asked_for(home: Home, tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    run = left(home, "local:1", "sh", "-c", f"echo old; while ! [ -e {enough} ]; do sleep 0.05; done; echo new")
    first = home.popen("attach", "--from", "start")
    assert first.stdout is not None
    assert first.stdout.readline() == b"[0] old\n"
    assert eventually(lambda: size(runs(home) / run) > 0)
    others = {begin: home.popen("attach", run, "--json", "--from", begin) for begin in ("here", "now", "start")}
    shown: dict[str, list[str]] = {begin: [] for begin in others}
    for begin, looking in others.items():
        assert looking.stdout is not None
        for line in looking.stdout:
            event = json.loads(line)
            if event["event"] == "attached":
                break
            shown[begin] += [event["text"]] if event["event"] == "line" else []
    enough.touch()
    for begin, looking in others.items():
        assert looking.stdout is not None
        events = [json.loads(line) for line in looking.stdout]  # also those that were read ahead
        looking.communicate(timeout=60)
        shown[begin] += [event["text"] for event in events if event["event"] == "line"]
    assert shown == {"here": ["new"], "now": ["new"], "start": ["old", "new"]}
    assert first.communicate(timeout=60)[0] == b"[0] new\n"


def test_what_hosts_had_no_room_for_is_told_to_all_who_come(home: Home, tmp_path: Path) -> None:
    home.files(mesh__yaml="spool: 1 MB\n")
    run = left(home, "local:1", "sh", "-c", "printf begin; head -c 9000000 /dev/zero; printf end; exit 3")
    assert eventually(lambda: run not in home.mesh("ps", "local").out.decode())
    other = elsewhere(home, tmp_path / "state")
    for of, words, status in (
        (home, ["attach"], 3),
        (other, ["logs", "--cluster", "local:1"], 0),
        (other, ["logs"], 0),
    ):
        done = of.mesh(*words, "--output", "rank0", run)
        assert (done.status, done.out[:5], done.out[-3:]) == (status, b"begin", b"end")
        assert len(done.out) < 4_000_000
        assert "left out" in done.err
    assert "left out" not in other.mesh("logs", "--stderr").err
    for state in (runs(home) / run, tmp_path / "state/mesh/runs" / run):
        missing = sum(item["bytes"] for item in json.loads((state / "run.json").read_text())["left_out"])
        assert missing + (state / "logs/rank-0000.out").stat().st_size == 9_000_000 + len("begin" + "end")


def test_ctrl_c_asks_and_two_who_stop_it_stop_it_once(home: Home, tmp_path: Path) -> None:
    script = "trap 'echo once; sleep 0.3; exit 9' INT; echo up; while :; do sleep 0.05; done"
    run = left(home, "local:1", "bash", "-c", script)
    with home.terminal("attach", run) as leaving:
        leaving.expect(b"[0] up")
        leaving.type(b"\x03")
        leaving.expect(b"[Enter] keep watching ")
        leaving.type(b"l\n")
        assert leaving.end() == 0
    with home.terminal("attach", run, "--from", "start") as one, home.terminal("attach", run, "--from", "start") as two:
        for terminal in (one, two):
            terminal.expect(b"[0] up")
            terminal.type(b"\x03")
        for terminal in (one, two):
            terminal.expect(b"[Enter] keep watching ")
        for terminal in (one, two):
            terminal.type(b"s\n")
        assert (one.end(), two.end()) == (130, 130)
        assert one.shown.count(b"[0] once") == two.shown.count(b"[0] once") == 1
    assert (runs(home) / run / "logs/rank-0000.out").read_text() == "up\nonce\n"


# Prints lines one by one, and notes how many; more events than queues in front of a terminal have room for.
COUNT = """
import itertools, os, time
for number in itertools.count(1):
    os.write(1, b"line %d\\n" % number)
    if number % 100 == 0:
        with open("printed-" + str(number), "w"):
            time.sleep(0.005)
    time.sleep(0.005)
"""


def test_output_waits_while_ctrl_c_asks(home: Home) -> None:
    home.files(count__py=COUNT)
    run = left(home, "local:1", "python3", "count.py")
    question = f"\r\nRun {run[-6:]} keeps running if you leave.  [s]top  [l]eave  [Enter] keep watching ".encode()

    def has_printed(lines: int) -> bool:
        return bool(list((home.path / ".mesh").rglob(f"printed-{lines}")))

    with home.terminal("attach", run) as terminal:
        terminal.keep_output()
        terminal.expect(b"line 9\r\n")
        terminal.type(b"\x03")
        terminal.expect(question)
        last = int(re.findall(rb"line (\d+)\r\n", terminal.shown)[-1])
        assert eventually(lambda: has_printed(last // 100 * 100 + 700))
        terminal.read_all()
        assert terminal.shown.endswith(question)
        shown, terminal.shown = terminal.shown, b""
        terminal.type(b"\n")
        terminal.expect(b"line %d\r\n" % (last + 800))
        terminal.type(b"\x03")
        terminal.expect(question)
        terminal.type(b"s\n")
        assert terminal.end() == 130
    numbers = [int(number) for number in re.findall(rb"line (\d+)\r\n", (shown + terminal.shown).replace(b"^C", b""))]
    assert numbers == list(range(1, numbers[-1] + 1))


def test_question_ends_with_the_run(home: Home, tmp_path: Path) -> None:
    run = left(home, "local:1", "sh", "-c", f"echo up; until [ -e {tmp_path}/enough ]; do sleep 0.05; done; echo last")
    with home.terminal("attach", run) as terminal:
        terminal.expect(b"[0] up")
        terminal.type(b"\x03")
        terminal.expect(b"keep watching ")
        (tmp_path / "enough").touch()
        assert terminal.end() == 0
    assert b"keep watching \r\n[0] last\r\n" in terminal.shown


def test_signals_go_to_those_who_have_a_handler_for_them(home: Home) -> None:
    # Before its child is another program, a signal for all that handle it would reach that as well.
    begin = "trap 'echo told' USR1; sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done"
    script = f"{begin}; echo up; until wait; do :; done"
    run = left(home, "local:2", "bash", "-c", script)
    looking = home.popen("attach", run)
    assert looking.stdout is not None
    assert {looking.stdout.readline() for _ in range(2)} == {b"[0] up\n", b"[1] up\n"}
    assert home.mesh("signal", run, "USR1", "--rank", "1").lines == ["signalled rank 1"]
    assert looking.stdout.readline() == b"[1] told\n"
    refused = home.mesh("signal", run, "USR2")
    assert refused.status == 125
    assert "no process there has a handler for USR2" in refused.err
    assert home.mesh("stop", run).status == 0
    looking.communicate(timeout=60)
    assert looking.returncode == 143


def test_hosts_keep_the_time_by_themselves(home: Home, tmp_path: Path) -> None:
    script = f"echo up; echo $$ >{tmp_path}/new-$RANK; mv {tmp_path}/new-$RANK {tmp_path}/pid-$RANK; exec sleep 1000"
    run = left(home, "--timeout", "8", "local:2", "sh", "-c", script)
    assert eventually(lambda: len(list(tmp_path.glob("pid-*"))) == 2)
    pids = [path.read_text().strip() for path in tmp_path.glob("pid-*")]
    assert eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    done = home.mesh("attach", run)
    assert (done.status, done.lines) == (124, ["[0] up", "[1] up"])


def test_what_cannot_be_attached_to_is_told(home: Home) -> None:
    client = home.popen("run", "local:1", "sh", "-c", "echo up; exec sleep 1000")
    assert client.stdout is not None
    client.stdout.readline()
    refused = home.mesh("attach")
    assert refused.status == 125
    assert "mesh detach" in refused.err
    client.send_signal(signal.SIGINT)
    client.communicate(timeout=60)
    assert client.returncode == 130
    unknown = home.mesh("attach", "20200101-000000-abcdef")
    assert unknown.status == 2
    assert "no detached run" in unknown.err
    assert home.mesh("run", "-d", "-i", "local", "cat").status == 2


@pytest.mark.sshd
def test_a_detached_run_holds_its_hosts_and_loses_those_that_are_gone(plain_pod: Home, tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    run = left(plain_pod, "pod", "sh", "-c", f"echo up; while ! [ -e {enough} ]; do sleep 0.05; done")
    busy = plain_pod.mesh("run", "pod", "true")
    assert busy.status == 75
    assert run in busy.err
    # The same run, where one of its hosts is no more.
    text = (plain_pod.path / ".config/mesh/cluster.yaml").read_text()
    plain_pod.clusters(re.sub(r'("127\.0\.0\.3):[0-9]+', r"\1:1", text))
    assert eventually(lambda: plain_pod.mesh("logs", run).lines == ["[0] up"], PATIENCE)
    shown = plain_pod.mesh("logs", run)
    assert (shown.status, shown.lines) == (0, ["[0] up"]), shown.err
    assert "127.0.0.3 cannot be reached: " in shown.err
    looking = plain_pod.popen("attach", run, "--from", "start")
    assert looking.stdout is not None
    looking.stdout.readline()
    enough.touch()
    _, err = looking.communicate(timeout=60)
    assert looking.returncode == 76
    assert b"127.0.0.3" in err
    plain_pod.clusters(text)
    assert plain_pod.mesh("attach", run).status == 0
