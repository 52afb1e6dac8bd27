"""Answers of hosts to the questions of a check, for tests of what is made of them."""

from __future__ import annotations

from mesh.protocol.kinds import as_it_is
from mesh.protocol.replies import Facts

HEALTHY = {
    "user": "me",
    "python": "3.11.2",
    "bash": True,
    "problem": "",
    "place": "/root",
    "disk_free": 1 << 40,
    "disk_total": 1 << 40,
    "inodes_free": -1,
    "memory_free": 1,
    "memory_total": 1,
    "name": {"name": "h"},
    "lock": None,
    "devices": {},
    "versions": None,
    "worker": None,
    "ends_with": "",
    "others": [],
    "sees_others": True,
    "driver": "",
    "paths": {},
    "programs": {},
    "addresses": [],
}


def facts(**changes: object) -> Facts:
    """Return the answer of a healthy host. changes: fields, as a message has them"""
    return Facts.take({**HEALTHY, **changes}, as_it_is)
