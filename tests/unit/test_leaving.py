"""Machines that a job has lost and does not wait for: others are asked for, and no rank starts beside them."""

from __future__ import annotations

import pytest

from mesh.core.job import JobSpec
from mesh.jobs.books import Books
from mesh.jobs.children import operation_of
from mesh.jobs.decide import wake_at
from mesh.jobs.fold import fold_all
from mesh.jobs.leaving import DELETE_AGAIN_S, LEAVE_AFTER_S
from mesh.jobs.orders import LookAtMachines
from tests.job_histories import EAGER, History, job_spec

CLOUD, SOON = job_spec("failure", made=True), job_spec("failure", machines=EAGER)
LOST = "granted made ready started lost"
OVER = "granted made ready started lost-and-over"

# Spec, the words of the history, the state, and the operations.
HISTORIES: dict[str, tuple[JobSpec, str, str, str]] = {
    "lost machines are waited for": (CLOUD, f"{LOST} deleting @999 timer", "recovering", "make start delete delete"),
    "not for long, once the API shows them as being deleted": (
        CLOUD,
        f"{LOST} deleting seen-deleting @{8 + LEAVE_AFTER_S} timer",
        "queued",
        "make start delete",
    ),
    "but for so long": (CLOUD, f"{LOST} deleting seen-deleting @60 timer", "recovering", "make start delete delete"),
    "eager: others are asked for at once": (SOON, f"{LOST} granted", "requesting", "make start delete make"),
    "and no rank starts before the lost ones are gone": (
        SOON,
        f"{LOST} granted made ready",
        "preparing",
        "make start delete make",
    ),
    "but then": (SOON, f"{LOST} granted made ready old-absent", "preparing", "make start delete make start"),
    "also if they are gone before": (
        SOON,
        f"{LOST} old-deleting old-absent granted made ready started",
        "running",
        "make start delete make start",
    ),
    "a job ends after all that it has left": (
        SOON,
        f"{LOST} granted made ready stop absent",
        "ending",
        "make start delete make delete",
    ),
    "which may be gone in any order": (
        SOON,
        f"{LOST} granted made ready stop old-absent absent",
        "stopped 143",
        "make start delete make delete",
    ),
    "a job that waits in the queue ends after them too": (SOON, f"{LOST} stop", "ending", "make start delete"),
    "an API that is silent for the delete holds up no request": (
        SOON,
        f"{LOST} not-asked:delete granted",
        "requesting",
        "make start delete make",
    ),
    "and is asked again": (
        SOON,
        f"{LOST} not-asked:delete granted @99 timer",
        "requesting",
        "make start delete make make delete",
    ),
    "the output of slices that are still there is fetched before they are deleted": (
        CLOUD,
        "granted made ready started lost-in-part",
        "recovering",
        "make start fetch",
    ),
    "with one try": (
        CLOUD,
        "granted made ready started lost-in-part not-asked:fetch @20 timer",
        "recovering",
        "make start fetch delete",
    ),
    "and they are deleted then": (
        CLOUD,
        "granted made ready started lost-in-part fetched",
        "recovering",
        "make start fetch delete",
    ),
    "and not later than a minute": (
        CLOUD,
        "granted made ready started lost-in-part @99 timer",
        "recovering",
        "make start fetch fetch delete",
    ),
    "others are asked for once those that are ended are not listed": (
        CLOUD,
        f"{OVER} deleting unlisted granted made",
        "requesting",
        "make start delete make",
    ),
    "and not before": (CLOUD, f"{OVER} deleting pending @30 timer", "recovering", "make start delete"),
    "also if Google has deleted them itself": (
        CLOUD,
        f"{OVER} unlisted granted made",
        "requesting",
        "make start delete make",
    ),
    "ranks start beside machines that are ended": (
        CLOUD,
        f"{OVER} deleting unlisted granted made ready started",
        "running",
        "make start delete make start",
    ),
    "and the job ends once these are gone": (
        CLOUD,
        f"{OVER} deleting unlisted granted made ready started ended fetched absent",
        "ending",
        "make start delete make start fetch delete",
    ),
    "which may take long": (
        CLOUD,
        f"{OVER} deleting unlisted granted made ready started ended fetched absent @99 timer old-absent",
        "succeeded 0",
        "make start delete make start fetch delete delete",
    ),
    "an answer without machines that are not ended proves nothing": (
        CLOUD,
        f"{LOST} deleting unlisted @30 timer",
        "recovering",
        "make start delete",
    ),
    "eager: no rank starts beside machines that are ended, and still listed": (
        SOON,
        f"{OVER} granted made ready",
        "preparing",
        "make start delete make",
    ),
    "and ranks start once these are not listed": (
        SOON,
        f"{OVER} granted made ready old-unlisted started",
        "running",
        "make start delete make start",
    ),
    "but not beside machines that are not ended": (
        SOON,
        f"{LOST} granted made ready old-unlisted",
        "preparing",
        "make start delete make",
    ),
    "nor beside some that are listed as ready after all": (
        SOON,
        f"{OVER} old-ready granted made ready old-unlisted",
        "preparing",
        "make start delete make",
    ),
    "or of which some are": (
        SOON,
        f"{OVER} old-unlisted granted made old-lost-in-part ready old-unlisted",
        "preparing",
        "make start delete make",
    ),
    "which are waited for as others are": (
        CLOUD,
        f"{OVER} deleting ready unlisted @30 timer",
        "recovering",
        "make start delete",
    ),
    "machines that never came are waited for": (SOON, "granted made lost", "recovering", "make delete"),
}


@pytest.mark.parametrize(("spec", "words", "state", "operations"), HISTORIES.values(), ids=HISTORIES)
def test_lost_machines_lead_to_a_state_and_orders(spec: JobSpec, words: str, state: str, operations: str) -> None:
    history = History(spec).play(words)
    assert (history.told, " ".join(history.orders)) == (state, operations)
    assert fold_all(history.events) == history.job


def test_machines_that_were_left_are_looked_at_and_deleted_until_they_are_gone() -> None:
    history = History(SOON).play(f"{LOST} old-deleting granted made")
    books = Books()
    books.put(history.job)
    due = books.due_looks(history.now, LookAtMachines, is_busy=False)
    assert sorted(look.generation for _, look in due if isinstance(look, LookAtMachines)) == [1, 2]
    assert wake_at(history.job) == 7.0 + DELETE_AGAIN_S
    history.play("@99 timer")
    assert history.orders[-1] == "delete"
    history.play("old-absent")
    assert not history.job.left
    books.put(history.job)
    due = books.due_looks(history.now + 99, LookAtMachines, is_busy=False)
    assert [look.generation for _, look in due if isinstance(look, LookAtMachines)] == [2]


@pytest.mark.parametrize("words", ["@99 timer", "@99 not-asked:look timer"])
def test_output_that_comes_too_late_is_fetched_no_more_once_machines_were_left(words: str) -> None:
    history = History(SOON).play(f"granted made ready started lost-in-part {words}")
    assert (history.told, [operation_of(one.order) for one in history.job.open]) == ("queued", ["delete"])
    assert fold_all(history.events) == history.job
