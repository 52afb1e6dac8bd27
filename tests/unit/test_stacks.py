"""Stacks of many ranks as a few lines; what the supervisor and an inquiry do to get them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from mesh.api import hangs
from mesh.core.cluster import Host, Placement, place_ranks
from mesh.core.events import Answered, Connected, Exited, Interrupted, Locked, Ready, StacksTaken, Tick
from mesh.core.outcome import Cause
from mesh.core.stacks import Gathered, ended, fold, full, notes, short
from mesh.engine.inquiry import Inquiry
from mesh.engine.orders import Ask, Finish, Order, Say, Signal
from mesh.engine.question import Question
from mesh.engine.supervisor import Supervisor
from mesh.engine.supervisor.ending import STACKS_LIMIT_S
from mesh.protocol.kinds import as_it_is
from mesh.protocol.questions import AskGpus, AskRuns, AskStacks
from mesh.protocol.replies import Stacks, WantsTool
from tests.specs import spec_of

PSUM = [["wait", "/usr/lib/python3.11/threading.py", 320], ["psum", "train.py", 88], ["<module>", "train.py", 99]]
LOAD = [["DataLoader.__next__", "data.py", 41], ["<module>", "train.py", 60]]


def stack(*of: int, frames: Any = PSUM, **changes: Any) -> dict[str, Any]:
    """One stack as an agent tells it; the pid of rank n is 100 + n."""
    about = {"role": "", "how": "py-spy", "main": True, "thread": "", "program": "train.py", "words": ""}
    return {**about, "frames": frames, "of": [[rank, 100 + rank] for rank in of], **changes}


def answer(*stacks: dict[str, Any], over: tuple[int, ...] = (), **changes: Any) -> Stacks:
    ranks = {rank for one in stacks for rank, _ in one["of"]}
    told = [{"rank": rank, "ended": rank in over} for rank in sorted(ranks | set(over))]
    found = {"ranks": told, "stacks": list(stacks), "notes": [], "silent": False, **changes}
    return Stacks.take(found, as_it_is)


def lines(*answers: Stacks) -> list[str]:
    named = [(f"h{number}", one) for number, one in enumerate(answers)]
    return list(short(fold(named), ended(named)))


def test_the_odd_one_out_comes_first() -> None:
    hosts = [answer(stack(*range(8))), answer(stack(8, 9, 11), stack(10, frames=LOAD))]
    assert lines(*hosts) == [
        "[10] DataLoader.__next__ at data.py:41",
        "[0-9,11] psum at train.py:88, in wait at threading.py:320",
    ]


def test_another_line_is_another_stack_however_far_out() -> None:
    """Two ranks that wait in the same function, but were called from two places, wait for two things."""
    other = [*PSUM[:2], ["<module>", "train.py", 120]]
    assert len(lines(answer(stack(0, 1)), answer(stack(2, frames=other)))) == 2


def test_where_libraries_are_and_who_has_told_makes_no_difference() -> None:
    told = []
    for rank, place in enumerate(["/usr/lib/python3", "/home/a/.venv/lib/python3.11/site-packages", ".venv/lib64"]):
        folder = place if "site-packages" in place else f"{place}/python3.12/site-packages" if rank else f"{place}.9"
        name = "Queue.get" if rank else "get"
        told.append(answer(stack(rank, frames=[[name, f"{folder}/queue.py", 5], *LOAD])))
    assert lines(*told) == ["[0-2] DataLoader.__next__ at data.py:41, in get at queue.py:5"]


def test_other_processes_of_a_rank_have_lines_of_their_own() -> None:
    worker = stack(0, 0, 1, 1, role="worker", frames=LOAD)
    worker["of"] = [[0, 1], [0, 2], [1, 3], [1, 4]]
    helper = stack(0, role="resource tracker")
    thread = stack(0, 1, main=False, thread="prefetch")
    found = fold([("h", answer(worker, helper, thread, stack(0, 1)))])
    assert list(short(found, ())) == [
        "[0-1] psum at train.py:88, in wait at threading.py:320",
        "[0-1] worker (4 processes): DataLoader.__next__ at data.py:41",
    ]
    everything = "\n".join(full(found, ()))
    assert "[0] resource tracker, train.py, by py-spy" in everything
    assert "[0-1] thread prefetch, train.py, by py-spy\n    wait at threading.py:320\n    psum" in everything


def test_what_the_kernel_tells() -> None:
    # Kernels of several versions have other frames for the same wait.
    frames = ([], [["hrtimer_nanosleep", "", 0]])
    sleeps = [stack(n, how="kernel", program="sleep", words="in nanosleep", frames=frames[n]) for n in range(2)]
    reads = stack(2, how="kernel", words="in read of /data/x", frames=[["io_schedule", "", 0]])
    assert lines(answer(*sleeps, reads, over=(3,))) == [
        "[3] ended",
        "[2] train.py: in read of /data/x",
        "[0-1] sleep: in nanosleep",
    ]


def test_a_host_cannot_write_on_the_terminal() -> None:
    evil = stack(0, frames=[["f\x1b[2J\n", "a\x07.py", 1]])
    (line,) = lines(answer(evil))
    assert "\x1b" not in line
    assert "\x07" not in line


def test_ranks_with_labels_are_shown_by_them_and_the_runtime_of_programs_is_a_library() -> None:
    runtime = "/root/.mesh/machines/h0-1/python-2/meshrun.zip/mesh/program/runtime/stopping.py"
    waits = [["wait_for_stop", runtime, 30], ["train", "train.py", 7]]
    of_labels = place_ranks(placement(2).hosts, (2, 1), groups=(0, 1), labels=("actor", "learner"))
    answers = [("h0", answer(stack(0, 1))), ("h1", answer(stack(2, frames=waits)))]
    assert list(short(fold(answers, of_labels), ())) == [
        "[learner/0] train at train.py:7, in wait_for_stop at mesh/program/runtime/stopping.py:30",
        "[actor/0-1] psum at train.py:88, in wait at threading.py:320",
    ]
    assert [group.names for group in fold(answers)] == ["", ""]


def test_a_reason_is_told_once_for_all_hosts() -> None:
    told = answer(stack(0), notes=[["py-spy is not there", "get it"]])
    assert list(notes([(f"h{n}", told) for n in range(5)])) == ["h0, h1, h2 and 2 more: py-spy is not there; get it"]


def test_ranks_of_which_nobody_tells_are_named() -> None:
    told = [("h0", answer(stack(0)))]
    (line,) = hangs.unknown(placement(3), told, ["h2: cannot connect"])
    assert line.startswith("h1: ")
    assert line.endswith("no stacks of rank 1")
    assert hangs.unknown(None, [("h0", answer(silent=True))], []) == ["h0: the agent of the run does not answer"]


def test_hosts_of_a_detached_run_without_an_agent_have_ended_ranks() -> None:
    told = [("h0", answer(stack(0)))]
    left = hangs.left_behind(placement(4), told, ["h3: cannot connect"])
    assert left == {1, 2}
    assert hangs.unknown(placement(4), told, ["h3: cannot connect"], left) == []
    assert hangs.left_behind(placement(4), [*told, ("h1", answer(silent=True))], []) == set()


def placement(hosts: int, **changes: Any) -> Placement:
    return place_ranks(tuple(Host(name=f"h{node}", address=f"a{node}", **changes) for node in range(hosts)))


def connected(node: int, machine: str) -> Connected:
    return Connected(time=1, node=node, address="a", machine=machine)


def answered(node: int, found: object = None) -> Answered:
    return Answered(time=1, node=node, answer=found, clock=0.0)


def taken(node: int, found: Stacks) -> StacksTaken:
    return StacksTaken(time=1, node=node, answer=found, clock=0.0)


def test_a_machine_is_asked_once() -> None:
    hosts = tuple(Host(name=name, address="a", port=port) for name, port in (("x", 0), ("y", 0), ("z", 23)))
    inquiry = Inquiry(place_ranks(hosts), Question(message=AskStacks(), each_machine=True))
    kinds = [type(inquiry.handle(connected(node, "m"))[0]) for node in range(3)]
    assert kinds == [Ask, Finish, Ask]


def test_a_machine_is_asked_once_in_each_round() -> None:
    hosts = tuple(Host(name=name, address="a") for name in ("x", "y"))
    more: list[dict[int, AskGpus]] = [{0: AskGpus(), 1: AskGpus()}, {}]
    question = Question(message=AskRuns(), each_machine=True)
    inquiry = Inquiry(place_ranks(hosts), question, then=lambda inquiry: more.pop(0))
    for node in range(2):
        inquiry.handle(connected(node, "m"))
    assert inquiry.handle(answered(0)) == [Ask(node=0, question=AskGpus())]
    # What is asked again with what the host wants is what was asked last.
    assert inquiry.handle(answered(0, WantsTool(wants="x"))) == [Ask(node=0, question=AskGpus())]
    assert inquiry.handle(answered(0)) == [Finish(node=0, number=15, grace=0.0)]
    assert (inquiry.failures, [sorted(found) for found in inquiry.rounds]) == ({}, [[0], [0]])


def test_a_host_that_wants_something_gets_it_and_is_asked_again() -> None:
    inquiry = Inquiry(placement(1), Question(message=AskStacks(), wanted=lambda name: name.encode() * 1_000_000))
    inquiry.handle(Tick(time=1, monotonic=1))
    inquiry.handle(connected(0, "m"))
    (ask,) = inquiry.handle(answered(0, WantsTool(wants="x")))
    assert ask == Ask(node=0, question=AskStacks(), enclosed=b"x" * 1_000_000)
    assert inquiry.answers == {}
    inquiry.handle(Tick(time=39, monotonic=39))  # a slow link has its time
    assert inquiry.failures == {}
    inquiry.handle(taken(0, answer()))
    assert inquiry.answers.keys() == {0}


class Timed:
    """A run of two hosts with a timeout of 5 s that has started at time 1."""

    def __init__(self) -> None:
        spec = spec_of(
            run="r", project="p", workspace=Path("/w"), command=("x",), timeout=5.0, stacks_on_timeout=True, sync=False
        )
        self.supervisor = Supervisor(spec, placement(2))
        self.tick(1.0)
        for node in range(2):
            self.handle(connected(node, f"m{node}"))
            self.handle(Locked(time=1, node=node))
        for node in range(2):
            self.handle(Ready(time=1, node=node))

    def tick(self, at: float) -> list[Order]:
        return self.handle(Tick(time=at, monotonic=at))

    def handle(self, event: Any) -> list[Order]:
        return [order for order in self.supervisor.handle(event) if not isinstance(order, Say)]


def test_stacks_are_taken_before_a_timeout_ends_the_run() -> None:
    run = Timed()
    assert run.tick(5.9) == []
    assert {order.node for order in run.tick(6.0) if isinstance(order, Ask)} == {0, 1}
    assert run.handle(taken(0, answer())) == []
    assert run.tick(6.5) == []
    assert run.handle(taken(1, answer())) == []
    assert [type(order) for order in run.tick(6.6)] == [Signal, Signal]


def test_a_host_that_does_not_tell_is_not_waited_for() -> None:
    run = Timed()
    run.tick(6.0)
    run.handle(taken(0, answer()))
    assert run.tick(6.0 + STACKS_LIMIT_S - 0.1) == []
    assert [type(order) for order in run.tick(6.0 + STACKS_LIMIT_S)] == [Signal, Signal]


def test_what_happens_while_stacks_are_taken_is_not_the_cause() -> None:
    run = Timed()
    run.tick(6.0)
    run.handle(Exited(time=6.1, node=0, rank=0, code=1))
    assert run.handle(Interrupted(time=6.2, signal=signal.SIGINT))[0] == Signal(node=1, number=2, grace=10.0)
    assert run.tick(6.0 + STACKS_LIMIT_S) == []
    assert run.supervisor.outcome(20.0).cause is Cause.TIMEOUT


def test_stacks_before_the_end_are_told_once_all_have_answered_or_nobody_is_waited_for() -> None:
    gathered = Gathered(placement(2))
    assert gathered.take(taken(0, answer(stack(0)))) == []
    assert gathered.take(taken(1, answer(stack(1))))[0] == "[0-1] train.py, by py-spy"
    assert gathered.take(taken(0, answer(stack(0)))) == []
    assert gathered.take(Exited(time=9, node=0, rank=0, signal=15))[0] == "[0] train.py, by py-spy"
    assert gathered.take(Exited(time=9, node=1, rank=1, signal=15)) == []
