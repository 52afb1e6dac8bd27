"""The events of a program's nodes, which are ranks that call each other."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from mesh.core.cluster import NodeSockets
from mesh.core.events import Event, RankEvent


class RankReady(RankEvent, frozen=True, kw_only=True, tag="rank-ready"):
    """The node is ready for calls."""

    attempt: int  # 0: its first start


class AllReady(Event, frozen=True, kw_only=True, tag="all-ready"):
    """All nodes that report it are ready. The supervisor makes it for the sinks, once."""


class Restarting(RankEvent, frozen=True, kw_only=True, tag="restarting"):
    """The process of a node, or of a rank, has ended, and the agent starts it again."""

    attempt: int  # that comes, 1 ..
    seconds: float  # until then
    code: int = 0  # exit status of the process that has ended
    signal: int = 0  # that ended it; 0: none did


class Restarted(RankEvent, frozen=True, kw_only=True, tag="restarted"):
    """The node or rank was started again; a node has the same sockets and files."""

    attempt: int
    pid: int


class Arrived(RankEvent, frozen=True, kw_only=True):
    """The rank was started on another host. Its streams go on there after what the hosts before have printed."""

    attempt: int
    printed: Mapping[str, int]  # bytes of each stream before


class Moving(RankEvent, frozen=True, kw_only=True, tag="moving"):
    """The rank leaves its host, and starts again on another one. The supervisor makes it for the sinks."""

    to: str  # name of the other host
    seconds: float = 0.0  # until then, at most: the processes on a lost host have ended by then
    why: str = ""  # its host is lost; "": a client has asked for it


class MoveAsked(RankEvent, frozen=True, kw_only=True):
    """A client has asked the rank's agent to move the rank to another host."""

    to: int  # index of the host
    grace: float  # seconds from SIGTERM to SIGKILL


class Released(RankEvent, frozen=True, kw_only=True):
    """Every process of a rank that moves has ended, and all of its output has come."""

    attempt: int  # that comes, 1 ..
    code: int = 0  # exit status of its process
    signal: int = 0  # that ended it; 0: none did


class Kept(RankEvent, frozen=True, kw_only=True):
    """The rank cannot leave its host."""

    why: str


class Adopted(RankEvent, frozen=True, kw_only=True):
    """The host to which a node moves has opened its sockets."""

    sockets: NodeSockets


class ProgramStopped(RankEvent, frozen=True, kw_only=True, tag="program-stopped"):
    """The node has ended its program."""

    code: int  # exit status of the program
    why: str = ""


class PairRelayed(RankEvent, frozen=True, kw_only=True, tag="pair-relayed"):
    """The node reaches those of another host only through the client: the direct connection has failed."""

    to: str  # the label of the first such node that it has called
    why: str


class NodeResult(RankEvent, frozen=True, kw_only=True):
    """A piece of the node's result, which mesh never evaluates."""

    data: bytes
    is_last: bool


def told_end(code: int, number: int, *, is_oom: bool = False) -> str:
    """Return how a process has ended, for people. number: of the signal that ended it; 0: none did

    >>> told_end(3, 0), told_end(0, 9, is_oom=True), told_end(0, 0)
    ('exit 3', 'ended by SIGKILL: out of memory', 'it has ended')
    """
    if not number:
        return f"exit {code}" if code else "it has ended"
    try:
        how = f"ended by {signal.Signals(number).name}"
    except ValueError:
        how = f"ended by signal {number}"
    return f"{how}: out of memory" if is_oom else how
