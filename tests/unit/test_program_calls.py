"""Credits, deadlines and matching of calls: any history of them keeps the rules."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mesh.program.runtime.calls import Inbox, Outgoing

CALLS_LIMIT, BYTES_LIMIT = 3, 100


class Caller(RuleBasedStateMachine):
    """A caller and its node, in any order of events."""

    def __init__(self) -> None:
        super().__init__()
        self.outgoing = Outgoing(CALLS_LIMIT, BYTES_LIMIT)
        self.sizes: dict[int, int] = {}
        self.sent: list[int] = []  # in order
        self.on_the_way: list[int] = []
        self.open: set[int] = set()

    @rule(size=st.integers(0, 150))
    def add(self, size: int) -> None:
        call = self.outgoing.add(size)
        assert call not in self.sizes
        self.sizes[call] = size
        self.open.add(call)

    @rule()
    def send(self) -> None:
        for call in self.outgoing.sendable():
            assert call not in self.sent
            self.sent.append(call)
            self.on_the_way.append(call)

    @precondition(lambda self: self.on_the_way)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.on_the_way))
        self.on_the_way.remove(call)
        assert self.outgoing.answer(call) is (call in self.open)
        self.open.discard(call)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(sorted(self.open)))
        assert self.outgoing.settle(call) is (call in self.on_the_way)
        self.open.discard(call)

    @rule()
    def lose(self) -> None:
        assert self.outgoing.lose() == sorted(self.open)
        self.open.clear()
        self.on_the_way.clear()

    @invariant()
    def credits_hold(self) -> None:
        assert len(self.on_the_way) <= CALLS_LIMIT
        assert len(self.on_the_way) <= 1 or sum(self.sizes[call] for call in self.on_the_way) <= BYTES_LIMIT
        assert self.sent == sorted(self.sent)

    def teardown(self) -> None:
        """Every call ends: answers bring back the credits of all that wait."""
        while self.open or self.on_the_way:
            self.send()
            assert self.on_the_way
            call = self.on_the_way.pop()
            assert self.outgoing.answer(call) is (call in self.open)
            self.open.discard(call)
        assert self.outgoing.open_calls == 0


TestCaller = Caller.TestCase


def test_a_call_that_was_given_up_before_its_bytes_were_sent_returns_its_credits() -> None:
    outgoing = Outgoing(CALLS_LIMIT, BYTES_LIMIT)
    given_up, waiting = outgoing.add(BYTES_LIMIT), outgoing.add(BYTES_LIMIT)
    assert outgoing.sendable() == [given_up]
    assert outgoing.settle(given_up)
    outgoing.take_back(given_up)
    outgoing.take_back(waiting)  # it has no credits yet
    assert outgoing.sendable() == [waiting]


def test_an_answer_to_no_call_is_refused() -> None:
    outgoing = Outgoing()
    for number in (0, 7, -1):
        try:
            outgoing.answer(number)
        except ValueError:
            continue
        raise AssertionError(number)


@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from("atec"), st.integers(0, 9)), max_size=60))
def test_an_inbox_keeps_order_and_concurrency(concurrency: int, history: list[tuple[str, int]]) -> None:
    inbox = Inbox(concurrency)
    arrived, begun, running = 0, list[int](), list[int]()
    cancelled = set[int]()
    for what, number in history:
        if what == "a":
            inbox.arrive(arrived, deadline=float(number))
            arrived += 1
        elif what == "t" and (taken := inbox.take(now=5.0)) is not None:
            call, is_late = taken
            assert isinstance(call, int)
            assert call not in cancelled
            begun.append(call)
            if not is_late:
                running.append(call)
        elif what == "e" and running:
            inbox.end(running.pop(number % len(running)))
        elif what == "c" and inbox.cancel(number) == "waiting":
            cancelled.add(number)
        assert len(running) <= concurrency
        assert begun == sorted(begun)
    assert arrived - len(begun) - len(cancelled) == inbox.waiting


def test_a_call_whose_time_is_out_does_not_begin() -> None:
    inbox = Inbox(1)
    inbox.arrive("late", deadline=1.0)
    inbox.arrive("in time", deadline=3.0)
    assert inbox.take(now=2.0) == ("late", True)
    assert inbox.take(now=2.0) == ("in time", False)
