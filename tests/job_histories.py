"""Histories of jobs in words: each word becomes the next event, with the run and order that the job then has."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from mesh.core.job import Candidate, CommandSpec, JobSpec, MachinesSpec, RestartOn, RestartSpec
from mesh.core.tpu import Recreate, TpuSpec
from mesh.jobs import events, orders
from mesh.jobs.children import operation_of
from mesh.jobs.decide import decide, written
from mesh.jobs.events import AnyEvent, Refusal
from mesh.jobs.values import Job, Setup, Wanted

HOSTS = ("h0", "h1")
THERE = MachinesSpec(cluster="pod", candidates=tuple(Candidate(name=name, key=name) for name in HOSTS))
MADE = MachinesSpec(cluster="pod", maker="cloud", pool="zone", units=2)
EAGER = replace(MADE, tpu=TpuSpec(accelerator="v4-8", runtime="r", zones=("us-east1-d",), recreate=Recreate.EAGER))


def job_spec(on: str = "preemption", *, made: bool = False, **changes: object) -> JobSpec:
    """Return a spec that restarts by a rule."""
    fields = {"failures": 1, "backoff": (10.0, 40.0), "again": (29,), "never": (2,)}
    rules = RestartSpec(on=RestartOn(on), **{key: changes.pop(key, value) for key, value in fields.items()})  # type: ignore[arg-type]
    machines = MADE if made else THERE
    machines = changes.pop("machines", machines)  # type: ignore[assignment]
    spec = JobSpec(name="job", user="me", machines=machines, command=CommandSpec(words=("true",)), restart=rules)
    return replace(spec, **changes)


class History:
    """A job that events happen to, with all that was written and ordered."""

    def __init__(self, spec: JobSpec) -> None:
        first = events.Submitted(time=1.0, job=7, store="abc123", spec=spec, depends_on=spec.depends_on)
        self.job, _ = decide(None, first)
        self.now = 1.0
        self.events: list[AnyEvent] = [first]
        self.orders: list[str] = []
        self.jobs: list[Job] = [self.job]  # after each event

    def play(self, words: str) -> History:
        """Have events happen."""
        for word in words.split():
            if word.startswith("@"):
                self.now = float(word[1:])
                continue
            self.now += 1.0
            self.happen(self.event(word))
        return self

    def happen(self, event: AnyEvent) -> None:
        """Have one event happen."""
        before = self.job
        self.job, given = decide(before, event)
        new = written(before, event, given)
        assert before.seq + len(new) == self.job.seq  # the store has every event that was folded
        self.events += new
        self.orders += [operation_of(one.order) for one in given]
        self.jobs.append(self.job)

    def event(self, word: str) -> AnyEvent:
        """Return the event of a word, such as "ended:3" or "refused:busy:RUN"."""
        name, *arguments = word.split(":")
        event = EVENTS[name](self.job, *arguments)
        return replace(event, time=self.now)

    @property
    def told(self) -> str:
        """The state, and the exit status where there is one."""
        status = "" if self.job.exit_code is None else f" {self.job.exit_code}"
        return f"{self.job.state.value}{status}"


def op(job: Job, *kinds: type[orders.Order]) -> int:
    """Return the op of the first open order of a kind; 0 without one."""
    return next((one.op for one in job.open if isinstance(one.order, kinds)), 0)


def run(job: Job) -> str:
    """Return the id of the newest run."""
    return job.attempts[-1].run if job.attempts else "none"


def _generation(job: Job) -> int:
    return job.generations[-1].number if job.generations else 0


def _ended(job: Job, code: str = "0", cause: str = "") -> AnyEvent:
    cause = cause or {"0": "completed", "76": "lost", "124": "timeout", "143": "signal"}.get(code, "rank")
    number = op(job, orders.Stop, orders.Start)
    return events.RunEnded(op=number, run=run(job), exit_code=int(code), cause=cause, hosts=HOSTS[:1])


def _refused(job: Job, kind: str, by: str = "") -> AnyEvent:
    by = run(job) if by == "own" else job.attempts[0].run if by == "first" else by
    number = op(job, orders.Start, orders.Make, orders.Prepare)
    return events.Refused(op=number, kind=Refusal(kind), why=kind, by_run=by, hosts=HOSTS[:1])


def _not_asked(job: Job, kind: str = "look") -> AnyEvent:
    number = next((one.op for one in job.open if operation_of(one.order) == kind), 0)
    return events.NotAsked(op=number, what="pod", why="timed out")


def _fetched(job: Job) -> AnyEvent:
    fetch = next((one for one in job.open if isinstance(one.order, orders.Fetch)), None)
    wanted = fetch.order.run if fetch and isinstance(fetch.order, orders.Fetch) else "none"
    return events.Fetched(op=fetch.op if fetch else 0, run=wanted)


def _absent(job: Job) -> AnyEvent:
    number = _generation(job)
    deletes = [one.op for one in job.open if isinstance(one.order, orders.Delete) and one.order.generation == number]
    return events.MachinesAbsent(op=max(deletes, default=0), generation=number, evidence="NOT_FOUND twice")


def _undone(job: Job, hosts: tuple[str, ...], kind: str = "unreachable") -> AnyEvent:
    problem = "" if hosts == HOSTS else f"h1: {kind}"
    number = op(job, orders.Undo)
    return events.Undone(op=number, generation=_generation(job), hosts=hosts, kind=Refusal(kind), problem=problem)


EVENTS: dict[str, Callable[..., AnyEvent]] = {
    "granted": lambda job: events.Granted(hosts=HOSTS, keys=HOSTS) if not job.spec.machines.maker else events.Granted(),
    "started": lambda job: events.RunStarted(op=op(job, orders.Start), run=run(job)),
    "seen": lambda job: events.RunSeen(run=run(job)),
    "attached": lambda job: events.RunSeen(run=run(job), is_detached=False),
    "ended": _ended,
    "unknown": lambda job: events.RunUnknown(op=op(job, orders.Stop), run=run(job)),
    "refused": _refused,
    "not-asked": _not_asked,
    "fetched": _fetched,
    "undone": lambda job: _undone(job, HOSTS),
    "undone-in-part": lambda job, kind: _undone(job, HOSTS[:1], kind),
    "undone-by-hand": lambda job: events.UndoneByHand(hosts=HOSTS),
    "prepared": lambda job: events.Prepared(op=op(job, orders.Prepare)),
    "made": lambda job: events.Made(op=op(job, orders.Make), generation=_generation(job)),
    "ready": lambda job: events.MachinesReady(generation=_generation(job), hosts=HOSTS, keys=HOSTS),
    "pending": lambda job: events.MachinesPending(generation=_generation(job), state="CREATING"),
    "waiting": lambda job: events.MachinesPending(generation=_generation(job), state="WAITING", is_waiting=True),
    "deleting": lambda job: events.MachinesPending(op=op(job, orders.Delete), generation=_generation(job), state="x"),
    "old-deleting": lambda job: events.MachinesPending(
        op=op(job, orders.Delete), generation=job.generations[0].number, state="x"
    ),
    "old-absent": lambda job: events.MachinesAbsent(generation=job.generations[0].number, evidence="not listed twice"),
    "seen-deleting": lambda job: events.MachinesPending(
        generation=_generation(job), state="DELETING", is_deleting=True
    ),
    "sick": lambda job: events.MachinesPending(generation=_generation(job), state="REPAIRING", is_sick=True),
    "silent-lost": lambda job: events.MachinesLost(generation=_generation(job), evidence="silent", by_silence=True),
    "api-not-asked": lambda job: events.NotAsked(what="cloud", why="403", of_maker=True),
    "lost-in-part": lambda job: events.MachinesLost(generation=_generation(job), evidence="PREEMPTED", rest=HOSTS[:1]),
    "lost": lambda job: events.MachinesLost(generation=_generation(job), evidence="PREEMPTED"),
    "lost-and-over": lambda job: events.MachinesLost(generation=_generation(job), evidence="PREEMPTED", is_ended=True),
    "unlisted": lambda job: events.MachinesPending(generation=_generation(job), state="not listed", is_unlisted=True),
    "old-unlisted": lambda job: events.MachinesPending(
        generation=job.generations[0].number, state="not listed", is_unlisted=True
    ),
    "old-ready": lambda job: events.MachinesReady(generation=job.generations[0].number, hosts=HOSTS, keys=HOSTS),
    "old-lost-in-part": lambda job: events.MachinesLost(
        generation=job.generations[0].number, evidence="PREEMPTED", rest=HOSTS[:1]
    ),
    "absent": _absent,
    "timer": lambda job: events.Timer(),
    "taken-over": lambda job: events.TakenOver(epoch=2),
    "stop": lambda job: events.Wished(wanted=Wanted.STOP, by="me"),
    "delete": lambda job: events.Wished(wanted=Wanted.DELETE),
    "resume": lambda job: events.Wished(wanted=Wanted.RUN),
    "restart": lambda job: events.RestartAsked(by="me"),
    "restart-alone": lambda job: events.RestartAsked(by="me", setup=Setup.SKIP),
    "restart-forced": lambda job: events.RestartAsked(by="me", setup=Setup.FORCE),
    "granted-others": lambda job: events.Granted(hosts=HOSTS, keys=tuple(f"new-{name}" for name in HOSTS)),
    "hold": lambda job: events.HoldChanged(is_on_hold=True),
    "release": lambda job: events.HoldChanged(is_on_hold=False),
    "urgent": lambda job: events.PriorityChanged(priority=9),
    "dependency": lambda job, number, how: events.DependencyEnded(job=int(number), succeeded=how == "ok"),
}


def prefixes(history: History) -> Iterator[list[AnyEvent]]:
    """Yield every beginning of what was written."""
    for end in range(1, len(history.events) + 1):
        yield history.events[:end]
