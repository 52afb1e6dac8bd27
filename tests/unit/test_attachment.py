"""Leaving a run, looking on, and what a host decides by itself: replayed from lists of events."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from mesh.agent.detached.rules import QUIET_LIMIT_S, UnattendedRules
from mesh.core.cluster import Host, place_ranks
from mesh.core.events import (
    CaughtUp,
    Chosen,
    Connected,
    Detached,
    EndOrdered,
    Event,
    Gone,
    Interrupted,
    Introduced,
    Lost,
    PrepareFailed,
    Started,
    StaysAttached,
    StdoutClosed,
    Tick,
)
from mesh.core.outcome import Cause, Outcome
from mesh.engine.attachment import Attachment
from mesh.engine.orders import AskUser, Detach, Finish, Introduce, Order, Say, Signal
from mesh.engine.supervisor.introduction import Introduction
from mesh.engine.supervisor.naming import NAMING_DELAY_S
from tests.specs import spec_of
from tests.unit.test_supervisor import Replay, exited, finish, gone, stop

DRAIN = 2.0
TERM, INT = int(signal.SIGTERM), int(signal.SIGINT)


def started(rank: int, at: float = 1.0) -> Started:
    return Started(time=at, node=rank, rank=rank, pid=1)


def detached(node: int) -> Detached:
    return Detached(time=3, node=node)


def meet(replay: Replay, hosts: int = 2) -> None:
    """The agents have met."""
    replay.handle(*(Introduced(time=3, node=node, port=77 if not node else 0) for node in range(hosts)))


# ---- leaving


def test_a_run_that_is_to_be_left_is_once_all_ranks_have_started_and_all_hosts_have_said_so() -> None:
    replay = Replay(detach=True)
    replay.ready()
    assert replay.handle(started(0)) == []
    assert replay.handle(started(1)) == [Detach(node=0), Detach(node=1)]
    assert replay.handle(detached(0)) == []
    assert not replay.supervisor.done
    assert replay.handle(detached(1)) == [Introduce(node=0, port=0)]
    assert not replay.supervisor.done
    meet(replay)
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.cause, outcome.goes_on) == (0, Cause.DETACHED, True)


def test_when_one_host_is_told_to_keep_the_run_all_are() -> None:
    replay = Replay(hosts=3)
    replay.ready()
    assert replay.handle(detached(1)) == [Detach(node=0), Detach(node=2)]
    replay.handle(detached(2), detached(0))
    meet(replay, hosts=3)
    assert replay.outcome().cause is Cause.DETACHED


def test_a_rank_that_ends_while_we_leave_keeps_nobody() -> None:
    replay = Replay(detach=True)
    replay.ready()
    replay.handle(started(0), started(1), detached(0), exited(0, 1))
    assert replay.tick(20.0) == []
    replay.handle(detached(1))
    meet(replay)
    assert replay.outcome().exit_code == 0


def test_agents_that_do_not_meet_keep_nobody_for_long() -> None:
    replay = Replay(detach=True)
    replay.ready()
    replay.handle(started(0), started(1), detached(0), detached(1))
    replay.tick(20.0)
    assert replay.said[-1].startswith("h1 cannot reach h0 (no answer)")
    assert replay.outcome().cause is Cause.DETACHED


def test_a_host_that_is_lost_while_we_leave_ends_the_run() -> None:
    replay = Replay(detach=True)
    replay.ready()
    replay.handle(started(0), started(1), detached(0), Lost(time=2, node=1, reason="cut"))
    assert replay.tick(4.0) == [stop(0)]
    replay.handle(exited(0, by=TERM, at=5.0), *gone(0))
    assert replay.outcome().exit_code == 76


def test_ranks_that_have_ended_while_we_leave_are_left_like_all_others() -> None:
    """What they have printed is on their hosts, or on its way there."""
    replay = Replay(detach=True)
    replay.ready()
    replay.handle(started(0), started(1), detached(0), exited(0, 1), exited(1, 3))
    assert replay.said == ["rank 0 on h0: exit 1"]
    replay.handle(*gone(0))
    assert not replay.supervisor.done
    replay.handle(detached(1), *gone(1))
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.cause, outcome.goes_on, len(outcome.exits)) == (0, Cause.DETACHED, True, 2)


def test_a_host_that_does_not_say_whether_it_keeps_the_run_is_waited_for_no_longer_than_a_while() -> None:
    replay = Replay(detach=True)
    replay.ready()
    replay.handle(started(0), started(1), detached(0), exited(0, 0), exited(1, 3))
    assert replay.tick(5.0) == []
    assert replay.tick(30.0) == [finish(0), finish(1)]
    replay.handle(*gone(0, 1))
    assert replay.outcome().exit_code == 3


def test_a_rank_that_fails_before_another_has_started_is_left_to_the_hosts() -> None:
    replay = Replay(detach=True)
    replay.ready()
    assert replay.handle(started(0), exited(0, 1)) == []
    assert replay.tick(20.0) == []
    assert replay.handle(started(1)) == [Detach(node=0), Detach(node=1)]


@pytest.mark.parametrize("has_started", [True, False])
def test_a_host_that_is_lost_while_we_leave_keeps_nobody_where_the_others_go_on(has_started: bool) -> None:
    replay = Replay(hosts=3, detach=True, keep_going=True)
    replay.ready()
    replay.handle(started(0), started(1), *([started(2)] if has_started else []))
    orders = replay.handle(Lost(time=2, node=2, reason="cut"))
    assert orders == ([] if has_started else [Detach(node=0), Detach(node=1)])
    replay.handle(detached(0), detached(1))
    assert replay.outcome().cause is Cause.DETACHED


def test_an_agent_that_is_told_to_end_while_we_leave_keeps_nobody_where_the_others_go_on() -> None:
    replay = Replay(hosts=3, detach=True, keep_going=True)
    replay.ready()
    ended = PrepareFailed(time=2, node=1, step="agent", message="the agent received SIGTERM")
    replay.handle(started(0), started(1), ended, started(2), detached(0), detached(2))
    replay.handle(*gone(1))
    assert replay.outcome().cause is Cause.DETACHED


@pytest.mark.parametrize("has_failed", [True, False], ids=["failed before", "fails then"])
@pytest.mark.parametrize("detach", [True, False])
def test_a_run_that_a_host_cannot_keep_ends_as_ever(has_failed: bool, detach: bool) -> None:
    replay = Replay(detach=detach)
    replay.ready()
    replay.handle(started(0), started(1), detached(0))
    failed, stays = exited(1, 3), StaysAttached(time=3, node=1)
    replay.handle(*[failed] * has_failed, stays, stays, *[failed] * (not has_failed))
    replay.tick(1.0 + NAMING_DELAY_S)
    assert sorted(replay.said) == [
        "rank 1 on h1: exit 3",
        "the run stays with this client; `mesh detach r` tries again, "
        "and until then hosts that can keep it keep what is printed there",
    ]
    assert not replay.supervisor.done
    assert replay.tick(20.0) == [stop(0)]
    replay.handle(exited(0, by=TERM, at=21.0), *gone(0, 1))
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.cause, outcome.goes_on) == (3, Cause.RANK, False)


def test_a_run_that_a_host_cannot_keep_is_left_once_it_can() -> None:
    replay = Replay()
    replay.ready()
    replay.handle(started(0), started(1), detached(0), StaysAttached(time=3, node=1))
    assert not replay.supervisor.done
    assert replay.handle(detached(1)) == [Introduce(node=0, port=0)]
    meet(replay)
    assert replay.outcome().cause is Cause.DETACHED


def test_ranks_that_have_ended_where_a_host_cannot_keep_the_run_are_told_by_us() -> None:
    replay = Replay(detach=True, keep_going=True)
    replay.ready()
    replay.handle(started(0), started(1), detached(0), exited(1, 3))
    replay.handle(StaysAttached(time=3, node=1))
    assert replay.handle(exited(0, 0)) == [finish(0), finish(1)]
    replay.handle(*gone(0, 1))
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.goes_on) == (3, False)


def test_a_host_that_has_kept_nothing_is_not_left() -> None:
    """It was silent for too long: that it is gone is no word of keeping."""
    replay = Replay(detach=True, keep_going=True)
    replay.ready()
    replay.handle(started(0), started(1), detached(0), exited(0, 0), exited(1, 3))
    assert replay.tick(30.0) == [finish(0), finish(1)]
    replay.handle(*gone(1), *gone(0))
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.goes_on) == (3, False)


def test_a_run_that_is_ended_while_we_leave_is_told_by_its_hosts() -> None:
    """They have what its ranks have printed."""
    replay = Replay(detach=True)
    replay.ready()
    replay.handle(started(0), started(1), detached(0), Interrupted(time=3, signal=INT), detached(1))
    replay.handle(*(exited(rank, by=INT, at=200.0) for rank in (0, 1)), *gone(0, 1))
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.cause, outcome.goes_on) == (130, Cause.SIGNAL, True)


def test_a_run_that_is_being_ended_is_not_left() -> None:
    replay = Replay()
    replay.ready()
    replay.handle(exited(0, 3))
    assert replay.tick(4.0) == [stop(1)]
    assert replay.handle(detached(1)) == []
    replay.handle(exited(1, by=TERM, at=5.0), *gone(0, 1))
    assert replay.outcome().exit_code == 3


# ---- looking on


class Looking:
    """A client that has attached, whose clock is moved by hand."""

    def __init__(self, hosts: int = 2, can_ask: bool = True) -> None:
        spec = spec_of(run="r", project="p", workspace=Path("/w"), command=("true",))
        names = tuple(Host(name=f"h{node}", address=f"h{node}") for node in range(hosts))
        self.decider = Attachment(spec, place_ranks(names), can_ask=can_ask)
        self.hosts = hosts
        self.said: list[str] = []
        self.tick(100.0)

    def tick(self, at: float) -> list[Order]:
        return self.handle(Tick(time=at, monotonic=at))

    def handle(self, *events: Event) -> list[Order]:
        orders = [order for event in events for order in self.decider.handle(event)]
        self.said += [order.text for order in orders if isinstance(order, Say)]
        return [order for order in orders if not isinstance(order, Say)]

    def attached(self, *told: Event) -> list[Order]:
        """All hosts have told what was before."""
        begun = [Connected(time=100, node=n, address="", machine="m") for n in range(self.hosts)]
        starts = [started(n) for n in range(self.hosts)]
        return self.handle(*begun, *starts, *told, *(CaughtUp(time=100, node=n) for n in range(self.hosts)))

    def outcome(self) -> Outcome:
        assert self.decider.done
        return self.decider.outcome(1000.0)


def ordered(node: int, cause: Cause, at: float, number: int = TERM, lost: int = -1) -> EndOrdered:
    return EndOrdered(time=at, node=node, cause=cause.value, signal=number, lost=lost, reason="cut" * (lost >= 0))


def anew(node: int, at: float) -> Lost:
    return Lost(time=at, node=node, reason="the machine was started anew", is_known=True, is_clear=True)


ENDED: dict[str, tuple[list[Event], int, Cause]] = {
    "all exited 0": ([exited(0), exited(1)], 0, Cause.COMPLETED),
    "the first one by time decides, whoever tells first": ([exited(1, 4, at=9), exited(0, 3, at=5)], 3, Cause.RANK),
    "one failed and the other was stopped for it": (
        [ordered(1, Cause.RANK, 7), exited(1, by=TERM, at=8), exited(0, 3, at=5)],
        3,
        Cause.RANK,
    ),
    "the time was out": (
        [
            ordered(0, Cause.TIMEOUT, 7.0),
            exited(0, by=TERM, at=7.1),
            ordered(1, Cause.TIMEOUT, 7.2),
            exited(1, by=TERM, at=7.3),
        ],
        124,
        Cause.TIMEOUT,
    ),
    "one failed before the time was out": (
        [exited(0, 5, at=6), ordered(1, Cause.TIMEOUT, 7), exited(1, by=TERM, at=8)],
        5,
        Cause.RANK,
    ),
    "it was stopped": (
        [ordered(0, Cause.SIGNAL, 7), exited(0, by=TERM, at=8), ordered(1, Cause.SIGNAL, 7), exited(1, 1, at=8)],
        143,
        Cause.SIGNAL,
    ),
    "somebody chose Ctrl-C": (
        [ordered(n, Cause.SIGNAL, 7, INT) for n in (0, 1)] + [exited(n, by=INT, at=8) for n in (0, 1)],
        130,
        Cause.SIGNAL,
    ),
    "a host was started anew": (
        [ordered(1, Cause.LOST, 7, lost=0), exited(1, by=TERM, at=8), anew(0, at=6)],
        76,
        Cause.LOST,
    ),
    "an agent was told to end, and killed before it had": (
        [
            PrepareFailed(time=6, node=0, step="agent", message="told to end"),
            ordered(1, Cause.LOST, 7, lost=0),
            exited(1, by=TERM, at=8),
            anew(0, at=6.1),
        ],
        76,
        Cause.LOST,
    ),
    "a rank missed a host that was started anew": (
        [exited(1, 1, at=6.5), anew(0, at=6)],
        76,
        Cause.LOST,
    ),
}


@pytest.mark.parametrize(("told", "status", "cause"), ENDED.values(), ids=ENDED)
def test_how_a_run_ended_is_known_afterwards(told: list[Event], status: int, cause: Cause) -> None:
    looking = Looking()
    lost = {event.node for event in told if isinstance(event, Lost)}
    orders = looking.attached(*told)
    assert [order for order in orders if not isinstance(order, Finish)] == []
    looking.handle(*(Gone(time=50, node=node) for node in range(2) if node not in lost))
    outcome = looking.outcome()
    assert (outcome.exit_code, outcome.cause, outcome.goes_on) == (status, cause, False)
    assert outcome.started == 1.0
    assert [lost.node for lost in outcome.lost] == sorted(lost)


def test_a_rank_that_fails_while_we_look_on_ends_the_others_who_are_told_why() -> None:
    looking = Looking(hosts=3)
    assert looking.attached() == []
    assert looking.handle(exited(1, 3, at=101)) == []
    orders = looking.tick(101.0 + QUIET_LIMIT_S)
    assert [(type(order), order.node) for order in orders if isinstance(order, Signal)] == [(Signal, 0), (Signal, 2)]
    assert {order.why.cause for order in orders if isinstance(order, Signal) and order.why} == {"rank"}


def test_nothing_is_ended_before_all_hosts_have_told_what_was_before() -> None:
    """Another host may have ended all of it, for another reason."""
    looking = Looking()
    connected = [Connected(time=100, node=n, address="", machine="m") for n in (0, 1)]
    looking.handle(*connected, exited(1, 4, at=9), CaughtUp(time=100, node=1))
    assert looking.tick(200.0) == []
    looking.handle(CaughtUp(time=200, node=0))
    assert [type(order) for order in looking.tick(201.0)] == [Signal]


def test_what_one_host_was_told_the_others_are() -> None:
    """``mesh stop`` has reached one of two hosts."""
    looking = Looking()
    orders = looking.attached(ordered(0, Cause.SIGNAL, 50), exited(0, by=TERM, at=51))
    assert [order.node for order in orders if isinstance(order, Signal)] == [1]
    looking.handle(exited(1, by=TERM, at=105), *(Gone(time=50, node=n) for n in (0, 1)))
    assert looking.outcome().exit_code == 143


@pytest.mark.parametrize(
    "event",
    [PrepareFailed(time=100, node=1, step="reach", message="no route"), Lost(time=160, node=1, reason="silent")],
    ids=["from the beginning", "later"],
)
def test_a_host_that_cannot_be_reached_ends_nothing_and_is_named(event: Event) -> None:
    looking = Looking()
    looking.handle(Connected(time=100, node=0, address="", machine="m"), started(0), event)
    looking.handle(CaughtUp(time=100, node=0))
    assert looking.tick(300.0) == []
    assert "h1 cannot be reached" in looking.said[0]
    looking.handle(exited(0, at=301), *gone(0))
    outcome = looking.outcome()
    assert (outcome.exit_code, outcome.goes_on) == (76, True)
    assert [lost.node for lost in outcome.lost] == [1]


@pytest.mark.parametrize(("number", "can_ask"), [(signal.SIGTERM, True), (signal.SIGHUP, True), (signal.SIGINT, False)])
def test_a_signal_ends_the_looking_on_and_not_the_run(number: int, can_ask: bool) -> None:
    looking = Looking(can_ask=can_ask)
    looking.attached()
    assert looking.handle(Interrupted(time=101, signal=number)) == []
    outcome = looking.outcome()
    assert (outcome.exit_code, outcome.goes_on) == (128 + number, True)


def test_a_reader_that_is_gone_ends_the_looking_on_and_not_the_run() -> None:
    looking = Looking()
    looking.attached()
    assert looking.handle(StdoutClosed(time=101)) == []
    assert (looking.outcome().exit_code, looking.outcome().goes_on) == (141, True)


def test_ctrl_c_asks_and_a_second_one_leaves() -> None:
    interrupt = Interrupted(time=101, signal=INT)
    looking = Looking()
    looking.attached()
    assert looking.handle(interrupt) == [AskUser()]
    assert looking.handle(Chosen(time=102, answer="go on")) == []
    assert looking.handle(interrupt) == [AskUser()]
    looking.handle(interrupt)
    assert (looking.outcome().exit_code, looking.outcome().goes_on) == (130, True)
    looking = Looking()
    looking.attached()
    looking.handle(interrupt, Chosen(time=102, answer="leave"))
    assert (looking.outcome().exit_code, looking.outcome().cause) == (0, Cause.DETACHED)


def test_the_choice_to_stop_is_as_ctrl_c_in_other_runs() -> None:
    looking = Looking()
    looking.attached()
    interrupt = Interrupted(time=101, signal=INT)
    orders = looking.handle(interrupt, Chosen(time=102, answer="stop"))
    signals = [order for order in orders if isinstance(order, Signal)]
    assert [(order.node, order.number, order.why and order.why.cause) for order in signals] == [
        (0, INT, "signal"),
        (1, INT, "signal"),
    ]
    assert [type(order).__name__ for order in looking.handle(interrupt)] == ["Kill", "Kill"]
    told = [ordered(n, Cause.SIGNAL, 102, INT) for n in (0, 1)]
    looking.handle(*told, exited(0, by=9, at=103), exited(1, by=9, at=103), *gone(0, 1))
    assert looking.outcome().exit_code == 130


def test_a_run_that_has_a_client_is_none_to_attach_to() -> None:
    looking = Looking()
    failed = PrepareFailed(time=100, node=0, step="attach", message="not detached", hint="mesh detach")
    assert looking.handle(failed) == []
    assert looking.outcome().failures == (failed,)


def test_a_run_of_which_no_host_keeps_anything_is_none() -> None:
    looking = Looking()
    nothing = [PrepareFailed(time=100, node=n, step="journal", message="nothing is kept") for n in (0, 1)]
    assert looking.handle(*nothing) == []
    assert (looking.outcome().cause, looking.outcome().failures) == (Cause.PREPARE, (nothing[1],))


def test_a_host_that_keeps_nothing_while_others_do_has_lost_the_run() -> None:
    looking = Looking()
    begun = Connected(time=100, node=0, address="", machine="m")
    looking.handle(begun, started(0), exited(0, at=5), CaughtUp(time=100, node=0), *gone(0))
    looking.handle(PrepareFailed(time=100, node=1, step="journal", message="nothing is kept"))
    assert (looking.outcome().exit_code, [lost.node for lost in looking.outcome().lost]) == (76, [1])


@pytest.mark.parametrize("is_told_first", [True, False])
def test_a_lost_host_that_cannot_be_reached_either_is_lost_once_and_the_run_is_over(is_told_first: bool) -> None:
    looking = Looking()
    begun = Connected(time=100, node=0, address="", machine="m")
    told = EndOrdered(time=5, node=0, cause="lost", signal=TERM, lost=1, reason="silent for 60 s")
    unreachable = Lost(time=100, node=1, reason="no route")
    looking.handle(begun, started(0))
    looking.handle(*((told, unreachable) if is_told_first else (unreachable, told)))
    looking.handle(exited(0, by=TERM, at=6), CaughtUp(time=100, node=0), *gone(0))
    outcome = looking.outcome()
    assert (outcome.exit_code, outcome.goes_on) == (76, False)
    assert [(lost.node, lost.reason) for lost in outcome.lost] == [(1, "silent for 60 s")]


# ---- a host by itself


def test_a_host_ends_its_other_ranks_after_one_has_failed_once_they_are_quiet() -> None:
    rules = UnattendedRules(2, drain=DRAIN, timeout_at=float("inf"), keep_going=False)
    assert rules.due(10.0) == ""
    rules.rank_ended(True, 10.0)
    rules.printed(10.2)
    assert rules.due_at() == 10.2 + QUIET_LIMIT_S
    assert rules.due(10.6) == ""
    assert rules.due(10.2 + QUIET_LIMIT_S) == "rank"
    rules.is_stopped = True
    assert rules.due(20.0) == ""
    rules.rank_ended(True, 20.0)
    assert rules.is_over


def test_ranks_that_go_on_printing_have_the_time_to_drain_and_no_more() -> None:
    rules = UnattendedRules(2, drain=DRAIN, timeout_at=float("inf"), keep_going=False)
    rules.rank_ended(True, 10.0)
    rules.printed(11.9)
    assert (rules.due(11.99), rules.due(12.0)) == ("", "rank")


def test_a_host_keeps_the_time_and_lets_go_on_what_may() -> None:
    rules = UnattendedRules(2, drain=DRAIN, timeout_at=50.0, keep_going=True)
    rules.rank_ended(True, 10.0)
    assert (rules.due_at(), rules.due(49.0), rules.due(50.0)) == (50.0, "", "timeout")


def test_ranks_that_end_well_end_nobody() -> None:
    rules = UnattendedRules(2, drain=DRAIN, timeout_at=float("inf"), keep_going=False)
    rules.rank_ended(False, 10.0)
    assert (rules.due(100.0), rules.is_over) == ("", False)
    rules.rank_ended(False, 10.0)
    assert (rules.due(100.0), rules.is_over, rules.due_at()) == ("", True, float("inf"))


def test_what_fails_elsewhere_counts_like_a_rank_of_its_own_and_the_first_holds() -> None:
    rules = UnattendedRules(2, drain=DRAIN, timeout_at=float("inf"), keep_going=False)
    rules.fail("lost", 10.0)
    rules.rank_ended(True, 10.1)
    assert rules.due(10.0 + QUIET_LIMIT_S) == "lost"
    assert not rules.has_failed


def test_a_run_that_keeps_going_is_not_ended_from_elsewhere() -> None:
    rules = UnattendedRules(2, drain=DRAIN, timeout_at=float("inf"), keep_going=True)
    rules.fail("lost", 10.0)
    assert rules.due(100.0) == ""


# ---- before it is left: the agents meet


def introduction(hosts: int, **changes: object) -> Introduction:
    names = tuple(Host(name=f"h{node}", address=f"h{node}") for node in range(hosts))
    spec = spec_of(run="r", project="p", workspace=Path("/w"), command=("true",), **changes)
    return Introduction(spec, place_ranks(names))  # type: ignore[arg-type]


def test_all_go_to_the_first_hosts_agent() -> None:
    meeting = introduction(3)
    assert meeting.begin() == [Introduce(node=0, port=0)]
    assert meeting.begin() == []
    assert meeting.take(Introduced(time=0, node=0, port=77)) == [
        Introduce(node=1, port=77),
        Introduce(node=2, port=77),
    ]
    assert (meeting.take(Introduced(time=0, node=2)), meeting.is_over) == ([], False)
    assert (meeting.take(Introduced(time=0, node=1)), meeting.is_over) == ([], True)
    assert meeting.give_up() == []


def test_who_does_not_meet_is_named() -> None:
    meeting = introduction(4)
    meeting.begin()
    meeting.take(Introduced(time=0, node=0, port=77))
    meeting.take(Introduced(time=0, node=1))
    meeting.take(Introduced(time=0, node=3, reason="no answer"))
    (said,) = meeting.give_up()
    assert isinstance(said, Say)
    assert said.text.startswith("h2, h3 cannot reach h0 (no answer): ")
    assert meeting.is_over


def test_a_first_host_that_cannot_listen_ends_it() -> None:
    meeting = introduction(2)
    meeting.begin()
    (said,) = meeting.take(Introduced(time=0, node=0, reason="too many open files"))
    assert isinstance(said, Say)
    assert "too many open files" in said.text


@pytest.mark.parametrize(("hosts", "changes"), [(1, {}), (3, {"keep_going": True})])
def test_nobody_has_to_meet_where_nothing_is_to_be_told(hosts: int, changes: dict[str, object]) -> None:
    meeting = introduction(hosts, **changes)
    assert (meeting.begin(), meeting.is_over) == ([], True)
