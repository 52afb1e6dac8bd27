"""The rules that follow the end of an attempt: another attempt, after which delay, or the end of the job."""

from __future__ import annotations

from msgspec import Struct

from mesh.core.job import UNLIMITED, RestartOn, RestartSpec
from mesh.core.outcome import EXIT_BUSY, EXIT_LOST, EXIT_PREPARE, EXIT_TIMEOUT, Cause
from mesh.jobs.events import RunEnded
from mesh.jobs.pauses import growing
from mesh.jobs.values import Job, State

STEADY_RUN_S = 600.0  # an attempt that ran this long begins a new series of back-offs
STATUSES = {Cause.LOST: EXIT_LOST, Cause.TIMEOUT: EXIT_TIMEOUT, Cause.PREPARE: EXIT_PREPARE, Cause.BUSY: EXIT_BUSY}


class Verdict(Struct, frozen=True, kw_only=True):
    """The consequence of an attempt's end."""

    outcome: State | None  # None: another attempt follows
    delay: float = 0.0  # seconds until then
    preemptions: int
    failures: int
    streak: int
    reason: str


def judge(job: Job, end: RunEnded) -> Verdict:
    """Return the consequence of the end of a job's current attempt."""
    rules, attempt = job.spec.restart, job.current
    has_run_long = attempt is not None and attempt.started and end.time - attempt.started >= STEADY_RUN_S
    streak = 0 if has_run_long else job.streak
    label = f"attempt {job.attempt}"
    detail = f": {end.reason}" if end.reason else ""
    preemptions, failures = job.preemptions, job.failures
    outcome: State | None = None
    delay = backoff(job, streak + 1)
    match end.cause:
        case Cause.LOST.value:
            preemptions += 1
            reason = f"{label} lost its hosts{detail}"
            delay = 0.0 if streak == 0 else backoff(job, streak)
            outcome = None if may_recover(rules, preemptions) else State.FAILED
        case Cause.COMPLETED.value:
            reason = f"{label} succeeded"
            outcome = None if rules.on is RestartOn.ALWAYS else State.SUCCEEDED
        case Cause.SIGNAL.value:
            reason, outcome = f"{label} was stopped{detail}", State.STOPPED
        case cause:
            how = "ran out of time" if cause == Cause.TIMEOUT.value else f"failed: exit {end.exit_code}"
            reason = f"{label} {how}{detail}"
            counts = end.exit_code not in rules.again
            failures += counts
            outcome = None if may_fail(rules, failures, end.exit_code) else State.FAILED
    return Verdict(
        outcome=outcome,
        delay=0.0 if outcome else delay,
        preemptions=preemptions,
        failures=failures,
        streak=streak + 1,
        reason=reason,
    )


def may_recover(rules: RestartSpec, losses: int) -> bool:
    """Return True if another attempt follows after so many losses.

    >>> may_recover(RestartSpec(), 1000), may_recover(RestartSpec(recoveries=2), 3)
    (True, False)
    """
    return rules.on is not RestartOn.NEVER and (rules.recoveries == UNLIMITED or losses <= rules.recoveries)


def may_fail(rules: RestartSpec, failures: int, exit_code: int) -> bool:
    """Return True if another attempt follows a failure.

    failures: so far, with this one if it counts

    >>> rules = RestartSpec(on=RestartOn.FAILURE, failures=1, again=(29,), never=(2,))
    >>> may_fail(rules, 1, 3), may_fail(rules, 2, 3), may_fail(rules, 9, 29), may_fail(rules, 0, 2)
    (True, False, True, False)
    """
    if exit_code in rules.never:
        return False
    if exit_code in rules.again:
        return True
    return rules.on in (RestartOn.FAILURE, RestartOn.ALWAYS) and failures <= rules.failures


def backoff(job: Job, streak: int) -> float:
    """Return the delay before the streak-th restart in a row: doubled from first to last, with jitter of the job's own.

    The jitter is a function of job and attempt, so that a replay of the events gives the same times.
    """
    return growing(job.spec.restart.backoff, streak, f"{job.store}/{job.id}/{job.attempt}/{streak}")
