"""The decisions about a job, replayed from histories in words: no process, no clock, no store."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mesh.core.job import JobSpec, MachinesSpec
from mesh.core.module import Python, Ssh
from mesh.jobs.decide import decide, is_news, looks, wake_at
from mesh.jobs.events import Intended, MachinesLost, MachinesPending, NotAsked
from mesh.jobs.fold import fold, fold_all
from mesh.jobs.orders import Delete, LookAtMachines, LookAtRun, Make, Prepare, Start, Undo
from mesh.jobs.restart import backoff
from mesh.jobs.values import Phase, Stage, State, row_of
from tests.full import times
from tests.job_histories import EAGER, EVENTS, MADE, THERE, History, job_spec, prefixes

MODULES = (("venv", Python(tool="venv")),)
KEYS = (("ssh", Ssh(identities=())), *MODULES)
KEYED = job_spec(modules=KEYS)
KEYED_RUN = "granted prepared started"

RUN = "granted started"
MACHINES = "granted made ready started"
DONE = f"{RUN} ended fetched"
FAILING = job_spec("failure")
CLOUD = job_spec("failure", made=True)

# Spec, the words of the history, state with exit status, and the operations that were ordered.
HISTORIES: dict[str, tuple[JobSpec, str, str, str]] = {
    # ---- the straight way
    "a new job waits for its turn": (job_spec(), "", "queued", ""),
    "a granted job is started": (job_spec(), "granted", "preparing", "start"),
    "a started run is a running job": (job_spec(), RUN, "running", "start"),
    "a run that has ended is fetched before the job ends": (job_spec(), f"{RUN} ended", "ending", "start fetch"),
    "a run that succeeded is a job that succeeded": (job_spec(), DONE, "succeeded 0", "start fetch"),
    "a run that has ended before its start was answered": (
        job_spec(),
        "granted ended fetched",
        "succeeded 0",
        "start fetch",
    ),
    "modules come before the start": (job_spec(modules=MODULES), "granted", "preparing", "prepare"),
    "prepared hosts are started": (job_spec(modules=MODULES), "granted prepared started", "running", "prepare start"),
    "the command alone is started again on the same machines": (
        job_spec(modules=MODULES),
        "granted prepared started restart-alone ended:143 fetched granted started",
        "running",
        "prepare start stop fetch start",
    ),
    "other machines are prepared in any case": (
        job_spec(modules=MODULES),
        "granted prepared started restart-alone ended:143 fetched granted-others prepared started",
        "running",
        "prepare start stop fetch prepare start",
    ),
    "a grant for a job that is not queued changes nothing": (job_spec(), f"{RUN} granted", "running", "start"),
    # ---- keys and mounts on hosts that stay
    "keys are removed before a job ends": (KEYED, f"{KEYED_RUN} ended fetched", "ending", "prepare start fetch undo"),
    "and then it ends": (KEYED, f"{KEYED_RUN} ended fetched undone", "succeeded 0", "prepare start fetch undo"),
    "a set-up without an answer is not repeated for a job that was stopped": (
        KEYED,
        "granted not-asked:prepare stop timer undone",
        "stopped 143",
        "prepare undo",
    ),
    "machines are not asked for again for it either": (
        job_spec(made=True),
        "granted not-asked:make stop timer absent",
        "stopped 143",
        "make delete",
    ),
    "an order that waits to be repeated is repeated at once after a wish": (
        job_spec(),
        "granted started restart not-asked:stop stop timer ended:143 fetched",
        "stopped 143",
        "start stop stop fetch",
    ),
    "and the deletion of machines too": (
        job_spec(made=True),
        "granted made ready started lost not-asked:delete stop timer",
        "ending",
        "make start delete delete",
    ),
    "machines of a stopped job whose hosts stay silent are deleted after half an hour": (
        job_spec(made=True),
        "granted made ready started stop not-asked:stop @999 timer not-asked:stop @1900 timer deleting absent",
        "stopped 143",
        "make start stop stop delete",
    ),
    "and not before": (
        job_spec(made=True),
        "granted made ready started stop not-asked:stop @1700 timer",
        "ending",
        "make start stop stop",
    ),
    "a stopped set-up is undone": (
        KEYED,
        "granted stop not-asked:prepare @99 timer undone",
        "stopped 143",
        "prepare undo",
    ),
    "hosts of a failed attempt are undone before others have them": (
        job_spec("failure", modules=KEYS),
        f"{KEYED_RUN} ended:3 fetched",
        "recovering",
        "prepare start fetch undo",
    ),
    "and only then the job is queued again": (
        job_spec("failure", modules=KEYS),
        f"{KEYED_RUN} ended:3 fetched undone",
        "queued",
        "prepare start fetch undo",
    ),
    "a held job is undone": (KEYED, "granted refused:person undone", "held", "prepare undo"),
    "a job that is resumed meanwhile waits for that": (
        KEYED,
        "granted refused:person resume undone granted",
        "preparing",
        "prepare undo prepare",
    ),
    "a new steward undoes what the last one had begun": (
        KEYED,
        f"{KEYED_RUN} ended fetched taken-over undone",
        "succeeded 0",
        "prepare start fetch undo undo",
    ),
    "a hand that dies is followed by another": (
        KEYED,
        f"{KEYED_RUN} ended fetched not-asked:undo @60 timer undone",
        "succeeded 0",
        "prepare start fetch undo undo",
    ),
    "but the end waits for no more than two minutes": (
        KEYED,
        f"{KEYED_RUN} ended fetched not-asked:undo @999 timer",
        "succeeded 0",
        "prepare start fetch undo",
    ),
    "a host that cannot be reached is tried again": (
        KEYED,
        f"{KEYED_RUN} ended fetched undone-in-part:unreachable @60 timer",
        "ending",
        "prepare start fetch undo undo",
    ),
    "a lost host does not keep the next attempt waiting": (
        KEYED,
        f"{KEYED_RUN} ended:76 undone-in-part:unreachable",
        "queued",
        "prepare start undo",
    ),
    "a busy one does": (
        KEYED,
        f"{KEYED_RUN} ended:76 undone-in-part:busy @60 timer undone",
        "queued",
        "prepare start undo undo",
    ),
    "without set-up, what was removed is set up all the same": (
        KEYED,
        f"{KEYED_RUN} ended fetched undone restart-alone granted prepared started",
        "running",
        "prepare start fetch undo prepare start",
    ),
    "environments stay": (
        job_spec(modules=MODULES),
        "granted prepared started ended fetched",
        "succeeded 0",
        "prepare start fetch",
    ),
    "modules of mesh.yaml are undone as well": (
        job_spec(project_modules=KEYS),
        f"{RUN} ended fetched undone",
        "succeeded 0",
        "start fetch undo",
    ),
    "machines that are deleted need no undo": (
        job_spec(made=True, modules=KEYS),
        "granted made ready prepared started ended fetched absent",
        "succeeded 0",
        "make prepare start fetch delete",
    ),
    # ---- failures and restarts
    "a failure ends a job that restarts after losses only": (
        job_spec(),
        f"{RUN} ended:3 fetched",
        "failed 3",
        "start fetch",
    ),
    "a failure within the budget is queued again": (FAILING, f"{RUN} ended:3 fetched", "queued", "start fetch"),
    "a failure beyond the budget is final": (
        FAILING,
        f"{RUN} ended:3 fetched {RUN} ended:4 fetched",
        "failed 4",
        "start fetch start fetch",
    ),
    "an exit status that asks for another attempt uses up nothing": (
        FAILING,
        f"{RUN} ended:29 fetched {RUN} ended:29 fetched {RUN} ended:29 fetched",
        "queued",
        "start fetch start fetch start fetch",
    ),
    "an exit status that is never restarted ends the job": (
        FAILING,
        f"{RUN} ended:2 fetched",
        "failed 2",
        "start fetch",
    ),
    "a timeout is a failure": (job_spec(), f"{RUN} ended:124 fetched", "failed 124", "start fetch"),
    "a timeout is restarted as a failure": (FAILING, f"{RUN} ended:124 fetched", "queued", "start fetch"),
    "always means after success too": (job_spec("always"), DONE, "queued", "start fetch"),
    "never means after a loss neither": (job_spec("never"), f"{RUN} ended:76 fetched", "failed 76", "start fetch"),
    "a run stopped by a person is a stopped job": (FAILING, f"{RUN} ended:143 fetched", "stopped 143", "start fetch"),
    # ---- losses
    "a loss is queued again at once": (job_spec(), f"{RUN} ended:76", "queued", "start"),
    "losses use up no failures": (
        FAILING,
        f"{RUN} ended:76 {RUN} ended:76 {RUN} ended:76 {RUN} ended:3 fetched fetched fetched fetched",
        "queued",
        "start start start start fetch",
    ),
    "a run that no host has any more was lost": (job_spec(), f"{RUN} unknown", "queued", "start"),
    "output of a lost attempt is fetched at the end": (
        job_spec(),
        f"{RUN} ended:76 {RUN} ended fetched fetched",
        "succeeded 0",
        "start start fetch fetch",
    ),
    "recoveries may be limited": (
        job_spec(restart=job_spec().restart.__class__(recoveries=1)),
        f"{RUN} ended:76 {RUN} ended:76 fetched fetched",
        "failed 76",
        "start start fetch fetch",
    ),
    # ---- starts without an answer
    "a start without an answer is not repeated": (job_spec(), "granted not-asked:start", "preparing", "start"),
    "time alone does not repeat such a start": (job_spec(), "granted not-asked:start @999 timer", "preparing", "start"),
    "a run that was started all the same is adopted": (job_spec(), "granted not-asked:start seen", "running", "start"),
    "a run whose client died is waited for": (job_spec(), "granted not-asked:start attached", "preparing", "start"),
    "a run that no host has is started again once the pause is over": (
        job_spec(),
        "granted not-asked:start unknown @99 timer",
        "preparing",
        "start start",
    ),
    "hosts that do not answer keep a start unsure": (
        job_spec(),
        "granted not-asked:start not-asked not-asked @99 timer",
        "preparing",
        "start",
    ),
    "a run that hosts ended as its client died is no stop by a person": (
        job_spec(),
        "granted not-asked:start ended:143 @99 timer",
        "preparing",
        "start start",
    ),
    "a new steward asks before it starts": (job_spec(), "granted taken-over", "preparing", "start"),
    "a new steward adopts what runs": (job_spec(), "granted taken-over seen", "running", "start"),
    "a new steward starts what never ran": (job_spec(), "granted taken-over unknown", "preparing", "start start"),
    "a new steward leaves a running job alone": (job_spec(), f"{RUN} taken-over", "running", "start"),
    "a new steward repeats a fetch": (
        job_spec(),
        f"{RUN} ended taken-over fetched",
        "succeeded 0",
        "start fetch fetch",
    ),
    "hosts locked by an earlier start of the job: it is adopted": (
        job_spec(),
        "granted not-asked:start unknown @99 timer refused:busy:first seen",
        "running",
        "start start",
    ),
    "an adopted start that turns out to be gone is started again": (
        job_spec(),
        "granted not-asked:start unknown @99 timer refused:busy:first unknown",
        "preparing",
        "start start start",
    ),
    # ---- refusals
    "a run that a look has seen before the answer to its start, and that is gone then, is lost": (
        job_spec(),
        "granted seen unknown",
        "queued",
        "start",
    ),
    "busy hosts send a job back to the queue": (job_spec(), "granted refused:busy:other", "queued", "start"),
    "unreachable hosts are tried again": (
        job_spec(),
        "granted refused:unreachable @99 timer",
        "preparing",
        "start start",
    ),
    "hosts that stay unreachable are given back": (
        job_spec(),
        "granted refused:unreachable @999 timer refused:unreachable",
        "queued",
        "start start",
    ),
    "a refused login is for a person": (job_spec(), "granted refused:person", "held", "start"),
    "a missing variable is for a person": (job_spec(), "granted refused:environment", "held", "start"),
    "a held job is resumed": (job_spec(), f"granted refused:person resume {RUN}", "running", "start start"),
    "a held job is released": (job_spec(), f"granted refused:person release {RUN}", "running", "start start"),
    "a host lost before the start counts as a loss": (job_spec(), "granted refused:lost", "queued", "start"),
    "a refused module is for a person": (job_spec(modules=MODULES), "granted refused:person", "held", "prepare"),
    # ---- people
    "a queued job is stopped at once": (job_spec(), "stop", "stopped 143", ""),
    "a running job is stopped when its ranks are gone": (job_spec(), f"{RUN} stop", "ending", "start stop"),
    "a stopped job ends after its output is here": (
        job_spec(),
        f"{RUN} stop ended:143 fetched",
        "stopped 143",
        "start stop fetch",
    ),
    "a stop that was not answered is repeated": (
        job_spec(),
        f"{RUN} stop not-asked:stop @99 timer",
        "ending",
        "start stop stop",
    ),
    "a job is stopped while its start is under way": (job_spec(), "granted stop", "ending", "start"),
    "that start, without an answer, is ended on its hosts": (
        job_spec(),
        "granted stop not-asked:start @99 timer",
        "ending",
        "start stop",
    ),
    "that start, never seen, ends the job": (
        job_spec(),
        "granted stop not-asked:start @99 timer unknown",
        "stopped 143",
        "start stop",
    ),
    "that start, answered, is ended": (job_spec(), "granted stop started", "ending", "start stop"),
    "a refused start ends a job that is to stop": (job_spec(), "granted stop refused:busy", "stopped 143", "start"),
    "a held job is stopped": (job_spec(), "granted refused:person stop", "stopped 143", "start"),
    "a job that succeeded meanwhile stays stopped": (
        job_spec(),
        f"{RUN} stop ended:0 fetched",
        "stopped 143",
        "start stop fetch",
    ),
    "stop after the end changes nothing": (job_spec(), f"{DONE} stop", "succeeded 0", "start fetch"),
    "a deleted job is gone after its end": (
        job_spec(),
        f"{RUN} delete ended:143 fetched",
        "stopped 143",
        "start stop fetch",
    ),
    "an ended job is resumed": (job_spec(), f"{RUN} ended:3 fetched resume {RUN}", "running", "start fetch start"),
    "a job is resumed while it is being stopped": (
        job_spec(),
        f"{RUN} stop resume ended:143 fetched",
        "queued",
        "start stop fetch",
    ),
    "a restarted job ends its attempt first": (job_spec(), f"{RUN} restart", "recovering", "start stop"),
    "a restarted job starts anew": (
        job_spec(),
        f"{RUN} restart ended:143 fetched {RUN}",
        "running",
        "start stop fetch start",
    ),
    "a queued job is held": (job_spec(), "hold", "held", ""),
    "a held job is queued again": (job_spec(), "hold release", "queued", ""),
    "a running job on hold runs on": (job_spec(), f"{RUN} hold", "running", "start"),
    "and is held when it would be queued": (job_spec(), f"{RUN} hold ended:76", "held", "start"),
    "a priority changes no state": (job_spec(), "urgent", "queued", ""),
    # ---- dependencies
    "a job waits for another one": (job_spec(depends_on=(3,)), "", "queued", ""),
    "and is held when that one fails": (job_spec(depends_on=(3,)), "dependency:3:failed", "held", ""),
    "and may be released all the same": (job_spec(depends_on=(3,)), "dependency:3:failed release", "queued", ""),
    "another job's end is no event of it": (job_spec(depends_on=(3,)), "dependency:4:failed", "queued", ""),
    # ---- machines that are made
    "a grant has machines made": (CLOUD, "granted", "requesting", "make"),
    "machines that are there are started on": (CLOUD, "granted made ready", "preparing", "make start"),
    "machines are deleted before the job ends": (
        CLOUD,
        f"{MACHINES} ended fetched",
        "ending",
        "make start fetch delete",
    ),
    "a job ends when its machines are gone": (
        CLOUD,
        f"{MACHINES} ended fetched absent",
        "succeeded 0",
        "make start fetch delete",
    ),
    "machines that are still being deleted are no end": (
        CLOUD,
        f"{MACHINES} ended fetched pending",
        "ending",
        "make start fetch delete",
    ),
    "a maker without an answer is asked again": (CLOUD, "granted not-asked:make @99 timer", "requesting", "make make"),
    "no capacity sends a job back to the queue": (CLOUD, "granted refused:capacity", "queued", "make"),
    "wrong words for a maker are for a person": (CLOUD, "granted refused:person", "held", "make"),
    "after a lost answer no capacity proves nothing": (
        CLOUD,
        "granted not-asked:make @99 timer refused:capacity",
        "recovering",
        "make make delete",
    ),
    "and only evidence sends the job back to the queue": (
        CLOUD,
        "granted not-asked:make @99 timer refused:capacity deleting absent",
        "queued",
        "make make delete",
    ),
    "nor does a refusal after a steward that was killed": (
        CLOUD,
        "granted taken-over refused:person",
        "held",
        "make make delete",
    ),
    "which evidence ends as well": (CLOUD, "granted taken-over refused:person absent", "held", "make make delete"),
    "an attempt that failed is followed by another one on the same machines": (
        CLOUD,
        f"{MACHINES} ended:3 fetched @99 timer",
        "preparing",
        "make start fetch start",
    ),
    "not if they are gone meanwhile": (
        CLOUD,
        f"{MACHINES} ended:3 fetched lost absent",
        "queued",
        "make start fetch delete",
    ),
    "and not if a person holds the job": (
        CLOUD,
        f"{MACHINES} hold ended:3 fetched absent",
        "held",
        "make start fetch delete",
    ),
    "a restart by a person keeps them too": (
        CLOUD,
        f"{MACHINES} restart ended:143 fetched",
        "preparing",
        "make start stop fetch start",
    ),
    "lost machines are deleted": (CLOUD, f"{MACHINES} lost", "recovering", "make start delete"),
    "and then asked for anew": (CLOUD, f"{MACHINES} lost deleting absent", "queued", "make start delete"),
    "machines that are being deleted are deleted again after a pause": (
        CLOUD,
        f"{MACHINES} lost deleting @999 timer",
        "recovering",
        "make start delete delete",
    ),
    "a request that is lost in the queue is deleted": (CLOUD, "granted made waiting lost", "recovering", "make delete"),
    "a job that ends loses its machines only": (
        CLOUD,
        f"{MACHINES} ended:0 lost deleting absent",
        "succeeded 0",
        "make start fetch delete",
    ),
    "machines gone while a job runs are a preemption": (CLOUD, f"{MACHINES} absent", "queued", "make start"),
    "machines gone before the start are one too": (CLOUD, "granted made ready absent", "queued", "make start"),
    "machines that never came are asked for anew": (CLOUD, "granted made absent", "queued", "make"),
    "a loss releases the machines before others are asked for": (
        CLOUD,
        f"{MACHINES} ended:76 fetched lost",
        "recovering",
        "make start fetch start delete",
    ),
    "and only then is queued again": (
        CLOUD,
        f"{MACHINES} ended:76 lost not-asked:delete @99 timer @200 absent",
        "queued",
        "make start fetch delete delete",
    ),
    "a job stopped while its machines are made deletes them": (
        CLOUD,
        "granted stop not-asked:make @99 timer",
        "ending",
        "make delete",
    ),
    "a delete without an answer is repeated": (
        CLOUD,
        f"{MACHINES} ended fetched not-asked:delete @99 timer",
        "ending",
        "make start fetch delete delete",
    ),
    "made machines that are busy are kept, and tried again": (
        CLOUD,
        "granted made ready refused:busy @999 timer",
        "preparing",
        "make start start",
    ),
    "also those on which a setup that was cut off still runs": (
        job_spec(made=True, modules=MODULES),
        "granted made ready taken-over refused:busy:other @999 timer",
        "preparing",
        "make prepare prepare prepare",
    ),
    "hosts that cannot be reached once after a long setup are tried again": (
        job_spec(made=True, modules=MODULES),
        "granted made ready @900 prepared refused:unreachable @999 timer",
        "preparing",
        "make prepare start start",
    ),
    "a restart sets the machines of a held job up again": (
        job_spec(made=True, modules=MODULES),
        "granted made ready prepared refused:person restart",
        "preparing",
        "make prepare start prepare",
    ),
    "a held job keeps its machines for a while": (CLOUD, "granted made ready refused:person", "held", "make start"),
    "and goes on with them": (CLOUD, "granted made ready refused:person resume", "preparing", "make start start"),
    "but not for ever": (CLOUD, "granted made ready refused:person @999 timer", "held", "make start delete"),
    # ---- the end takes its time
    "results that cannot be fetched end the wait at last": (
        job_spec(),
        f"{RUN} ended not-asked:fetch @9999 timer",
        "succeeded 0",
        "start fetch",
    ),
}


@pytest.mark.parametrize(("spec", "words", "state", "operations"), HISTORIES.values(), ids=HISTORIES)
def test_a_history_leads_to_a_state_and_orders(spec: JobSpec, words: str, state: str, operations: str) -> None:
    history = History(spec).play(words)
    assert (history.told, " ".join(history.orders)) == (state, operations)
    assert fold_all(history.events) == history.job
    assert row_of(history.job).state == history.job.state.value


@pytest.mark.parametrize(("spec", "words"), [row[:2] for row in HISTORIES.values()], ids=HISTORIES)
def test_every_beginning_of_a_history_gives_the_same_orders_again(spec: JobSpec, words: str) -> None:
    history = History(spec).play(words)
    for beginning in prefixes(history):
        *before, event = beginning
        if before and not isinstance(event, Intended):
            _, orders = decide(fold_all(before), event)
            new = [one.op for one in orders if one.op > fold_all(before).ops]
            rest = history.events[len(beginning) : len(beginning) + len(new)]
            assert [one.op for one in rest if isinstance(one, Intended)] == new


def test_output_that_was_not_fetched_in_time_is_named_at_the_end() -> None:
    job = History(job_spec()).play(f"{RUN} ended not-asked:fetch @9999 timer").job
    assert job.reason == f"attempt 1 succeeded; the output of run {job.runs[0]} was not fetched in time"
    assert History(job_spec()).play(DONE).job.reason == "attempt 1 succeeded"


def test_keys_that_could_not_be_removed_are_named_with_the_command_until_they_are() -> None:
    history = History(KEYED).play(f"{KEYED_RUN} ended fetched undone-in-part:unreachable @999 timer")
    history.play("undone-in-part:unreachable")
    job = history.job
    assert job.state is State.SUCCEEDED
    assert job.reason == "attempt 1 succeeded; keys or mounts may be left on h1 (h1: unreachable)"
    assert job.hint == "mesh job setup 7 --undo"
    assert row_of(job).left_on == ("h1",)
    assert row_of(history.play("undone-by-hand").job).left_on == ()
    assert fold_all(history.events) == history.job


def test_a_later_attempt_on_the_same_host_removes_what_an_earlier_one_has_left() -> None:
    history = History(KEYED).play(f"{KEYED_RUN} ended:76 undone-in-part:unreachable")
    assert history.job.left_on == ("h1",)
    history.play(f"{KEYED_RUN} ended fetched fetched undone")
    assert (history.job.state, history.job.left_on) == (State.SUCCEEDED, ())


def test_only_the_removed_modules_are_set_up_where_a_person_wants_no_set_up() -> None:
    job = History(KEYED).play(f"{KEYED_RUN} ended fetched undone restart-alone granted").job
    assert [one.order for one in job.open] == [Prepare(attempt=2, hosts=("h0", "h1"), modules=("ssh",))]


def test_attempts_and_runs_are_counted() -> None:
    job = History(FAILING).play(f"{RUN} ended:76 {RUN} ended:3 fetched {RUN}").job
    assert (job.attempt, job.preemptions, job.failures, len(job.runs)) == (3, 1, 1, 3)
    assert len(set(job.runs)) == 3


def test_a_start_that_never_was_is_no_attempt() -> None:
    job = History(job_spec()).play("granted not-asked:start unknown @99 timer started").job
    assert (job.attempt, len(job.runs), len(job.attempts)) == (1, 1, 2)


def test_a_restarted_attempt_prefers_the_hosts_that_it_had_without_those_at_fault() -> None:
    job = History(job_spec()).play(f"{RUN} ended:76").job
    assert (job.last_hosts, job.avoided) == (("h0", "h1"), ("h0",))


def test_no_run_is_asked_about_while_it_is_being_started() -> None:
    history = History(job_spec()).play("granted")
    assert looks(history.job) == ()
    assert [type(look) for look in looks(history.play("not-asked:start").job)] == [LookAtRun]


def test_machines_are_not_looked_at_while_they_are_being_asked_for() -> None:
    history = History(CLOUD).play("granted")
    assert looks(history.job) == ()
    assert [type(look) for look in looks(history.play("made").job)] == [LookAtMachines]


def test_back_off_doubles_with_jitter_and_begins_anew_after_a_long_run() -> None:
    job = History(FAILING).job
    assert [round(backoff(job, streak) / 10) in (1, 2, 3, 4, 5) for streak in (1, 2, 3, 9)] == [True] * 4
    assert 7.5 <= backoff(job, 1) <= 12.5
    assert 30 <= backoff(job, 9) <= 50
    again = History(FAILING).play(f"{RUN} ended:29 fetched {RUN} ended:29 fetched @500 {RUN} @2000 ended:29 fetched")
    assert again.job.streak == 1
    assert 7 < again.job.not_before - again.now < 14


def test_answers_that_change_nothing_are_no_news() -> None:
    history = History(job_spec()).play(RUN)
    assert not is_news(history.job, history.event("seen"))
    assert is_news(history.job, history.event("not-asked"))
    history.play("not-asked")
    assert not is_news(history.job, history.event("not-asked"))
    assert history.job.silent_since
    assert is_news(history.job, history.event("seen"))
    assert not history.play("seen").job.silent_since


def test_an_order_without_an_answer_is_news_each_time() -> None:
    history = History(CLOUD).play("granted not-asked:make @99 timer")
    assert is_news(history.job, history.event("not-asked:make"))


def test_a_timer_is_wanted_only_where_it_changes_something() -> None:
    history = History(job_spec())
    assert wake_at(history.job) == float("inf")
    assert wake_at(history.play("granted refused:unreachable").job) == history.now + 10
    assert wake_at(History(job_spec()).play(DONE).job) == float("inf")


CLOUD_WORDS = ("lost", "sick", "silent-lost", "deleting", "seen-deleting", "old-deleting", "old-absent")
OVER_WORDS = ("lost-and-over", "unlisted", "old-unlisted", "old-ready", "old-lost-in-part")


class Lives(RuleBasedStateMachine):
    """Any event at any time; answers also late, twice, and for orders that were taken back."""

    @initialize(
        on=st.sampled_from(["never", "preemption", "failure", "always"]),
        machines=st.sampled_from([THERE, MADE, EAGER]),
        modules=st.booleans(),
    )
    def submit(self, on: str, machines: MachinesSpec, modules: bool) -> None:
        self.history = History(job_spec(on, machines=machines, modules=KEYS if modules else ()))
        self.before = self.history.job

    @precondition(lambda self: self.history.job.state is State.QUEUED)
    @rule()
    def grant(self) -> None:
        self._happen("granted")

    @rule(word=st.sampled_from(["started", "seen", "ended", "ended:76", "ended:3", "ended:143", "prepared"]))
    def answer(self, word: str) -> None:
        self._happen(word)

    @rule(word=st.sampled_from(["fetched", "unknown", "attached", "undone"]))
    def look_at_hosts(self, word: str) -> None:
        self._happen(word)

    @rule(word=st.sampled_from(["made", "ready", "pending", "absent", *CLOUD_WORDS, *OVER_WORDS]))
    def look(self, word: str) -> None:
        if self.history.job.generations and self.history.job.spec.machines.maker:  # no maker answers about other hosts
            self._happen(word)

    @rule(kind=st.sampled_from(["busy", "busy:own", "busy:first", "unreachable", "person", "lost", "capacity"]))
    def refuse(self, kind: str) -> None:
        if self.history.job.is_open(Start, Make) and (self.history.job.attempts or "first" not in kind):
            self._happen(f"refused:{kind}")

    @rule(kind=st.sampled_from(["look", "start", "stop", "fetch", "make", "delete", "prepare", "undo"]))
    def do_not_answer(self, kind: str) -> None:
        before = self.history.job
        self._happen(f"not-asked:{kind}")
        assert self.history.job.state is before.state

    @rule(kind=st.sampled_from(["busy", "unreachable", "person"]))
    def undo_in_part(self, kind: str) -> None:
        if self.history.job.is_open(Undo):
            self._happen(f"undone-in-part:{kind}")

    @rule(word=st.sampled_from(["stop", "resume", "restart", "hold", "release", "taken-over"]))
    def ask(self, word: str) -> None:
        self._happen(word)

    @rule(seconds=st.sampled_from([1.0, 30.0, 700.0, 4000.0]))
    def pass_time(self, seconds: float) -> None:
        self.history.now += seconds
        self._happen("timer")

    def _happen(self, word: str) -> None:
        self.before = self.history.job
        self.history.play(word)

    @invariant()
    def holds(self) -> None:
        job, before = self.history.job, self.before
        living = [one for one in job.generations if one.phase is not Phase.RELEASED and not one.is_left]
        assert len(living) <= 1
        assert all(one.phase in (Phase.RELEASING, Phase.RELEASED) for one in job.generations if one.is_left)
        assert sum(one.stage in (Stage.INTENDED, Stage.UNSURE, Stage.LIVE) for one in job.attempts) <= 1
        assert len({one.run for one in job.attempts}) == len(job.attempts)
        if job.state.is_final:
            assert not living
            assert not job.left
            assert job.current is None
            assert job.exit_code is not None
        else:
            assert job.exit_code is None
        if job.state is State.QUEUED:
            assert not living
            assert job.current is None
        if job.state is State.RUNNING:
            assert job.current is not None
        given = [one for one in job.generations if one.phase is Phase.RELEASED and one.unclean]
        assert not any(one.maker for one in given)
        assert all(one.undo_tries for one in given)  # no host is given back before its keys were to be removed
        deletes = [one.order for one in job.open if isinstance(one.order, Delete)]
        releasing = {one.name for one in job.generations if one.phase is Phase.RELEASING}
        assert all(order.name in releasing for order in deletes)
        starts = [one for one in job.open if isinstance(one.order, Start)]
        assert len(starts) <= 1
        happened = self.history.events
        over = {one.generation for one in happened if isinstance(one, MachinesLost) and one.is_ended}
        unlisted = {one.generation for one in happened if isinstance(one, MachinesPending) and one.is_unlisted}
        assert not (starts and [one for one in job.left if one.number not in over & unlisted])
        assert all(job.current and job.current.run == one.order.run for one in starts if isinstance(one.order, Start))
        intended = {one.op for one in self.history.events if isinstance(one, Intended)}
        assert {one.op for one in job.open} <= intended
        assert before.seq <= job.seq

    def teardown(self) -> None:
        if hasattr(self, "history"):
            assert fold_all(self.history.events) == self.history.job


Lives.TestCase.settings = settings(
    max_examples=times(40, full=100), stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)  # 5,000 steps
TestLives = Lives.TestCase


def test_not_asked_never_changes_a_state() -> None:
    for spec, words, _, _ in HISTORIES.values():
        history = History(spec).play(words)
        for op in [0, *(one.op for one in history.job.open)]:
            after = fold(history.job, NotAsked(time=history.now + 9999, op=op, what="pod", why="timed out"))
            assert after.state is history.job.state


def test_each_word_of_a_history_is_an_event() -> None:
    used = {word.partition(":")[0] for _, words, _, _ in HISTORIES.values() for word in words.split() if word[0] != "@"}
    assert used <= set(EVENTS)
    assert len(HISTORIES) >= 60


@pytest.mark.parametrize("words", ["restart not-asked:stop stop", "stop not-asked:stop resume"])
def test_a_timer_is_due_while_an_order_waits_to_be_repeated(words: str) -> None:
    history = History(job_spec()).play(f"granted started {words}")
    assert wake_at(history.job) <= history.now
