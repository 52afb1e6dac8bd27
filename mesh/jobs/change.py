"""Changes to a job that several events have in common. Each returns the changed job."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from mesh.core.outcome import EXIT_LOST, Cause
from mesh.jobs import cleaning, keeping
from mesh.jobs.events import Granted, NotAsked
from mesh.jobs.generations import ended, generation_name, place_of, with_generation
from mesh.jobs.leaving import is_left, leave, postponed
from mesh.jobs.orders import AnyOrder, Delete, Fetch, Make, Prepare, Start, Stop, Undo
from mesh.jobs.turns import next_part
from mesh.jobs.values import Attempt, Generation, Job, OpenOrder, Phase, Setup, Stage, State, Wanted

FIRST_RETRY_S = 1.0  # after an order without an answer; doubled up to LAST_RETRY_S
LAST_RETRY_S = 60.0
HELD_MACHINES_S = 600.0  # for a person to let a held job go on with the machines that it has
FETCH_LIMIT_S = 1800.0  # for output and results after the outcome is decided
LOST_FETCH_LIMIT_S = 60.0  # for the output of machines of which some are lost
EXIT_STOPPED = 143  # 128 + SIGTERM
ATTEMPTS_KEPT = 100  # in the record of a job; its events have all of them
HELD_BY_PERSON = "held by a person"


def move(job: Job, state: State, time: float, reason: str, hint: str = "", **changes: object) -> Job:
    """Enter a state, or give the present one another reason."""
    since, unreachable = (job.since, job.unreachable_since) if state is job.state else (time, 0.0)
    job = replace(job, state=state, since=since, unreachable_since=unreachable, reason=reason, hint=hint)
    return replace(job, **changes)


def queue(job: Job, time: float, reason: str) -> Job:
    """Put a job into the queue, or hold it if a person wants that. It has no machines."""
    job = replace(heard(job, of_maker=False), outcome=None, is_restarting=False, retry_at=0.0, tries=0, prepared=0)
    if job.is_on_hold:
        return move(job, State.HELD, time, HELD_BY_PERSON, f"mesh job release {job.id}")
    return move(job, State.QUEUED, time, reason)


def hold(job: Job, time: float, reason: str, hint: str = "") -> Job:
    """Hold a job that cannot go on without a person."""
    job = replace(job, retry_at=_again_at(job, time), tries=0, is_restarting=False)
    return move(job, State.HELD, time, reason, hint or f"mesh job resume {job.id}")


def end(job: Job, outcome: State, time: float, reason: str, status: int) -> Job:
    """Decide the outcome of a job: what it still has is ended first."""
    again = _again_at(job, time)
    return move(job, State.ENDING, time, reason, outcome=outcome, status=status, retry_at=again, tries=0)


def recover(job: Job, time: float, reason: str, delay: float, *, keeps_machines: bool = False) -> Job:
    """Have a job give back what it has, and queue it again after a delay.

    keeps_machines: machines that were made stay, and the next attempt starts on them
    """
    not_before = time + delay if delay else 0.0
    again = _again_at(job, time)
    job = replace(job, keeps_machines=keeps_machines, not_before=not_before, retry_at=again, tries=0)
    return move(job, State.RECOVERING, time, reason)


def _again_at(job: Job, time: float) -> float:
    """Return the end of a job's pause as it enters another state: now, if an order waits to be repeated."""
    return time if job.retry_at and job.open else 0.0


def retried(job: Job) -> Job:
    """End a job's pause: its open orders are repeated, but nothing is made or prepared that it does not want."""
    if job.state not in (State.REQUESTING, State.PREPARING):
        job = replace(job, open=tuple(one for one in job.open if not isinstance(one.order, Prepare | Make)))
    return replace(job, retry_at=0.0)


def with_attempt(job: Job, run: str, **changes: object) -> Job:
    """Change the attempt with a run id."""
    changed = tuple(replace(one, **changes) if one.run == run else one for one in job.attempts)
    return replace(job, attempts=changed)


def closed(job: Job, op: int) -> Job:
    """Close an order that has been answered."""
    return replace(job, open=tuple(one for one in job.open if one.op != op))


def intended(job: Job, op: int, order: AnyOrder) -> Job:
    """Note an order that may be carried out from now on."""
    job = replace(job, ops=op, open=(*job.open, OpenOrder(op=op, order=order)))
    match order:
        case Start(attempt=number, run=run, hosts=hosts):
            assert job.generation is not None
            part = None
            if job.work is not None and job.spec.worker is not None:
                part = next_part(job.work, job.spec.worker, job.generation.number)
            attempt = Attempt(number=number, run=run, generation=job.generation.number, hosts=hosts, part=part)
            attempts = (*job.attempts, attempt)[-ATTEMPTS_KEPT:]
            job = replace(job, attempts=attempts, attempt=number, setup=Setup.CHECK)
            return cleaning.begun(job, hosts) if job.spec.project_modules else job
        case Prepare(hosts=hosts):
            return cleaning.begun(job, hosts)
        case Make(generation=number):
            return with_generation(job, number, phase=Phase.ASKED)
    return job


def with_run(job: Job, run: str) -> Attempt:
    """Return the attempt with a run id."""
    return next(attempt for attempt in job.attempts if attempt.run == run)


def unanswered(job: Job, one: OpenOrder, *, is_repeated: bool = False) -> Job:
    """Take back an order whose hand is gone without an answer, or leave it open so that it is carried out again.

    is_repeated: the steward is to blame, and a new one repeats it at once
    """
    is_wanted = job.state in (State.REQUESTING, State.PREPARING)
    if isinstance(one.order, Make):
        job = with_generation(job, one.order.generation, is_unsure=True)
    match one.order:
        case Start(run=run):  # it may have started: the hosts are asked before anything else
            return with_attempt(closed(job, one.op), run, stage=Stage.UNSURE)
        case Prepare() | Make() if not is_wanted:
            return closed(job, one.op)
        case Undo() if not is_repeated:
            return cleaning.unanswered(closed(job, one.op), one.order)
        case Fetch(run=run) if not is_repeated:
            job = with_attempt(job, run, fetches=with_run(job, run).fetches + 1)
            is_over = not fetch_until(job, with_run(job, run))  # it is tried again at the end of the job
            return closed(job, one.op) if is_over else job
    return job


def silenced(job: Job, event: NotAsked) -> Job:
    """Note that an order, or a look, had no answer."""
    text = f"{event.what}: {event.why}"
    if event.of_maker:
        job = replace(job, api_silence=text, api_silent_since=job.api_silent_since or event.time)
    else:
        job = replace(job, silence=text, silent_since=job.silent_since or event.time)
    one = next((one for one in job.open if one.op == event.op), None) if event.op else None
    if one is None:
        return job
    if isinstance(one.order, Delete) and is_left(job, one.order.generation):
        return postponed(job, one.order.generation, event.time)
    delay = min(FIRST_RETRY_S * 2.0 ** min(job.tries, 30), LAST_RETRY_S)
    return replace(unanswered(job, one), retry_at=event.time + delay, tries=job.tries + 1)


def heard(job: Job, *, of_maker: bool) -> Job:
    """Note that the maker of machines has answered, or else that the hosts have."""
    if of_maker:
        return replace(job, api_silence="", api_silent_since=0.0)
    return replace(job, silence="", silent_since=0.0)


def lose_machines(job: Job, time: float, phase: Phase = Phase.RELEASED) -> Job:
    """Note that the machines of the present generation are gone. phase: RELEASING if a part of them must be deleted"""
    generation = job.generation
    if generation is None:
        return job
    job = with_generation(job, generation.number, phase=phase, **ended(generation, job.state, time))
    # Orders to hosts that are gone have no effect any more.
    others = [one for one in job.open if isinstance(one.order, Delete) and one.order.generation != generation.number]
    job = replace(heard(job, of_maker=False), open=tuple(others))
    current = job.current
    if current is None:
        return job
    was_live = current.stage is Stage.LIVE
    stage = Stage.ENDED if was_live else Stage.NEVER
    return with_attempt(job, current.run, stage=stage, ended=time, cause=Cause.LOST.value, exit_code=EXIT_LOST)


def keys_of(job: Job, names: Sequence[str]) -> tuple[str, ...]:
    """Return the keys of hosts of the present generation."""
    generation = job.generation
    if generation is None:
        return ()
    keys = dict(zip(generation.hosts, generation.keys, strict=False))
    return tuple(keys[name] for name in names if name in keys)


def avoiding(job: Job, names: Sequence[str]) -> Job:
    """Note hosts of the present generation that could not be used, behind those of the attempts before."""
    new = keys_of(job, names)
    return replace(job, avoided=(*(key for key in job.avoided if key not in new), *new))


def has_others(job: Job) -> bool:
    """Return True if a job may have enough hosts that no attempt has found in use."""
    machines = job.spec.machines
    others = {one.key for one in machines.candidates} - set(job.avoided)
    return 0 < machines.count <= len(others)


def settle(job: Job, time: float) -> Job:
    """Give back hosts and enter the next state, where nothing is left to be ended, fetched or deleted."""
    if job.state not in (State.RECOVERING, State.ENDING, State.HELD):
        return _held_up(job, time)
    job = _without_stop(job, time)
    if job.current is not None or job.is_open(Start, Prepare, Make, Stop, Undo) or to_fetch(job, time):
        return job
    job = cleaning.given_up(job, time)
    generation = job.generation
    if generation is not None and generation.maker and generation.phase is Phase.READY and _goes_on(job):
        job = replace(job, prepared=0, retry_at=job.not_before, not_before=0.0, is_restarting=False)
        return _held_up(move(job, State.PREPARING, time, job.reason), time)
    if keeping.may_keep(job):
        job, generation = keeping.kept(job), None
    if generation is not None and generation.phase is not Phase.RELEASING:
        may_go_on = job.state is State.HELD and not job.is_over_limit and time < job.since + HELD_MACHINES_S
        if generation.maker and may_go_on:
            return job
        never_asked = generation.phase is Phase.PLANNED
        if generation.maker:
            phase = Phase.RELEASED if never_asked else Phase.RELEASING
            job = with_generation(job, generation.number, phase=phase)
        else:
            job = cleaning.released(job, generation, time)
        job = replace(job, open=tuple(one for one in job.open if not isinstance(one.order, Fetch)))
    job = leave(job, time)
    if job.generation is not None or job.state is State.HELD:
        return job
    if job.state is State.RECOVERING or job.is_restarting:
        again = job.state is State.ENDING
        return queue(replace(job, cause="", status=0) if again else job, time, job.reason)
    outcome = job.outcome
    if outcome is None or job.left:
        return job
    is_deleted = job.is_deleted or job.wanted is Wanted.DELETE
    job = heard(heard(job, of_maker=True), of_maker=False)
    job = replace(job, open=(), exit_code=job.status, ended=time, is_deleted=is_deleted)
    hint = cleaning.undo_command(job.id) if job.left_on else job.hint
    return move(job, outcome, time, f"{job.reason}{_missing(job)}{cleaning.left_words(job)}", hint)


def _without_stop(job: Job, time: float) -> Job:
    """Condemn machines that are to be deleted anyway, and whose silent hosts have not ended their ranks in time.

    The attempt ends with the proof that the machines are gone.
    """
    generation, attempt = job.generation, job.current
    is_decided = job.state is State.ENDING or (job.state is State.HELD and job.is_over_limit)
    if not is_decided or not job.silent_since or time < job.since + FETCH_LIMIT_S:
        return job
    if generation is None or not generation.maker or generation.phase is not Phase.READY:
        return job
    if attempt is None or attempt.stage not in (Stage.UNSURE, Stage.LIVE):
        return job
    job = with_generation(job, generation.number, phase=Phase.RELEASING)
    job = replace(job, open=tuple(one for one in job.open if not isinstance(one.order, Stop | Fetch)))
    return move(job, job.state, time, f"{job.reason}; its hosts are silent, and its output ends with them", job.hint)


def _missing(job: Job) -> str:
    """Return which output was not fetched before the machines were given back, for the reason; "" if all was."""
    runs = [one.run for one in job.attempts if one.stage is Stage.ENDED and not one.is_fetched and not _is_lost(one)]
    return f"; the output of run {runs[-1]} was not fetched in time" if runs else ""


def _is_lost(attempt: Attempt) -> bool:
    return attempt.cause == Cause.LOST.value


def _goes_on(job: Job) -> bool:
    """Return True if the next attempt starts on the machines that the last one had."""
    return job.state is State.RECOVERING and job.keeps_machines and not job.is_on_hold


def _held_up(job: Job, time: float) -> Job:
    """Return a job without a command as running once its machines are ready: it holds them until a person stops it."""
    generation = job.generation
    if not job.spec.holds or job.state is not State.PREPARING or generation is None:
        return job
    is_prepared = not job.spec.modules or job.prepared == generation.number
    if generation.phase is not Phase.READY or not is_prepared:
        return job
    return move(job, State.RUNNING, time, f"holds {len(generation.hosts)} hosts")


def to_fetch(job: Job, time: float) -> Attempt | None:
    """Return an attempt whose output is to be brought here before machines are given back; None without one."""
    return next((one for one in job.attempts if time < fetch_until(job, one)), None)


def fetch_until(job: Job, attempt: Attempt) -> float:
    """Return the time until which the output of an attempt is waited for; 0 if it is not."""
    if attempt.stage is not Stage.ENDED or attempt.is_fetched:
        return 0.0
    generation = next(one for one in job.generations if one.number == attempt.generation)
    if generation.maker and generation.phase is Phase.RELEASING and generation.rest and _is_lost(attempt):
        return 0.0 if attempt.fetches else attempt.ended + LOST_FETCH_LIMIT_S  # one try, of the slices that are there
    if generation.maker and generation.phase in (Phase.RELEASING, Phase.RELEASED):
        return 0.0  # its disks are gone, or condemned
    if job.state is State.ENDING:
        return max(job.since, attempt.ended) + FETCH_LIMIT_S
    if generation.maker:
        return attempt.ended + (LOST_FETCH_LIMIT_S if _is_lost(attempt) else FETCH_LIMIT_S)
    # A host that stays keeps the output of a detached run: it is fetched at the end, and a lost host delays nobody.
    return 0.0 if _is_lost(attempt) or attempt.fetches else math.inf


def kept_generations(job: Job) -> tuple[Generation, ...]:
    """Return the generations that the kept attempts had, the newest ones, and all that were made and have a cost."""
    used = {one.generation for one in job.attempts}
    newest = job.generations[-ATTEMPTS_KEPT:]
    return tuple(one for one in job.generations if one.maker or one.unclean or one.number in used or one in newest)


def granted(job: Job, event: Granted) -> Job:
    """Give a queued job its hosts, or have machines made for it."""
    if job.state is not State.QUEUED:
        return job
    machines, (zone, pool) = job.spec.machines, place_of(job, event.pool)
    number = job.generations[-1].number + 1 if job.generations else 1
    generation = Generation(
        number=number,
        name=generation_name(job.spec, job.store, job.id, number),
        phase=Phase.PLANNED if machines.maker else Phase.READY,
        hosts=event.hosts,
        keys=event.keys,
        maker=machines.maker,
        pool=pool,
        units=machines.units,
        granted=event.time,
        zone=zone,
    )
    job = replace(job, generations=(*kept_generations(job), generation), not_before=0.0)
    if machines.maker:
        return move(job, State.REQUESTING, event.time, "its machines are being made")
    return move(job, State.PREPARING, event.time, f"starts on {short_list(event.hosts)}")


def short_list(names: tuple[str, ...]) -> str:
    """Return names in a few words.

    >>> short_list(("a", "b")), short_list(("a", "b", "c", "d"))
    ('a, b', 'a, b and 2 more')
    """
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more


def starts(order: AnyOrder, run: str) -> bool:
    """Return True for the order to start a run."""
    return isinstance(order, Start) and order.run == run
