"""The outcome of a run, and each rank's part in it."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from mesh.core.events import Exited, Lost, PrepareFailed


class Cause(Enum):
    """The cause of the exit status; in run.json it distinguishes a command's 75 from mesh's."""

    COMPLETED = "completed"  # every rank exited 0
    RANK = "rank"  # a rank failed first, or no rank started because hosts do not have the command
    LOST = "lost"  # a host or its agent was lost
    PREPARE = "prepare"  # the command could not be started
    BUSY = "busy"  # another run holds a host
    TIMEOUT = "timeout"
    SIGNAL = "signal"  # the user or the system asked us to end
    OUTPUT_CLOSED = "output-closed"
    DETACHED = "detached"  # the run goes on without the client
    PROGRAM = "program"  # a node has ended its program, with an exit status


EXIT_BUSY = 75  # sysexits.h: EX_TEMPFAIL
EXIT_LOST = 76  # sysexits.h: EX_PROTOCOL
EXIT_TIMEOUT = 124  # as timeout(1)
EXIT_PREPARE = 125  # as docker run
EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND = 126, 127  # as a shell
EXIT_OUTPUT_CLOSED = 141  # 128 + SIGPIPE


class Outcome(Struct, frozen=True, kw_only=True):
    """The end of a run."""

    run: str
    exit_code: int  # 0 .. 255, by the table of docs/ending.md
    cause: Cause
    started: float  # seconds since the epoch: when the ranks started, 0.0 if they never did
    ended: float
    ending_since: float = 0.0  # seconds since the epoch: when mesh began to end ranks, 0.0 if it never did
    unclean: tuple[int, ...] = ()  # hosts, by node, that have not reported that no process of the run is left
    first: Exited | Lost | None = None  # the first failure, if a rank or a host decided
    alike: tuple[int, ...] = ()  # ranks that failed like the first one, and not provably later; itself too
    exits: tuple[Exited, ...] = ()  # of every rank that ended, by rank
    stopped: tuple[int, ...] = ()  # ranks that ended only after mesh had ordered it
    lost: tuple[Lost, ...] = ()  # hosts, by node
    failures: tuple[PrepareFailed, ...] = ()  # hosts that could not be reached or prepared, by node
    unverified: tuple[str, ...] = ()  # processes that may be left, and where: one line each
    goes_on: bool = False  # the run may go on somewhere, so that this is not its end
    moved: tuple[tuple[int, int], ...] = ()  # ranks that ran on another host at last, and the host's index
    signal: int = 0  # the first one that asked for the end, even if the end had come already; 0: none
