"""mesh bisect: trees between two trees, and the smallest set of changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.api.bisecting import Stopped, check_decided
from mesh.config.retries import BISECTION_RUNS_MAX, read_trials
from mesh.core.minimizing import smallest
from mesh.core.outcome import Cause
from mesh.rundir.results import RunResult
from mesh.workspace.manifest import Entry, Manifest, manifest_of
from mesh.workspace.mixing import differing, mixed


@given(st.sets(st.integers(0, 63), min_size=1, max_size=3))
def test_exactly_the_needed_changes_are_found(needed: set[int]) -> None:
    found = smallest(range(64), lambda some: needed <= set(some), 10_000)
    assert (set(found.changes), found.is_smallest) == (needed, True)


def test_a_single_change_among_500_takes_few_trials_and_none_is_tried_twice() -> None:
    tried: list[Sequence[int]] = []

    def is_bad(some: Sequence[int]) -> bool:
        tried.append(some)
        return 377 in some

    assert smallest(range(500), is_bad, 28).changes == (377,)
    assert len(tried) == len(set(tried)) <= 18


def file(path: str, content: str = "1" * 40, mode: int = 0o644, mtime: int = 5) -> Entry:
    return Entry(path, "f", mode, mtime, 1, content)


def directory(path: str, mode: int = 0o755) -> Entry:
    return Entry(path, "d", mode, 7, 0, "")


GOOD = manifest_of([directory("src"), file("src/a"), file("src/b"), file("gone"), directory("empty"), file("x")])
NEW = [directory("new", 0o700), file("new/c"), directory("x"), file("x/y")]
BAD = manifest_of([directory("src"), file("src/a", "2" * 40), file("src/b", mtime=9), *NEW])


def paths(tree: Manifest) -> list[str]:
    return [entry.path for entry in tree.entries]


def test_what_differs_is_more_than_a_time() -> None:
    assert differing(GOOD, BAD) == ["gone", "new/c", "src/a", "x", "x/y"]
    assert differing(GOOD, GOOD) == []


MIXED = {
    "nothing": ([], ["empty", "gone", "src", "src/a", "src/b", "x"]),
    "a file that is gone": (["gone"], ["empty", "src", "src/a", "src/b", "x"]),
    "a new file with its directory": (["new/c"], ["empty", "gone", "new", "new/c", "src", "src/a", "src/b", "x"]),
    "a directory in the place of a file": (["x/y"], ["empty", "gone", "src", "src/a", "src/b", "x", "x/y"]),
    "all": (["gone", "new/c", "src/a", "x", "x/y"], ["empty", "new", "new/c", "src", "src/a", "src/b", "x", "x/y"]),
}


@pytest.mark.parametrize(("some", "expected"), MIXED.values(), ids=MIXED)
def test_a_tree_has_some_files_of_the_other_one(some: list[str], expected: list[str]) -> None:
    found = mixed(GOOD, BAD, some)
    assert paths(found) == expected
    entries = {entry.path: entry for entry in found.entries}
    assert entries["src/a"].content == ("2" * 40 if "src/a" in some else "1" * 40)
    assert entries["src/b"].mtime_ns == 5
    assert "new" not in entries or entries["new"].mode == 0o700


ENDED_BY_THE_USER = {
    "Ctrl-C": (130, Cause.SIGNAL, True, 130),
    "SIGTERM": (143, Cause.SIGNAL, True, 143),
    "Ctrl-C after a rank had failed": (3, Cause.RANK, True, 130),
    "mesh detach": (0, Cause.DETACHED, False, 130),
}


@pytest.mark.parametrize(("code", "cause", "was_stopped", "status"), ENDED_BY_THE_USER.values(), ids=ENDED_BY_THE_USER)
def test_a_trial_that_the_user_ends_decides_nothing(code: int, cause: Cause, was_stopped: bool, status: int) -> None:
    with pytest.raises(Stopped) as ended:
        check_decided(result_of(code, cause, was_stopped=was_stopped))
    assert ended.value.exit_code == status


def test_a_trial_that_ends_by_itself_decides() -> None:
    check_decided(result_of(3, Cause.RANK))
    check_decided(result_of(0, Cause.COMPLETED))


def result_of(code: int, cause: Cause, *, was_stopped: bool = False) -> RunResult:
    place = Path("/runs/r")
    return RunResult(
        run="r", exit_code=code, cause=cause, ranks=(), failures=(), directory=place, was_stopped=was_stopped
    )


def test_no_runs_at_all_are_not_the_usual_number_of_runs() -> None:
    assert [read_trials("--max-runs", text) for text in ("0", "5", "")] == [0, 5, BISECTION_RUNS_MAX]
