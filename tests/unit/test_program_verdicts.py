"""Failures of programs that are planted on purpose: the verdict names the node that is to blame, and the cause.

The events are those that a supervisor has recorded. Nodes that really fail are in tests/integration/test_program.py and
test_program_faults.py.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

import pytest
from msgspec import Struct

from mesh.core.events import Event, Exited, Gone, Lost
from mesh.core.nodes import ProgramStopped, Restarted, Restarting
from mesh.core.outcome import Cause
from mesh.core.run import Group
from mesh.verdict.verdict import Failure, Verdict, make_verdict
from tests.unit.test_supervisor_program import Program, ended, of, ready

LEARNER, NEIGHBOUR, FAR = 0, 1, 2  # the learner and an actor on h0, an actor on h1
WHO = ("rank 0 (learner/0) on h0", "rank 1 (actor/0) on h0", "rank 2 (actor/1) on h1")
RAISED = ("Traceback (most recent call last):", '  File "/w/train.py", line 9, in step', "    pull()")
LOST = (*RAISED, "mesh.program.runtime.errors.NodeLost: actor/1 on h1: ended by SIGKILL")
ALL_READY = tuple(ready(rank) for rank in range(3))
MAY_FAIL = Group(may_fail=True)


class Plant(Struct, frozen=True, kw_only=True):
    """Faults of the nodes of a program, and the verdict that each must get."""

    events: Sequence[Event]
    said: dict[int, Sequence[str]] = {}  # last lines by rank
    actor: Group = Group()
    code: int = 1
    cause: Cause = Cause.RANK
    who: str = ""  # the node or host to blame; "": there is no verdict
    root: str = ""
    error: str = ""
    fact: str = ""
    alike: tuple[int, ...] = ()


def killed(rank: int, number: int, at: float = 3.0, *, oom: bool = False) -> Exited:
    return Exited(time=at, node=of(rank), rank=rank, signal=number, oom=oom)


def lost(node: int, by: str = "") -> Lost:
    return Lost(time=3.0, node=node, reason="no byte for 60 s", killed_by=by)


def stopped(rank: int, code: int = 0, at: float = 2.5) -> ProgramStopped:
    return ProgramStopped(time=at, node=of(rank), rank=rank, code=code, why="enough")


def restarted(rank: int, attempt: int) -> tuple[Event, ...]:
    place = {"node": of(rank), "rank": rank, "attempt": attempt}
    return (
        Restarting(time=2.1, seconds=0.1, code=1, **place),  # type: ignore[arg-type]
        Restarted(time=2.2, pid=9, **place),  # type: ignore[arg-type]
        ready(rank, attempt),
    )


PLANTS = {
    "a node that exits with a status": Plant(events=[*ALL_READY, ended(FAR, 3)], code=3, who=WHO[FAR]),
    "an exception": Plant(
        events=[*ALL_READY, ended(LEARNER, 1)],
        said={LEARNER: (*RAISED, "ValueError: bad shape")},
        who=WHO[LEARNER],
        error="ValueError: bad shape",
    ),
    "an exception in a constructor, before the node is ready": Plant(
        events=[ready(LEARNER), ready(NEIGHBOUR), ended(FAR, 1)],
        said={FAR: (*RAISED, "KeyError: 'lr'")},
        who=WHO[FAR],
        error="KeyError: 'lr'",
    ),
    "killed from outside": Plant(
        events=[*ALL_READY, killed(NEIGHBOUR, signal.SIGKILL)],
        code=137,
        who=WHO[NEIGHBOUR],
        fact="killed from outside",
    ),
    "out of memory": Plant(
        events=[*ALL_READY, killed(FAR, signal.SIGKILL, oom=True)],
        code=137,
        who=WHO[FAR],
        fact="out of memory on the host",
    ),
    "a crash in native code": Plant(
        events=[*ALL_READY, killed(LEARNER, signal.SIGSEGV)], code=139, who=WHO[LEARNER], fact="crash in native code"
    ),
    "an abort": Plant(
        events=[*ALL_READY, killed(FAR, signal.SIGABRT)], code=134, who=WHO[FAR], fact="crash in native code"
    ),
    "a module that the host does not have": Plant(
        events=[ready(LEARNER), ended(NEIGHBOUR, 1)],
        said={NEIGHBOUR: (*RAISED, "ModuleNotFoundError: No module named 'gym'")},
        who=WHO[NEIGHBOUR],
        error="ModuleNotFoundError: No module named 'gym'",
        fact="a module is missing",
    ),
    "an interpreter that the host does not have": Plant(
        events=[ready(LEARNER), ended(FAR, 127)], code=127, who=WHO[FAR], fact="command not found"
    ),
    "a port that is taken": Plant(
        events=[*ALL_READY, ended(FAR, 1)],
        said={FAR: (*RAISED, "OSError: [Errno 98] Address already in use")},
        who=WHO[FAR],
        error="OSError: [Errno 98] Address already in use",
        fact="port taken on the host",
    ),
    "a caller that fails after the node it has called": Plant(
        events=[*ALL_READY, killed(FAR, signal.SIGKILL), ended(LEARNER, 1, at=3.1)],
        said={LEARNER: LOST},
        code=137,
        who=WHO[FAR],
        fact="killed from outside",
    ),
    "a caller whose failure arrives before that of the node it has called": Plant(
        events=[*ALL_READY, ended(LEARNER, 1, at=3.1), killed(FAR, signal.SIGKILL)],
        said={LEARNER: LOST},
        code=137,
        who=WHO[FAR],
        fact="killed from outside",
    ),
    "a caller that has failed before, by clocks that differ": Plant(
        events=[*ALL_READY, ended(LEARNER, 1, at=2.99), killed(FAR, signal.SIGKILL)],
        said={LEARNER: LOST},
        who=WHO[LEARNER],
        error="mesh.program.runtime.errors.NodeLost: actor/1 on h1: ended by SIGKILL",
        root=WHO[FAR],
    ),
    "two failures that arrive in the wrong order": Plant(
        events=[*ALL_READY, ended(FAR, 4, at=3.4), ended(NEIGHBOUR, 5, at=3.1)], code=5, who=WHO[NEIGHBOUR]
    ),
    "two nodes that fail alike": Plant(
        events=[*ALL_READY, ended(NEIGHBOUR, 3), ended(FAR, 3, at=3.01)], code=3, who=WHO[NEIGHBOUR], alike=(1, 2)
    ),
    "the last death of a node that was started again": Plant(
        events=[*ALL_READY, *restarted(FAR, 1), *restarted(FAR, 2), ended(FAR, 6)],
        actor=Group(restarts=2),
        code=6,
        who=WHO[FAR],
    ),
    "a failure after one that was allowed": Plant(
        events=[*ALL_READY, ended(FAR, 3), ended(LEARNER, 5, at=4.0)], actor=MAY_FAIL, code=5, who=WHO[LEARNER]
    ),
    "nothing but a failure that was allowed": Plant(
        events=[*ALL_READY, ended(FAR, 3), ended(LEARNER), ended(NEIGHBOUR)],
        actor=MAY_FAIL,
        code=0,
        cause=Cause.COMPLETED,
    ),
    "a failure before the stop of another node": Plant(
        events=[*ALL_READY, ended(LEARNER, 3, at=2.0), stopped(FAR)], code=3, who=WHO[LEARNER]
    ),
    "failures after the stop of another node": Plant(
        events=[*ALL_READY, stopped(FAR, 7), ended(LEARNER, 1), ended(NEIGHBOUR, 1)], code=7, cause=Cause.PROGRAM
    ),
    "a host that is lost": Plant(events=[*ALL_READY, lost(1)], code=76, cause=Cause.LOST, who="h1"),
    "an agent that was killed": Plant(events=[*ALL_READY, lost(0, "signal 9")], code=76, cause=Cause.LOST, who="h0"),
    "a caller of a node on a host that is lost": Plant(
        events=[*ALL_READY, lost(1), ended(LEARNER, 1, at=3.2)],
        said={LEARNER: (*RAISED, "NodeLost: actor/1 on h1: its host is lost")},
        code=76,
        cause=Cause.LOST,
        who="h1",
    ),
}


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_the_verdict_names_the_node_and_the_cause(plant: Plant) -> None:
    program = Program(Group(), plant.actor)
    program.start()
    program.tick(2.0)
    program.handle(*plant.events)
    for moment in (4.0, 6.0, 8.0):
        program.tick(moment)
    over = {event.rank for event in plant.events if isinstance(event, Exited)}
    gone = {event.node for event in plant.events if isinstance(event, Lost)}
    others = [rank for rank in range(3) if rank not in over and of(rank) not in gone]
    program.handle(*(killed(rank, signal.SIGTERM, at=9.0) for rank in others))
    program.handle(*(Gone(time=10.0, node=node) for node in (0, 1) if node not in gone))
    outcome = program.supervisor.outcome(11.0)
    assert (outcome.exit_code, outcome.cause) == (plant.code, plant.cause)
    placement = program.supervisor._state.placement
    verdict = make_verdict(outcome, placement, lambda rank: plant.said.get(rank, ()))
    assert (verdict is not None) == bool(plant.who)
    if verdict is not None:
        check(verdict, plant, others, [host.name for host in placement.hosts])


def check(verdict: Verdict, plant: Plant, others: list[int], hosts: list[str]) -> None:
    """Compare a verdict with what was planted. others: the ranks that mesh has ended"""
    if isinstance(verdict.first, Failure):
        first = verdict.first
        assert (first.who, first.exception.error if first.exception else "") == (plant.who, plant.error)
        assert (first.fact.name if first.fact else "") == plant.fact
        assert verdict.alike == (plant.alike or (first.event.rank,))
    else:
        assert hosts[verdict.first.node] == plant.who
    assert (verdict.root.who if verdict.root else "") == plant.root
    assert set(others) <= set(verdict.stopped)


def test_there_are_twenty() -> None:
    assert len(PLANTS) >= 20
