"""Output of ranks that have moved between hosts: each byte once, in its order, from whichever journals have it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import pytest

from mesh.core.cluster import Host, place_groups
from mesh.core.events import Stream
from mesh.core.nodes import Arrived
from mesh.remote.handover import Handovers, Key

A, B, SPARE = range(3)
PLACEMENT = place_groups([Host(name=name, address=name) for name in ("a", "b", "spare")], [[(0, 1)], [(0, 1)], []])
OUT: Key = (1, Stream.STDOUT)
WAIT_S = 60.0  # for threads that have all they need


def arrival(node: int, attempt: int, stdout: int) -> Arrived:
    return Arrived(time=0, node=node, rank=1, attempt=attempt, printed={"stdout": stdout, "stderr": 0})


# The rank printed abcd on b, efg on the spare host, and hij on b again.
THERE_AND_BACK = [arrival(SPARE, 1, 4), arrival(B, 2, 7)]
JOURNALS = {B: [(0, b"abcd"), (7, b"hij")], SPARE: [(4, b"efg")]}


class Reading:
    """A client that reads the journals of several hosts, each in a thread."""

    def __init__(self, arrivals: Sequence[Arrived], have: int = 0) -> None:
        self.handovers = Handovers(PLACEMENT, arrivals, {OUT: have})
        self.found: list[int | bytes] = []  # bytes, or the number of missing ones

    def read(self, node: int, frames: Sequence[tuple[int, bytes]]) -> None:
        for at, data in frames:
            for missing, new in self.handovers.take(node, OUT, at, data):
                self.found += [missing] if missing else []
                self.found += [new] if new else []
        self.handovers.end(node)

    def begin(self, journals: Mapping[int, Sequence[tuple[int, bytes]]]) -> list[threading.Thread]:
        threads = [threading.Thread(target=self.read, args=item) for item in journals.items()]
        for thread in threads:
            thread.start()
        return threads

    def all(self, journals: Mapping[int, Sequence[tuple[int, bytes]]]) -> list[int | bytes]:
        for thread in self.begin(journals):
            thread.join(WAIT_S)
            assert not thread.is_alive()
        return self.found


@pytest.mark.parametrize("nodes", [(B, SPARE), (SPARE, B)], ids=["home first", "spare first"])
@pytest.mark.parametrize("have", range(11))
def test_each_byte_comes_once_and_in_order_however_much_is_here(nodes: tuple[int, int], have: int) -> None:
    found = Reading(THERE_AND_BACK, have).all({node: JOURNALS[node] for node in nodes})
    assert b"".join(piece for piece in found if isinstance(piece, bytes)) == b"abcdefghij"[have:]
    assert not any(isinstance(piece, int) for piece in found)


MISSING = {
    "the journal of the spare host is gone": ({B: JOURNALS[B], SPARE: []}, [b"abcd", 3, b"hij"]),
    "a journal begins later": ({B: [(2, b"cd"), (7, b"hij")], SPARE: [(5, b"fg")]}, [2, b"cd", 1, b"fg", b"hij"]),
    "nothing of the last part is left but its size": (
        {B: [(0, b"abcd"), (10, b"")], SPARE: [(4, b"efg")]},
        [b"abcd", b"efg", 3],
    ),
}


@pytest.mark.parametrize(("journals", "expected"), MISSING.values(), ids=MISSING)
def test_bytes_that_no_host_has_are_counted_where_they_are_missing(
    journals: Mapping[int, Sequence[tuple[int, bytes]]], expected: list[int | bytes]
) -> None:
    assert Reading(THERE_AND_BACK).all(journals) == expected


def test_output_of_a_lost_host_after_the_rank_was_given_up_there_is_no_part_of_the_stream() -> None:
    found = Reading([arrival(SPARE, 1, 4)]).all({B: [(0, b"ab"), (2, b"cdXXXX"), (8, b"YY")], SPARE: [(4, b"efg")]})
    assert found == [b"ab", b"cd", b"efg"]


def test_a_host_is_waited_for_only_while_it_may_bring_earlier_bytes_and_the_reading_goes_on() -> None:
    reading = Reading(THERE_AND_BACK)
    (thread,) = reading.begin({SPARE: JOURNALS[SPARE]})
    reading.handovers.close()
    thread.join(WAIT_S)
    assert (thread.is_alive(), reading.found) == (False, [])
    here = Reading(THERE_AND_BACK, have=4)  # all that b has printed before is here
    assert here.all({SPARE: JOURNALS[SPARE]}) == [b"efg"]


def test_ranks_that_have_come_to_a_host_are_expected_there_also_after_they_have_left() -> None:
    handovers = Handovers(PLACEMENT, THERE_AND_BACK, {})
    assert [handovers.ranks(node) for node in (A, B, SPARE)] == [set(), {1}, {1}]
    assert [handovers.concerns((rank, Stream.STDERR)) for rank in (0, 1)] == [False, True]
