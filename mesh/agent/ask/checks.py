"""The properties of a host before a run, read without changing anything there."""

from __future__ import annotations

import os
import socket
import sys
from functools import partial

from mesh.agent.ask.memory import read_memory, shm_total
from mesh.agent.ask.parallel import run_parallel
from mesh.agent.ask.paths import describe
from mesh.agent.ask.reach import own_addresses
from mesh.agent.ask.tpu import worker_number
from mesh.agent.ask.versions import driver, versions
from mesh.agent.ask.workspaces import workspace_sizes
from mesh.agent.base.directories import Directories, machine_directory
from mesh.agent.base.lock import lock_owner
from mesh.agent.control.neighbours import has_place, others
from mesh.agent.detached.logins import ends_with, user_name
from mesh.agent.process.spawning import find_program, first_environment
from mesh.agent.run import devices
from mesh.agent.run.rank import rank_environment
from mesh.protocol.answers import Owner
from mesh.protocol.kinds import as_it_is, either
from mesh.protocol.records import record
from mesh.protocol.replies import (
    A_PATH,
    PROGRAM,
    PYTHON,
    SIZES,
    Facts,
    Failure,
    HostName,
    Nothing,
    ProgramPlace,
    Worker,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh.agent.ask.context import Context
    from mesh.protocol.questions import Check

MARK_BYTES_MAX = 65536
SHOWN = "shown="  # begins the line of a mark that names a thing which stays
SLOW_LIMIT_S = 2.5  # for name servers, mounts of servers that are gone, and start-up files of Python


def facts(question: Check, context: Context) -> Facts:
    """Return the properties of this host that a check compares. Sizes are those for users without privileges."""
    remote_dir = context.remote_dir
    place = os.path.expanduser(remote_dir)
    while not os.path.isdir(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    disk = os.statvfs(place)
    memory = read_memory()
    owner = lock_owner(remote_dir) if question.lock else None
    busy = devices.in_the_way(question.devices)
    slow = _SlowFacts(question, remote_dir)
    return Facts(
        python=".".join(str(number) for number in sys.version_info[:3]),
        bash=find("bash", os.environb.get(b"PATH", os.defpath.encode())) != "",
        user=user_name(),
        place=place,
        problem=_why_not_writable(place),
        disk_free=disk.f_bavail * disk.f_frsize,
        disk_total=disk.f_blocks * disk.f_frsize,
        # Some file systems have no fixed number of them, and report 0 of 0.
        inodes_free=disk.f_favail if disk.f_files else -1,
        memory_free=memory.free,
        memory_total=memory.total,
        memory_limit=memory.limit,
        shm_total=shm_total(),
        addresses=own_addresses(),
        lock=None if owner is None else Owner.take(owner, as_it_is),
        others=others() if question.lock else [],
        sees_others=has_place(),
        devices=Failure(error=str(busy["error"]), hint=str(busy["hint"])) if busy else Nothing(),
        driver=driver(),
        ends_with=ends_with(user_name()),
        name=slow.name(),
        versions=None if question.venv is None else PYTHON.check(slow.answers["versions"], as_it_is),
        worker=Worker.take(slow.answers["worker"], as_it_is) if question.worker else None,
        paths={path: A_PATH.check(slow.answers[f"path {path}"], as_it_is) for path in question.paths},
        modules=of_modules(remote_dir),
        workspaces=SIZES.check(slow.answers["workspaces"], as_it_is) if question.workspaces else None,
        programs={name: PROGRAM.check(slow.answers[f"program {name}"], as_it_is) for name in question.programs},
    )


def of_modules(remote_dir: str) -> list[str]:
    """Return a line for each thing that modules have set up and that stays after runs, as their marks have it."""
    directory, found = os.path.join(machine_directory(remote_dir), "modules"), []
    for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else ():
        path = os.path.join(directory, name)
        if os.path.isfile(path) and os.path.getsize(path) <= MARK_BYTES_MAX:
            with open(path, errors="replace") as file:
                found += [line[len(SHOWN) :].strip() for line in file if line.startswith(SHOWN)]
    return found


class _SlowFacts:
    """Properties whose look-up may hang, each looked up in a process of its own."""

    def __init__(self, question: Check, remote_dir: str) -> None:
        workspace = Directories(remote_dir, question.project).workspace
        given = {os.fsencode(name): os.fsencode(value) for name, value in question.env.items()}
        environment = rank_environment(first_environment(), given, workspace)
        venv = question.venv
        if venv:
            venv = _expanded(venv, workspace)
            environment[b"PATH"] = os.fsencode(venv) + b"/bin:" + environment[b"PATH"]
        works: dict[str, Callable[[], object]] = {"name": _resolve_own_name}
        if venv is not None:
            works["versions"] = partial(versions, environment, venv)
        if question.worker:
            works["worker"] = worker_number
        if question.workspaces:
            works["workspaces"] = partial(workspace_sizes, remote_dir)
        for path in question.paths:
            works[f"path {path}"] = partial(describe, _expanded(path, workspace))
        for name in question.programs:
            works[f"program {name}"] = partial(_program, name, environment[b"PATH"])
        self.answers = run_parallel(works, SLOW_LIMIT_S)

    def name(self) -> HostName:
        """Return the host's own name, and why it cannot be resolved here."""
        found = either(record(Failure), record(Nothing)).check(self.answers["name"], as_it_is)
        return HostName(name=socket.gethostname(), error=found.error if isinstance(found, Failure) else "")


def _expanded(path: str, workspace: str) -> str:
    return os.path.join(workspace, os.path.expanduser(os.path.expandvars(path)))


def _resolve_own_name() -> Nothing:
    """Resolve the host's own name, by which libraries find their host. Raises OSError."""
    socket.getaddrinfo(socket.gethostname(), None)
    return Nothing()


def _program(name: str, path: bytes) -> ProgramPlace:
    return ProgramPlace(place=find(name, path))


def find(name: str, path: bytes) -> str:
    """Return the path of a program on PATH, or as it was named; "" if it is not there, or cannot be executed."""
    try:
        found = find_program(os.fsencode(name), path)
    except OSError:
        return ""
    return os.fsdecode(found) if os.path.isfile(found) and os.access(found, os.X_OK) else ""


def _why_not_writable(place: str) -> str:
    """Return the reason why no file can be written there, or "". Remote file systems need an attempt."""
    path = os.path.join(place, f".mesh-check-{os.getpid()}")
    try:
        with open(path, "xb") as file:
            os.unlink(path)
            file.write(b"mesh")
    except OSError as error:
        return error.strerror or str(error)
    return ""
