"""The answers to questions, as records. questions.py has the questions, each with its answer."""

from __future__ import annotations

from .answers import LOGIN_END, OTHERS, OtherUser, Owner, WorkspaceSizes
from .kinds import (
    ADDRESS,
    ANYTHING,
    COUNT,
    FALSE,
    LINES,
    OPEN_PORT,
    PID,
    PLACE_MAX,
    RANK,
    RANK_MAX,
    RANK_OR_NONE,
    SECONDS,
    SHOWN,
    SIGNED,
    TEXT,
    TEXTS,
    TIME,
    TRUTH,
    Kind,
    Wrong,
    described,
    either,
    integer,
    listed,
    mapping,
    nullable,
    number,
    or_else,
)
from .nodes import Taken
from .records import Record, Row, field, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .kinds import Clean

VERSIONS_MAX = 64  # of packages
RULES_MAX = 64
RULE_NUMBER_MAX = 1e18


class Nothing(Record):
    """An object without fields."""


class Failure(Record):
    """The reason why a part of an answer is missing."""

    error: str = field(SHOWN)
    hint: str = field(SHOWN)
    late: bool = field(TRUTH, default=False)  # it took too long


# ---- runs


class RankState(Record):
    """A rank of a run on the host."""

    rank: int = field(RANK)
    ended: bool = field(TRUTH)
    pid: int = field(or_else(PID, 0), default=0)


class Run(Record):
    """A run as its agent describes it, perhaps an agent of another version."""

    run: str = field(SHOWN)
    node: int = field(RANK_OR_NONE)
    about: Owner = field(record(Owner))
    attached: bool = field(TRUTH)  # a client has it, or follows it
    ranks: Sequence[RankState] = field(listed(record(RankState)))
    state: str = field(SHOWN, default="")
    detached: bool = field(TRUTH, default=False)
    tied: str = field(SHOWN, default="")  # why it cannot be
    devices: Sequence[str] = field(LINES, default=())  # that its processes hold
    grace: float | None = field(or_else(SECONDS, None), default=None)  # from SIGTERM to SIGKILL
    workspace: str = field(or_else(TEXT, ""), default="")
    began: float | None = field(or_else(TIME, None), default=None)
    processes: int = field(or_else(COUNT, 0), default=0)


class Orphan(Record):
    """A process of a run whose agent is gone."""

    run: str = field(SHOWN)
    told: str = field(SHOWN)  # the process, for people


class Runs(Record):
    """All runs of the user on the host."""

    runs: Sequence[Run] = field(listed(record(Run)))
    orphans: Sequence[Orphan] = field(listed(record(Orphan)))


class Plan(Record):
    """A detached run, as a client needs it to follow it; the client that started it has written it."""

    cluster: str = field(SHOWN)
    hosts: Sequence[str] = field(listed(SHOWN, least=1))
    command: Sequence[str] = field(TEXTS)
    nproc: int = field(integer(1, RANK_MAX))
    workspace: str | None = field(TEXT, default=None)
    spec: Mapping[str, object] | None = field(mapping(ANYTHING), default=None)
    created: float | None = field(TIME, default=None)
    slices: Sequence[int] | None = field(listed(RANK), default=None)
    rules: Mapping[str, bool | int | float] | None = field(
        mapping(either(TRUTH, COUNT, number(0.0, RULE_NUMBER_MAX)), RULES_MAX), default=None
    )


PLAN = or_else(record(Plan), None)


class Journal(Record):
    """A journal on the host."""

    run: str = field(SHOWN)
    plan: Plan | None = field(PLAN, default=None)
    taken: Sequence[Taken] = field(listed(record(Taken)), default=())  # ranks that have come to the host


class Journals(Record):
    """All journals of the user's runs on the host."""

    tapes: Sequence[Journal] = field(listed(record(Journal)))


class LeftAlone(Record):
    """The runs that go on without their clients."""

    told: Sequence[Run] = field(listed(record(Run)))


def _counts(value: object, clean: Clean) -> dict[str, int]:
    found = {} if isinstance(value, list) else mapping(COUNT).check(value, clean)
    for name in found:
        if not (name.isascii() and name.isdecimal() and len(name) < 9):
            raise Wrong(f"expected a rank, found {described(name)}")
    return found


COUNTS = Kind(_counts, "object, ranks and how many of their processes; a list for an agent that did not answer")


class Passed(Record):
    """The processes of each rank that were signalled."""

    ranks: Mapping[str, int] = field(COUNTS)


class AllPassed(Record):
    """The same of all agents of a run on the host."""

    told: Sequence[Passed] = field(listed(record(Passed)))


class NewProcess(Record):
    """A rank that was to be started again."""

    rank: int = field(RANK)
    pid: int = field(integer(0, 1 << 31), default=0)  # of its new process; 0: there is none
    why: str = field(SHOWN, default="")  # there is none


class NewProcesses(Record):
    """The ranks of a request for restarts that the agents have."""

    ranks: Sequence[NewProcess] = field(listed(record(NewProcess)))
    agents: int = field(COUNT, default=0)  # of the run on the host
    silent: int = field(COUNT, default=0)  # of those agents: they have not answered in time


class StoppedRun(Record):
    """A run that was ended."""

    run: str = field(SHOWN)


class Stopped(Record):
    """The runs that were ended."""

    stopped: Sequence[StoppedRun] = field(listed(record(StoppedRun)))
    left: Sequence[str] = field(LINES)  # runs of which something is left


class Leftover(Record):
    """A thing that a run has left behind."""

    what: str = field(SHOWN)
    bytes: int = field(COUNT)
    stays: bool = field(TRUTH, default=False)  # it could not be removed


class Cleaned(Record):
    """The things that runs have left behind."""

    found: Sequence[Leftover] = field(listed(record(Leftover)))


# ---- stacks


class Frame(Row):
    """A frame of a stack."""

    function: str = field(SHOWN)
    file: str = field(SHOWN)
    line: int = field(SIGNED)


class RankProcess(Row):
    """A process of a rank."""

    rank: int = field(RANK)
    pid: int = field(PID)


class Note(Row):
    """The reason why some stacks are short."""

    text: str = field(SHOWN)
    hint: str = field(SHOWN)


class Stack(Record):
    """A stack, and the processes that have it."""

    role: str = field(SHOWN)  # "": the rank's own program
    how: str = field(SHOWN)  # it was read
    thread: str = field(SHOWN)
    program: str = field(SHOWN)
    words: str = field(SHOWN)  # the state that the kernel has of the process
    main: bool = field(TRUTH)
    frames: Sequence[Frame] = field(listed(record(Frame)))
    of: Sequence[RankProcess] = field(listed(record(RankProcess), least=1))


class Stacks(Record):
    """The stacks of all ranks on the host."""

    ranks: Sequence[RankState] = field(listed(record(RankState)))
    silent: bool = field(TRUTH)  # an agent does not answer
    stacks: Sequence[Stack] = field(listed(record(Stack)))
    notes: Sequence[Note] = field(listed(record(Note)))


class WantsTool(Record):
    """The tool that the host lacks."""

    wants: str = field(SHOWN)  # its hash, as the question has it


# ---- the host


class Worker(Record):
    """The number of the host in its TPU."""

    number: int | None = field(COUNT, default=None)


class Gpus(Record):
    """The GPUs and the memory of the host."""

    gpus: int = field(COUNT)
    memory: int = field(COUNT, default=0)  # bytes that processes there can have; 0: unknown


class Ports(Record):
    """The ports that the host listens at, in the order of the question."""

    ports: Sequence[int | str] = field(listed(either(OPEN_PORT, SHOWN)))  # or why not


class Trial(Row):
    """The result of an attempt to reach another host."""

    how: str = field(SHOWN)
    detail: str = field(SHOWN)


class Tried(Record):
    """The results, in the order of the question."""

    tried: Sequence[Trial] = field(listed(record(Trial)))


class Address(Row):
    """An address of the host."""

    interface: str = field(SHOWN)
    address: str = field(ADDRESS)
    mtu: int = field(COUNT)


class HostName(Record):
    """The name of the host, and why it cannot be resolved there."""

    name: str = field(SHOWN)
    error: str = field(SHOWN, default="")


class PythonMissing(Record):
    """The path of a Python that is not there."""

    missing: str = field(SHOWN)


class PythonFailure(Record):
    """The reason why a Python could not be asked."""

    error: str = field(SHOWN)
    hint: str = field(SHOWN)
    program: str = field(SHOWN, default="")
    late: bool = field(TRUTH, default=False)


class ProgramPlace(Record):
    """The path of a program; "": it is not on PATH."""

    place: str = field(SHOWN)


class PathAbsent(Record):
    """A path that is not there."""

    there: bool = field(FALSE)


class PathPresent(Record):
    """A path that is there."""

    there: bool = field(TRUTH)
    reads: bool = field(TRUTH)
    writes: bool = field(TRUTH)
    kind: str = field(SHOWN)
    source: str = field(SHOWN)  # of its file system
    type: str = field(SHOWN)  # of its file system
    holds: str = field(SHOWN)  # equal where the contents look the same; "": unknown


def _versions(value: object, clean: Clean) -> dict[str, str]:
    found = mapping(SHOWN, VERSIONS_MAX).check(value, clean)
    for name in ("program", "python"):
        if name not in found:
            raise Wrong(f"no {name}")
    for name in ("error", "missing"):
        if name in found:
            raise Wrong(f"{name}: unexpected")
    return found


VERSIONS = Kind(_versions, "object, versions of packages by name, with `program` and `python`")
PYTHON = either(record(PythonMissing), record(PythonFailure), VERSIONS)
PROGRAM = either(record(Failure), record(ProgramPlace))
SIZES = either(record(Failure), record(WorkspaceSizes))
A_PATH = either(record(Failure), record(PathAbsent), record(PathPresent))


class Facts(Record):
    """The properties of a host that a check compares."""

    python: str = field(SHOWN)
    user: str = field(SHOWN)
    place: str = field(SHOWN)  # where mesh keeps its files
    problem: str = field(SHOWN)  # why they cannot be written there
    driver: str = field(SHOWN)
    bash: bool = field(TRUTH)
    disk_free: int = field(COUNT)  # bytes, as the next three
    disk_total: int = field(COUNT)
    memory_free: int = field(COUNT)
    memory_total: int = field(COUNT)
    inodes_free: int = field(integer(-1, PLACE_MAX))  # -1: not counted
    addresses: Sequence[Address] = field(listed(record(Address)))
    devices: Failure | Nothing = field(either(record(Failure), record(Nothing)))  # that a process holds
    ends_with: str = field(LOGIN_END)
    name: HostName = field(record(HostName))
    others: Sequence[OtherUser] = field(OTHERS)
    sees_others: bool = field(TRUTH)
    lock: Owner | None = field(nullable(record(Owner)))
    versions: PythonMissing | PythonFailure | Mapping[str, str] | None = field(nullable(PYTHON))
    worker: Worker | None = field(nullable(record(Worker)))
    paths: Mapping[str, Failure | PathAbsent | PathPresent] = field(mapping(A_PATH))
    programs: Mapping[str, Failure | ProgramPlace] = field(mapping(PROGRAM))
    modules: Sequence[str] = field(LINES, default=())  # that stay after runs: mounts
    memory_limit: int = field(COUNT, default=0)  # bytes that a container may have; 0: no limit
    shm_total: int = field(integer(-1, PLACE_MAX), default=-1)  # bytes of /dev/shm; -1: there is none
    workspaces: Failure | WorkspaceSizes | None = field(nullable(SIZES), default=None)  # None: not asked for
