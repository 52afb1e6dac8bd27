"""Interfaces of sources of hosts."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Protocol, runtime_checkable

from msgspec import Struct

from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError
from mesh.core.findings import Finding


class Purpose(Enum):
    """Use of the hosts of a cluster, on which depends how hard its source tries to find them."""

    RUN = "run"  # all hosts, ready for a run
    ASK = "ask"  # the hosts that there are, for a question
    CHECK = "check"  # as RUN, but makes no host, and includes hosts that a run could not use
    PLAN = "plan"  # as RUN, to show a plan; hosts not yet made may get other names
    LIST = "list"  # as RUN, for people; no host is made
    REFRESH = "refresh"  # as LIST, without anything that the source has remembered


class HostSource(Protocol):
    """Source of the hosts of some clusters."""

    def find(self, cluster: Cluster, purpose: Purpose) -> Cluster:
        """Return the cluster with its hosts. Raises NoHosts if a run would make them, and MeshError."""

    def check(self, cluster: Cluster) -> Sequence[Finding]:
        """Return findings that need no host, such as rights; () if there are none. Raises MeshError."""

    def forget(self, cluster: Cluster) -> None:
        """Look for the hosts anew the next time: some of them were not as found."""

    def origin(self, cluster: Cluster) -> str:
        """Return where the hosts come from, to complete the sentence "its hosts ..."."""


@runtime_checkable
class Reporter(Protocol):
    """A source that makes hosts, and shows on stderr how far it is."""

    is_quiet: bool  # set before `find`, to show nothing but trouble


# ---- hosts that are made for jobs


class How(Enum):
    """How hosts that were asked for are."""

    READY = "ready"  # each is there, with all addresses
    FEWER = "fewer"  # READY, with fewer hosts than the accelerator's name lets expect: some may be missing
    OTHER_COUNT = "other count"  # READY, with more hosts than that, or of a type that is not in the table
    PENDING = "pending"
    LOST = "lost"  # some are gone for good, and the rest must be deleted
    MISSING = "missing"  # the same by the absence of some, which needs a second look some time later
    ABSENT = "absent"  # none is there
    ENDED = "ended"  # none is there, by a record of their end or an answer that cannot be too old
    UNKNOWN = "unknown"  # the API gave no complete answer, or has a state that this client does not have a word for


class Why(Enum):
    """The kind of a refusal."""

    CAPACITY = "capacity"  # no quota, or no machines of this kind now
    PERSON = "person"  # no permission, a wrong word, a name that is somebody else's: the same tomorrow


class NotMade(MeshError):
    """A request for hosts that was refused."""

    def __init__(self, why: Why, message: str, *, hint: str = "", has_rest: bool = False) -> None:
        """has_rest: some hosts were made, and must be deleted"""
        super().__init__(message, hint=hint)
        self.why, self.has_rest = why, has_rest


class Wish(Struct, frozen=True, kw_only=True):
    """Hosts that may be made for a job, under a name that is used once."""

    name: str
    cluster: Cluster  # with its source, and without hosts
    directory: Path  # of the job, on this machine
    user: str = ""  # of the job; "": that of this process
    keys: tuple[str, ...] = ()  # of the hosts when they were ready; (): they were not yet
    is_unsure: bool = False  # an earlier request for them had no answer, and none has found them since
    condemned: float = 0.0  # seconds since the epoch when their deletion was decided; 0: it was not


class Stand(Struct, frozen=True, kw_only=True):
    """How the hosts of a wish are, by one complete answer."""

    how: How
    text: str  # for people; equal as long as nothing changes
    is_waiting: bool = False  # with PENDING: in the scheduler's queue
    is_deleting: bool = False  # all of them
    is_ended: bool = False  # no process runs on any of them, although they are still listed
    is_final: bool = False  # with LOST: a person must change the request
    hint: str = ""  # with is_final
    cluster: Cluster | None = None  # with READY: with its hosts
    keys: tuple[str, ...] = ()  # with READY: of the hosts
    rest: tuple[str, ...] = ()  # with LOST: names of hosts that are still there


class HostMaker(Protocol):
    """Source that makes hosts for jobs. Each call may be repeated: one name never makes two sets of hosts."""

    def make(self, wish: Wish) -> None:
        """Ask for hosts, or find that they are asked for. Raises NotMade, and MeshError if that is not certain."""

    def look(self, wishes: Sequence[Wish]) -> Sequence[Stand | None]:
        """Return how the hosts of each wish are; None where there was no complete answer."""

    def delete(self, wish: Wish) -> Sequence[str]:
        """Send the deletion of all that is there of a wish; return its names. Raises MeshError."""

    def fixed(self, cluster: Cluster) -> Cluster:
        """Return a cluster with all that its source leaves to this machine's settings of now. Raises UsageError."""

    def knows(self, cluster: Cluster) -> bool:
        """Return True if hosts that were ready can be reached by what was recorded on this machine."""
