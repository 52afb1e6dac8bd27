"""The agent's event loop, with real pipes, children and signals."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mesh.agent.base.background import KILLED
from mesh.agent.loop import Loop

FOREVER = float("inf")


@pytest.fixture
def loop() -> Iterator[Loop]:
    with Loop() as made:
        yield made


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def fork(status: int = 0) -> int:
    pid = os.fork()
    if not pid:
        os._exit(status)
    return pid


# ---- descriptors


def test_a_watched_descriptor_is_served_whenever_it_is_ready(loop: Loop, pipe: tuple[int, int]) -> None:
    read: list[bytes] = []
    loop.watch(pipe[0], select.POLLIN, lambda events: read.append(os.read(pipe[0], 1)))
    os.write(pipe[1], b"ab")
    loop.run_until(lambda: len(read) == 2)
    assert read == [b"a", b"b"]


def test_a_watch_gets_the_events_of_poll(loop: Loop) -> None:
    reading, writing = os.pipe()
    seen: list[int] = []
    loop.watch(writing, select.POLLOUT, seen.append)
    loop.turn()
    loop.watch(writing, 0, seen.append)
    os.close(reading)
    loop.turn()
    loop.unwatch(writing)
    os.close(writing)
    assert seen == [select.POLLOUT, select.POLLERR]


def test_a_second_watch_of_a_descriptor_replaces_the_first(loop: Loop, pipe: tuple[int, int]) -> None:
    seen: list[str] = []
    loop.watch(pipe[1], select.POLLOUT, lambda events: seen.append("first"))
    loop.watch(pipe[1], select.POLLOUT, lambda events: seen.append("second"))
    loop.turn()
    assert seen == ["second"]


def test_a_descriptor_that_was_given_up_in_a_turn_is_not_served_in_it(loop: Loop, pipe: tuple[int, int]) -> None:
    other = os.dup(pipe[0])
    seen: list[str] = []

    def give_up(events: int) -> None:
        seen.append("first")
        loop.unwatch(other)

    loop.watch(pipe[0], select.POLLIN, give_up)
    loop.watch(other, select.POLLIN, lambda events: seen.append("second"))
    os.write(pipe[1], b"a")
    loop.turn()
    os.close(other)
    assert seen == ["first"]


def test_a_new_descriptor_gets_no_events_of_an_old_one_with_its_number(loop: Loop, pipe: tuple[int, int]) -> None:
    old = os.dup(pipe[0])
    reading, writing = os.pipe()
    seen: list[str] = []

    def replace(events: int) -> None:
        loop.unwatch(pipe[0])
        loop.unwatch(old)
        os.dup2(reading, old)
        loop.watch(old, select.POLLIN, lambda events: seen.append("new"))

    loop.watch(pipe[0], select.POLLIN, replace)
    loop.watch(old, select.POLLIN, lambda events: seen.append("old"))
    os.write(pipe[1], b"a")
    loop.turn()
    assert seen == []
    loop.unwatch(old)
    for descriptor in (old, reading, writing):
        os.close(descriptor)


def test_a_descriptor_that_is_not_watched_can_be_given_up(loop: Loop, pipe: tuple[int, int]) -> None:
    loop.unwatch(pipe[0])


# ---- deadlines


def test_deadlines_that_have_passed_are_called_in_the_order_of_their_times(loop: Loop) -> None:
    seen: list[str] = []
    loop.at("late", 2.0, lambda: seen.append("late"))
    loop.at("early", 1.0, lambda: seen.append("early"))
    loop.turn()
    assert seen == ["early", "late"]


def test_the_loop_waits_for_the_next_deadline(loop: Loop) -> None:
    seen: list[float] = []
    moment = time.monotonic() + 0.05
    loop.at("soon", moment, lambda: seen.append(time.monotonic()))
    loop.run_until(lambda: bool(seen))
    assert seen[0] >= moment


def test_a_deadline_can_be_moved_and_cancelled(loop: Loop) -> None:
    seen: list[str] = []
    loop.at("moved", 1.0, lambda: seen.append("first"))
    loop.at("moved", 2.0, lambda: seen.append("second"))
    loop.at("cancelled", 1.0, lambda: seen.append("cancelled"))
    loop.cancel("cancelled")
    loop.cancel("unknown")
    loop.at("never", 1.0, lambda: seen.append("never"))
    loop.at("never", FOREVER, lambda: seen.append("never"))
    loop.turn()
    assert seen == ["second"]


def test_a_deadline_that_cancels_another_of_the_same_turn_prevents_it(loop: Loop) -> None:
    seen: list[str] = []
    loop.at("other", 2.0, lambda: seen.append("other"))
    loop.at("first", 1.0, lambda: loop.cancel("other"))
    loop.turn()
    loop.at("end", 0.0, lambda: seen.append("end"))
    loop.turn()
    assert seen == ["end"]


def test_a_deadline_that_sets_itself_again_is_called_once_a_turn(loop: Loop) -> None:
    seen: list[int] = []

    def again() -> None:
        seen.append(1)
        loop.at("again", 0.0, again)

    loop.at("again", 0.0, again)
    for _ in range(3):
        loop.turn()
    assert len(seen) == 3


# ---- hooks


def test_hooks_are_called_before_each_poll_and_after_each_turn(loop: Loop) -> None:
    seen: list[str] = []
    loop.before_poll.append(lambda: loop.at("call", 0.0, lambda: seen.append("call")))
    loop.before_poll.append(lambda: seen.append("before"))
    loop.after_turn.append(lambda: seen.append("after"))
    loop.run_until(lambda: len(seen) == 6)
    assert seen == ["before", "call", "after"] * 2


def test_a_loop_whose_end_has_come_takes_no_turn(loop: Loop) -> None:
    loop.before_poll.append(lambda: pytest.fail("a turn"))
    loop.run_until(lambda: True)


# ---- signals and children


def test_a_signal_wakes_the_loop(loop: Loop) -> None:
    seen: list[str] = []
    loop.on_signal(signal.SIGUSR1, lambda: seen.append("usr1"))
    loop.before_poll.append(lambda: os.kill(os.getpid(), signal.SIGUSR1))
    loop.turn()
    assert seen == ["usr1"]


def test_a_signal_from_another_process_wakes_a_loop_that_waits(loop: Loop) -> None:
    seen: list[str] = []
    loop.on_signal(signal.SIGUSR1, lambda: seen.append("usr1"))
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        os.kill(parent, signal.SIGUSR1)
        os._exit(0)
    loop.on_child_end(pid, lambda status: seen.append("ended"))
    loop.run_until(lambda: len(seen) == 2)
    assert sorted(seen) == ["ended", "usr1"]


def has_child(pid: int) -> bool:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def test_the_end_of_a_child_is_reported_with_its_status(loop: Loop) -> None:
    seen: list[int] = []
    loop.on_child_end(fork(3), seen.append)
    loop.run_until(lambda: bool(seen))
    assert os.WEXITSTATUS(seen[0]) == 3


def test_a_child_that_ended_before_the_loop_began_is_reported() -> None:
    pid = fork(5)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    seen: list[int] = []
    with Loop() as loop:
        loop.on_child_end(pid, seen.append)
        loop.run_until(lambda: bool(seen))
    assert os.WEXITSTATUS(seen[0]) == 5


def test_children_without_a_call_are_waited_for_and_reported_together(loop: Loop) -> None:
    seen: dict[int, int] = {}
    loop.on_other_child_end = seen.__setitem__
    children = {fork(4) for _ in range(3)}
    loop.run_until(lambda: len(seen) == 3)
    assert set(seen) == children
    assert {os.WEXITSTATUS(status) for status in seen.values()} == {4}


def test_a_child_without_a_call_leaves_no_zombie(loop: Loop) -> None:
    pid = fork()
    loop.run_until(lambda: not has_child(pid))


def test_the_end_of_a_child_may_start_another(loop: Loop) -> None:
    seen: list[int] = []
    loop.on_child_end(fork(1), lambda status: loop.on_child_end(fork(2), seen.append))
    loop.run_until(lambda: bool(seen))
    assert os.WEXITSTATUS(seen[0]) == 2


def test_a_closed_loop_gives_signals_back() -> None:
    before = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGCHLD)
    with Loop() as loop:
        loop.on_signal(signal.SIGUSR1, lambda: None)
        loop.on_signal(signal.SIGUSR1, lambda: None)
        assert signal.getsignal(signal.SIGUSR1) != before[0]
    assert (signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGCHLD)) == before
    woken_by = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(woken_by)
    assert woken_by == -1


# ---- background work


def answers_of(loop: Loop, *works: Any) -> list[dict[str, object]]:
    """The answers of background work that runs at the same time, in the order of their arrival."""
    answers: list[dict[str, object]] = []
    for work in works:
        loop.background(work, answers.append)
    loop.run_until(lambda: len(answers) == len(works))
    return answers


def test_background_work_runs_in_another_process_and_answers(loop: Loop) -> None:
    (answer,) = answers_of(loop, lambda: {"pid": os.getpid()})
    assert answer["pid"] != os.getpid()


def test_background_work_may_answer_more_than_a_pipe_holds(loop: Loop) -> None:
    assert answers_of(loop, lambda: {"text": "x" * 1_000_000}) == [{"text": "x" * 1_000_000}]


def test_several_things_may_run_in_the_background(loop: Loop) -> None:
    answers = answers_of(loop, *(lambda number=number: {"number": number} for number in range(5)))
    assert sorted(answers, key=str) == [{"number": number} for number in range(5)]


def test_background_work_that_fails_answers_why() -> None:
    def fail() -> dict[str, object]:
        raise OSError(28, "No space left on device", "/tmp/x")

    with Loop() as loop:
        (answer,) = answers_of(loop, fail)
        assert answer["error"] == "No space left on device: /tmp/x"
        assert "free some space" in str(answer["hint"])


def test_background_work_that_is_killed_answers_that(loop: Loop) -> None:
    assert answers_of(loop, lambda: os.kill(os.getpid(), signal.SIGKILL)) == [KILLED]


def test_background_work_ends_by_a_signal_that_the_loop_handles(loop: Loop) -> None:
    loop.on_signal(signal.SIGTERM, lambda: pytest.fail("a signal for the child reached the loop"))
    assert answers_of(loop, lambda: os.kill(os.getpid(), signal.SIGTERM)) == [KILLED]


def test_a_child_of_background_work_that_holds_its_pipe_delays_no_answer(loop: Loop) -> None:
    def leave_a_child() -> dict[str, object]:
        pid = os.fork()
        if not pid:
            signal.pause()
            os._exit(0)
        return {"pid": pid}

    (answer,) = answers_of(loop, leave_a_child)
    assert isinstance(answer["pid"], int)
    os.kill(answer["pid"], signal.SIGKILL)


def test_the_answer_of_background_work_may_start_more(loop: Loop) -> None:
    answers: list[dict[str, object]] = []
    loop.background(lambda: {"first": 1}, lambda answer: loop.background(lambda: answer, answers.append) and None)
    loop.run_until(lambda: bool(answers))
    assert answers == [{"first": 1}]


def test_a_loop_that_is_closed_leaves_no_descriptor_of_background_work() -> None:
    holding, release = os.pipe()
    with Loop() as loop:
        pid = loop.background(lambda: {"read": os.read(holding, 1).decode()}, lambda answer: None).pid
    os.write(release, b"x")
    os.waitpid(pid, 0)
    os.close(holding)
    os.close(release)
