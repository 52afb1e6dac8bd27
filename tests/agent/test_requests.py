"""Requests that cannot be: a real agent ends its run, and nothing of it stays."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh.agent.control import requests, sockets
from mesh.agent.main import FIRST_MESSAGE_S
from mesh.agent.version import find
from mesh.backends import command
from mesh.core.events import Connected, Event, Gone, Lost, Output, PrepareFailed
from mesh.protocol.frames import FrameError, encode
from mesh.protocol.tables import REQUESTS
from mesh.remote import blob
from mesh.remote.blob import opening, start_command
from tests.agent.conftest import Open, Run
from tests.conftest import open_descriptors
from tests.full import times
from tests.lab import eventually

WRONG = {
    "no frame": b"GET / HTTP/1.1\n",
    "no type": b'{"n":1}\n',
    "no request": b'{"type":"riddle"}\n',
    "a field is missing": b'{"type":"start","n":9}\n',
    "a wrong type": encode({"type": "signal", "signal": "TERM", "grace": 1.0, "n": 9}),
    "a number that cannot be": encode({"type": "finish", "signal": 999, "grace": 1.0, "n": 9}),
    "not a number": b'{"type":"finish","signal":15,"grace":NaN,"n":9}\n',
    "no such question": encode({"type": "ask", "question": "life"}),
    "a question without its fields": encode({"type": "ask", "question": "listen"}),
    "a zero byte": encode({"type": "ask", "question": "stop", "run": "a\0b", "grace": None}),
    "too much data": b'{"type":"stdin","rank":0,"n":9,"size":99999999999}\n',
    "changes out of order": encode({"type": "changes", "last": True}, b"x"),
    "too long": b'{"type":"',  # and more, which each process of the tests would make while it collects them
}
TOO_LONG = 66 << 20


def up(run: Run, place: Path) -> int:
    """Start a rank that takes its time to end; return its pid."""
    run.prepare()
    run.start("sh", "-c", f"trap 'exit 3' TERM; echo $$ >{place}; echo up; while :; do sleep 0.05; done")
    run.until(Output)
    return int(place.read_text())


def rest(run: Run) -> list[Event]:
    """What comes up to the agent's last word; then the client hangs up."""
    events = []
    for event in run._coming:
        events.append(event)
        run.session.acknowledge(run.session.place)
        if isinstance(event, Gone):
            run.session.close()
            break
    return events


@pytest.mark.parametrize("name", WRONG)
def test_a_bad_request_ends_the_run_and_the_client_reads_why(agent: Run, tmp_path: Path, name: str) -> None:
    pid = up(agent, tmp_path / "pid")
    agent.session._sender.send(WRONG[name] + (b"x" * TOO_LONG + b'"}\n') * (name == "too long"))
    events = rest(agent)
    (failed,) = [event for event in events if isinstance(event, PrepareFailed)]
    assert failed.step == "agent"
    assert failed.message.startswith("its client does not speak our protocol: ")
    assert failed.message.isprintable()
    assert isinstance(events[-1], Gone)
    assert not os.path.exists(f"/proc/{pid}")


def test_on_each_python(opener: Open, python: str, tmp_path: Path) -> None:
    agent = opener(python)
    pid = up(agent, tmp_path / "pid")
    agent.session._sender.send(WRONG["a wrong type"])
    assert isinstance(rest(agent)[-1], Gone)
    assert not os.path.exists(f"/proc/{pid}")


def test_a_start_of_a_host_that_was_not_prepared_is_refused(agent: Run) -> None:
    agent.lock()
    agent.session.start(["true"], [])
    assert isinstance(agent.until(PrepareFailed), PrepareFailed)
    assert isinstance(rest(agent)[-1], Gone)


VALUES = st.sampled_from([None, True, -1, 1 << 70, 0.5, "x", "\0", [], {}, [[]], {"a": None}])
FIELDS = [
    "n",
    "rank",
    "argv",
    "ranks",
    "finds",
    "detach",
    "grace",
    "signal",
    "commands",
    "force",
    "question",
    "run",
    "env",
]


@settings(max_examples=times(8, full=25), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(sorted(message.NAME for message in REQUESTS)),
    fields=st.dictionaries(st.sampled_from(FIELDS), VALUES),
)
def test_no_request_leaves_a_process(opener: Open, tmp_path: Path, kind: str, fields: dict[str, object]) -> None:
    agent = opener(sys.executable)
    pid = up(agent, tmp_path / "pid")
    frame = {**fields, "type": kind}
    try:
        REQUESTS.read(frame)
    except FrameError:
        agent.session._sender.send(encode(frame))
    else:
        agent.session.finish(9, 0.0)
    assert not [event for event in rest(agent) if isinstance(event, Lost)]
    assert not os.path.exists(f"/proc/{pid}")


FIRST = [b"nothing\n", b"{}\n", b'{"type":"begin"}\n', b'{"type":"follow","marker":"m"}\n', b'{"type":"bye"}\n']


@pytest.fixture
def installed(opener: Open, any_python: str) -> Iterator[None]:
    """Keep this version of the agent on this machine, so that no agent asks for it."""
    place = blob._key(), sum(map(len, blob._sources().values()))
    before = open_descriptors()
    if not find(*place):
        opener(any_python).lock()
        before = open_descriptors()
        assert find(*place)
    held = open_descriptors() - before
    yield
    for descriptor in held:
        os.close(int(descriptor))


@pytest.mark.parametrize("frame", FIRST)
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "kept"])
def test_a_bad_first_message_ends_the_agent(frame: bytes, waits: bool, any_python: str, installed: None) -> None:
    command = start_command(any_python)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as agent:
        assert agent.stdin
        assert agent.stdout
        agent.stdin.write(opening() if waits else opening() + frame)
        if waits:
            time.sleep(2 * FIRST_MESSAGE_S)
            agent.stdin.write(frame)
        assert agent.stderr
        said = agent.stderr.read()
        assert agent.wait() == 0
    assert b"its client does not speak our protocol: " in said
    assert b"Traceback" not in said


@pytest.mark.parametrize(("protocol", "hint"), [(0, b"mesh stop RUN"), (2, b"pipx install --force .")])
def test_a_first_message_of_another_version_is_refused_with_both_versions(
    protocol: int, hint: bytes, any_python: str, installed: None
) -> None:
    with subprocess.Popen(
        start_command(any_python), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as agent:
        assert agent.stdin
        assert agent.stderr
        agent.stdin.write(opening() + encode({"type": "begin", "protocol": protocol, "marker": "m"}))
        printed = agent.stderr.read()
        assert agent.wait() == 0
    assert b"speaks protocol %d, this mesh speaks 1" % protocol in printed
    assert hint in printed


AT_DOOR: list[object] = [
    3,
    [],
    {},
    {"type": "stop"},
    {"type": "riddle"},
    {"type": "pass"},
    {"type": "channel", "have": 0.5},
]


@pytest.mark.parametrize("asked", AT_DOOR)
def test_a_bad_request_at_the_door_changes_nothing(agent: Run, tmp_path: Path, asked: object) -> None:
    pid = up(agent, tmp_path / "pid")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as visitor:
        visitor.connect(sockets.socket_path(f"run-{os.getpid()}", 0))
        visitor.settimeout(60.0)
        visitor.send(json.dumps(asked).encode())
        assert visitor.recv(100) == b""
    (told,) = requests.runs(f"run-{os.getpid()}", 60.0)
    assert told.state == "running"
    assert os.path.exists(f"/proc/{pid}")
    assert agent.finish().left == ()


def test_a_detached_run_only_loses_such_a_client(agent: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "STATUS_TIMEOUT_S", 0.1)  # the agent goes on: it has no exit status
    pid = up(agent, tmp_path / "pid")
    agent.session.detach()
    assert eventually(lambda: requests.runs(f"run-{os.getpid()}")[0].detached)
    agent.session._sender.send(b"nothing\n")
    assert not [event for event in rest(agent) if isinstance(event, PrepareFailed | Connected)]
    assert os.path.exists(f"/proc/{pid}")
    requests.stop_runs(f"run-{os.getpid()}", 60.0)
    assert eventually(lambda: not os.path.exists(f"/proc/{pid}"))
