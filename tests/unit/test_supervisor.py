"""The supervisor's decisions, replayed from lists of events: no process, no clock."""

from __future__ import annotations

import math
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from mesh.core.cluster import Host, place_ranks
from mesh.core.events import (
    Answered,
    Busy,
    Connected,
    Event,
    Exited,
    Gone,
    Hanging,
    HostNotice,
    Interrupted,
    Locked,
    Lost,
    OtherRun,
    Output,
    PrepareFailed,
    PrerunDecided,
    Ready,
    StacksTaken,
    Started,
    StdoutClosed,
    Stopped,
    Stream,
    Synced,
    Tick,
    WorkspaceFailed,
)
from mesh.core.outcome import Cause, Outcome
from mesh.core.pull import NotPulled
from mesh.core.run import Kind, PrerunEntry, SetupCommand
from mesh.engine.inquiry import Inquiry
from mesh.engine.orders import Ask, Finish, Kill, Lock, Order, Prepare, Say, Signal, Start, Sync, Tell, Unlock
from mesh.engine.question import Question
from mesh.engine.supervisor import Supervisor
from mesh.engine.supervisor.ending import ANSWER_LIMIT_S, OUTPUT_PAUSE_S
from mesh.engine.supervisor.naming import NAMING_DELAY_S
from mesh.protocol.questions import AskGpus, AskRuns, AskStacks, Pull
from mesh.protocol.replies import Gpus, Stacks
from mesh.remote.owners import other_line
from mesh.screen.summary import receipt
from tests.specs import spec_of

GRACE, DRAIN = 10.0, 2.0


class Replay:
    """A supervisor whose clock is moved by hand: ``at`` is both clocks of every event."""

    def __init__(self, hosts: int = 2, nproc: int = 1, **changes: object) -> None:
        spec = spec_of(run="r", project="p", workspace=Path("/w"), nproc=nproc, **{"command": ("true",), **changes})
        names = tuple(Host(name=f"h{node}", address=f"h{node}") for node in range(hosts))
        self.supervisor = Supervisor(spec, place_ranks(names, [nproc] * hosts))
        self.hosts = hosts
        self.said: list[str] = []

    def tick(self, at: float) -> list[Order]:
        return self.handle(Tick(time=at, monotonic=at))

    def handle(self, *events: Event) -> list[Order]:
        """The orders that the events give, less what is only said."""
        orders = [order for event in events for order in self.supervisor.handle(event)]
        self.said += [order.text for order in orders if isinstance(order, Say)]
        return [order for order in orders if not isinstance(order, Say)]

    def ready(self) -> list[Order]:
        """Bring every host to the start of its ranks, at time 1."""
        self.tick(1.0)
        for node in range(self.hosts):
            self.handle(connected(node), Locked(time=1, node=node), synced(node))
        return self.handle(*(Ready(time=1, node=node) for node in range(self.hosts)))

    def outcome(self) -> Outcome:
        assert self.supervisor.done
        return self.supervisor.outcome(100.0)


def connected(node: int) -> Connected:
    return Connected(time=1, node=node, address=f"10.0.0.{node}", machine=f"m{node}")


def synced(node: int) -> Synced:
    return Synced(time=1, node=node, files=1, bytes=1, seconds=0.1)


def exited(rank: int, code: int = 0, *, at: float = 2.0, by: int = 0, node: int | None = None) -> Exited:
    return Exited(time=at, node=rank if node is None else node, rank=rank, code=code, signal=by)


def gone(*nodes: int) -> list[Event]:
    return [Gone(time=50, node=node) for node in nodes]


def stop(node: int, number: int = signal.SIGTERM, grace: float = GRACE) -> Signal:
    return Signal(node=node, number=number, grace=grace)


def finish(node: int, number: int = signal.SIGTERM, grace: float = GRACE) -> Finish:
    return Finish(node=node, number=number, grace=grace)


def test_the_hang_watch_asks_once_for_each_time_of_quiet_and_only_hosts_whose_ranks_run() -> None:
    replay = Replay(hosts=3, hang_watch=300.0)
    replay.ready()
    replay.handle(*(Started(time=1, node=node, rank=node, pid=1) for node in range(3)))
    assert replay.tick(300.0) == []
    asked = [Ask(node=node, question=AskStacks()) for node in range(3)]
    assert replay.tick(301.0) == [Tell(event=Hanging(time=301.0, seconds=300.0, hosts=3)), *asked]
    answer = Stacks(ranks=[], stacks=[], notes=[], silent=False)
    assert replay.handle(*(StacksTaken(time=1, node=node, answer=answer, clock=0.0) for node in range(3))) == []
    assert replay.tick(900.0) == []
    replay.handle(Output(time=901, node=0, rank=0, stream=Stream.STDOUT, data=b"on\n"), exited(0, at=901.0))
    assert replay.tick(1199.0) == []
    assert replay.tick(1201.0) == [Tell(event=Hanging(time=1201.0, seconds=300.0, hosts=2)), *asked[1:]]


def test_the_outcome_has_when_the_end_began_and_which_hosts_are_not_proven_clean() -> None:
    replay = Replay(hosts=3)
    replay.ready()
    replay.tick(5.0)
    replay.handle(Interrupted(time=5, signal=signal.SIGTERM))
    replay.handle(*(exited(rank, by=signal.SIGTERM, at=6.0) for rank in range(3)))
    replay.handle(*gone(0), Gone(time=6, node=1, left=("sleep (pid 7)",)), Lost(time=6, node=2, reason="cut"))
    outcome = replay.outcome()
    assert (outcome.ending_since, outcome.unclean, outcome.stopped) == (5.0, (1, 2), (0, 1, 2))
    told = receipt(outcome, place_ranks([Host(name=f"h{node}", address="") for node in range(3)]), has_claim=True)
    assert told == "1/3 hosts clean in 95.0 s: 3 ranks ended; not verified: h1, h2"


def test_an_agent_that_leaves_unasked_before_its_ranks_have_ended_is_lost() -> None:
    replay = Replay()
    replay.ready()
    replay.handle(exited(0), Gone(time=6, node=1), *gone(0))
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.cause, [lost.node for lost in outcome.lost]) == (76, Cause.LOST, [1])


def test_the_lock_comes_before_the_sync() -> None:
    replay = Replay()
    assert replay.handle(connected(0)) == [Lock(node=0)]
    assert replay.handle(Locked(time=1, node=0)) == [Sync(node=0)]


def test_the_first_hosts_lock_comes_before_all_others() -> None:
    replay = Replay(hosts=4)
    assert replay.handle(connected(2), connected(1)) == []
    assert replay.handle(connected(0)) == [Lock(node=0)]
    assert replay.handle(Locked(time=1, node=0)) == [Sync(node=0), Lock(node=1), Lock(node=2)]
    assert replay.handle(connected(3)) == [Lock(node=3)]


def test_hosts_that_lock_by_themselves_are_not_told_to() -> None:
    replay = Replay(hosts=3)
    assert [replay.supervisor.locks_at_once(node) for node in range(3)] == [True, False, False]
    assert replay.handle(connected(1), replace(connected(0), is_locking=True)) == []
    assert replay.handle(Locked(time=1, node=0)) == [Sync(node=0), Lock(node=1)]
    assert replay.handle(connected(2)) == [Lock(node=2)]

    replay = Replay(hosts=3, lock=False, sync=False)
    assert [replay.supervisor.locks_at_once(node) for node in range(3)] == [True, True, True]
    itself = [replace(connected(node), is_locking=True) for node in range(3)]
    assert replay.handle(itself[2], Locked(time=1, node=2), *itself[:2], Locked(time=1, node=0)) == []
    assert replay.handle(Locked(time=1, node=1)) == [Prepare(node=0), Prepare(node=1), Prepare(node=2)]


def at_once(node: int) -> Connected:
    return replace(connected(node), is_locking=True, is_preparing=True)


def test_hosts_that_prepare_themselves_are_not_told_to() -> None:
    replay = Replay(hosts=3, lock=False, sync=False)
    assert replay.supervisor.prepares_at_once
    for node in (2, 0):
        assert replay.handle(at_once(node), Locked(time=1, node=node), Ready(time=1, node=node)) == []
    assert replay.handle(at_once(1), Locked(time=1, node=1)) == []
    assert replay.handle(Ready(time=1, node=1)) == [Start(node=0), Start(node=1), Start(node=2)]


def test_a_host_that_fails_while_others_have_prepared_themselves() -> None:
    replay = Replay(hosts=2, lock=False, sync=False)
    replay.tick(1.0)
    assert replay.handle(at_once(0), Locked(time=1, node=0), Ready(time=1, node=0)) == []
    failed = PrepareFailed(time=2, node=1, step="interface", message="none so named")
    assert replay.handle(at_once(1), Locked(time=1, node=1), failed) == []
    assert replay.tick(4.0) == [finish(0), finish(1)]
    replay.handle(*gone(0, 1))
    assert replay.outcome().exit_code == 125


@pytest.mark.parametrize(
    "changes",
    [
        {"lock": True},
        {"sync": True},
        {"claim": True},
        {"prerun": (PrerunEntry(run="true"),)},
        {"commands": (SetupCommand(run="true"),), "kind": Kind.SETUP},
        {"command": ()},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_where_something_is_held_or_runs_before_the_ranks_hosts_wait_for_each_other(changes: dict[str, object]) -> None:
    assert not Replay(**{"lock": False, "sync": False, **changes}).supervisor.prepares_at_once  # type: ignore[arg-type]


def last(rank: int, code: int = 0) -> Exited:
    return replace(exited(rank, code), is_last=True)


def unreachable(node: int) -> PrepareFailed:
    return PrepareFailed(time=2, node=node, step="reach", message="timed out")


def skipping(hosts: int = 3) -> Replay:
    """The supervisor of an ``exec --keep-going``."""
    replay = Replay(hosts=hosts, lock=False, sync=False, keep_going=True, skip_unreachable=True)
    replay.tick(1.0)
    return replay


def prepared(*nodes: int) -> list[Event]:
    return [event for node in nodes for event in (at_once(node), Locked(time=1, node=node), Ready(time=1, node=node))]


@pytest.mark.parametrize("dead", [0, 1, 2])
def test_a_host_that_cannot_be_reached_is_skipped(dead: int) -> None:
    replay = skipping()
    alive = [node for node in range(3) if node != dead]
    assert replay.handle(*prepared(*alive)) == []
    assert replay.handle(unreachable(dead)) == [Start(node=node) for node in alive]
    assert replay.said == [f"not reached: h{dead}; the ranks start on 2 of 3 hosts"]
    assert replay.handle(*(last(node) for node in alive)) == []
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.cause, outcome.first) == (76, Cause.LOST, None)
    assert [failure.node for failure in outcome.failures] == [dead]


def test_a_host_that_was_not_reached_comes_before_a_rank_that_failed() -> None:
    replay = skipping()
    replay.handle(unreachable(1), *prepared(0, 2), last(0), last(2, code=5))
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.cause, outcome.first) == (76, Cause.LOST, last(2, code=5))


def test_a_host_that_is_lost_before_the_start_is_skipped() -> None:
    replay = skipping()
    replay.handle(*prepared(0, 2), at_once(1))
    assert replay.handle(Lost(time=2, node=1, reason="the connection ended")) == [Start(node=0), Start(node=2)]


def test_nothing_starts_where_no_host_can_be_reached() -> None:
    replay = skipping()
    replay.handle(*map(unreachable, range(3)))
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.cause, len(outcome.failures)) == (125, Cause.PREPARE, 3)


def test_a_signal_decides_though_a_host_was_skipped() -> None:
    replay = skipping()
    replay.handle(unreachable(1), *prepared(0, 2), Interrupted(time=3, signal=signal.SIGINT))
    replay.handle(exited(0, by=2, at=3.1), exited(2, by=2, at=3.1), *gone(0, 2))
    assert replay.outcome().exit_code == 130


def test_other_failures_of_the_preparation_keep_all_hosts_from_starting() -> None:
    replay = skipping()
    replay.handle(unreachable(1), at_once(0), Locked(time=1, node=0), *prepared(2))
    replay.handle(PrepareFailed(time=2, node=0, step="interface", message="none so named"))
    assert replay.tick(4.0) == [finish(0), finish(2)]
    replay.handle(*gone(0, 2))
    outcome = replay.outcome()
    assert (outcome.exit_code, [failure.node for failure in outcome.failures]) == (125, [0, 1])


def test_no_rank_starts_where_a_host_lacks_the_command() -> None:
    replay = Replay(hosts=3, lock=False, sync=False, command=("python", "a.py"))
    replay.tick(1.0)
    for node in (0, 1):
        assert replay.handle(at_once(node), Locked(time=1, node=node)) == []
    lacking = Ready(time=1, node=1, status=127, nearest="python3")
    assert replay.handle(Ready(time=1, node=0), lacking, at_once(2), Locked(time=1, node=2)) == []
    told, *orders = replay.handle(Ready(time=1, node=2, status=126))
    assert [order.event.node for order in (told, orders.pop(0)) if isinstance(order, Tell)] == [1, 2]  # type: ignore[attr-defined]
    assert orders == [finish(0), finish(1), finish(2)]
    replay.handle(*gone(0, 1, 2))
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.cause, outcome.started, outcome.first) == (127, Cause.RANK, 0.0, None)
    assert [(one.node, one.step, one.message) for one in outcome.failures] == [
        (1, "command", "python: no such command"),
        (2, "command", "python: not executable"),
    ]


def test_a_failure_of_the_preparation_comes_before_a_missing_command() -> None:
    replay = Replay(hosts=2, lock=False, sync=False)
    replay.tick(1.0)
    replay.handle(at_once(0), Locked(time=1, node=0), Ready(time=1, node=0, status=127))
    replay.handle(PrepareFailed(time=2, node=1, step="reach", message="refused"))
    assert replay.tick(4.0) == [finish(0)]
    replay.handle(*gone(0))
    outcome = replay.outcome()
    assert (outcome.exit_code, [one.step for one in outcome.failures]) == (125, ["command", "reach"])


def test_nobody_waits_for_hosts_where_nothing_is_left() -> None:
    replay = Replay(hosts=3, lock=False, sync=False)
    replay.ready()
    assert replay.handle(last(0), exited(1)) == []
    assert replay.handle(Lost(time=3, node=0, reason="the connection ended")) == []
    assert replay.handle(last(2, code=3)) == [finish(1)]
    assert replay.handle(*gone(1)) == []
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.unverified, outcome.lost) == (3, (), ())


def test_the_others_are_ended_and_waited_for() -> None:
    replay = Replay(hosts=2, lock=False, sync=False)
    replay.ready()
    assert replay.handle(exited(1), last(0)) == [finish(1)]
    assert not replay.supervisor.done
    replay.handle(*gone(1))
    assert replay.outcome().exit_code == 0


def test_a_host_that_locks_by_itself_while_the_run_ends() -> None:
    replay = Replay(hosts=2)
    replay.tick(1.0)
    replay.handle(PrepareFailed(time=1, node=1, step="reach", message="timed out"))
    assert replay.handle(replace(connected(0), is_locking=True), Locked(time=1, node=0)) == []
    assert replay.tick(4.0) == [finish(0)]
    replay.handle(*gone(0))
    assert replay.outcome().exit_code == 125


def test_when_the_first_host_is_busy_no_other_one_is_locked() -> None:
    replay = Replay()
    replay.tick(1.0)
    assert replay.handle(connected(1), connected(0)) == [Lock(node=0)]
    assert replay.handle(Busy(time=1, node=0, owner="ana")) == []
    assert replay.tick(1.1) == [finish(0), finish(1)]


def test_prerun_waits_until_all_hosts_are_locked() -> None:
    replay = Replay()
    assert replay.handle(connected(0), Locked(time=1, node=0), synced(0)) == [Lock(node=0), Sync(node=0)]
    assert replay.handle(connected(1)) == [Lock(node=1)]
    assert replay.handle(Locked(time=1, node=1)) == [Sync(node=1), Prepare(node=0)]
    assert replay.handle(synced(1)) == [Prepare(node=1)]


def decided(entry: int, node: int, why: str = "", *missing: str) -> PrerunDecided:
    return PrerunDecided(time=1, node=node, entry=entry, why=why, missing=missing)


def test_entries_that_are_skipped_are_told_once_for_all_hosts() -> None:
    entries = (PrerunEntry(run="true"), PrerunEntry(run="uv  sync\n", inputs=("a", "b")), PrerunEntry(run="x" * 70))
    replay = Replay(hosts=3, prerun=entries)
    replay.handle(decided(1, 0), decided(1, 2), decided(2, 0))
    assert replay.said == []
    replay.handle(decided(1, 1))
    assert replay.said == ['prerun: "uv sync" skipped on 3 hosts: its inputs have not changed']
    replay.handle(decided(2, 1, "a changed"), decided(2, 2, "", "b"))
    (_, said) = replay.said
    text = f'prerun: "{"x" * 57}..." skipped on 2 hosts: its inputs have not changed (not there: b); it runs on h1'
    assert said == text


def test_entries_that_run_everywhere_are_not_told() -> None:
    replay = Replay(hosts=2, prerun=(PrerunEntry(run="x", inputs=("a",)),))
    replay.handle(decided(0, 0, "a changed"), decided(0, 1, "a changed"))
    assert replay.said == []


def test_no_rank_starts_before_all_hosts_are_ready() -> None:
    replay = Replay()
    replay.tick(1.0)
    replay.handle(*(event for node in (0, 1) for event in (connected(node), Locked(time=1, node=node), synced(node))))
    assert replay.handle(Ready(time=1, node=0)) == []
    assert replay.handle(Ready(time=1, node=1)) == [Start(node=0), Start(node=1)]


def test_without_a_sync_a_locked_host_is_prepared() -> None:
    replay = Replay(hosts=1, sync=False)
    assert replay.handle(connected(0), Locked(time=1, node=0)) == [Lock(node=0), Prepare(node=0)]


def test_when_all_ranks_have_ended_the_hosts_finish() -> None:
    replay = Replay(nproc=2)
    replay.ready()
    assert replay.handle(*(exited(rank, node=rank // 2) for rank in (0, 1, 2))) == []
    assert replay.handle(exited(3, node=1)) == [finish(0), finish(1)]
    assert not replay.supervisor.done
    replay.handle(*gone(0, 1))
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.cause, outcome.first) == (0, Cause.COMPLETED, None)
    assert outcome.started == 1.0


def test_an_early_exit_0_is_no_failure() -> None:
    replay = Replay()
    replay.ready()
    assert replay.handle(exited(0)) == []
    assert replay.tick(1000.0) == []


def test_one_failure_stops_the_others_once_they_are_quiet() -> None:
    replay = Replay(hosts=3)
    replay.ready()
    replay.tick(2.0)
    assert replay.handle(exited(1, 3)) == []
    assert replay.tick(2.0 + OUTPUT_PAUSE_S / 2) == []
    assert replay.tick(2.0 + OUTPUT_PAUSE_S) == [stop(0), stop(2)]
    assert replay.handle(exited(0, by=15, at=2.6)) == []
    assert replay.handle(exited(2, by=15, at=2.6)) == [finish(0), finish(1), finish(2)]
    replay.handle(*gone(0, 1, 2))
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.cause, outcome.stopped) == (3, Cause.RANK, (0, 2))
    assert outcome.first == exited(1, 3)


def test_others_that_still_print_have_the_whole_drain() -> None:
    replay = Replay()
    replay.ready()
    replay.tick(2.0)
    replay.handle(exited(1, 3))
    for at in (2.4, 2.8, 3.2, 3.6, 3.9):
        assert replay.tick(at) == []
        replay.handle(Output(time=at, node=0, rank=0, stream=Stream.STDERR, data=b"still here\n"))
    assert replay.tick(2.0 + DRAIN) == [stop(0)]


def test_the_first_in_time_decides_not_the_first_heard_of() -> None:
    replay = Replay(hosts=3)
    replay.ready()
    replay.tick(2.0)
    replay.handle(exited(2, 7, at=1.95))
    replay.handle(exited(0, 9, at=1.90))
    replay.tick(2.0 + OUTPUT_PAUSE_S)
    replay.handle(exited(1, by=15, at=2.55), *gone(0, 1, 2))
    assert replay.outcome().exit_code == 9


def test_a_rank_that_mesh_stopped_never_decides() -> None:
    replay = Replay()
    replay.ready()
    replay.tick(5.0)
    assert replay.handle(Interrupted(time=5, signal=signal.SIGINT)) == [stop(0, signal.SIGINT), stop(1, signal.SIGINT)]
    replay.handle(exited(0, 1, at=5.2), exited(1, by=2, at=5.3), *gone(0, 1))
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.cause, outcome.stopped) == (130, Cause.SIGNAL, (0, 1))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_decides_the_status(number: int, status: int) -> None:
    replay = Replay(hosts=1)
    replay.ready()
    passed_on = number if number == signal.SIGINT else signal.SIGTERM
    assert replay.handle(Interrupted(time=2, signal=number)) == [stop(0, passed_on)]
    replay.handle(exited(0, by=9, at=12.0), *gone(0))
    assert replay.outcome().exit_code == status


def test_the_second_interrupt_kills_and_the_third_leaves() -> None:
    replay = Replay()
    replay.ready()
    replay.handle(Interrupted(time=2, signal=signal.SIGINT))
    assert replay.handle(Interrupted(time=3, signal=signal.SIGINT)) == [Kill(node=0), Kill(node=1)]
    assert not replay.supervisor.done
    assert replay.handle(Interrupted(time=4, signal=signal.SIGINT)) == []
    outcome = replay.outcome()
    assert outcome.exit_code == 130
    assert [line.split(":")[0] for line in outcome.unverified] == ["h0", "h1"]


def test_an_interrupt_that_comes_late_is_known() -> None:
    replay = Replay(hosts=1, command=(), kind=Kind.SYNC)
    replay.handle(connected(0), Locked(time=1, node=0), synced(0), Interrupted(time=2, signal=signal.SIGINT), *gone(0))
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.signal) == (0, signal.SIGINT)


def test_after_a_kill_what_is_left_has_no_grace() -> None:
    replay = Replay(hosts=1)
    replay.ready()
    replay.handle(Interrupted(time=2, signal=signal.SIGINT), Interrupted(time=3, signal=signal.SIGINT))
    assert replay.handle(exited(0, by=9, at=3.0)) == [finish(0, grace=0.0)]


def test_a_kill_is_not_waited_for_as_long_as_grace() -> None:
    replay = Replay(hosts=1, grace=3600.0)
    replay.ready()
    replay.tick(2.0)
    replay.handle(Interrupted(time=2, signal=signal.SIGINT), Interrupted(time=3, signal=signal.SIGINT))
    assert replay.tick(2.0 + ANSWER_LIMIT_S) == [finish(0, grace=0.0)]
    replay.tick(2.0 + 2 * ANSWER_LIMIT_S)
    (told,) = replay.outcome().unverified
    assert told.startswith("h0: did not report that all is gone there. Anything left there ends by ")


def test_an_interrupt_while_a_failure_is_being_stopped_kills_but_does_not_decide() -> None:
    replay = Replay()
    replay.ready()
    replay.tick(2.0)
    replay.handle(exited(0, 4))
    assert replay.tick(3.0) == [stop(1)]
    assert replay.handle(Interrupted(time=3.5, signal=signal.SIGINT)) == [Kill(node=0), Kill(node=1)]
    replay.handle(exited(1, by=9, at=3.6), *gone(0, 1))
    assert replay.outcome().exit_code == 4


def test_an_interrupt_before_the_start_releases_what_was_prepared() -> None:
    replay = Replay(hosts=3)
    replay.handle(connected(0), Locked(time=1, node=0), connected(1))
    orders = replay.handle(Interrupted(time=2, signal=signal.SIGINT))
    assert orders == [finish(0, signal.SIGINT), finish(1, signal.SIGINT)]
    replay.handle(*gone(0, 1))
    assert replay.outcome().exit_code == 130  # the third host is not waited for


def test_a_closed_stdout_stops_the_run() -> None:
    replay = Replay(hosts=1)
    replay.ready()
    assert replay.handle(StdoutClosed(time=2)) == [stop(0)]
    replay.handle(exited(0, by=15, at=2.1), *gone(0))
    assert (replay.outcome().exit_code, replay.outcome().cause) == (141, Cause.OUTPUT_CLOSED)


def test_the_time_is_out() -> None:
    replay = Replay(hosts=1, timeout=30.0)
    replay.ready()
    assert replay.tick(30.9) == []
    assert replay.tick(31.0) == [stop(0)]
    replay.handle(exited(0, by=15, at=31.2), *gone(0))
    assert replay.outcome().exit_code == 124


def test_ranks_that_fail_within_the_error_of_the_clocks_failed_alike() -> None:
    replay = Replay(hosts=5)
    replay.ready()
    replay.tick(2.0)
    replay.handle(exited(2, 3, at=2.0), exited(0, 3, at=1.98), exited(4, 1, at=2.0), exited(1, 3, at=2.02))
    assert replay.said == []
    replay.tick(2.0 + NAMING_DELAY_S)
    assert replay.said == ["ranks 0-2 failed alike: exit 3"]
    replay.handle(exited(3, 3, at=2.5))
    replay.handle(*gone(0, 1, 2, 3, 4))
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.first, outcome.alike) == (3, exited(0, 3, at=1.98), (0, 1, 2))


@pytest.mark.parametrize("arrives", [(0, 1), (1, 0)])
def test_the_first_of_two_different_failures_is_named_whichever_arrives_first(arrives: tuple[int, int]) -> None:
    replay = Replay()
    replay.ready()
    replay.tick(2.0)
    ends = [exited(0, 5, at=1.99), exited(1, 6, at=2.0)]
    replay.handle(*(ends[rank] for rank in arrives))
    assert replay.said == ["rank 0 on h0: exit 5"]  # no longer than until all have ended
    replay.handle(*gone(0, 1))
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.first, outcome.alike) == (5, ends[0], (0,))


def test_a_failure_is_named_before_the_others_are_stopped() -> None:
    replay = Replay(drain=0.0)
    replay.ready()
    replay.tick(2.0)
    replay.handle(exited(0, 5))
    replay.tick(2.01)
    assert replay.said[0] == "rank 0 on h0: exit 5"
    assert replay.said[1].startswith("stopping 1 rank")


def test_keep_going_names_all_that_fail() -> None:
    replay = Replay(hosts=4, keep_going=True)
    replay.ready()
    replay.tick(2.0)
    replay.handle(exited(2, 1, at=2.0), exited(1, 9, at=2.0), exited(0, 1, at=2.0))
    replay.tick(2.5)
    assert replay.said == ["ranks 0,2 failed alike: exit 1", "rank 1 on h1: exit 9"]
    replay.handle(exited(3, 1, at=3.0))
    assert replay.said[2:] == ["rank 3 on h3: exit 1"]


def test_keep_going_lets_the_others_run() -> None:
    replay = Replay(keep_going=True)
    replay.ready()
    replay.tick(2.0)
    assert replay.handle(exited(0, 5)) == []
    assert replay.tick(500.0) == []
    assert replay.handle(exited(1, 6, at=500)) == [finish(0), finish(1)]
    replay.handle(*gone(0, 1))
    assert replay.outcome().exit_code == 5


def test_a_lost_host_ends_the_run_with_76() -> None:
    replay = Replay()
    replay.ready()
    replay.tick(2.0)
    assert replay.handle(Lost(time=2, node=1, reason="the connection ended")) == []
    assert replay.tick(2.0 + OUTPUT_PAUSE_S) == [stop(0)]
    assert replay.handle(exited(0, by=15, at=2.6)) == [finish(0)]
    replay.handle(*gone(0))
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.cause) == (76, Cause.LOST)
    assert outcome.unverified[0].startswith("h1: lost")


def test_a_host_lost_after_its_ranks_ended_is_named_but_no_failure() -> None:
    replay = Replay()
    replay.ready()
    replay.handle(exited(1), Lost(time=3, node=1, reason="the connection ended"))
    assert replay.handle(exited(0, at=4)) == [finish(0)]
    replay.handle(*gone(0))
    outcome = replay.outcome()
    assert outcome.exit_code == 0
    assert len(outcome.unverified) == 1


def test_an_agent_that_was_told_to_end_is_a_lost_host() -> None:
    replay = Replay()
    replay.ready()
    replay.tick(2.0)
    replay.handle(PrepareFailed(time=2, node=0, step="agent", message="told to end"))
    replay.handle(exited(0, by=15, at=2.1), *gone(0))
    replay.tick(3.0)
    replay.handle(exited(1, by=15, at=3.1), *gone(1))
    assert replay.outcome().exit_code == 76


def test_all_unreachable_hosts_are_named_and_the_others_released() -> None:
    replay = Replay(hosts=3)
    replay.tick(1.0)
    replay.handle(connected(0), Locked(time=1, node=0), synced(0))
    replay.handle(PrepareFailed(time=2, node=1, step="reach", message="timed out"))
    assert replay.tick(60.0) == []  # one is still being tried
    replay.handle(PrepareFailed(time=60, node=2, step="reach", message="refused"))
    assert replay.tick(60.1) == [finish(0)]
    replay.handle(*gone(0))
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.cause) == (125, Cause.PREPARE)
    assert [failure.node for failure in outcome.failures] == [1, 2]


def test_a_prerun_that_fails_on_one_host_gives_the_others_a_moment() -> None:
    replay = Replay()
    replay.tick(1.0)
    replay.handle(*(event for node in (0, 1) for event in (connected(node), Locked(time=1, node=node), synced(node))))
    assert replay.handle(PrepareFailed(time=1, node=0, step="prerun", message="exit 1")) == []
    assert replay.tick(1.0 + DRAIN / 2) == []
    assert replay.tick(1.0 + DRAIN) == [finish(0), finish(1)]
    assert replay.handle(Ready(time=3.5, node=1)) == []  # too late: nothing starts
    replay.handle(*gone(0, 1))
    assert replay.outcome().exit_code == 125


def test_a_busy_host_ends_with_75() -> None:
    replay = Replay()
    replay.tick(1.0)
    replay.handle(connected(0), connected(1), Locked(time=1, node=0), synced(0))
    replay.handle(Busy(time=1, node=1, owner="ana"))
    assert replay.tick(1.1) == [finish(0), finish(1)]
    replay.handle(*gone(0, 1))
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.cause) == (75, Cause.BUSY)
    assert "ana" in outcome.failures[0].message


def test_a_workspace_that_cannot_be_read_starts_nothing() -> None:
    replay = Replay(hosts=1)
    replay.tick(1.0)
    replay.handle(WorkspaceFailed(time=1, message="cannot read secret.bin"), connected(0))
    replay.handle(Locked(time=1, node=0))
    assert replay.tick(1.0 + DRAIN) == [finish(0)]
    replay.handle(*gone(0))
    assert replay.outcome().exit_code == 125


def test_an_agent_that_never_answers_is_not_waited_for_for_ever() -> None:
    replay = Replay()
    replay.ready()
    replay.tick(2.0)
    replay.handle(exited(0, at=2), exited(1, at=2), *gone(0))
    replay.tick(2.0 + GRACE + ANSWER_LIMIT_S)
    outcome = replay.outcome()
    assert outcome.exit_code == 0
    (told,) = outcome.unverified
    assert told.startswith("h1: did not report that all is gone there. Anything left there ends by ")


def test_a_rank_that_sigkill_does_not_end_is_not_waited_for_for_ever() -> None:
    replay = Replay(hosts=1)
    replay.ready()
    replay.tick(2.0)
    replay.handle(Interrupted(time=2, signal=signal.SIGINT))
    assert replay.tick(2.0 + GRACE + ANSWER_LIMIT_S) == [finish(0)]
    replay.handle(Gone(time=30, node=0, left=("pid 7 (cp), in uninterruptible sleep",)))
    assert replay.outcome().unverified == ("h0: pid 7 (cp), in uninterruptible sleep",)


def test_a_rank_that_cannot_be_forked_stops_those_that_run() -> None:
    replay = Replay()
    replay.ready()
    replay.tick(2.0)
    replay.handle(PrepareFailed(time=2, node=1, step="start", message="no more processes"))
    assert replay.tick(2.0 + DRAIN) == [stop(0)]
    assert replay.handle(exited(0, by=15, at=4.1)) == [finish(0), finish(1)]
    replay.handle(*gone(0, 1))
    assert (replay.outcome().exit_code, replay.outcome().cause) == (125, Cause.PREPARE)


# ---- setups, syncs, questions


def setup_of(hosts: int = 2) -> Replay:
    commands = (SetupCommand(run="make"),)
    replay = Replay(hosts, sync=False, kind=Kind.SETUP, commands=commands, keep_going=True)
    replay.tick(1.0)
    for node in range(hosts):
        replay.handle(connected(node), Locked(time=1, node=node))
    assert replay.handle(*(Ready(time=1, node=node) for node in range(hosts))) == [Start(node=n) for n in range(hosts)]
    return replay


def test_a_setup_that_fails_on_one_host_goes_on_on_the_others() -> None:
    replay = setup_of()
    assert replay.handle(Exited(time=2, node=0, rank=0, code=3, during="make")) == []
    assert replay.handle(exited(1, at=9.0)) == [finish(0), finish(1)]
    replay.handle(Gone(time=9, node=0), Gone(time=9, node=1, stays=("pid 7 (fuse)",)))
    assert replay.said == [
        "[h0] setup failed in 'make': exit 3",
        "[h1] setup completed",
        "[h1] stays in the background: pid 7 (fuse)",
    ]
    assert (replay.outcome().exit_code, replay.outcome().cause) == (3, Cause.RANK)


def test_a_host_lost_in_its_setup_is_125() -> None:
    replay = setup_of()
    replay.handle(exited(0), Lost(time=3, node=1, reason="gone"), *gone(0))
    assert (replay.outcome().exit_code, replay.outcome().cause) == (125, Cause.LOST)


def test_a_sync_starts_nothing() -> None:
    replay = Replay(command=(), kind=Kind.SYNC)
    replay.tick(1.0)
    replay.handle(connected(0), connected(1), Locked(time=1, node=0), Locked(time=1, node=1))
    assert replay.handle(synced(0)) == []
    assert replay.handle(synced(1)) == [finish(0), finish(1)]
    replay.handle(*gone(0, 1))
    assert (replay.outcome().exit_code, replay.outcome().cause) == (0, Cause.COMPLETED)


def test_what_keeps_the_first_host_from_a_lock_is_asked_of_the_others() -> None:
    replay = Replay()
    replay.tick(1.0)
    assert replay.handle(connected(0), connected(1)) == [Lock(node=0)]
    assert replay.handle(PrepareFailed(time=1, node=0, step="home", message="read-only")) == [Lock(node=1)]


class TestInquiry:
    def replay(self, *events: Event) -> Inquiry:
        hosts = tuple(Host(name=f"h{node}", address=f"h{node}") for node in range(2))
        inquiry = Inquiry(place_ranks(hosts), Question(message=AskGpus()))
        inquiry.handle(Tick(time=1, monotonic=1))
        self.orders = [order for event in events for order in inquiry.handle(event)]
        return inquiry

    def test_every_host_is_asked_and_leaves(self) -> None:
        answers = [Answered(time=1, node=node, answer=Gpus(gpus=node), clock=0.0) for node in range(2)]
        inquiry = self.replay(connected(0), answers[0], connected(1), answers[1], *gone(0, 1))
        asks = [Ask(node=node, question=AskGpus()) for node in range(2)]
        ends = [Finish(node=node, number=signal.SIGTERM, grace=0.0) for node in range(2)]
        assert self.orders == [asks[0], ends[0], asks[1], ends[1]]
        assert inquiry.done
        assert (inquiry.answers, inquiry.failures) == ({0: answers[0], 1: answers[1]}, {})
        assert inquiry.outcome(1.0).exit_code == 0

    def test_hosts_that_do_not_answer_in_time_are_given_up(self) -> None:
        """The time in which the user types a password does not count."""
        hosts = tuple(Host(name=f"h{node}", address=f"h{node}") for node in range(3))
        prompts = [False]
        inquiry = Inquiry(place_ranks(hosts), Question(message=AskRuns()), limit=5.0, is_paused=lambda: prompts[0])
        inquiry.handle(Tick(time=1, monotonic=1))
        inquiry.handle(connected(1))
        inquiry.handle(Answered(time=2, node=1, answer={}, clock=0.0))
        inquiry.handle(Gone(time=2, node=1))
        for at, is_open in ((2, True), (20, True), (22, False), (23, False)):
            prompts[0] = is_open
            inquiry.handle(Tick(time=at, monotonic=at))
        assert not inquiry.done
        inquiry.handle(connected(0))
        inquiry.handle(Tick(time=26, monotonic=26))
        assert inquiry.done
        assert {node: one.message for node, one in inquiry.failures.items()} == {
            0: "no answer within 5 s",
            2: "no answer within 5 s",
        }

    def test_an_answer_that_lasts(self) -> None:
        hosts = tuple(Host(name=f"h{node}", address=f"h{node}") for node in range(2))

        def ended(*events: Event) -> Outcome:
            inquiry = Inquiry(place_ranks(hosts), Question(message=Pull(paths=["x"]), answer_s=math.inf))
            asked = [order for event in (connected(0), connected(1)) for order in inquiry.handle(event)]
            assert asked == [Ask(node=node, question=Pull(paths=["x"]), lasting=True) for node in range(2)]
            inquiry.handle(Tick(time=1e9, monotonic=1e9))
            for event in events:
                assert not inquiry.done
                inquiry.handle(event)
            assert inquiry.done
            return inquiry.outcome(1.0)

        answers = [Answered(time=1, node=node, answer={}, clock=0.0) for node in range(2)]
        lost = Lost(time=2, node=1, reason="cut")
        missing = NotPulled(time=1, node=0, path="x", reason="nothing there")
        fifo = NotPulled(time=1, node=0, path="x", reason="a FIFO", fails=False)
        disk = PrepareFailed(time=1, node=0, step="here", message="no space")
        assert ended(*answers, *gone(0, 1)).exit_code == 0
        assert ended(fifo, *answers, *gone(0, 1)).exit_code == 0
        assert ended(missing, *answers, *gone(0, 1)).exit_code == 125
        assert ended(disk, answers[1], *gone(0, 1)).exit_code == 125
        assert ended(missing, answers[0], *gone(0), lost).exit_code == 76
        assert ended(answers[0], lost, *gone(0)).failures[0].message == "cut"
        assert ended(*answers, *gone(0), lost).exit_code == 0  # all has come before

    def test_failures_are_kept_and_end_the_wait(self) -> None:
        failed = PrepareFailed(time=1, node=0, step="login", message="refused")
        inquiry = self.replay(failed, connected(1), Lost(time=2, node=1, reason="cut"))
        assert inquiry.done
        assert [(one.step, one.message) for one in inquiry.failures.values()] == [
            ("login", "refused"),
            ("agent", "cut"),
        ]
        assert inquiry.outcome(1.0).exit_code == 125

    def test_a_host_that_never_answers(self) -> None:
        failed = PrepareFailed(time=1, node=0, step="login", message="refused")
        inquiry = self.replay(failed, connected(1), Tick(time=20, monotonic=20))
        assert not inquiry.done
        inquiry.handle(Tick(time=22, monotonic=22))
        assert inquiry.done
        assert inquiry.failures[1].message == "did not answer in time"

    def test_an_interrupt(self) -> None:
        inquiry = self.replay(connected(0), Interrupted(time=1, signal=2))
        assert inquiry.done
        assert inquiry.outcome(1.0).exit_code == 130


# ---- waiting for busy hosts


def busy(node: int, at: float = 1.0) -> Busy:
    return Busy(time=at, node=node, owner="me: train")


def test_without_wait_a_busy_host_ends_it() -> None:
    replay = Replay()
    replay.tick(1.0)
    replay.handle(connected(0), connected(1))
    replay.handle(busy(0))
    assert Finish(node=1, number=signal.SIGTERM, grace=GRACE) in replay.tick(1.1)


def test_a_sync_of_somebody_is_waited_for_in_any_case() -> None:
    replay = Replay(hosts=1)
    replay.tick(1.0)
    syncing = Busy(time=1, node=0, owner="me: mesh sync", is_brief=True)
    assert replay.handle(connected(0), syncing) == [Lock(node=0)]
    assert replay.said == ["waiting for h0, for 30 s at most: it is busy with me: mesh sync"]
    assert replay.tick(3.0) == [Lock(node=0)]
    assert replay.handle(Locked(time=3, node=0)) == [Sync(node=0)]


def test_a_run_that_comes_after_a_sync_is_not() -> None:
    replay = Replay(hosts=1)
    replay.tick(1.0)
    replay.handle(connected(0), Busy(time=1, node=0, owner="me: mesh sync", is_brief=True))
    replay.tick(3.0)
    replay.handle(busy(0))
    replay.tick(6.0)
    replay.handle(*gone(0))
    assert replay.outcome().exit_code == 75


def test_waiting_lets_go_of_every_host_and_tries_again() -> None:
    replay = Replay(hosts=3, wait=60.0)
    replay.tick(1.0)
    assert replay.handle(connected(0), connected(1), connected(2)) == [Lock(node=0)]
    assert replay.handle(Locked(time=1, node=0)) == [Lock(node=1), Lock(node=2)]  # and no sync before all are ours
    assert replay.handle(busy(1)) == [Unlock(node=0)]
    assert replay.handle(Locked(time=1, node=2)) == [Unlock(node=2)]
    assert replay.said == ["waiting for h1, for 60 s at most: it is busy with me: train"]
    assert replay.tick(1.4) == []
    assert replay.tick(2.1) == [Lock(node=0)]
    assert replay.handle(Locked(time=2, node=0)) == [Lock(node=1), Lock(node=2)]
    assert replay.handle(Locked(time=2, node=2)) == []
    assert replay.handle(Locked(time=2, node=1)) == [Sync(node=0), Sync(node=1), Sync(node=2)]
    assert len(replay.said) == 1


def test_waiting_has_an_end() -> None:
    replay = Replay(hosts=1, wait=60.0)
    replay.tick(1.0)
    replay.handle(connected(0), busy(0))
    assert replay.tick(62.0) == [Lock(node=0)]
    replay.handle(busy(0, 62.0))
    replay.tick(62.1)
    replay.handle(Gone(time=63, node=0))
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.cause) == (75, Cause.BUSY)
    assert [failure.message for failure in outcome.failures] == ["busy with me: train"]


def test_a_run_of_another_user_is_named_once_for_all_hosts() -> None:
    ana, ben = (OtherRun(user=user, run=f"run of {user}", since=0.0) for user in ("ana", "ben"))
    replay = Replay(hosts=3)
    replay.tick(1.0)
    replay.handle(connected(0), connected(1), connected(2))
    replay.handle(Locked(time=1, node=0, others=(ana,)), Locked(time=1, node=2, others=(ana, ben)))
    assert replay.said == []
    replay.handle(Locked(time=1, node=1))
    assert replay.said == [f"h0, h2 are also used by {other_line(ana)}", f"h2 is also used by {other_line(ben)}"]


def test_a_host_that_another_user_has_ends_an_exclusive_run() -> None:
    replay = Replay(hosts=1)
    replay.tick(1.0)
    replay.handle(connected(0), Busy(time=1, node=0, owner="ana", is_other_user=True), *gone(0))
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.cause) == (75, Cause.BUSY)
    assert "mesh stop" not in outcome.failures[0].hint


def test_who_waits_may_be_interrupted() -> None:
    replay = Replay(hosts=2, wait=60.0)
    replay.tick(1.0)
    replay.handle(connected(0), connected(1), Locked(time=1, node=0), busy(1))
    orders = replay.handle(Interrupted(time=1, signal=signal.SIGINT))
    assert {order.node for order in orders if isinstance(order, Finish)} == {0, 1}
    assert replay.tick(5.0) == []
    replay.handle(Gone(time=5, node=0), Gone(time=5, node=1))
    assert replay.outcome().exit_code == 130


def test_another_failure_ends_the_wait() -> None:
    replay = Replay(hosts=3, wait=60.0)
    replay.tick(1.0)
    replay.handle(connected(0), connected(1), Locked(time=1, node=0), busy(1))
    failed = PrepareFailed(time=1, node=2, step="reach", message="no route")
    replay.handle(failed)
    replay.tick(3.5)
    replay.handle(Gone(time=4, node=0), Gone(time=4, node=1))
    assert (replay.outcome().exit_code, replay.outcome().cause) == (125, Cause.PREPARE)


def test_a_setup_waits_as_well() -> None:
    replay = Replay(hosts=2, wait=60.0, sync=False)
    replay.tick(1.0)
    assert replay.handle(connected(0), connected(1), Locked(time=1, node=0), busy(1)) == [
        Lock(node=0),
        Lock(node=1),
        Unlock(node=0),
    ]
    assert replay.tick(2.5) == [Lock(node=0)]
    replay.handle(Locked(time=2, node=0))
    assert replay.handle(Locked(time=2, node=1)) == [Prepare(node=0), Prepare(node=1)]


# ---- mesh stop, devices


def test_somebody_stops_the_run_on_one_host() -> None:
    replay = Replay()
    replay.ready()
    orders = replay.handle(Stopped(time=5.0, node=1))
    assert orders == [Signal(node=node, number=signal.SIGTERM, grace=GRACE) for node in (0, 1)]
    replay.handle(exited(1, at=5.1, by=15), exited(0, at=5.2, by=15))
    replay.handle(Gone(time=6, node=0), Gone(time=6, node=1))
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.cause, outcome.stopped) == (143, Cause.SIGNAL, (0, 1))


def test_a_host_may_ask_for_time() -> None:
    replay = Replay(hosts=1)
    replay.ready()
    replay.handle(exited(0))
    replay.tick(2.0)
    replay.handle(HostNotice(time=2, node=0, text="waiting for /dev/accel0 to be free", seconds=30.0))
    replay.tick(2.0 + 30.0 + ANSWER_LIMIT_S - 1)
    assert not replay.supervisor.done
    replay.handle(Gone(time=33, node=0, left=("/dev/accel0 cannot be opened",)))
    assert replay.outcome().unverified == ("h0: /dev/accel0 cannot be opened",)


def test_a_sync_that_takes_too_long() -> None:
    replay = Replay(sync_timeout=60.0)
    replay.tick(10.0)
    for node in range(2):
        replay.handle(connected(node), Locked(time=1, node=node))
    replay.handle(synced(0))
    assert replay.tick(69.9) == []
    late = replay.tick(70.0)
    assert [order.event.node for order in late if isinstance(order, Tell)] == [1]
    assert replay.tick(70.0 + DRAIN) == [finish(0), finish(1)]
    replay.handle(*gone(0, 1))
    outcome = replay.outcome()
    assert (outcome.exit_code, outcome.failures[0].message) == (125, "the workspace is not there after 60 s")


def test_a_sync_in_time_is_not_ended_by_its_limit() -> None:
    replay = Replay(sync_timeout=60.0)
    replay.ready()
    assert replay.tick(1000.0) == []
