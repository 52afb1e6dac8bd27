"""The decisions of one run on one host, replayed from lists of facts: no process, no clock."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.agent.run.decide import HANDLERS, STUCK_LIMIT_S, Decisions
from mesh.agent.run.facts import (
    AllGone,
    CleanedUp,
    CleanUpFailed,
    ClientBack,
    ClientHeard,
    ClientLeft,
    ClientLost,
    ClientOver,
    ClientRefused,
    DetachAsked,
    Detached,
    DetachFailed,
    Fact,
    Failed,
    FinishAsked,
    JournalKept,
    KillAsked,
    LockReleased,
    LockTaken,
    NodeStopped,
    PeerNews,
    PeersMet,
    PeersReady,
    Printed,
    RankEnded,
    RanksStarting,
    RankStarted,
    Relayed,
    SetupEnded,
    SignalAsked,
    StopAsked,
    Terminated,
)
from mesh.agent.run.lease import Lease
from mesh.agent.run.orders import (
    AnnounceEnd,
    BeginEnd,
    CleanUp,
    ClearRequests,
    CollectChildren,
    ConfirmDetached,
    Detach,
    DropChannel,
    DropSync,
    KeepJournal,
    KillBy,
    Leave,
    NoteReturn,
    NoteSilence,
    NotifyNodes,
    Order,
    RelayRest,
    ReleaseOutput,
    ReleasePrerun,
    RemoveScripts,
    ReportDone,
    ReportFailure,
    ReportProgramStopped,
    ReportStopped,
    ReportWait,
    SendNews,
    SendSignal,
    StayAttached,
    StopSync,
)
from mesh.agent.run.rules import Rules

INT, TERM = 2, 15
GRACE, DRAIN, TIMEOUT, LEASE, RECONNECT, PATIENCE = 10.0, 2.0, 100.0, 60.0, 5.0, 30.0
Turn = tuple[Any, ...]  # the time, and the facts of one turn of the loop


def decisions_of(*, agents_meet: bool = False, **changes: Any) -> Decisions:
    rules = {"grace": GRACE, "drain": DRAIN, "timeout": TIMEOUT, "keep_going": False, "device_patience": PATIENCE}
    return Decisions(Rules(**{**rules, **changes}), Lease(LEASE, RECONNECT, 0.0, agents_meet))


def replay(turns: list[Turn], decisions: Decisions) -> list[Order]:
    """The orders for facts and clock, turn by turn, in order."""
    found: list[Order] = []
    for now, *facts in turns:
        for fact in facts:
            found += decisions.handle(fact, now)
        found += decisions.tick(now)
    return found


def end(number: int = TERM, grace: float = GRACE) -> list[Order]:
    """The orders that begin the end of a run."""
    return [ReleaseOutput(), ClearRequests(), StopSync(), BeginEnd(number, grace), ReleasePrerun()]


RELAY = [CollectChildren(), DropSync(), RelayRest()]
LEASE_OVER = ReportFailure("agent", "no sign of the client for 60 s")
KILLED = ReportFailure("agent", "the client's connection ended, and it was not back within 5 s")
START: Turn = (0.0, RanksStarting(2), RankStarted(), RankStarted())
TO_DETACH: Turn = (0.0, RanksStarting(2, is_to_detach=True), RankStarted(), RankStarted())
LEAVE: Turn = (1.0, DetachAsked(), Detached())
DETACHED = [START, LEAVE]
CONFIRMED = [Detach(), ConfirmDetached()]

Histories = dict[str, tuple[list[Turn], list[Order]]]

# CONTRACT.md, section 4: the numbers of the points lead the names.
HISTORIES: Histories = {
    "a failed rank ends nothing while the client decides": ([START, (1.0, RankEnded(True)), (9.0,)], []),
    "a part that fails is reported once, and the client decides": (
        [(1.0, Failed("sync", "disk full", "free some")), (2.0, Failed("sync", "again"))],
        [ReportFailure("sync", "disk full", "free some")],
    ),
    "5: in a detached run the others are ended once they are quiet after a failure": (
        [*DETACHED, (2.0, RankEnded(True)), (2.4,), (2.5,), (2.6,)],
        [*CONFIRMED, AnnounceEnd("rank", TERM), ReleaseOutput(), SendSignal(TERM, GRACE)],
    ),
    "5: in a detached run the others are ended after the drain though they print": (
        [
            *DETACHED,
            (2.0, RankEnded(True)),
            (2.4, Printed()),
            (2.8, Printed()),
            (3.2, Printed()),
            (3.6, Printed()),
            (4.0, Printed()),
        ],
        [*CONFIRMED, AnnounceEnd("rank", TERM), ReleaseOutput(), SendSignal(TERM, GRACE)],
    ),
    "5: a rank that exits 0 early is no failure": ([*DETACHED, (2.0, RankEnded(False)), (50.0,)], CONFIRMED),
    "5: a failure before the client leaves counts once it has left": (
        [START, (0.5, RankEnded(True)), LEAVE],
        [*CONFIRMED, AnnounceEnd("rank", TERM), ReleaseOutput(), SendSignal(TERM, GRACE)],
    ),
    "5: what is left of a detached run is ended after its last rank": (
        [*DETACHED, (1.5, ClientLost()), (2.0, RankEnded(False)), (3.0, RankEnded(False))],
        [*CONFIRMED, *end()],
    ),
    "a host whose ranks have ended waits for the client, which has the agents meet": (
        [*DETACHED, (2.0, RankEnded(False), RankEnded(False)), (9.0, ClientHeard())],
        CONFIRMED,
    ),
    "a host whose ranks have ended leaves once the agents have met and the client has left": (
        [*DETACHED, (2.0, RankEnded(False), RankEnded(False)), (3.0, PeersReady(0)), (4.0, ClientLost())],
        [*CONFIRMED, ReportDone(), *end()],
    ),
    "a host whose ranks have ended leaves once the client is silent": (
        [*DETACHED, (2.0, RankEnded(False), RankEnded(False)), (15.1,)],
        [*CONFIRMED, *end()],
    ),
    "5: ranks that fail in one turn are signalled no more": (
        [*DETACHED, (1.5, ClientLost()), (2.0, RankEnded(True), RankEnded(True)), (9.0,)],
        [*CONFIRMED, *end()],
    ),
    "a detached run ends after its timeout": (
        [*DETACHED, (99.9,), (100.0,), (101.0,)],
        [*CONFIRMED, AnnounceEnd("timeout", TERM), ReleaseOutput(), SendSignal(TERM, GRACE)],
    ),
    "6: a signal goes to the ranks with its grace": (
        [START, (1.0, SignalAsked(INT, GRACE))],
        [ReleaseOutput(), SendSignal(INT, GRACE)],
    ),
    "6: a second signal kills": (
        [START, (1.0, SignalAsked(INT, GRACE)), (2.0, KillAsked())],
        [ReleaseOutput(), SendSignal(INT, GRACE), ReleaseOutput(), KillBy(0.0)],
    ),
    "6: an attached client may send the same signal twice": (
        [START, (1.0, SignalAsked(INT, GRACE)), (2.0, SignalAsked(INT, GRACE))],
        [ReleaseOutput(), SendSignal(INT, GRACE), ReleaseOutput(), SendSignal(INT, GRACE)],
    ),
    "6: clients that look on send a signal once between them": (
        [*DETACHED, (2.0, SignalAsked(INT, GRACE)), (3.0, SignalAsked(INT, 1.0))],
        [
            *CONFIRMED,
            AnnounceEnd("signal", INT),
            ReleaseOutput(),
            SendSignal(INT, GRACE),
            ReleaseOutput(),
            KillBy(1.0),
        ],
    ),
    "6: a third Ctrl-C leaves: the host finishes by itself": (
        [START, (1.0, SignalAsked(INT, GRACE)), (2.0, KillAsked()), (3.0, ClientLeft())],
        [ReleaseOutput(), SendSignal(INT, GRACE), ReleaseOutput(), KillBy(0.0), *end()],
    ),
    "7: a client that leaves on purpose ends the run at once": ([START, (1.0, ClientLeft())], end()),
    "7: a killed client gets five seconds to reconnect": (
        [START, (1.0, ClientLost()), (6.0,), (6.1,), (7.0,)],
        [KILLED, *end()],
    ),
    "7: a run that was to be detached keeps how its ranks have ended": (
        [TO_DETACH, (1.0, RankEnded(False), RankEnded(True), ClientLost()), (6.1,), (6.1, JournalKept()), (7.0,)],
        [KeepJournal(), *end()],
    ),
    "7: a run that was to be detached keeps that its ranks were ended": (
        [TO_DETACH, (1.0, RankEnded(False), ClientLost()), (6.1,), (6.1, JournalKept()), (7.0,)],
        [KeepJournal(), *end(), AnnounceEnd("signal", TERM)],
    ),
    "8: a run that was to be detached keeps that its client was over": (
        [TO_DETACH, (1.0, ClientOver()), (1.0, JournalKept())],
        [KeepJournal(), *end(), AnnounceEnd("signal", TERM)],
    ),
    "7: a channel ends once": ([START, (1.0, ClientLost()), (5.0, ClientLost()), (6.1,)], [KILLED, *end()]),
    "7: a client that is back in time goes on": (
        [START, (1.0, ClientLost()), (5.9, ClientBack()), (20.0, ClientHeard()), (79.9,)],
        [],
    ),
    "7: the lease of a silent client counts from its last beat": (
        [START, (10.0, ClientHeard()), (70.0,), (70.1,)],
        [LEASE_OVER, KeepJournal(), *end()],
    ),
    "7: a channel that ends after silence leaves the lease as it was": (
        [START, (10.0, ClientHeard()), (25.0, ClientLost()), (31.0,), (70.0,), (70.1,)],
        [LEASE_OVER, KeepJournal(), *end()],
    ),
    "7: a client that is back renews its lease": (
        [START, (25.0, ClientLost()), (59.0, ClientBack()), (119.0,), (119.1,)],
        [LEASE_OVER, KeepJournal(), *end()],
    ),
    "7: a detached run goes on without its client": (
        [*DETACHED, (2.0, ClientLost()), (99.0,)],
        CONFIRMED,
    ),
    "7: the good-bye to a detached run only ends the channel": (
        [*DETACHED, (2.0, ClientLeft()), (99.0,)],
        [*CONFIRMED, DropChannel()],
    ),
    "a client that breaks the protocol ends its run": (
        [START, (1.0, ClientHeard(), ClientRefused("no ranks"))],
        [ReportFailure("agent", "its client does not speak our protocol: no ranks"), *end()],
    ),
    "a client that broke the protocol does not renew its lease": (
        [START, (1.0, ClientRefused("x")), (2.0, ClientHeard()), (15.5, AllGone(), Relayed())],
        [
            *(ReportFailure("agent", "its client does not speak our protocol: x"), *end()),
            *(RemoveScripts(), *RELAY, Leave()),
        ],
    ),
    "a client that broke the protocol may reconnect to read the end": (
        [START, (1.0, ClientRefused("x")), (2.0, ClientLost()), (2.5, ClientBack()), (5.0, AllGone(), Relayed())],
        [
            *(ReportFailure("agent", "its client does not speak our protocol: x"), *end()),
            *(RemoveScripts(), *RELAY, Leave()),
        ],
    ),
    "a client that breaks the protocol is dropped by a detached run": (
        [*DETACHED, (2.0, ClientRefused("no ranks"))],
        [*CONFIRMED, DropChannel()],
    ),
    "8: a run whose client is over is ended, and its output kept": (
        [START, (1.0, ClientOver()), (2.0, JournalKept()), (3.0, AllGone(), Relayed())],
        [KeepJournal(), *end(), RemoveScripts(), *RELAY, Leave()],
    ),
    "8: without a journal nothing is sent to a client that is over": (
        [START, (1.0, ClientOver()), (3.0, AllGone(), Relayed())],
        [KeepJournal(), *end(), RemoveScripts(), *RELAY, Leave(is_reported=False)],
    ),
    "8: no journal is kept for a run without ranks": ([(1.0, ClientOver())], end()),
    "8: a detached run needs no client": ([*DETACHED, (2.0, ClientOver())], CONFIRMED),
    "8: the lock names the end of a silent client's run": (
        [(1.0, LockTaken(), ClientHeard()), (16.0,), (17.0,), (18.0, ClientHeard()), (19.0,)],
        [NoteSilence(1.0 + LEASE - 17.0 + GRACE), NoteReturn()],
    ),
    "8: the lock names the end of a killed client's run": (
        [(1.0, LockTaken(), ClientHeard()), (2.0, ClientLost())],
        [NoteSilence(RECONNECT + GRACE)],
    ),
    "8: a released lock names nothing": ([(1.0, LockTaken()), (2.0, LockReleased()), (17.0,)], []),
    "8: a lost host ends the ranks of the others in a detached run": (
        [*DETACHED, (2.0, PeersReady(1), PeerNews("lost", lost=3, reason="gone")), (2.5,)],
        [
            *CONFIRMED,
            AnnounceEnd("lost", TERM, {"lost": 3, "reason": "gone"}),
            ReleaseOutput(),
            SendSignal(TERM, GRACE),
        ],
    ),
    "8: only the first report of another host counts": (
        [
            *DETACHED,
            (2.0, PeersReady(1), PeerNews("rank")),
            (2.1, PeerNews("lost", lost=3, reason="gone")),
            (2.5,),
        ],
        [*CONFIRMED, AnnounceEnd("rank", TERM), ReleaseOutput(), SendSignal(TERM, GRACE)],
    ),
    "8: a signal after the first report is not for this host": (
        [*DETACHED, (2.0, PeersReady(1), PeerNews("rank"), PeerNews("signal", INT)), (2.5,)],
        [*CONFIRMED, AnnounceEnd("rank", TERM), ReleaseOutput(), SendSignal(TERM, GRACE)],
    ),
    "8: a rank that was ended is no failure to report": (
        [*DETACHED, (2.0, PeersReady(1)), (100.0,), (101.0, RankEnded(True))],
        [*CONFIRMED, AnnounceEnd("timeout", TERM), ReleaseOutput(), SendSignal(TERM, GRACE)],
    ),
    "8: a failed rank is reported to the other hosts once": (
        [*DETACHED, (2.0, PeersReady(1), ClientLost()), (3.0, RankEnded(True), RankEnded(True))],
        [*CONFIRMED, SendNews(PeerNews("rank")), ReportDone(), *end()],
    ),
    "8: what happened before the other hosts are there is reported then": (
        [START, (1.0, RankEnded(True), RankEnded(False)), (2.0, PeersReady(1))],
        [SendNews(PeerNews("rank")), ReportDone()],
    ),
    "8: a signal to a detached run reaches the other hosts": (
        [*DETACHED, (2.0, PeersReady(1), SignalAsked(INT, GRACE))],
        [
            *CONFIRMED,
            AnnounceEnd("signal", INT),
            SendNews(PeerNews("signal", INT)),
            ReleaseOutput(),
            SendSignal(INT, GRACE),
        ],
    ),
    "8: a signal from another host goes to the ranks, and not back": (
        [*DETACHED, (2.0, PeersReady(1), PeerNews("signal", INT))],
        [*CONFIRMED, AnnounceEnd("signal", INT), ReleaseOutput(), SendSignal(INT, GRACE)],
    ),
    "8: ranks that were ended are not signalled for another host": (
        [*DETACHED, (2.0, PeersReady(1)), (100.0,), (101.0, PeerNews("signal", INT)), (200.0,)],
        [*CONFIRMED, AnnounceEnd("timeout", TERM), ReleaseOutput(), SendSignal(TERM, GRACE)],
    ),
    "8: an agent that is terminated is a lost host": (
        [*DETACHED, (2.0, PeersReady(1)), (3.0, Terminated(False)), (4.0, Terminated(False))],
        [
            *CONFIRMED,
            SendNews(PeerNews("lost", lost=1, reason="the agent received SIGTERM")),
            ReportFailure("agent", "the agent received SIGTERM", killed_by=TERM),
            *end(),
        ],
    ),
    "8: an agent whose guardian was killed is a lost host": (
        [START, (3.0, Terminated(True))],
        [ReportFailure("agent", "its guardian was killed", killed_by=0), *end()],
    ),
    "9: the agent leaves once every process is gone": (
        [START, (1.0, FinishAsked(TERM, 3.0)), (2.0, AllGone(), Relayed())],
        [*end(TERM, 3.0), RemoveScripts(), *RELAY, Leave()],
    ),
    "9: processes that cannot be ended are named": (
        [(1.0, FinishAsked(TERM, 3.0)), (9.0, AllGone(("7 sudo",)), Relayed())],
        [*end(TERM, 3.0), RemoveScripts(), *RELAY, Leave(("7 sudo",))],
    ),
    "9: the agent waits for devices and containers, and says so": (
        [
            (1.0, FinishAsked(TERM, 3.0)),
            (2.0, AllGone(("7 sudo",), busy=("/dev/accel0",), uses_containers=True)),
            (3.0, AllGone()),
            (4.0, CleanedUp(("/dev/accel0 is held",)), Relayed()),
        ],
        [
            *end(TERM, 3.0),
            ReportWait("waiting for /dev/accel0, containers", PATIENCE + GRACE),
            CleanUp(("/dev/accel0",), GRACE, PATIENCE),
            *RELAY,
            Leave(("7 sudo", "/dev/accel0 is held")),
        ],
    ),
    "9: containers get no grace after SIGKILL": (
        [(1.0, FinishAsked(TERM, 3.0)), (5.0, AllGone(uses_containers=True, was_killed=True))],
        [*end(TERM, 3.0), ReportWait("waiting for containers", PATIENCE), CleanUp((), 0.0, PATIENCE)],
    ),
    "9: a copy of the workspace is removed without a notice": (
        [(1.0, FinishAsked(TERM, 3.0)), (5.0, AllGone(has_copy=True))],
        [*end(TERM, 3.0), CleanUp((), GRACE, PATIENCE)],
    ),
    "9: devices that could not be looked at are named": (
        [(1.0, FinishAsked(TERM, 3.0)), (5.0, AllGone(busy=("/dev/a",)), CleanUpFailed("no memory"), Relayed())],
        [
            *end(TERM, 3.0),
            ReportWait("waiting for /dev/a", PATIENCE + GRACE),
            CleanUp(("/dev/a",), GRACE, PATIENCE),
            *RELAY,
            Leave(("no process to look at /dev/a: no memory",)),
        ],
    ),
    "9: ranks that end last are reported to the other hosts before the end": (
        [START, (1.0, PeersReady(1), FinishAsked(TERM, 3.0)), (2.0, AllGone(), RankEnded(True), Relayed())],
        [*end(TERM, 3.0), RemoveScripts(), *RELAY, SendNews(PeerNews("rank")), ReportDone(), Leave()],
    ),
    "9: the end is ordered once": (
        [(1.0, FinishAsked(TERM, 3.0)), (2.0, FinishAsked(TERM, 1.0))],
        [*end(TERM, 3.0), ReleaseOutput()],
    ),
    "9: what a setup leaves in the background stays": (
        [(1.0, RankStarted()), (2.0, SetupEnded()), (3.0, FinishAsked(TERM, 3.0)), (3.0, Relayed())],
        [ReleaseOutput(), RemoveScripts(), *RELAY, Leave(stays=True)],
    ),
    "9: a setup that was killed leaves nothing": (
        [(1.0, RankStarted(), KillAsked()), (2.0, SetupEnded()), (3.0, FinishAsked(TERM, 3.0))],
        [ReleaseOutput(), KillBy(0.0), *end(TERM, 3.0)],
    ),
    "9: mesh stop after a setup leaves alone what stays in the background": (
        [(1.0, RankStarted()), (2.0, SetupEnded()), (3.0, StopAsked(0.0), Relayed(), SignalAsked(INT, 1.0))],
        [ReportStopped(), ReleaseOutput(), RemoveScripts(), *RELAY, Leave(stays=True), ReleaseOutput()],
    ),
    "9: a setup that was signalled leaves nothing": (
        [(1.0, SignalAsked(INT, GRACE)), (2.0, SetupEnded()), (3.0, FinishAsked(TERM, 3.0))],
        [ReleaseOutput(), SendSignal(INT, GRACE), *end(TERM, 3.0)],
    ),
    "10: mesh stop ends the run with the grace of the run": (
        [*DETACHED, (2.0, StopAsked())],
        [*CONFIRMED, ReportStopped(), AnnounceEnd("signal", TERM), *end()],
    ),
    "10: mesh stop may give less time to a run that is ending already": (
        [START, (1.0, ClientLeft()), (2.0, StopAsked(0.0))],
        [*end(), ReportStopped(), ReleaseOutput(), KillBy(0.0)],
    ),
    "a run without ranks cannot be detached": ([(1.0, DetachAsked()), (2.0, RanksStarting(1), DetachAsked())], []),
    "a run that is ending cannot be detached": ([START, (1.0, ClientLeft(), DetachAsked())], end()),
    "a run that cannot be detached keeps its client": (
        [START, (1.0, DetachAsked(), DetachFailed("disk full")), (99.0,)],
        [Detach(), ReleaseOutput(), StayAttached("disk full"), LEASE_OVER, KeepJournal(), *end()],
    ),
}


@pytest.mark.parametrize(("turns", "orders"), HISTORIES.values(), ids=HISTORIES)
def test_history(turns: list[Turn], orders: list[Order]) -> None:
    assert replay(turns, decisions_of()) == orders


def test_with_keep_going_no_failure_ends_a_detached_run() -> None:
    turns = [*DETACHED, (2.0, RankEnded(True), PeersReady(1), PeerNews("lost", lost=3, reason="gone")), (50.0,)]
    assert replay(turns, decisions_of(keep_going=True)) == CONFIRMED


KILLED_LATER = [TO_DETACH, LEAVE, (2.0, PeersReady(1), ClientLost())]
ABANDONED = [*CONFIRMED, AnnounceEnd("signal", TERM), SendNews(PeerNews("signal", TERM)), *end()]
ABANDONED_ALONE = [*CONFIRMED, AnnounceEnd("signal", TERM), *end()]

# A client that is killed while it detaches may have reached some hosts only.
LEAVINGS: Histories = {
    "an agent that has met no other one ends its part of the run": ([*KILLED_LATER, (9.0,), (9.1,)], ABANDONED),
    "so does one that was not to meet them yet": (
        [TO_DETACH, LEAVE, (2.0, ClientLost()), (9.0,), (9.1,), (99.0,)],
        ABANDONED_ALONE,
    ),
    "one that has met another one goes on": ([*KILLED_LATER, (3.0, PeersMet()), (99.0,)], CONFIRMED),
    "a client that leaves has reached all hosts": (
        [TO_DETACH, LEAVE, (2.0, ClientLeft()), (2.1, ClientLost()), (99.0,)],
        [*CONFIRMED, DropChannel()],
    ),
    "a client that is back goes on": ([*KILLED_LATER, (3.0, ClientBack()), (99.0,)], CONFIRMED),
    "a client that was cut off before goes on by itself": (
        [TO_DETACH, LEAVE, (20.0, ClientLost()), (99.0,)],
        CONFIRMED,
    ),
    "mesh detach of a running run asks all hosts by itself": (
        [START, LEAVE, (2.0, ClientLost()), (99.0,)],
        CONFIRMED,
    ),
}


@pytest.mark.parametrize(("turns", "orders"), LEAVINGS.values(), ids=LEAVINGS)
def test_a_client_that_is_killed_while_it_detaches_leaves_no_part_of_a_run(
    turns: list[Turn], orders: list[Order]
) -> None:
    decisions = decisions_of(agents_meet=True, timeout=0.0)
    assert replay(turns, decisions) == orders
    assert decisions.due_at(100.0) == float("inf")


def test_the_detached_run_of_one_host_needs_no_good_bye() -> None:
    assert replay([*KILLED_LATER, (99.0,)], decisions_of()) == CONFIRMED


def test_a_detached_run_may_have_no_timeout() -> None:
    assert replay([*DETACHED, (1e9,)], decisions_of(timeout=0.0)) == CONFIRMED


def test_the_agent_exits_once_its_client_has_everything() -> None:
    decisions = decisions_of()
    replay([(1.0, FinishAsked(TERM, 1.0))], decisions)
    assert not decisions.is_done(2.0, True, False)
    replay([(2.0, AllGone(), Relayed())], decisions)
    assert not decisions.is_done(3.0, False, False)
    assert decisions.is_done(3.0, True, False)
    assert decisions.is_done(LEASE + 0.1, False, False)  # the client will never have it


def test_a_detached_agent_exits_once_neither_client_nor_hosts_wait_for_it() -> None:
    decisions = decisions_of()
    ended = (2.0, RankEnded(False), RankEnded(False))
    replay([*DETACHED, ended], decisions)
    assert decisions.due_at(3.0) == 15.0
    assert not decisions.is_done(3.0, True, False)
    replay([(4.0, ClientLost()), (4.0, AllGone(), Relayed())], decisions)
    assert not decisions.is_done(4.0, True, True)
    assert decisions.is_done(4.0, False, False)


def test_a_refused_client_gets_a_short_time_to_read_the_end() -> None:
    decisions = decisions_of()
    replay([(1.0, ClientRefused("x")), (2.0, ClientHeard(), AllGone(), Relayed())], decisions)
    assert not decisions.is_done(1.0 + RECONNECT, False, False)
    assert decisions.is_done(1.1 + RECONNECT, False, False)
    decisions.handle(ClientLost(), 2.0)
    assert decisions.is_done(2.0, False, False)


def test_a_refused_client_gets_no_more_time_by_what_it_sends() -> None:
    decisions = decisions_of()
    replay([(1.0, ClientRefused("x")), (2.0, ClientHeard(), AllGone(), Relayed())], decisions)
    assert decisions.is_silent(15.1)
    decisions = decisions_of()
    replay([(1.0, ClientRefused("x"), ClientLost()), (2.0, ClientBack(), AllGone(), Relayed())], decisions)
    assert decisions.is_done(1.1 + RECONNECT, False, False)


def test_the_guardian_waits_for_the_lease_and_then_for_the_end() -> None:
    decisions = decisions_of()
    assert decisions.must_turn_by(1.0, 0.0) == LEASE
    replay([(1.0, FinishAsked(TERM, 30.0))], decisions)
    assert decisions.must_turn_by(1.0, 31.0) == 31.0 + STUCK_LIMIT_S
    assert decisions.must_turn_by(40.0, 31.0) == 40.0 + STUCK_LIMIT_S
    replay([(41.0, AllGone(), Relayed())], decisions)
    assert decisions.must_turn_by(41.0, 0.0) == LEASE


def test_a_client_that_need_not_ask_for_the_end_is_recognised() -> None:
    decisions = decisions_of()
    assert decisions.may_leave_unasked(holds=False)
    assert not decisions.may_leave_unasked(holds=True)
    decisions.handle(Failed("start", "no memory"), 1.0)
    assert not decisions.may_leave_unasked(holds=False)


STOP = NodeStopped(3, 7, "enough")
STOPPED = [ReportProgramStopped(3, 7, "enough")]
PROGRAM_END: dict[str, object] = {"code": 7, "reason": "enough"}
PROGRAMS: Histories = {
    "a node's stop ends the ranks of its host at once, though the client decides for the others": (
        [START, (1.0, STOP), (2.0, STOP), (2.0, SignalAsked(TERM, GRACE, "program"))],
        [
            *STOPPED,
            ReleaseOutput(),
            NotifyNodes("program"),
            SendSignal(TERM, GRACE),
            ReleaseOutput(),
            NotifyNodes("program"),
            KillBy(GRACE),
        ],
    ),
    "a node's stop in a detached run is recorded, and reaches the other hosts as the first news": (
        [*DETACHED, (1.0, PeersReady(0)), (2.0, STOP)],
        [
            *CONFIRMED,
            *STOPPED,
            AnnounceEnd("program", TERM, PROGRAM_END),
            SendNews(PeerNews("program", reason="enough", code=7)),
            ReleaseOutput(),
            NotifyNodes("program"),
            SendSignal(TERM, GRACE),
        ],
    ),
    "the stop of a node on another host ends the ranks here with its status": (
        [*DETACHED, (1.0, PeersReady(1)), (2.0, PeerNews("program", reason="enough", code=7))],
        [
            *CONFIRMED,
            AnnounceEnd("program", TERM, PROGRAM_END),
            ReleaseOutput(),
            NotifyNodes("program"),
            SendSignal(TERM, GRACE),
        ],
    ),
    "a stop after the order to end changes nothing": (
        [START, (1.0, SignalAsked(TERM, GRACE)), (2.0, STOP)],
        [ReleaseOutput(), NotifyNodes("signal"), SendSignal(TERM, GRACE)],
    ),
    "nodes receive that their host's agent is to end": (
        [START, (1.0, Terminated(False))],
        [
            ReportFailure("agent", "the agent received SIGTERM", killed_by=TERM),
            NotifyNodes("preempted"),
            ReleaseOutput(),
            NotifyNodes("lost"),
            *end()[1:],
        ],
    ),
}


@pytest.mark.parametrize(("turns", "orders"), PROGRAMS.values(), ids=PROGRAMS)
def test_the_decisions_about_a_program(turns: list[Turn], orders: list[Order]) -> None:
    assert replay(turns, decisions_of(has_nodes=True)) == orders


def test_every_fact_has_a_handler() -> None:
    assert set(HANDLERS) == set(Fact.__subclasses__())


# ---- properties

SECONDS = st.floats(0.0, 120.0).map(lambda value: round(value, 1))
LINES = st.tuples() | st.tuples(st.just("7 sudo"))
FACTS = st.one_of(
    st.sampled_from(
        [
            *(ClientHeard(), ClientLost(), ClientBack(), ClientLeft(), ClientOver(), ClientRefused("x")),
            *(DetachAsked(), Detached(), DetachFailed("x"), JournalKept(), KillAsked(), StopAsked()),
            *(RankStarted(), SetupEnded(), Printed(), LockTaken(), LockReleased(), Failed("s", "m")),
            *(PeersReady(1), PeerNews("rank"), PeerNews("signal", INT), PeerNews("lost", lost=2, reason="r")),
            *(CleanUpFailed("x"), Relayed(), Terminated(False), Terminated(True)),
        ]
    ),
    st.builds(SignalAsked, st.sampled_from([INT, TERM]), SECONDS),
    st.builds(FinishAsked, st.sampled_from([INT, TERM]), SECONDS),
    st.builds(StopAsked, SECONDS),
    st.builds(RanksStarting, st.integers(1, 3)),
    st.builds(RankEnded, st.booleans()),
    st.builds(CleanedUp, LINES),
    st.builds(AllGone, LINES, busy=LINES, uses_containers=st.booleans(), was_killed=st.booleans()),
)
TURNS = st.lists(st.tuples(SECONDS, st.lists(FACTS, max_size=3)), max_size=25).map(
    lambda turns: [(now, *facts) for now, (_, facts) in zip(sorted(turn[0] for turn in turns), turns, strict=True)]
)
ABOUT_PROCESSES = (SendSignal, KillBy, BeginEnd)


@given(TURNS)
def test_the_agent_leaves_exactly_once_after_an_end_that_was_asked_for(turns: list[Turn]) -> None:
    decisions = decisions_of()
    found = replay(turns, decisions)
    late = 1000.0  # past every lease and timeout
    last = replay(
        [(late, FinishAsked(TERM, 1.0)), (late, AllGone()), (late, CleanedUp(), Relayed()), (late, Relayed())],
        decisions,
    )
    assert [type(order) for order in [*found, *last]].count(Leave) == 1
    assert decisions.is_clear


@given(TURNS)
def test_no_process_is_signalled_after_the_agent_has_left(turns: list[Turn]) -> None:
    found = [type(order) for order in replay(turns, decisions_of())]
    after = found[found.index(Leave) + 1 :] if Leave in found else []
    assert not set(after) & set(ABOUT_PROCESSES)


@given(TURNS)
def test_the_end_begins_and_a_failure_is_reported_at_most_once(turns: list[Turn]) -> None:
    found = [type(order) for order in replay(turns, decisions_of())]
    assert found.count(BeginEnd) <= 1
    assert found.count(ReportFailure) <= 1
    assert found.count(SendNews) <= 1


@given(TURNS)
def test_nothing_is_cleaned_up_before_all_is_gone(turns: list[Turn]) -> None:
    decisions = decisions_of()
    seen = False
    for now, *facts in turns:
        for fact in facts:
            seen = seen or isinstance(fact, (AllGone, SetupEnded))
            orders = decisions.handle(fact, now)
            assert seen or not any(isinstance(order, (CleanUp, RelayRest, Leave)) for order in orders)
        decisions.tick(now)


OF_CLIENT = st.sampled_from([ClientLost(), ClientHeard(), ClientBack(), ClientLeft(), ClientRefused("x"), ClientOver()])
CLIENT_TURNS = st.lists(st.tuples(SECONDS, OF_CLIENT), max_size=12).map(lambda turns: sorted(turns, key=lambda t: t[0]))


@given(CLIENT_TURNS)
def test_a_detached_run_never_ends_because_of_its_client(turns: list[Turn]) -> None:
    decisions = decisions_of(timeout=0.0)
    found = replay(
        [(0.0, RanksStarting(1), RankStarted()), (0.0, DetachAsked(), Detached()), *turns, (1e6,)], decisions
    )
    assert {type(order) for order in found} <= {Detach, ConfirmDetached, DropChannel}


@given(st.lists(st.integers(1, 59), max_size=8), st.integers(16, 59))
def test_the_lease_of_a_silent_client_counts_from_its_last_beat(pauses: list[int], lost_after: int) -> None:
    decisions = decisions_of()
    beats = list(accumulate(pauses))
    assert replay([START, *((float(beat), ClientHeard()) for beat in beats)], decisions) == []
    last = float(beats[-1]) if beats else 0.0
    assert replay([(last + lost_after, ClientLost()), (last + LEASE,)], decisions) == []
    assert decisions.due_at(last + LEASE) == last + LEASE
    assert replay([(last + LEASE + 0.001,)], decisions) == [LEASE_OVER, KeepJournal(), *end()]


@given(TURNS, SECONDS)
def test_nothing_is_decided_between_a_turn_and_the_time_that_is_due(turns: list[Turn], share: float) -> None:
    decisions = decisions_of()
    replay(turns, decisions)
    now = turns[-1][0] if turns else 0.0
    due = decisions.due_at(now)
    if now < due:
        between = now + (min(due, now + 1000.0) - now) * share / 121.0
        assert decisions.tick(between) == []
