"""Taking what hosts have of a run without changing anything for it: replayed from lists of events."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.api.detached import with_hosts
from mesh.backends.ssh.backend import SshBackend
from mesh.backends.ssh.passwords import Passwords
from mesh.core.cluster import Cluster, Host, place_ranks
from mesh.core.errors import HostUnreachable
from mesh.core.events import CaughtUp, Connected, Event, Exited, Gone, Lost, PrepareFailed, Started, Tick
from mesh.core.outcome import Cause
from mesh.core.text import one_line
from mesh.engine.fetching import Fetching
from mesh.engine.orders import Say
from mesh.protocol.questions import AskJournals
from tests.specs import spec_of
from tests.unit.test_attachment import anew, ordered, started
from tests.unit.test_supervisor import exited

HOSTS = tuple(Host(name=f"h{node}", address=f"h{node}") for node in range(2))


class Taking:
    """Somebody who fetches, with a look that nothing is ever ordered."""

    def __init__(self, *, lasting: bool) -> None:
        spec = spec_of(run="r", project="p", workspace=Path("/w"), command=("true",))
        self.decider = Fetching(spec, place_ranks(HOSTS), lasting=lasting)

    def handle(self, *events: Event) -> None:
        for event in (*events, Tick(time=10.0, monotonic=10.0), Tick(time=500.0, monotonic=500.0)):
            orders = self.decider.handle(event)
            assert [order for order in orders if not isinstance(order, Say)] == []


def told(node: int, *events: Event) -> tuple[Event, ...]:
    """What one host tells."""
    begun = Connected(time=2, node=node, address="", machine="m")
    return (begun, started(node), *events, CaughtUp(time=3, node=node))


@pytest.mark.parametrize("lasting", [False, True])
def test_a_run_of_which_all_is_known_has_ended_as_it_did(lasting: bool) -> None:
    taking = Taking(lasting=lasting)
    taking.handle(*told(0, exited(0, 3, at=5), Gone(time=6, node=0)))
    assert not taking.decider.done
    taking.handle(*told(1, ordered(1, Cause.RANK, 5.5), exited(1, by=15, at=6), Gone(time=6, node=1)))
    assert taking.decider.done
    outcome = taking.decider.outcome(900.0)
    assert (outcome.exit_code, outcome.cause, outcome.stopped, outcome.goes_on) == (3, Cause.RANK, (1,), False)


@pytest.mark.parametrize("lost_first", [False, True])
def test_a_run_has_ended_once_the_others_have_reported_the_lost_host(lost_first: bool) -> None:
    taking = Taking(lasting=True)
    silent = PrepareFailed(time=4, node=0, step="reach", message="no route to host")
    report = told(1, ordered(1, Cause.LOST, 5.0, lost=0), exited(1, by=15, at=6), Gone(time=6, node=1))
    for events in ((silent,), report) if lost_first else (report, (silent,)):
        taking.handle(*events)
    assert (taking.decider.done, taking.decider.has_ended) == (True, True)
    outcome = taking.decider.outcome(900.0)
    assert (outcome.cause, outcome.goes_on, [one.node for one in outcome.lost]) == (Cause.LOST, False, [0])


def test_a_run_has_not_ended_while_a_host_is_only_silent() -> None:
    taking = Taking(lasting=True)
    taking.handle(PrepareFailed(time=4, node=0, step="reach", message="no route to host"))
    taking.handle(*told(1, exited(1, 0, at=6), Gone(time=6, node=1)))
    assert not taking.decider.has_ended
    assert taking.decider.outcome(900.0).goes_on


@pytest.mark.parametrize(
    "event",
    [
        exited(1, 3, at=5),
        exited(1, by=15, at=5),
        ordered(1, Cause.SIGNAL, 5.0),
        ordered(1, Cause.LOST, 5.0, lost=0),
        anew(1, at=5.0),
        Started(time=1, node=1, rank=1, pid=1),
    ],
    ids=["failed", "killed", "stopped", "told of a lost host", "lost", "runs"],
)
def test_whatever_hosts_tell_nobody_is_ended(event: Event) -> None:
    taking = Taking(lasting=True)
    taking.handle(*told(1, event), *told(0))
    assert (taking.decider.has_told, taking.decider.done) == (True, False)
    taking.handle(exited(0, at=600), Gone(time=600, node=0))
    taking.decider.leave()
    assert taking.decider.done
    assert taking.decider.outcome(900.0).goes_on
    assert ("is lost" in taking.decider.troubles.get(1, "")) == isinstance(event, Lost)


@pytest.mark.parametrize(
    "event",
    [PrepareFailed(time=2, node=1, step="reach", message="no route"), Lost(time=60, node=1, reason="silent")],
    ids=["from the beginning", "later"],
)
def test_who_cannot_be_reached_is_named_and_the_others_are_enough(event: Event) -> None:
    taking = Taking(lasting=False)
    ended = Exited(time=5, node=0, rank=0, code=0, signal=0)
    taking.handle(event, *told(0, ended, Gone(time=6, node=0)))
    assert taking.decider.done
    assert list(taking.decider.troubles) == [1]
    assert "missing here" in taking.decider.troubles[1]
    assert taking.decider.outcome(900.0).goes_on


def test_a_run_of_which_nothing_is_kept_is_told() -> None:
    taking = Taking(lasting=True)
    taking.handle(*(PrepareFailed(time=2, node=n, step="journal", message="nothing is kept") for n in (0, 1)))
    assert taking.decider.done
    assert taking.decider.outcome(900.0).cause is Cause.PREPARE


PLAN = {
    "cluster": "c",
    "hosts": ["a"],
    "command": ["true"],
    "nproc": 1,
    "slices": [],
    "rules": {"grace": 5.0, "keep_going": False},
}


def test_what_a_host_tells_of_a_run_is_looked_at() -> None:
    def is_plan(plan: object) -> bool:
        (journal,) = AskJournals().read({"tapes": [{"run": "r", "plan": plan}]}, one_line).tapes
        return journal.plan is not None

    assert is_plan(PLAN)
    for wrong in (
        {"hosts": "a"},
        {"hosts": []},
        {"command": None},
        {"nproc": 0},
        {"nproc": "2"},
        {"rules": {"a": "b"}},
    ):
        assert not is_plan({**PLAN, **wrong})
    for wrong in (None, [], {}, {"rules": 1, "slices": 2}):
        assert not is_plan(wrong)


def test_a_host_that_a_cluster_does_not_name_has_no_address() -> None:
    """Whatever a host says that the run's hosts are: nobody is asked for a login who is not in cluster.yaml."""
    found = with_hosts(Cluster(name="c", hosts=HOSTS), ["h1", "elsewhere.example"])
    assert [host.address for host in found.hosts] == ["h1", ""]
    backend = SshBackend(found, environ={}, passwords=Passwords("", {}))
    (opened,) = backend.open(found.hosts[1:], ["true"])
    backend.close()
    assert isinstance(opened.result, HostUnreachable)
    assert str(opened.result) == "cluster 'c' has no such host"
