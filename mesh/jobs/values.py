"""Values of a job: its state, its attempts, its machines, and the row that lists show."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from mesh.core.job import JobSpec
from mesh.jobs.orders import AnyOrder, Order
from mesh.jobs.turns import Part, Work

HOUR_S = 3600.0


class State(Enum):
    """The state of a job; only the last three are final."""

    QUEUED = "queued"  # waits for its turn, a dependency, a time or a back-off
    REQUESTING = "requesting"  # its machines are being made
    PREPARING = "preparing"  # its machines are there, and its ranks do not run yet
    RUNNING = "running"
    RECOVERING = "recovering"  # the attempt ended, its machines are being released, and it is queued afterwards
    HELD = "held"  # it needs a person
    ENDING = "ending"  # its outcome is decided; ranks and machines are being ended
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_final(self) -> bool:
        """True if nothing of the job runs, and nothing is held for it."""
        return self in (State.SUCCEEDED, State.FAILED, State.STOPPED)


class Wanted(Enum):
    """The wish of a person, beside the state."""

    RUN = "run"
    STOP = "stop"
    DELETE = "delete"


class Setup(Enum):
    """The treatment of a job's modules before its next attempt."""

    CHECK = "check"  # set up what is not in place
    SKIP = "skip"
    FORCE = "force"  # set up what is in place as well


class Phase(Enum):
    """The phase of a generation of machines; it only moves forward."""

    PLANNED = "planned"  # the queue has granted it
    ASKED = "asked"  # an order to make it may have been carried out
    READY = "ready"  # every machine is there
    RELEASING = "releasing"  # condemned: it is never used again
    RELEASED = "released"  # proved gone, or given back


class Generation(Struct, frozen=True, kw_only=True):
    """Machines that a job has or had: a reservation of hosts, or machines made for it under a name used once."""

    number: int  # 1 ..
    name: str  # LABEL-STORE6-JOB-gN
    phase: Phase
    hosts: tuple[str, ...] = ()  # names in their cluster, in order
    keys: tuple[str, ...] = ()  # the machines behind the names
    maker: str = ""  # "": hosts that are there
    pool: str = ""  # of a maker
    units: int = 0  # of a maker
    granted: float = 0.0  # seconds since the epoch
    billed: float = 0.0  # its first machine was seen: from then on it costs; 0: none was
    unbilled: float = 0.0  # its machines were gone; 0: they are there
    condemned: float = 0.0  # its deletion was decided
    reports: int = 0  # number of reports that it is overdue
    zone: str = ""  # of a maker that has zones: decided once, so that a repeated order goes to the same one
    is_unsure: bool = False  # an order to make it had no answer: it may be there whatever a later answer is
    asked: float = 0.0  # the maker has accepted the request
    making_since: float = 0.0  # it no longer waits in the maker's own queue
    end: str = ""  # "lost": taken away; "capacity": never there; "": its job has given it back, or has it
    ended: float = 0.0  # with `end`
    accused: tuple[str, ...] = ()  # hosts that agents have reported as lost
    has_lost: bool = False  # an attempt has ended here by loss, which counts once
    rest: tuple[str, ...] = ()  # while condemned: hosts of slices that are still there
    doubt_since: float = 0.0  # while ready: the API's answers show a state other than READY since then; 0: READY
    sick_since: float = 0.0  # the same for a repair, or a health other than HEALTHY
    deleting_since: float = 0.0  # while condemned: the API shows all of it as being deleted since then
    is_over: bool = False  # lost, and proved ended: no rank runs there, although it is not proved gone
    unlisted_since: float = 0.0  # while condemned and over: a complete answer of the API did not list it
    is_left: bool = False  # condemned, and the job does not wait until it is gone
    delete_at: float = 0.0  # with is_left: an order to delete it is due then
    is_handed: bool = False  # another job has the machines from then on; this one has released them
    made_by: int = 0  # the job that they were made for, whose labels they have; 0: this one
    made_number: int = 0  # with made_by: the number that they had there
    unclean: tuple[str, ...] = ()  # hosts that stay, on which modules may have left keys or mounts
    unclean_why: str = ""  # the last try to undo them failed there; "": it was not tried
    undo_since: float = 0.0  # the first of these tries
    undo_tries: int = 0


class Stage(Enum):
    """The stage of an attempt."""

    INTENDED = "intended"  # its run id is in the store, and the order to start it may be under way
    UNSURE = "unsure"  # the order ended without an answer: the hosts must be asked
    LIVE = "live"  # its hosts have the run
    ENDED = "ended"
    NEVER = "never"  # every host has answered that it has never had the run


class Attempt(Struct, frozen=True, kw_only=True):
    """A start of a job."""

    number: int  # MESH_ATTEMPT: 1 ..
    run: str  # the run id
    generation: int
    hosts: tuple[str, ...]
    stage: Stage = Stage.INTENDED
    started: float = 0.0  # seconds since the epoch; 0: its ranks have not been seen
    ended: float = 0.0
    exit_code: int = 0  # once ended
    cause: str = ""  # once ended; a value of core.outcome.Cause
    is_fetched: bool = False  # its output is here
    fetches: int = 0  # answers to orders to fetch it, also those that failed
    part: Part | None = None  # of a worker: the step or task that it runs


class OpenOrder(Struct, frozen=True, kw_only=True):
    """An order that was intended, and has no answer yet."""

    op: int  # unique in its job
    order: AnyOrder


class Job(Struct, frozen=True, kw_only=True):
    """A job: the fold of its events. Times are in seconds since the epoch, 0 for "not yet"."""

    id: int
    spec: JobSpec
    state: State = State.QUEUED
    reason: str = ""  # of the state, in some ten words
    hint: str = ""  # the command to try next; "": none
    wanted: Wanted = Wanted.RUN
    is_on_hold: bool = False  # a person keeps it from starting
    priority: int = 0
    attempt: int = 0  # starts so far
    preemptions: int = 0  # attempts that ended by loss
    failures: int = 0  # attempts that failed
    streak: int = 0  # restarts one after another, each of less than 10 minutes of running
    exit_code: int | None = None  # None before the end
    cause: str = ""  # of the end, or of the last attempt's
    submitted: float = 0.0
    started: float = 0.0  # of the first attempt's ranks
    ended: float = 0.0
    since: float = 0.0  # when the state began
    unreachable_since: float = 0.0  # while preparing: hosts could not be reached since then; 0: they could be
    not_before: float = 0.0  # it stays queued until then
    retry_at: float = 0.0  # an order that could not be carried out is repeated then
    tries: int = 0  # such repetitions since the last answer
    keeps_machines: bool = False  # while recovering: the next attempt gets the machines that it has, if they were made
    prepared: int = 0  # the generation whose hosts the modules have prepared
    setup: Setup = Setup.CHECK  # before the next attempt
    outcome: State | None = None  # while ending: the final state
    status: int = 0  # while ending: the exit status to be
    is_restarting: bool = False  # a person wants the attempt ended and followed by another one
    depends_on: tuple[int, ...] = ()  # jobs that have not succeeded yet
    avoided: tuple[str, ...] = ()  # keys of machines that attempts could not use since one ran, the latest last
    generations: tuple[Generation, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    open: tuple[OpenOrder, ...] = ()
    ops: int = 0  # orders intended so far
    seq: int = 0  # events folded
    silent_since: float = 0.0  # hosts have not answered since then; 0: they answer
    silence: str = ""  # which, and why
    api_silent_since: float = 0.0  # the API of the maker of machines has not answered since then; 0: it answers
    api_silence: str = ""  # why
    progress: str = ""  # the last match of `progress:`
    store: str = ""  # six characters of the store's id; part of every name outside
    is_deleted: bool = False
    is_warned: bool = False  # 80 % of what `cost.limit` allows is spent
    is_over_limit: bool = False  # all of it is: the job is held, and its machines are given back
    allowances: int = 1  # how often it may spend the limit: 1, and 1 more for each resume
    strays: tuple[str, ...] = ()  # names of machines that were made for it, and that the last audit found ownerless
    work: Work | None = None  # of a worker
    is_stop_kept: bool = False  # a person has stopped it, and wants its machines kept as after an end by itself
    kept_until: float = 0.0  # a keeper: it has machines of an ended job until then, for the next one; 0: it is none
    kept_from: int = 0  # with kept_until: the job that has ended

    @property
    def generation(self) -> Generation | None:
        """The machines that the job has now; None without any."""
        last = self.generations[-1] if self.generations else None
        return last if last and last.phase is not Phase.RELEASED and not last.is_left else None

    @property
    def left(self) -> tuple[Generation, ...]:
        """Condemned machines that are not proved gone, and for which the job does not wait."""
        return tuple(one for one in self.generations if one.is_left and one.phase is Phase.RELEASING)

    @property
    def in_the_way(self) -> tuple[Generation, ...]:
        """Machines that were left, and on which ranks may still run: no other ranks start before these are gone."""
        return tuple(one for one in self.left if not (one.is_over and one.unlisted_since))

    @property
    def current(self) -> Attempt | None:
        """The attempt that has not ended; None without one."""
        last = self.attempts[-1] if self.attempts else None
        return last if last and last.stage not in (Stage.ENDED, Stage.NEVER) else None

    @property
    def runs(self) -> tuple[str, ...]:
        """The ids of the runs that there were, oldest first."""
        return tuple(attempt.run for attempt in self.attempts if attempt.stage is not Stage.NEVER)

    @property
    def runs_ever(self) -> tuple[str, ...]:
        """The run ids that were ever intended."""
        return tuple(attempt.run for attempt in self.attempts)

    @property
    def last_hosts(self) -> tuple[str, ...]:
        """The keys of the machines of the newest generation, which the next attempt gets where they are free."""
        return self.generations[-1].keys if self.generations else ()

    @property
    def left_on(self) -> tuple[str, ...]:
        """The hosts that the job has given back with keys or mounts of its modules on them."""
        given = (one for one in self.generations if one.phase is Phase.RELEASED)
        return tuple(dict.fromkeys(host for one in given for host in one.unclean))

    def is_open(self, *kinds: type[Order]) -> bool:
        """Return True if an order of one of these kinds has no answer yet."""
        return any(isinstance(one.order, kinds) for one in self.open)


class PricedUse(Struct, frozen=True, kw_only=True):
    """The use of machines of one price by a job: of all that are gone, or of some that are there."""

    kind: str  # of the chips
    zone: str
    pricing: str
    chip_hours: float = 0.0  # of those that are gone
    chips: int = 0  # of those that are there
    since: float = 0.0  # seconds since the epoch, with chips

    def hours(self, now: float) -> float:
        """Return the hours of chips up to a time."""
        return self.chip_hours + self.chips * max(0.0, now - self.since) / HOUR_S


class Row(Struct, frozen=True, kw_only=True):
    """A job as `mesh job list` and `show` print it; `directory` is added there.

    It is read by the store's quick reader without SQLAlchemy, or sent by the steward.
    """

    id: int
    name: str
    user: str
    state: str
    reason: str
    hint: str
    wanted: str
    attempt: int
    preemptions: int
    failures: int
    exit_code: int | None
    cause: str
    submitted: float | None
    started: float | None
    ended: float | None
    since: float | None
    priority: int
    queue: str
    cluster: str
    machines: tuple[str, ...]
    runs: tuple[str, ...]
    array: int | None  # the id of the array's first member
    index: int | None
    progress: str
    silent_since: float | None  # of its hosts
    api_silent_since: float | None = None  # of the API that makes its machines
    task: str = ""  # that a worker runs now
    uses: tuple[PricedUse, ...] = ()  # of machines that were made for it
    cost_limit: float = 0.0  # 0: none
    is_made: bool = False  # its machines are made for it
    strays: tuple[str, ...] = ()
    left_on: tuple[str, ...] = ()  # hosts that it has given back with keys or mounts of its modules on them
    overdue_since: float | None = None  # machines were to be deleted then, and are not gone
    kept_until: float | None = None  # it keeps machines of an ended job until then
    kept_from: int | None = None  # with kept_until: that job
    silence: str = ""  # with silent_since: why its hosts do not answer
    api_silence: str = ""  # with api_silent_since: why the API does not
    maker: str = ""  # of its machines: "tpu", "kubernetes" or "slurm"; "": hosts that are there
    given: str = ""  # the name of its pods, or name and number of its allocation


def row_of(job: Job) -> Row:
    """Return the row of a job."""
    generation = job.generation
    array = job.spec.array
    return Row(
        id=job.id,
        name=job.spec.name,
        user=job.spec.user,
        state=job.state.value,
        reason=job.reason,
        hint=job.hint,
        wanted=job.wanted.value,
        attempt=job.attempt,
        preemptions=job.preemptions,
        failures=job.failures,
        exit_code=job.exit_code,
        cause=job.cause,
        submitted=job.submitted or None,
        started=job.started or None,
        ended=job.ended or None,
        since=job.since or None,
        priority=job.priority,
        queue=job.spec.queue,
        cluster=job.spec.machines.cluster,
        machines=generation.hosts if generation else (),
        runs=job.runs,
        array=array.first if array else None,
        index=array.index if array else None,
        progress=job.progress,
        silent_since=job.silent_since or None,
        api_silent_since=job.api_silent_since or None,
        task=job.work.turn.task.id if job.work and job.work.turn else "",
        uses=priced_uses(job),
        cost_limit=job.spec.cost_limit * job.allowances,
        is_made=job.spec.machines.tpu is not None,
        strays=job.strays,
        left_on=job.left_on,
        overdue_since=min((one.condemned for one in job.generations if _is_overdue(one)), default=None),
        kept_until=job.kept_until or None,
        kept_from=job.kept_from or None,
        silence=job.silence,
        api_silence=job.api_silence,
        maker=job.spec.machines.maker,
        given=_given(job),
    )


def _given(job: Job) -> str:
    """Return the pods or the allocation of a job for people; "" without any."""
    generation = job.generation
    if job.spec.machines.carrier is None or generation is None:
        return ""
    number = generation.keys[0].partition("/")[0] if job.spec.machines.maker == "slurm" and generation.keys else ""
    return f"allocation {number} ({generation.name})" if number else generation.name


def _is_overdue(generation: Generation) -> bool:
    return generation.phase is Phase.RELEASING and generation.reports > 0


def priced_uses(job: Job) -> tuple[PricedUse, ...]:
    """Return the use of machines that were made for a job: a value for those gone from each zone, then the rest."""
    tpu = job.spec.machines.tpu
    if tpu is None:
        return ()
    gone: dict[str, float] = {}
    there: list[PricedUse] = []
    for one in job.generations:
        zone = one.zone or "+".join(tpu.zones)
        if one.billed and one.unbilled:
            gone[zone] = gone.get(zone, 0.0) + tpu.chips * max(0.0, one.unbilled - one.billed) / HOUR_S
        elif one.billed:
            use = PricedUse(kind=tpu.kind, zone=zone, pricing=tpu.pricing.value, chips=tpu.chips, since=one.billed)
            there.append(use)
    pricing = tpu.pricing.value
    return (*(PricedUse(kind=tpu.kind, zone=zone, pricing=pricing, chip_hours=gone[zone]) for zone in gone), *there)
