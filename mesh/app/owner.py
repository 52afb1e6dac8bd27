"""The owner of a lock: user, machine, boot and process, so that a dead one on this machine is found at once."""

from __future__ import annotations

import getpass
import os
import socket
import time
from pathlib import Path

from mesh.core.cluster import Cluster
from mesh.core.naming import RUN_ID
from mesh.core.paths import runs_directory
from mesh.core.run import RunSpec
from mesh.protocol.answers import Owner
from mesh.rundir.records import State, read_record


def user_name() -> str:
    """Return the name of this user; a number where the machine has none, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def owner_of(spec: RunSpec, cluster: Cluster) -> dict[str, object]:
    """Return the text of the lock on the hosts, for clients that find it."""
    return {
        "run": spec.run,
        "watch": spec.watch,
        "cluster": cluster.name,
        "hosts": len(cluster.hosts),  # so that `mesh ps` counts the answers
        "user": user_name(),
        "machine": socket.gethostname(),
        "boot": _boot(),
        "pid": os.getpid(),
        "start": _start_of(os.getpid()),
        "since": time.time(),
        "command": (spec.told or f"mesh {spec.kind.value}")[:200],
        "name": spec.name,
        "tags": list(spec.tags),
    }


class Owners:
    """Answers which runs have no client any more, for one command of mesh."""

    def __init__(self) -> None:
        self._ended: dict[str, bool] = {}  # by the ids of runs: a thousand hosts may name the same run

    def is_dead(self, owner: Owner) -> bool:
        """Return True if the owner has died, or its run has ended. Owners on other machines count as alive.

        owner: the one in the lock of a host, or one with a run alone
        """
        if owner.detached:
            return False
        run = owner.run
        if run not in self._ended:
            self._ended[run] = has_ended(run)
        return self._ended[run] or is_dead(owner)


def has_ended(run: str) -> bool:
    """True if a run of this user has ended, as its directory on this machine records it.

    A detached run is none of these: its hosts decide when it ends.
    """
    if not RUN_ID.fullmatch(run):  # it comes from a host, and names a directory here
        return False
    record = read_record(runs_directory(os.environ) / run)
    return record.state is State.ENDED and not record.about.get("detached")


def is_dead(owner: Owner) -> bool:
    """Return True if the owner has died, and its run with it. Owners on other machines count as alive."""
    if owner.detached:
        return False
    if owner.machine != socket.gethostname() or not _boot():
        return False
    if owner.boot != _boot():
        # Containers may share a name, but not their boot with a machine that was started anew.
        return bool(owner.boot)
    if owner.start.partition(" ")[0] != _start_of(os.getpid()).partition(" ")[0] or owner.pid is None:
        return False  # a container's processes have numbers of their own
    return _start_of(owner.pid) != owner.start


def _boot() -> str:
    """Return an id that changes with each start of the machine; "" where there is none (macOS)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _start_of(pid: int) -> str:
    """When a process started, and in which PID namespace; "" if there is none, or only what its parent has not seen."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        started = "" if state in "ZX" else fields[18]
        return f"{os.readlink(f'/proc/{pid}/ns/pid')} {started}"
    except OSError:
        return ""
