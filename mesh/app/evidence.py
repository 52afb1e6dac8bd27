"""Looks at machines as evidence, and the files that have the hosts of generations."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mesh.app.silences import PROBE_INTERVAL_S
from mesh.core.cluster import Cluster
from mesh.hosts.interfaces import How
from mesh.jobs.interfaces import NoAnswer
from mesh.jobs.values import Generation, Job

ABSENT_AGAIN_S = 20.0  # between the two looks that prove machines absent
LOST_AGAIN_S = 2.0  # between the two looks that prove a state as PREEMPTED
FEWER_AGAIN_S = 120.0  # between two looks that prove a TPU complete with fewer hosts than its name lets expect
LIST_INTERVAL_S = 5.0  # between two lists of a zone, for all jobs in it
QUEUE_INTERVAL_S = 30.0  # the same where all wait in Google's queue, which may take days
HURRIED_INTERVAL_S = 2.0  # the same where machines have just been asked for or condemned, while HURRIED_S last
HURRIED_S = 60.0
HOSTS_FILE = "machines-g{}.json"  # in a job's directory: the hosts of a generation


class Pace(Struct, frozen=True, kw_only=True):
    """The pauses of a maker, in seconds."""

    absent_again: float = ABSENT_AGAIN_S
    lost_again: float = LOST_AGAIN_S
    fewer_again: float = FEWER_AGAIN_S
    list_interval: float = LIST_INTERVAL_S
    queue_interval: float = QUEUE_INTERVAL_S
    hurried_interval: float = HURRIED_INTERVAL_S
    probe_interval: float = PROBE_INTERVAL_S


class Judged(Protocol):
    """A look at machines."""

    @property
    def how(self) -> How: ...

    @property
    def text(self) -> str: ...

    @property
    def is_ended(self) -> bool: ...


class Evidence:
    """Looks that may prove machines gone or complete: each needs a second one, from another answer of the API."""

    def __init__(self, pace: Pace) -> None:
        self._pauses = {
            How.LOST: pace.lost_again,
            How.MISSING: pace.absent_again,
            How.ABSENT: pace.absent_again,
            How.OTHER_COUNT: pace.absent_again,
            How.FEWER: pace.fewer_again,
        }
        self._first: dict[str, tuple[str, float]] = {}  # by name: what was seen, and since when
        self._wanted: dict[str, float] = {}  # by name: when a second look proves it

    def is_proved(self, name: str, found: Judged, asked: float) -> bool:
        """Return True if an earlier answer has shown the same. asked: when this one was asked for, monotonic"""
        if found.how not in self._pauses:
            if found.how is not How.UNKNOWN:
                self._first.pop(name, None)
            return True
        what = f"{found.how.value} {found.text} {found.is_ended}"
        before = self._first.get(name)
        if before is None or before[0] != what:
            self._first[name] = what, asked
            self._wanted[name] = asked + self._pauses[found.how]
            return False
        return asked - before[1] >= self._pauses[found.how]

    def wanted_at(self, names: Sequence[str]) -> float:
        """Return when the next second look can prove something about some names, monotonic; infinity if none does."""
        return min((self._wanted[name] for name in names if name in self._first), default=math.inf)


def generation_of(job: Job, number: int) -> Generation:
    """Return a generation of a job."""
    return next(one for one in job.generations if one.number == number)


def write_hosts(path: Path, cluster: Cluster) -> None:
    """Write the hosts of a generation, in one step. Raises NoAnswer."""
    new = path.with_suffix(".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(replace(cluster, source=None)))
        new.replace(path)
    except OSError as error:
        raise NoAnswer(f"cannot write {path}: {error.strerror}") from error


def read_hosts(path: Path) -> Cluster | None:
    """Return the hosts of a generation; None without a file that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Cluster)
    except (OSError, msgspec.MsgspecError):
        return None
