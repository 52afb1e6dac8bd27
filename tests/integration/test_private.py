"""Sockets of agents are for their own user, and a run opens no TCP port."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from tests.conftest import Home
from tests.lab import Lab

pytestmark = [pytest.mark.root, pytest.mark.sshd]

CONNECT = """\
import os, socket, sys
path = sys.argv[1]
way = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
if sys.argv[2] == "other":
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    way.connect(path)
    print("connected")
except PermissionError:
    print("refused")
"""


def test_another_user_cannot_connect_to_the_control_socket(pod: Home, lab: Lab) -> None:
    process = pod.popen("run", "pod", "sh", "-c", "echo up; exec sleep 1000")
    assert process.stdout is not None
    process.stdout.readline()
    host = lab.hosts[0]
    sockets = [path.name for path in host.path("/tmp/mesh-0").iterdir() if path.is_socket()]
    found = {
        who: host.run("python3", "-c", CONNECT, f"/tmp/mesh-0/{name}", who).strip()
        for name in sockets
        for who in ("other", "own")
    }
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert found == {"other": "refused", "own": "connected"}


LISTENING = "0A"  # include/net/tcp_states.h


def listening(pid: int) -> list[str]:
    """Return the TCP ports that a process listens on."""
    links = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # it is closed by now
            links.append(os.readlink(path))
    tables = [Path(f"/proc/{pid}/net/{kind}").read_text() for kind in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()]
    return [row[1] for row in rows if row[3] == LISTENING and f"socket:[{row[9]}]" in links]


def test_a_run_opens_no_tcp_port_on_either_side(pod: Home, lab: Lab) -> None:
    (pod.project / "big").write_bytes(os.urandom(2_000_000))
    process = pod.popen("run", "--no-fanout", "pod", "sh", "-c", "echo up; exec sleep 1000")
    assert process.stdout is not None
    for _ in lab.hosts:
        process.stdout.readline()
    ours = listening(process.pid)
    theirs = [host.run("ss", "-Hltn").count("LISTEN") for host in lab.hosts]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert (ours, theirs) == ([], [2] * len(lab.hosts))  # sshd, on IPv4 and IPv6
