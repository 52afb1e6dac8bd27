"""What a host can tell about itself before a run, without changing anything for one."""

from __future__ import annotations

import os
import socket
import sys
import time
from functools import partial

from . import devices
from .errand import side_by_side
from .logins import ends_with, user_name
from .neighbours import has_place, others
from .paths import describe
from .ranks import rank_environment
from .reach import own_addresses
from .spawning import find_program, first_environment
from .state import State, lock_owner
from .versions import driver, versions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PATIENCE = 2.5  # seconds for what may hang: name servers, mounts of servers that are gone, start-up files of Python


def facts(question: dict[str, Any], remote_dir: str) -> dict[str, Any]:
    """Python, shell, user, time, the place where mesh keeps its files, memory, names, addresses, and what is asked for.

    question: "project", "env" and "venv" of the ranks ("venv": the directory, "" for none, None: do not look for
    versions), "paths" and "programs" to look for, "devices", patterns, "lock", whether to look at it, and "worker",
    whether the host has a number in a TPU
    ``problem`` is why nothing can be written in ``place``, or ""; sizes are in bytes, for users without privileges.
    """
    place = os.path.expanduser(remote_dir)
    while not os.path.isdir(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    disk = os.statvfs(place)
    return {
        "python": ".".join(str(number) for number in sys.version_info[:3]),
        "bash": find("bash", os.environb.get(b"PATH", os.defpath.encode())) != "",
        "user": user_name(),
        "time": time.time(),
        "place": place,
        "problem": _why_not_writable(place),
        "disk_free": disk.f_bavail * disk.f_frsize,
        "disk_total": disk.f_blocks * disk.f_frsize,
        # Some file systems have no fixed number of them, and say 0 of 0.
        "inodes_free": disk.f_favail if disk.f_files else -1,
        **_memory(),
        "addresses": own_addresses(),
        "lock": lock_owner(remote_dir) if question["lock"] else None,
        "others": others() if question["lock"] else [],
        "sees_others": has_place(),
        "devices": devices.in_the_way(question["devices"]),
        "driver": driver(),
        "ends_with": ends_with(user_name()),
        **_slow_facts(question, State(remote_dir, question["project"]).workspace),
    }


def _slow_facts(question: dict[str, Any], workspace: str) -> dict[str, Any]:
    """What may hang."""
    given = {os.fsencode(name): os.fsencode(value) for name, value in question["env"].items()}
    environment = rank_environment(first_environment(), given, workspace)
    venv = question["venv"]
    if venv:
        venv = _expanded(venv, workspace)
        environment[b"PATH"] = os.fsencode(venv) + b"/bin:" + environment[b"PATH"]
    works = {"name": _own_name}
    if venv is not None:
        works["versions"] = partial(versions, environment, venv)
    if question["worker"]:
        from .tpu import worker_number

        works["worker"] = worker_number
    for path in question["paths"]:
        works[f"path {path}"] = partial(describe, _expanded(path, workspace))
    for name in question["programs"]:
        works[f"program {name}"] = partial(_program, name, environment[b"PATH"])
    answers = side_by_side(works, PATIENCE)
    return {
        "name": {"name": socket.gethostname(), **answers["name"]},
        "versions": answers.get("versions"),
        "worker": answers.get("worker"),
        "paths": {path: answers[f"path {path}"] for path in question["paths"]},
        "programs": {name: answers[f"program {name}"] for name in question["programs"]},
    }


def _expanded(path: str, workspace: str) -> str:
    return os.path.join(workspace, os.path.expanduser(os.path.expandvars(path)))


def _own_name() -> dict[str, Any]:
    """Whether what this host calls itself can be resolved here: libraries look themselves up by it."""
    socket.getaddrinfo(socket.gethostname(), None)
    return {}


def _program(name: str, path: bytes) -> dict[str, Any]:
    return {"place": find(name, path)}


def _memory() -> dict[str, int]:
    """What new processes may have, and all there is."""
    found = {}
    with open("/proc/meminfo") as file:
        for line in file:
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0]) * 1024
    return {"memory_free": found.get("MemAvailable", found["MemFree"]), "memory_total": found["MemTotal"]}


def find(name: str, path: bytes) -> str:
    """Where a program is on PATH, or as it was named; "" if it is not there, or cannot be executed."""
    try:
        found = find_program(os.fsencode(name), path)
    except OSError:
        return ""
    return os.fsdecode(found) if os.path.isfile(found) and os.access(found, os.X_OK) else ""


def _why_not_writable(place: str) -> str:
    """Trying is the only way to know, with read-only and remote file systems."""
    path = os.path.join(place, f".mesh-check-{os.getpid()}")
    try:
        with open(path, "xb") as file:
            os.unlink(path)
            file.write(b"mesh")
    except OSError as error:
        return error.strerror or str(error)
    return ""
