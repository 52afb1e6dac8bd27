"""The questions of a client to an agent, each with the record of its answer.

On the wire, all of them have the type ``ask`` and their name in ``question``. The message ``answer`` brings the answer;
``Question.read`` checks it, because the answer depends on the question: it has what was asked for, and no more.
"""

from __future__ import annotations

from .figures import Figures
from .frames import FrameError
from .kinds import (
    NAME,
    OPEN_PORT,
    PORT,
    PORT_MAX,
    RANK,
    RANK_OR_NONE,
    SECONDS,
    SHOWN,
    SIGNAL,
    TEXT,
    TEXTS,
    TRUTH,
    VARIABLES,
    Wrong,
    either,
    integer,
    listed,
    named,
    nullable,
    text,
    within,
    word,
)
from .messages import Table
from .records import Row, field, fields_of, record
from .replies import (
    A_PATH,
    PROGRAM,
    PYTHON,
    AllPassed,
    Cleaned,
    Facts,
    Gpus,
    Journals,
    LeftAlone,
    NewProcesses,
    Nothing,
    Ports,
    Runs,
    Stacks,
    Stopped,
    Trial,
    Tried,
    WantsTool,
    Worker,
)
from .requests import Order
from .typed import Generic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeVar, Union

    from .frames import Header
    from .kinds import Clean, Kind

    R = TypeVar("R", covariant=True)
    StacksAnswer = Union[Stacks, WantsTool]
else:
    R = StacksAnswer = None

TARGETS_MAX = 16
KEY = text(1 << 10)


class Question(Order, Generic[R]):
    """A question. R: the record of its answer"""

    def header(self) -> Header:
        return {"type": "ask", "question": self.NAME, **fields_of(self)}

    def answered_by(self, *, has_enclosed: bool) -> Kind[R]:
        """Return the kind of the answer. has_enclosed: the question came with bytes"""
        raise NotImplementedError

    def read(self, answer: object, clean: Clean, *, has_enclosed: bool = False) -> R:
        """Return the answer, checked. Raises FrameError.

        clean: the filter for texts that the reader shows; has_enclosed: the question came with bytes
        """
        try:
            return within("answer", self.answered_by(has_enclosed=has_enclosed), answer, clean)
        except Wrong as wrong:
            raise FrameError(f"{self.NAME}: {wrong}") from None


class Check(Question[Facts], name="check"):
    """Asks for the properties of the host."""

    project: str = field(TEXT)  # the workspace's directory
    env: Mapping[str, str] = field(VARIABLES)
    venv: str | None = field(nullable(TEXT))  # "": none; None: look for no versions
    devices: Sequence[str] = field(TEXTS)  # patterns
    paths: Sequence[str] = field(TEXTS)
    programs: Sequence[str] = field(TEXTS)
    lock: bool = field(TRUTH)  # look for the lock, and for other users' runs
    worker: bool = field(TRUTH)  # look for the number in a TPU
    workspaces: bool = field(TRUTH, default=False)  # look for the sizes of workspaces

    def answered_by(self, *, has_enclosed: bool) -> Kind[Facts]:
        return record(
            Facts,
            versions=nullable(PYTHON) if self.venv is None else PYTHON,
            paths=named(self.paths, A_PATH),
            programs=named(self.programs, PROGRAM),
        )


class Listen(Question[Ports], name="listen"):
    """Has the host listen for connections of the others."""

    key: str = field(KEY)
    ports: Sequence[int] = field(listed(integer(-1, PORT_MAX), TARGETS_MAX))

    def answered_by(self, *, has_enclosed: bool) -> Kind[Ports]:
        count = len(self.ports)
        return record(Ports, ports=listed(either(OPEN_PORT, SHOWN), count, count))


class Target(Row):
    """An address that another host listens at."""

    address: str = field(TEXT)
    port: int = field(PORT)


class Try(Question[Tried], name="try"):
    """Has the host connect to others."""

    key: str = field(KEY)
    targets: Sequence[Target] = field(listed(record(Target)))

    def answered_by(self, *, has_enclosed: bool) -> Kind[Tried]:
        count = len(self.targets)
        return record(Tried, tried=listed(record(Trial), count, count))


class Hush(Question[Nothing], name="hush"):
    """Has the host listen no more."""

    def answered_by(self, *, has_enclosed: bool) -> Kind[Nothing]:
        return record(Nothing)


class AskWorker(Question[Worker], name="worker"):
    """Asks for the number of the host in its TPU."""

    def answered_by(self, *, has_enclosed: bool) -> Kind[Worker]:
        return record(Worker)


class AskGpus(Question[Gpus], name="gpus"):
    """Asks how many GPUs the host has."""

    def answered_by(self, *, has_enclosed: bool) -> Kind[Gpus]:
        return record(Gpus)


class AskFigures(Question[Figures], name="figures"):
    """Asks for the use of CPU, memory, disk, network and GPUs."""

    seconds: float = field(SECONDS)  # between the two readings

    def answered_by(self, *, has_enclosed: bool) -> Kind[Figures]:
        return record(Figures)


class AskRuns(Question[Runs], name="runs"):
    """Asks for all runs of the user on the host."""

    def answered_by(self, *, has_enclosed: bool) -> Kind[Runs]:
        return record(Runs)


class AskJournals(Question[Journals], name="tapes"):
    """Asks for all journals of the user's runs on the host."""

    def answered_by(self, *, has_enclosed: bool) -> Kind[Journals]:
        return record(Journals)


class Detach(Question[LeftAlone], name="detach"):
    """Has a run go on without its client."""

    run: str = field(NAME)

    def answered_by(self, *, has_enclosed: bool) -> Kind[LeftAlone]:
        return record(LeftAlone)


class Pass(Question[AllPassed], name="pass"):
    """Signals ranks of a run as their user would."""

    run: str = field(NAME)
    signal: int = field(SIGNAL)
    ranks: Sequence[int] | None = field(nullable(listed(RANK)))  # None: all
    id: str = field(NAME)  # the same signal may come through several hosts of one machine

    def answered_by(self, *, has_enclosed: bool) -> Kind[AllPassed]:
        return record(AllPassed)


class Restart(Question[NewProcesses], name="restart"):
    """Has ranks of a run started again in place of their processes."""

    run: str = field(NAME)
    ranks: Sequence[int] = field(listed(RANK))
    grace: float | None = field(nullable(SECONDS))  # from SIGTERM to SIGKILL; None: as the run was started with
    to: int = field(RANK_OR_NONE, default=-1)  # index of the host that they move to; -1: they stay on theirs
    limit: float = field(SECONDS)  # until when the agents answer
    id: str = field(NAME)  # the same request may come through several hosts of one machine

    def answered_by(self, *, has_enclosed: bool) -> Kind[NewProcesses]:
        return record(NewProcesses)


class AskLeftovers(Question[Cleaned], name="clean"):
    """Asks for what runs have left behind, and has it removed."""

    dry_run: bool = field(TRUTH)  # remove nothing

    def answered_by(self, *, has_enclosed: bool) -> Kind[Cleaned]:
        return record(Cleaned)


class AskStacks(Question[StacksAnswer], name="stacks"):
    """Asks for the stacks of all ranks. To an agent with ranks, it is about them and has no fields."""

    run: str | None = field(NAME, default=None)
    tool: Mapping[str, str] | None = field(VARIABLES, default=None)  # "machine", "hash" and "path" of py-spy, or {}

    def answered_by(self, *, has_enclosed: bool) -> Kind[Stacks | WantsTool]:
        offered = (self.tool or {}).get("hash")
        if offered and not has_enclosed:
            return either(record(WantsTool, wants=word(offered)), record(Stacks))
        return record(Stacks)


class Stop(Question[Stopped], name="stop"):
    """Ends a run, or all of them."""

    run: str = field(NAME)  # "": all
    grace: float | None = field(nullable(SECONDS))  # None: as each run was started with

    def answered_by(self, *, has_enclosed: bool) -> Kind[Stopped]:
        return record(Stopped)


class Pull(Question[Nothing], name="pull"):
    """Asks for files. Messages ``piece`` bring them before the answer."""

    paths: Sequence[str] = field(TEXTS)

    def answered_by(self, *, has_enclosed: bool) -> Kind[Nothing]:
        return record(Nothing)


QUESTIONS: Table[Question[object]] = Table(
    *(
        Check,
        Listen,
        Try,
        Hush,
        AskWorker,
        AskGpus,
        AskFigures,
        AskRuns,
        AskJournals,
        Detach,
        Pass,
        AskLeftovers,
        AskStacks,
    ),
    *(Restart, Stop, Pull),
    by="question",
)
