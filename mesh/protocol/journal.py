"""The journal of a detached run: the file that describes it, its frames, and the messages of the process that reads it.

The journal is a directory on the host, and may have been written by another version of mesh. ``about.json`` has its
version; one without is version 0, whose files are those of version 1.
"""

from __future__ import annotations

from .answers import Beat, Exited, Failed, Gone, Notice, Output, Owner, Started
from .kinds import (
    CAUSE,
    COUNT,
    END_SIGNAL,
    LINES,
    OBJECT,
    RANK_OR_NONE,
    SHORT_TEXT,
    SHOWN,
    STATUS,
    TIME,
    TRUTH,
    listed,
    mapping,
)
from .messages import JOURNAL_READER, UPGRADE, VERSION, Message, Table, Versioned, VersionError, read_record
from .nodes import AgentMessage, RankReady, Restarted, Restarting, Taken
from .records import Record, field, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

JOURNAL_VERSION = 1


class About(Record):
    """The contents of ``about.json``, as the agent writes them when a run leaves its client."""

    journal: int = field(VERSION, default=JOURNAL_VERSION, absent=0)
    about: Mapping[str, object] = field(OBJECT, default={})  # the run, as other clients see it
    plan: Mapping[str, object] = field(OBJECT, default={})  # the record Plan, for the client that comes back
    boot: str = field(SHORT_TEXT, default="")  # id of the machine's start
    cgroup: str = field(SHORT_TEXT, default="")  # where the run's processes are
    taken: Sequence[Taken] = field(listed(record(Taken)), default=())  # ranks that have come from other hosts


def read_about(value: object) -> About:
    """Return the contents of ``about.json``. Raises FrameError, as VersionError for a journal of a newer mesh."""
    version = value.get("journal", 0) if isinstance(value, dict) else 0
    if type(version) is int and version > JOURNAL_VERSION:  # other fields may differ as well
        text = f"journal: has format {version}, this mesh reads 0 to {JOURNAL_VERSION} (another version of mesh)"
        raise VersionError(text, UPGRADE)
    return read_record("about.json", About, value)


class Head(AgentMessage, name="head"):
    """Begins a file of the journal: what comes before it."""

    have: Mapping[str, int] = field(mapping(COUNT))  # bytes of each stream
    facts: int = field(COUNT)  # bytes of the file ``facts``


class EndOrdered(AgentMessage, name="end-ordered"):
    """Records why the ranks of a detached run were ended."""

    cause: str = field(CAUSE)
    signal: int = field(END_SIGNAL)
    time: float = field(TIME)
    lost: int = field(RANK_OR_NONE, default=-1)  # index of the host
    reason: str = field(SHOWN, default="")
    code: int = field(STATUS, default=0)  # exit status of the program, with the cause "program"


class ReaderMessage(Message, sender=JOURNAL_READER):
    """A message of the process that reads a journal to a client."""


class Following(ReaderMessage, Versioned, name="following"):
    """Greets the client: the journal is there."""

    time: float = field(TIME)
    machine: str = field(SHOWN)
    is_on: bool = field(TRUTH, default=False)  # the run's agent is there


class CaughtUp(ReaderMessage, name="caught-up"):
    """Reports that the client has all that there is so far."""


class NoAgent(ReaderMessage, name="no-agent"):
    """Reports that the run's agent was killed; the reader has ended what was left, if it may."""

    left: Sequence[str] = field(LINES)
    why: str = field(SHOWN)  # "": unknown
    time: float = field(TIME)  # of the journal's last change


class NoJournal(ReaderMessage, name="no-tape"):
    """Reports that there is no journal of the run."""

    state: str = field(SHOWN)  # of a run that has its client; "": there is no such run
    about: Owner = field(record(Owner))


OF_NODES = (RankReady, Restarting, Restarted)
IN_JOURNAL: Table[AgentMessage] = Table(Head, Started, Output, Exited, Failed, EndOrdered, Notice, Gone, *OF_NODES)
OF_JOURNAL: Table[Message] = Table(
    *(Started, Output, Exited, Failed, Notice, Gone, Beat),
    *(Following, CaughtUp, NoAgent, NoJournal, EndOrdered),
    *OF_NODES,
)
