"""Doubts about machines that are ready: silent hosts, a silent API, repairs. Few of them delete machines."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mesh.app.silences import Silence, lasting
from mesh.core.tpu import TpuSpec
from mesh.jobs import events
from mesh.jobs.decide import is_news
from mesh.jobs.doubts import LONG_RETRY_S
from mesh.jobs.events import Refusal
from mesh.jobs.orders import Start
from mesh.jobs.values import Phase
from tests.job_histories import HOSTS, History, job_spec, op

CLOUD = job_spec("failure", made=True)
MACHINES = "granted made ready started"
LATER = "@99999 timer"

# The words of the history, the state, and the operations.
HISTORIES: dict[str, tuple[str, str, str]] = {
    "made machines that cannot be reached are not deleted": (
        f"granted made ready refused:unreachable {LATER} refused:unreachable",
        "preparing",
        "make start start",
    ),
    "an attempt that lost a host begins again on machines that the API has ready": (
        f"{MACHINES} ended:76 fetched",
        "preparing",
        "make start fetch start",
    ),
    "and one that no host has any more": (f"{MACHINES} unknown fetched", "preparing", "make start fetch start"),
    "a host that an agent reported as lost, and that stays out of reach, ends the machines": (
        f"{MACHINES} ended:76 fetched refused:unreachable {LATER} refused:unreachable",
        "recovering",
        "make start fetch start start delete",
    ),
    "which another start on them takes back": (
        f"{MACHINES} ended:76 fetched started ended:3 fetched",
        "preparing",
        "make start fetch start fetch",
    ),
    "a repair of hosts that answer ends nothing": (f"{MACHINES} sick @99999 sick", "running", "make start"),
    "a repair of silent hosts is waited for": (f"{MACHINES} not-asked sick @1700 sick", "running", "make start"),
    "and ends them at last": (f"{MACHINES} not-asked sick @99999 sick", "recovering", "make start delete"),
    "unless it is over in between": (f"{MACHINES} not-asked sick @1700 ready @9999 sick", "running", "make start"),
    "another state than a repair begins the wait anew": (
        f"{MACHINES} not-asked sick @1700 pending @9999 sick",
        "running",
        "make start",
    ),
    "silence by the wish of the user ends machines": (
        f"{MACHINES} not-asked silent-lost",
        "recovering",
        "make start delete",
    ),
    "not if the hosts have answered meanwhile": (f"{MACHINES} not-asked seen silent-lost", "running", "make start"),
}


@pytest.mark.parametrize(("words", "state", "operations"), HISTORIES.values(), ids=HISTORIES)
def test_a_doubt_leads_to_a_state_and_orders(words: str, state: str, operations: str) -> None:
    history = History(CLOUD).play(words)
    assert (history.told, " ".join(history.orders)) == (state, operations)


def test_machines_of_which_no_host_is_reached_stay_whatever_agents_have_reported() -> None:
    """This machine's own network may be down."""
    history = History(CLOUD).play(f"{MACHINES} ended:76 fetched refused:unreachable {LATER}")
    refused = events.Refused(op=op(history.job, Start), kind=Refusal.UNREACHABLE, why="no route", hosts=HOSTS)
    history.happen(replace(refused, time=history.now))
    assert history.told == "preparing"
    assert history.job.retry_at == history.now + LONG_RETRY_S


def test_a_long_repair_holds_a_job_that_is_never_restarted() -> None:
    history = History(job_spec("never", made=True)).play(f"{MACHINES} not-asked sick @99999 sick")
    assert history.told == "held"
    assert "REPAIRING" in history.job.reason
    assert "delete" not in history.orders
    history.play("@100500 sick")
    assert (history.told, "delete" in history.orders) == ("held", False)
    history.play("@100700 sick")
    assert (history.told, history.orders[-1]) == ("held", "delete")


def test_a_job_that_ends_does_not_wait_for_a_long_repair() -> None:
    history = History(job_spec("never", made=True)).play(f"{MACHINES} not-asked stop sick @1700 sick")
    assert (history.told, history.orders[-1]) == ("ending", "stop")
    assert (history.play("@9999 sick").told, history.orders[-1]) == ("ending", "delete")
    assert history.play("absent").told == "stopped 143"


def test_a_loss_that_agents_and_the_api_report_counts_once() -> None:
    history = History(CLOUD).play(f"{MACHINES} ended:76 fetched lost")
    assert (history.told, history.job.preemptions, history.job.failures) == ("recovering", 1, 0)
    again = History(CLOUD).play(f"{MACHINES} ended:76 fetched started lost")
    assert again.job.preemptions == 2


def test_each_of_two_silences_is_written_once() -> None:
    history = History(CLOUD).play(f"{MACHINES} not-asked api-not-asked")
    job = history.job
    assert (job.silence, job.api_silence) == ("pod: timed out", "cloud: 403")
    for word in ("not-asked", "api-not-asked"):
        assert not is_news(job, history.event(word))
    history.play("ready")
    assert (bool(history.job.silent_since), bool(history.job.api_silent_since)) == (True, False)
    assert not is_news(history.job, history.event("not-asked"))
    assert not is_news(history.job, history.event("ready"))
    assert is_news(history.job, history.event("seen"))


def test_silence_counts_only_from_try_to_try() -> None:
    begun = lasting(None, 0.0, is_silent=True)
    assert begun == Silence(begin=0.0, last=0.0)
    assert lasting(begun, 10.0, is_silent=True) == Silence(begin=0.0, last=10.0)
    assert lasting(begun, 10.0, is_silent=False) is None
    assert lasting(begun, 3600.0, is_silent=True) == Silence(begin=3600.0, last=3600.0)  # mesh serve was not there


def test_the_repair_time_is_that_of_the_file() -> None:
    tpu = TpuSpec(accelerator="v4-8", runtime="r", zones=("us-east1-d",), repair_for=60.0)
    spec = replace(CLOUD, machines=replace(CLOUD.machines, tpu=tpu))
    history = History(spec).play(f"{MACHINES} not-asked sick @70 sick")
    assert history.job.generations[-1].phase is Phase.RELEASING
