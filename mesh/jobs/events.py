"""Events of a job: facts, in the order in which the store has them.

Answers to orders are events too. A hand returns them without `op` and `time`, which the steward fills in.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from mesh.core.job import JobSpec
from mesh.jobs.orders import AnyOrder
from mesh.jobs.turns import Turn
from mesh.jobs.values import Generation, Setup, Wanted


class Event(Struct, frozen=True, kw_only=True, tag_field="event"):
    """A fact about one job."""

    time: float = 0.0  # seconds since the epoch, on the clock of the process that writes it


class Answer(Event, frozen=True, kw_only=True):
    """An event that may answer an order."""

    op: int = 0  # the order that it answers; 0: none


# ---- from people


class Submitted(Event, frozen=True, kw_only=True, tag="submitted"):
    """The first event of each job."""

    job: int
    store: str
    spec: JobSpec
    depends_on: tuple[int, ...] = ()  # those of the spec that have not succeeded yet


class Wished(Event, frozen=True, kw_only=True, tag="wanted"):
    """A person wants the job to run (again), to stop, or to be deleted."""

    wanted: Wanted
    by: str = ""
    keeps_machines: bool = False  # with STOP: its machines stay for the next job, as after an end by itself


class RestartAsked(Event, frozen=True, kw_only=True, tag="restart-asked"):
    """A person wants the attempt ended and followed by another one."""

    by: str = ""
    setup: Setup = Setup.CHECK  # of the other one


class HoldChanged(Event, frozen=True, kw_only=True, tag="hold"):
    """A person keeps the job from starting, or no more."""

    is_on_hold: bool
    by: str = ""


class PriorityChanged(Event, frozen=True, kw_only=True, tag="priority"):
    """A person gave the job another priority."""

    priority: int
    by: str = ""


class TaskReturnAsked(Event, frozen=True, kw_only=True, tag="task-return"):
    """A person wants the task of a worker ended, and free for another turn."""

    task: str
    number: int = 0  # of the task's instances; 0: the one that the worker has
    by: str = ""


class UndoneByHand(Event, frozen=True, kw_only=True, tag="undone-by-hand"):
    """A person has had the modules of the job undone on some hosts."""

    hosts: tuple[str, ...]
    by: str = ""


# ---- from the queue, the clock and the steward


class DependencyEnded(Event, frozen=True, kw_only=True, tag="dependency-ended"):
    """A job that this one depends on has ended."""

    job: int
    succeeded: bool


class Granted(Event, frozen=True, kw_only=True, tag="granted"):
    """The queue gave the job hosts, or a part of a quota."""

    hosts: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    pool: str = ""  # the quota, which belongs to a zone; "": that of the first zone


class MachinesGiven(Event, frozen=True, kw_only=True, tag="machines-given"):
    """The job has machines that another job had until now. The same transaction notes it there."""

    generation: Generation  # as the other job passes them on
    by: int  # the other job
    until: float = 0.0  # they are kept until then for the next job; 0: the job uses them


class MachinesTaken(Event, frozen=True, kw_only=True, tag="machines-taken"):
    """Another job has the machines that this one kept. The same transaction notes it there."""

    by: int  # the other job


class Intended(Event, frozen=True, kw_only=True, tag="intended"):
    """An order that may be carried out from now on."""

    op: int
    order: AnyOrder


class CostSeen(Event, frozen=True, kw_only=True, tag="cost-seen"):
    """The machines of the job have cost most of its limit, or all of it."""

    amount: float
    is_reached: bool = False


class StraysSeen(Event, frozen=True, kw_only=True, tag="strays-seen"):
    """An audit has found machines that were made for the job and that it does not have."""

    names: tuple[str, ...] = ()  # (): they are gone by now


class Timer(Event, frozen=True, kw_only=True, tag="timer"):
    """A time that the job waits for has come."""


class TakenOver(Event, frozen=True, kw_only=True, tag="taken-over"):
    """A steward begins to look after the job; no hand of an earlier one is alive."""

    epoch: int
    steward: str = ""


class TaskGiven(Event, frozen=True, kw_only=True, tag="task-given"):
    """A worker has the instance of a task. The same transaction notes it for the task."""

    turn: Turn


class TasksSeen(Event, frozen=True, kw_only=True, tag="tasks-seen"):
    """The task file of a worker has a task for it, or none."""

    has_tasks: bool
    is_over: bool = False  # and none will come, unless the file changes
    failed: int = 0  # with is_over: tasks that were not done
    problem: str = ""  # with the file, of which the tasks before hold


# ---- answers


class NotAsked(Answer, frozen=True, kw_only=True, tag="not-asked"):
    """Hosts, an API or a hand gave no answer. It never changes the state."""

    what: str
    why: str
    of_maker: bool = False  # the maker of machines, which is an API, was asked; False: the hosts were


class Refusal(Enum):
    """The kind of a refusal; it decides what follows."""

    BUSY = "busy"  # another run holds a host
    UNREACHABLE = "unreachable"  # a host cannot be reached, which may change
    CAPACITY = "capacity"  # a maker has none now, or no quota
    ENVIRONMENT = "environment"  # a variable of `pass:` is missing in the steward's environment
    LOST = "lost"  # the machines are gone, with evidence
    PERSON = "person"  # a refused login, a wrong path, a full disk: the same tomorrow


class Refused(Answer, frozen=True, kw_only=True, tag="refused"):
    """An order that was not carried out and left nothing behind."""

    kind: Refusal
    why: str
    hint: str = ""
    by_run: str = ""  # with BUSY: the run that holds the host; "": its id is missing
    hosts: tuple[str, ...] = ()  # the hosts at fault
    has_rest: bool = False  # of an order to make machines: some were made, and must be deleted


class Made(Answer, frozen=True, kw_only=True, tag="made"):
    """The maker has accepted the request, or already has machines of ours under the name."""

    generation: int


class MachinesReady(Answer, frozen=True, kw_only=True, tag="machines-ready"):
    """Every machine of a generation is there."""

    generation: int
    hosts: tuple[str, ...]
    keys: tuple[str, ...] = ()


class MachinesPending(Answer, frozen=True, kw_only=True, tag="machines-pending"):
    """The machines of a generation are being made or deleted."""

    generation: int
    state: str  # for people
    is_waiting: bool = False  # in the maker's own queue
    is_deleting: bool = False  # the API shows all of them as being deleted
    is_sick: bool = False  # the API has them repaired, or calls them unhealthy
    is_unlisted: bool = False  # a complete answer does not list them, which alone proves nothing


class MachinesAbsent(Answer, frozen=True, kw_only=True, tag="machines-absent"):
    """The machines of a generation are gone, by evidence."""

    generation: int
    evidence: str


class MachinesLost(Answer, frozen=True, kw_only=True, tag="machines-lost"):
    """Some machines of a generation are gone, by evidence; what is left of it must be deleted."""

    generation: int
    evidence: str
    rest: tuple[str, ...] = ()  # hosts of slices that are still there: their output can be fetched
    by_silence: bool = False  # by `unreachable_for`: it counts only while the hosts are silent
    is_ended: bool = False  # all of them are ended: no process runs there, although they are still listed
    is_final: bool = False  # they were never ready, and none like them will be: a person must change the request
    hint: str = ""  # with is_final


class Prepared(Answer, frozen=True, kw_only=True, tag="prepared"):
    """Every module succeeded on every host."""


class Undone(Answer, frozen=True, kw_only=True, tag="undone"):
    """Modules were undone on hosts that stay, or not on all of them."""

    generation: int
    hosts: tuple[str, ...] = ()  # on which nothing is left
    kind: Refusal = Refusal.UNREACHABLE  # of the others
    problem: str = ""  # of the first of the others; "": there are none


class RunStarted(Answer, frozen=True, kw_only=True, tag="run-started"):
    """All ranks of a run have started, and it goes on without a client."""

    run: str


class RunSeen(Answer, frozen=True, kw_only=True, tag="run-seen"):
    """The hosts have a run that has not ended."""

    run: str
    is_detached: bool = True  # False: it ends by itself once its client is gone
    progress: str = ""  # the last match of `progress:`


class RunEnded(Answer, frozen=True, kw_only=True, tag="run-ended"):
    """A run has ended, and its processes are gone from every host that can be reached."""

    run: str
    exit_code: int
    cause: str  # a value of core.outcome.Cause
    reason: str = ""  # the verdict in one line
    hosts: tuple[str, ...] = ()  # with cause "lost": the hosts that were lost


class RunUnknown(Answer, frozen=True, kw_only=True, tag="run-unknown"):
    """Every host has answered, and none has or had the run."""

    run: str


class Fetched(Answer, frozen=True, kw_only=True, tag="fetched"):
    """The output of a run is here."""

    run: str
    problem: str = ""  # a part that is missing for good; "": none


FromPeople = Submitted | Wished | RestartAsked | HoldChanged | PriorityChanged | TaskReturnAsked | UndoneByHand
FromSteward = (
    DependencyEnded | Granted | MachinesGiven | MachinesTaken | Intended | CostSeen | StraysSeen | Timer | TakenOver
)
FromFiles = TaskGiven | TasksSeen
FromHands = NotAsked | Refused | Prepared | Undone | RunStarted | RunSeen | RunEnded | RunUnknown | Fetched
FromMakers = Made | MachinesReady | MachinesPending | MachinesAbsent | MachinesLost
AnyAnswer = FromHands | FromMakers
AnyEvent = FromPeople | FromSteward | FromFiles | FromHands | FromMakers
