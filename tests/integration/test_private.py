"""Sockets of agents are for their own user."""

from __future__ import annotations

import signal

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
