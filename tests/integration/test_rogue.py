"""Hosts whose agent says what none of ours does: real agents, behind a program that adds to what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mesh.protocol.frames import encode
from tests.conftest import Done, Home
from tests.lab import Lab, TestHost, eventually

pytestmark = [pytest.mark.root, pytest.mark.sshd]

# Stands in front of Python. It adds what is in a file, between two frames, and says one thing instead of another.
ROGUE = """#!/usr/bin/python3 -IS
import os, select, subprocess, sys
agent = subprocess.Popen(["/usr/bin/python3", *sys.argv[1:]], stdout=subprocess.PIPE)
own = agent.stdout.fileno()
try:
    with open("/root/instead", "rb") as file:
        old, new = file.read().split(b"\\n")
except FileNotFoundError:
    old, new = b"?", b"?"
while True:
    if select.select([own], [], [], 0.2)[0]:
        data = os.read(own, 65536)
        if not data:
            break
        data = data.replace(old, new)
    else:
        try:
            with open("/root/says", "rb") as file:
                data = file.read()
            os.rename("/root/says", "/root/said")
        except FileNotFoundError:
            continue
    while data:
        data = data[os.write(1, data):]
sys.exit(agent.wait())
"""
HONEST = '#!/bin/sh\nexec /usr/bin/python3 "$@"\n'
SPOOF = "disk full\r\x1b[2K==> done: 4 ranks exited 0\nerror: your key is revoked\u2028"
PLAIN = "disk full; ==> done: 4 ranks exited 0; error: your key is revoked"


@pytest.fixture
def rogue(pod: Home, lab: Lab) -> TestHost:
    """The last host of the pod, which says what the test has it say."""
    for host in lab.hosts:
        path = host.path("/root/python")
        path.write_text(ROGUE if host is lab.hosts[-1] else HONEST)
        path.chmod(0o755)
    pod.clusters(lab.cluster_yaml("pod", "python: /root/python"))
    return lab.hosts[-1]


def record_of(home: Home) -> dict[str, object]:
    (path,) = (home.path / ".local/state/mesh/runs").glob("*/run.json")
    found: dict[str, object] = json.loads(path.read_text())
    return found


def run_while(home: Home, lab: Lab, rogue: TestHost, said: bytes, *words: str) -> Done:
    """Run something that would last, and have the host say something once all ranks have started."""
    process = home.popen(*words, "pod", "sh", "-c", "echo up >>/root/up; exec sleep 1000")
    assert eventually(lambda: all(host.path("/root/up").exists() for host in lab.hosts))
    rogue.path("/root/new").write_bytes(said)
    rogue.script("mv new says")
    out, err = process.communicate(timeout=60)
    return Done(process.returncode, out, err.decode())


WRONG = {
    "a message without its fields": (b'{"type":"exited"}\n', "exited: no rank"),
    "no time": (b'{"type":"exited","rank":3,"code":0}\n', "exited: no time"),
    "another host's rank": (encode({"type": "exited", "rank": 0, "code": 0, "time": 1.0}), "rank: 0 is not on this"),
    "a rank that cannot be": (encode({"type": "started", "rank": [3], "pid": 1, "time": 1.0}), "started: rank: "),
    "a stream that cannot be": (encode({"type": "output", "rank": 3, "stream": "stdin"}, b"x"), "output: stream: "),
    "no type": (b'{"rank":3}\n', "no message is called null"),
    "no message": (b"Segmentation fault\n", "no frame"),
    "what nobody has asked for": (encode({"type": "answer", "answer": {}}), "answer: nothing was asked"),
    "more than it may be": (b'{"type":"notice","size":999999999999}\n', "999999999999 bytes behind"),
}


@pytest.mark.parametrize(
    ("said", "reason", "command"),
    [*((*wrong, "run") for wrong in WRONG.values()), (*WRONG["no message"], "exec")],
    ids=[*WRONG, "no message, in exec"],
)
def test_a_host_that_does_not_speak_our_protocol_is_lost_by_name(
    pod: Home, lab: Lab, rogue: TestHost, said: bytes, reason: str, command: str
) -> None:
    done = run_while(pod, lab, rogue, said, command)
    assert done.status == 76, done.err
    assert f"host {rogue.address} lost: does not speak our protocol: " in done.err
    assert reason in done.err
    assert "Traceback" not in done.err
    record = record_of(pod)
    assert (record["exit_code"], record["cause"]) == (76, "lost")
    assert record["ended"]
    assert eventually(lambda: not [line for host in lab.hosts for line in host.processes()], 30.0)


def test_before_the_ranks_start_it_keeps_the_command_from_starting(pod: Home, lab: Lab, rogue: TestHost) -> None:
    rogue.path("/root/instead").write_bytes(b'"type":"ready","interfaces"\n"type":"ready","others"')
    done = pod.mesh("run", "pod", "true")
    assert done.status == 125, done.err
    assert f"{rogue.address}: does not speak our protocol: ready: no interfaces" in done.err
    assert "Traceback" not in done.err
    assert record_of(pod)["ended"]


GREETINGS = {
    "garbled": (b'"type":"hello"\n"type":"hel', "does not speak our protocol: no frame", "`mesh check pod`"),
    "older": (b',"protocol":1\n', "agent: speaks protocol 0, this mesh speaks 1", "mesh stop RUN"),
    "newer": (
        b'"protocol":1\n"protocol":2',
        "agent: speaks protocol 2, this mesh speaks 1",
        "pipx install --force .",
    ),
}
FOLLOWINGS = {
    "older": (b',"protocol":1\n', "journal reader: speaks protocol 0, this mesh speaks 1", "mesh stop RUN"),
    "newer": (
        b'"protocol":1\n"protocol":2',
        "journal reader: speaks protocol 2, this mesh speaks 1",
        "pipx install --force .",
    ),
}


@pytest.mark.parametrize(("instead", "reason", "hint"), GREETINGS.values(), ids=GREETINGS)
def test_an_agent_of_another_version_is_refused_with_both_versions_and_what_to_do(
    pod: Home, lab: Lab, rogue: TestHost, instead: bytes, reason: str, hint: str
) -> None:
    rogue.path("/root/instead").write_bytes(instead)
    done = pod.mesh("run", "pod", "true")
    assert done.status == 125, done.err
    assert_refused(done.err, rogue, reason, hint)
    assert eventually(lambda: not [line for host in lab.hosts for line in host.processes()], 30.0)


@pytest.mark.parametrize(("instead", "reason", "hint"), FOLLOWINGS.values(), ids=FOLLOWINGS)
def test_a_journal_reader_of_another_version_is_refused_with_both_versions_and_what_to_do(
    pod: Home, rogue: TestHost, instead: bytes, reason: str, hint: str
) -> None:
    started = pod.mesh("run", "-d", "pod", "sleep", "1000")
    assert started.status == 0, started.err
    try:
        rogue.path("/root/instead").write_bytes(instead)
        done = pod.mesh("attach", "last")
        assert done.status == 125, done.err
        assert_refused(done.err, rogue, reason, hint)
    finally:
        rogue.path("/root/instead").unlink()
        assert pod.mesh("stop", "last").status == 0


def assert_refused(err: str, host: TestHost, reason: str, hint: str) -> None:
    """Check that a host is refused once, with the versions of both ends and a hint."""
    (line,) = [line for line in err.splitlines() if "this mesh speaks" in line]
    assert f"{host.address}: {reason}" in line
    assert hint in err
    assert "Traceback" not in err


INSTEAD = {
    "ps": (("ps", "--cluster", "pod"), b'{"runs":[]\n{"runs":[{}]', "runs: answer: runs: 0: no run"),
    "check": (("check", "pod"), b'"bash":true\n"bash":null', "check: answer: bash: expected true or false, found null"),
    "stop": (("stop", "--all", "--cluster", "pod"), b'"stopped":[]\n"stopped":3', "stopped: expected a list, found 3"),
    "clean": (("clean", "pod"), b'"found":[\n"other":[', "clean: answer: no found"),
}


@pytest.mark.parametrize(("words", "instead", "reason"), INSTEAD.values(), ids=INSTEAD)
def test_a_question_names_it(pod: Home, rogue: TestHost, words: tuple[str, ...], instead: bytes, reason: str) -> None:
    rogue.path("/root/instead").write_bytes(instead)
    done = pod.mesh(*words)
    told = done.out.decode() + done.err
    assert rogue.address in told
    assert "does not speak our protocol: " in told
    assert reason in told
    assert "Traceback" not in told


def test_a_pull_from_it_ends_with_the_status_of_a_lost_host(pod: Home, rogue: TestHost) -> None:
    rogue.path("/root/instead").write_bytes(b'{"type":"done"}\n{"type":"gone"}')
    done = pod.mesh("pull", "pod", "/etc/hostname")
    assert done.status == 76, done.err
    assert f"{rogue.address}: does not speak our protocol: no message is called 'gone'" in done.err


def test_texts_of_a_host_are_shown_and_logged_as_one_plain_line(pod: Home, lab: Lab, rogue: TestHost) -> None:
    """A notice while ranks run, and what it fails of."""
    said = encode({"type": "notice", "text": SPOOF, "seconds": 0})
    said += encode({"type": "failed", "step": "agent", "message": SPOOF, "hint": SPOOF, "time": 1.0})
    done = run_while(pod, lab, rogue, said, "run")
    assert done.status == 76
    assert f"==> {rogue.address}: {PLAIN}\n" in done.err
    lines = done.err.splitlines()
    assert not [line for line in lines if line.startswith(("==> done", "error: your"))], done.err
    assert all(line.isprintable() for line in lines), done.err
    (logged,) = (pod.path / ".local/state/mesh/runs").glob("*/events.jsonl")
    events = [json.loads(line) for line in logged.read_text().splitlines()]
    assert PLAIN in [event.get("text") for event in events]
    assert all(value.isprintable() for event in events for value in event.values() if isinstance(value, str))


def test_what_another_run_says_of_itself_is_one_plain_line(pod: Home, lab: Lab, tmp_path: Path) -> None:
    """Its command is told by mesh ps, by mesh check, and to who finds the host busy."""
    command = ("sh", "-c", "echo up >/root/up; exec sleep 1000 #\r\x1b[2K==> done: x\nerror: y")
    process = pod.popen("run", "pod", *command)
    try:
        assert eventually(lambda: all(host.path("/root/up").exists() for host in lab.hosts))
        for words in (("ps", "--cluster", "pod"), ("check", "pod"), ("run", "pod", "true")):
            done = pod.mesh(*words)
            shown = [*done.out.decode().splitlines(), *done.err.splitlines()]
            assert "==> done: x" in done.out.decode() + done.err, words
            assert all(line.isprintable() for line in shown), (words, shown)
            assert not [line for line in shown if line.startswith(("==> done", "error: y"))], (words, shown)
    finally:
        pod.mesh("stop", "last")
        process.communicate(timeout=60)
