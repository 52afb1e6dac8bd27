"""Which ranks `mesh restart` refuses, and with which words."""

from __future__ import annotations

import pytest

from mesh.api.stopping import check_ranks, refusals
from mesh.core.cluster import Host, place_groups, place_ranks
from mesh.core.errors import UsageError
from mesh.protocol.replies import NewProcess

HOSTS = tuple(Host(name=name, address=name) for name in ("a", "b"))
PLACEMENT = place_ranks(HOSTS, (2, 1), groups=(0, 1), labels=("actor", "learner"))

REFUSED = {
    "a rank that the run does not have": ([0, 7, 8], "", "run-1: no ranks 7-8", "it has ranks 0-2"),
    "a host that is none of the run": ([0], "c", "--on: c is no host of run-1", "its hosts are a, b"),
    "another host of the run": (
        [1],
        "b",
        "--on: rank 1 (actor/1) is on a, and cannot move to b: the run has no spare hosts",
        "starts it again on a",
    ),
}


@pytest.mark.parametrize(("ranks", "on", "text", "hint"), REFUSED.values(), ids=REFUSED)
def test_a_rank_or_host_that_does_not_fit_is_refused_before_any_host_is_asked(
    ranks: list[int], on: str, text: str, hint: str
) -> None:
    with pytest.raises(UsageError) as refused:
        check_ranks(ranks, on, PLACEMENT, "run-1")
    assert str(refused.value).startswith(text)
    assert hint in refused.value.hint


def test_ranks_may_name_their_own_host() -> None:
    assert check_ranks([0, 1], "a", PLACEMENT, "run-1") == ([0, 1], [])
    assert check_ranks([2], "", PLACEMENT, "run-1") == ([2], [])


def test_ranks_of_a_run_with_spare_hosts_may_name_another_one() -> None:
    placement = place_groups([*HOSTS, Host(name="c", address="c")], [[(0, 2)], [(0, 1)], []])
    assert check_ranks([0, 2], "c", placement, "run-1") == ([], [0, 2])
    assert check_ranks([0, 2], "c", placement.moved([(2, 2)]), "run-1") == ([2], [0])


def test_each_rank_without_a_new_process_is_named_with_the_reason() -> None:
    found = {0: NewProcess(rank=0, pid=77), 1: NewProcess(rank=1, why="it is stuck")}
    assert refusals([0, 1, 2], found, PLACEMENT, "an agent is late") == [
        "rank 1 (actor/1) on a: not started again (it is stuck)",
        "rank 2 (learner/0) on b: not started again (an agent is late)",
    ]
    assert refusals([5], {}, None, "") == ["rank 5: not started again (it has ended, or was never started)"]
