"""A run in a program of the user's: signals, results and listeners, without hosts."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from mesh.api.running import Listener
from mesh.core.errors import MeshError
from mesh.core.events import Event, Interrupted, Notice
from mesh.core.outcome import Cause
from mesh.engine.inbox import Inbox
from mesh.engine.signals import NOTED_SIGNALS, noted_signals
from mesh.rundir.results import RankResult, RunResult


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in NOTED_SIGNALS]


def test_signals_are_events_in_the_main_thread_and_then_the_callers_again() -> None:
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background has it ignored
    try:
        signals_are_events()
    finally:
        signal.signal(signal.SIGINT, earlier)


def signals_are_events() -> None:
    before, seen = handlers(), []
    with noted_signals(seen.append):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTSTP)
    assert handlers() == before
    assert [type(event) for event in seen] == [Interrupted, Notice]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_signals_stay_the_callers_in_another_thread() -> None:
    before, found = handlers(), []

    def work() -> None:
        with noted_signals(lambda event: None):
            found.append(handlers())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]


def test_a_hangup_that_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with noted_signals(lambda event: pytest.fail("it was ignored")):
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_urgent_items_come_in_order_and_an_error_is_raised() -> None:
    inbox = Inbox()
    first, second = Interrupted(time=1.0, signal=2), Interrupted(time=2.0, signal=15)
    inbox.interrupt(first)
    inbox.interrupt(second)
    assert (inbox.late_signal(), inbox.next_urgent(), inbox.next(), inbox.late_signal()) == (2, first, None, 15)
    inbox.post_urgent(ZeroDivisionError())
    assert inbox.next_urgent() == second
    with pytest.raises(ZeroDivisionError):
        inbox.raise_errors()
    with pytest.raises(ZeroDivisionError):
        inbox.next_urgent()
    assert inbox.next_urgent() is None


def test_a_function_that_raises_gets_no_more_events_and_ends_the_run() -> None:
    seen: list[Event] = []
    sent: list[int] = []

    def on_event(event: Event) -> None:
        seen.append(event)
        raise ZeroDivisionError

    listener = Listener(on_event)
    listener.attach(sent.append)
    for _ in range(2):
        listener.handle(Notice(time=0.0, text="x"))
    assert (len(seen), sent, type(listener.error)) == (1, [signal.SIGTERM], ZeroDivisionError)


def test_an_end_that_comes_before_the_start_is_kept_for_it() -> None:
    sent: list[int] = []
    listener = Listener(lambda event: None)
    listener.end(signal.SIGINT)
    assert sent == []
    listener.attach(sent.append)
    listener.end()
    assert sent == [signal.SIGINT, signal.SIGTERM]


def result(code: int, cause: Cause, *ranks: tuple[int | None, int | None], **more: object) -> RunResult:
    ends = [
        RankResult(
            rank=rank, host=f"h{rank}", label="", code=code, signal=number, stdout_path=Path(), stderr_path=Path()
        )
        for rank, (code, number) in enumerate(ranks)
    ]
    about = {"failures": (), "directory": Path(), **more}
    return RunResult(run="r", exit_code=code, cause=cause, ranks=tuple(ends), **about)  # type: ignore[arg-type]


REASONS = {
    "the first failure": (
        result(7, Cause.RANK, (3, None), (7, None), first_failure="rank 1 on h1: exit 7"),
        "run r: rank 1 on h1: exit 7",
    ),
    "a rank of a record": (result(137, Cause.RANK, (0, None), (None, 9)), "run r: rank 1 on h1: killed by SIGKILL"),
    "a host that failed": (result(125, Cause.PREPARE, failures=("h0: refused", "h1: x")), "run r: h0: refused"),
    "a timeout": (result(124, Cause.TIMEOUT, (None, 15)), "run r: ended: timeout"),
    "a signal": (result(130, Cause.SIGNAL, (None, 2)), "run r: ended: signal"),
}


@pytest.mark.parametrize(("ended", "message"), REASONS.values(), ids=REASONS)
def test_a_run_that_failed_is_raised_with_its_reason_and_status(ended: RunResult, message: str) -> None:
    with pytest.raises(MeshError) as raised:
        ended.raise_for_status()
    assert (str(raised.value), raised.value.exit_code, raised.value.hint) == (message, ended.exit_code, "mesh logs r")


def test_a_run_that_is_ok_raises_nothing() -> None:
    result(0, Cause.COMPLETED, (0, None)).raise_for_status()
    result(0, Cause.DETACHED).raise_for_status()
