"""Collectives: rounds and ways as pure decisions, and all functions in threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import cast

import numpy
import pytest

from mesh.core.errors import UsageError
from mesh.program import (
    CallTimeout,
    Future,
    Group,
    Handle,
    NodeLost,
    NotLaunched,
    Program,
    RemoteError,
    all_gather,
    all_reduce,
    barrier,
    broadcast,
    gather,
    here,
    me,
    peers,
    reduce,
    scatter,
    wait_for_stop,
)
from mesh.program.runtime import exchange
from mesh.program.runtime.combining import combine_of
from mesh.program.runtime.here import current
from mesh.program.runtime.rounds import DONE, GO, LATE, LOST, WRONG, Entry, Order, Rounds
from mesh.program.runtime.spreading import CHAIN_BYTES, PIECE_BYTES, Assembly, Plan, branches_of, cut
from tests.conftest import PATIENCE

pytestmark = pytest.mark.usefixtures("no_thread_is_left")
MEMBERS = ("a/0", "a/1", "a/2")
HOSTS = {"a/0": "x", "a/1": "y", "a/2": "z"}


# ---- the pure parts


class Table:
    """The rounds of a/0, and what was answered."""

    def __init__(self) -> None:
        self.lost: dict[str, str] = {}
        self.rounds = Rounds("a/0", 1, HOSTS, lambda label: self.lost.get(label, ""))
        self.answers: dict[object, tuple[object, ...]] = {}

    def take(self, orders: list[Order]) -> Table:
        for call, outcome in orders:
            assert call not in self.answers  # one answer each
            self.answers[call] = outcome
        return self

    def enter(self, label: str, what: str = "reduce", *, call: object = None, has_data: bool = True) -> str:
        number, orders = self.rounds.enter(Entry(MEMBERS, label, what, call or f"enter {label}", has_data))
        self.take(orders)
        return number

    def begun(self) -> str:
        number = ""
        for label in MEMBERS:
            number = self.enter(label)
        for label in MEMBERS:
            assert self.answers.pop(f"enter {label}") == (GO, number)
            self.take(self.rounds.watch(number, label, f"watch {label}"))
        return number


def test_a_round_begins_once_all_have_come_and_the_first_member_ends_last() -> None:
    table = Table()
    assert table.enter("a/0") == table.enter("a/2")
    assert table.answers == {}
    number = table.enter("a/1")
    assert list(table.answers) == ["enter a/2", "enter a/1", "enter a/0"]  # the own answer is the last one
    for label in ("a/0", "a/1", "a/2"):
        table.take(table.rounds.watch(number, label, f"watch {label}"))
        table.take(table.rounds.finish(number, label, None, f"finish {label}"))
        assert (f"finish {label}" in table.answers) == (label != "a/0" or label == "a/2")
    assert table.answers["finish a/0"] == (DONE,)
    assert not table.rounds.is_open(number)


def test_a_deadline_names_the_missing_and_those_get_the_failure_when_they_come() -> None:
    table = Table()
    number = table.enter("a/1")
    table.take(table.rounds.expire(number, 5))
    late = (LATE, "reduce: a/0 on x, a/2 on z did not come within 5 s")
    assert table.answers == {"enter a/1": late}
    assert table.enter("a/0") == ""
    assert table.answers["enter a/0"] == late
    table.take(table.rounds.restart("a/2", "it has failed"))  # a new process owes nothing
    for label in MEMBERS:
        table.enter(label, call=label)
    assert {table.answers[label][0] for label in MEMBERS} == {GO}


def test_a_deadline_names_those_that_have_not_finished() -> None:
    table = Table()
    number = table.begun()
    table.take(table.rounds.finish(number, "a/0", None, "finish a/0"))
    table.take(table.rounds.finish(number, "a/1", None, "finish a/1"))
    table.take(table.rounds.expire(number, 2))
    late = (LATE, "reduce: a/2 on z has not finished within 2 s")
    assert (table.answers["watch a/2"], table.answers["finish a/0"]) == (late, late)
    assert table.answers["watch a/1"] == table.answers["finish a/1"] == (DONE,)
    assert table.rounds.expire(number, 2) == []


def test_a_lost_member_fails_all_before_and_after_the_begin() -> None:
    lost = (LOST, "a/2", "z", "it has failed")
    table = Table()
    table.enter("a/0")
    table.take(table.rounds.lose("a/2", "it has failed"))
    assert table.answers == {"enter a/0": lost}
    table.lost["a/2"] = "it has failed"
    table.enter("a/0", call="again")
    assert table.answers["again"] == lost
    table = Table()
    number = table.begun()
    table.take(table.rounds.lose("a/2", "it has failed"))
    assert table.answers == {"watch a/0": lost, "watch a/1": lost}
    assert not table.rounds.is_open(number)


def test_a_member_that_has_finished_may_end() -> None:
    table = Table()
    number = table.begun()
    table.take(table.rounds.finish(number, "a/1", None, "finish a/1"))
    table.take(table.rounds.lose("a/1", "it has ended"))
    assert table.rounds.is_open(number)


def test_a_restart_fails_a_round_only_if_the_old_process_had_come() -> None:
    table = Table()
    number = table.enter("a/0")
    table.take(table.rounds.restart("a/1", "it has failed"))
    assert table.rounds.is_open(number)
    table.enter("a/1")
    table.take(table.rounds.restart("a/1", "it has failed"))
    assert table.answers["enter a/0"] == (LOST, "a/1", "y", "it has failed")


def test_a_restart_leaves_the_rounds_of_other_groups_that_wait_for_the_node() -> None:
    table = Table()
    number = table.enter("a/0")
    pair = ("a/0", "a/1")
    table.take(table.rounds.enter(Entry(pair, "a/1", "reduce", "of the pair", True))[1])
    table.take(table.rounds.restart("a/1", "it has failed"))
    assert table.answers == {"of the pair": (LOST, "a/1", "y", "it has failed")}
    assert table.rounds.is_open(number)
    table.enter("a/1")
    table.enter("a/2")
    assert table.answers["enter a/1"] == (GO, number)


def test_a_failure_reaches_those_that_watch_later() -> None:
    table = Table()
    number = ""
    for label in MEMBERS:
        number = table.enter(label)
    table.take(table.rounds.finish(number, "a/1", (WRONG, "no"), "finish a/1"))
    for label in ("a/0", "a/2"):
        table.take(table.rounds.watch(number, label, f"watch {label}"))
        assert table.answers[f"watch {label}"] == (WRONG, "no")
    table.take(table.rounds.watch(number, "a/0", "too late"))
    assert table.answers["too late"][0] == WRONG


def test_members_that_call_different_functions_and_one_that_gives_up() -> None:
    table = Table()
    table.enter("a/0", "barrier", has_data=False)
    table.enter("a/1", "gather at a/0")
    wrong = (WRONG, "a/1 on y calls gather at a/0, and a/0 on x barrier")
    assert table.answers == {"enter a/0": wrong, "enter a/1": wrong}
    assert table.enter("a/2", "barrier", has_data=False) == ""
    table = Table()
    table.enter("a/1")
    number = table.enter("a/0")
    table.take(table.rounds.leave(number, "a/1", ""))
    assert table.answers == {"enter a/0": (WRONG, "reduce: a/1 on y has given up")}


def test_values_in_pieces() -> None:
    value = bytes(range(256)) * 10
    assembly, count = Assembly([len(value), 0, 5]), 0
    for piece in cut([len(value), 0, 5], 1000):
        parts = [(number, start, (value if number == 0 else b"12345")[start:stop]) for number, start, stop in piece]
        is_complete = assembly.add(parts)
        count += 1
    assert is_complete
    assert (assembly.segments, count) == ([value, b"", b"12345"], 3)


@pytest.mark.parametrize("branches", [1, 2, 4])
def test_every_member_gets_a_value_once_and_every_host_only_by_one_of_its_nodes(branches: int) -> None:
    members = [f"a/{number}" for number in range(23)]
    hosts = {label: f"host{(7 * number) % 5}" for number, label in enumerate(members)}
    for root in ("a/4", ""):
        plan = Plan(members, hosts, root)
        got, crossings = [root], 0
        for label in got:  # grows
            for target in plan.targets(label, branches):
                assert plan.source(target, branches) == label
                crossings += hosts.get(target) != hosts.get(label, "")
                got.append(target)
        assert sorted(got) == sorted({*members, root})
        assert crossings == (4 if root else 5)
        if branches == 1:
            assert all(len(plan.next_hosts(label, 1)) <= 1 for label in members)
    assert (branches_of(CHAIN_BYTES), branches_of(CHAIN_BYTES - 1) > 1) == (1, True)


def test_ways_to_combine() -> None:
    arrays = combine_of("max")({"w": numpy.array([1, 5])}, {"w": numpy.array([3, 2])})
    assert isinstance(arrays, dict)
    assert arrays["w"].tolist() == [3, 5]
    assert combine_of("min")(3, 2.5) == 2.5
    for how, one, other in (("sum", {"a": 1}, {"b": 1}), ("sum", [1], [1, 2]), ("mean", 1, 2)):
        with pytest.raises(ValueError, match=r"differ|expected"):
            combine_of(how)(one, other)


# ---- in threads


class Member:
    def __init__(self) -> None:
        self.kept: object = None
        self.waits = threading.Event()

    def call(self, work: str, *args: object) -> object:
        """Run one of the functions below in this node."""
        return WORK[work](*args)

    def hold(self) -> None:
        self.waits.wait(PATIENCE)

    def free(self) -> None:
        self.waits.set()


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def fails(one: object, other: object) -> object:
    raise KeyError("no sum")


def index() -> int:
    return here().index


def in_two_threads() -> object:
    """Run a barrier while another thread is in a collective of the same group."""
    with current().exchange.turn(tuple(one.label for one in peers())):
        barrier(0.0)


WORK: dict[str, Callable[..., object]] = {
    "broadcast": lambda value, root: broadcast(value if here().label == root else None, root),
    "receive": lambda: broadcast(root="client", timeout=PATIENCE),
    "scatter": lambda values: scatter(values if index() == 1 else None, 1),
    "gather": lambda root: gather(index() * 10, root),
    "all_gather": lambda: all_gather({"index": index()}),
    "reduce": lambda how, root: reduce({"grad": numpy.full(4, float(index())), "loss": [index()]}, how, root),
    "all_reduce": lambda how: all_reduce(index() + 1, how),
    "product": lambda: all_reduce(index() + 1, lambda one, other: one * other),
    "fails": lambda: all_reduce(1, fails),
    "many": lambda: [all_reduce(number) for number in range(20)][-1],
    "barrier": lambda seconds: barrier(seconds),
    "pair": lambda labels: all_gather(here().label, group=[one for one in peers() if one.label in labels]),
    "mixed": lambda: gather(1) if index() else barrier(),
    "alone": lambda: all_gather(5, group=[me()]),
    "outside": lambda: barrier(group=[one for one in peers() if one.label != here().label]),
    "twice": lambda: barrier(group=[me(), me()]),
    "busy": lambda: in_two_threads(),
    "stop_here": lambda: current().set_stopped("stop"),
    "waiting": lambda: current().exchange.waiting,
    "wrong_root": lambda: broadcast(1, 9),
    "wrong_count": lambda: scatter([1], 0),
}


@pytest.fixture
def members() -> Iterator[Group[Member]]:
    program = Program("members")
    found = cast("Group[Member]", program.add(Member, on="x,y,z", per_host=2, label="member"))
    with program.launch("threads"):
        yield found


def test_every_function(members: Group[Member]) -> None:
    big = numpy.arange(PIECE_BYTES / 2)  # four pieces: from host to host
    for value in (big, {"small": 1}, numpy.arange(20_000)):
        for found in members.call("broadcast", value, "member/3"):
            assert numpy.array_equal(found, value) if isinstance(value, numpy.ndarray) else found == value
    assert members.call("scatter", list("abcdef")) == list("abcdef")
    assert members.call("gather", -1) == [None] * 5 + [[0, 10, 20, 30, 40, 50]]
    assert members.call("all_gather") == [[{"index": number} for number in range(6)]] * 6
    found = cast("list[dict[str, object]]", members.call("reduce", "sum", 2))
    assert found.pop(2)["loss"] == [15]
    assert found == [None] * 5
    assert cast("list[dict[str, numpy.ndarray]]", members.call("reduce", "max", 0))[0]["grad"].tolist() == [5.0] * 4
    assert members.call("all_reduce", "min") == [1] * 6
    assert members.call("product") == [720] * 6
    assert members.call("many") == [19 * 6] * 6
    assert members.call("barrier", None) == [None] * 6
    assert members.call("alone") == [[5]] * 6
    pair = members[1:4:2]
    assert isinstance(pair, Group)
    assert pair.call("pair", ["member/1", "member/3"]) == [["member/1", "member/3"]] * 2


def test_arrays_that_arrive_can_be_written(members: Group[Member]) -> None:
    for found in members.call("broadcast", numpy.zeros(PIECE_BYTES), "member/0"):
        assert isinstance(found, numpy.ndarray)
        found += 1


def test_the_client_sends_a_value_to_all(members: Group[Member]) -> None:
    futures = cast("list[object]", members.futures.call("receive"))
    broadcast(numpy.arange(1000.0), "client", group=members, timeout=PATIENCE)
    assert all(one.result(PATIENCE).sum() == 499500 for one in futures)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="only members"):
        broadcast(1, group=members)
    with pytest.raises(ValueError, match="the root of a broadcast alone"):
        gather(1, "client", group=members)


def first_error(futures: object, kind: type[BaseException]) -> list[BaseException]:
    """Return the exceptions of all futures."""
    errors = [one.exception(PATIENCE) for one in cast("list[Handle[object]]", futures)]  # type: ignore[attr-defined]
    assert all(isinstance(one, kind) for one in errors), errors
    return errors


def test_a_deadline_names_the_member_that_is_missing(members: Group[Member]) -> None:
    others = members[:5]
    assert isinstance(others, Group)
    for error in first_error(others.futures.call("barrier", 0.3), CallTimeout):
        assert "member/5 on z did not come within 0.3 s" in str(error)  # beside others, on a slow machine
    with pytest.raises(CallTimeout, match="member/5 on z did not come"):  # it gets the same failure
        members[5].call("barrier", None)  # type: ignore[union-attr]
    assert members.call("all_reduce", "sum") == [21] * 6  # and the next round is in order


def test_a_deadline_ends_the_wait_for_another_thread_of_the_node(members: Group[Member]) -> None:
    with pytest.raises(CallTimeout, match="barrier: another thread of member/1 on x is in a collective of this group"):
        members[1].call("busy")  # type: ignore[union-attr]
    assert members.call("barrier", None) == [None] * 6


class Stays(Member):
    """Goes on after the stop."""

    def run(self) -> None:
        self.hold()


def test_a_member_that_stops_first_does_not_fail_the_others() -> None:
    program = Program("stopping")
    group = cast("Group[Stays]", program.add(Stays, on="x,y,z", per_host=1, label="member", concurrency=2))
    with program.launch("threads"):
        first, second, third = (cast("Handle[Stays]", one) for one in group)
        waits = [cast("Future[object]", one.futures.call("barrier", None)) for one in (first, second)]
        assert eventually(lambda: first.call("waiting") == 2)
        second.call("stop_here")
        with pytest.raises(ConnectionError, match="the program is stopped"):
            waits[1].result(PATIENCE)
        third.call("barrier", None)
        assert waits[0].result(PATIENCE) is None
        group.tell.free()


def test_different_functions_and_failures_reach_all(members: Group[Member]) -> None:
    for error in first_error(members.futures.call("mixed"), RuntimeError):
        assert "calls" in str(error)
    assert members.call("barrier", None) == [None] * 6
    for error in first_error(members.futures.call("fails"), KeyError):
        assert isinstance(error, RemoteError)
    assert members.call("barrier", None) == [None] * 6
    for work, text in (("outside", "not in the group"), ("twice", "twice"), ("wrong_root", "root 9")):
        with pytest.raises(ValueError, match=text):
            members[0].call(work)  # type: ignore[union-attr]
    for error in first_error(members.futures.call("wrong_count"), ValueError):
        assert "1 values for 6 members" in str(error)


class Ends:
    """Ends early, while the others wait."""

    def run(self) -> object:
        if here().index == 2:
            return None
        try:
            barrier()
        except NodeLost as error:
            barrier(group=peers()[:2])  # the first one counts, and ends after the other has its answer
            return error.label, error.host, error.reason
        return None


def test_a_member_that_has_ended_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "NEWS_TIMEOUT_S", 6.0)  # its end explains that of its link
    program = Program("ends")
    program.add(Ends, on="x,y,z", per_host=1)
    with program.launch("threads") as running:
        assert running.wait(PATIENCE).ok
        assert running.result("ends/0") == running.result("ends/1") == ("ends/2", "z", "it has ended")


class Waits:
    def run(self) -> str:
        if here().index:
            wait_for_stop()
        try:
            barrier()
        except ConnectionError as error:
            return str(error)
        return ""


def test_the_stop_of_the_program_ends_a_collective() -> None:
    program = Program("waits")
    program.add(Waits, count=2)
    with program.launch("threads") as running:
        pass
    assert running.wait(PATIENCE).ok


def test_only_nodes_on_hosts_of_a_launched_program() -> None:
    program = Program("none")
    group = cast("Group[Member]", program.add(Member, count=2))
    with pytest.raises(NotLaunched):
        program.broadcast(1, group)
    with pytest.raises(NotLaunched):
        barrier()
    with pytest.raises(ValueError, match="no nodes"):
        program.broadcast(1, [])
    with pytest.raises(UsageError, match="sum, max, min, merge"):
        program.mailbox("box", spread="tree", on="x", combine="mean")
