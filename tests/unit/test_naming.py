"""Words that mean a run: ids, names, tags, and parts of the first two."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.api.records import find_record, list_records
from mesh.core.errors import AmbiguousRun
from mesh.core.naming import LAST, NAME, RUN_ID, NamedRun, exactly, is_name, matching, the_one
from mesh.core.typed import Typed

IDS = st.from_regex(RUN_ID, fullmatch=True).filter(str.isascii)
NAMES = st.from_regex(NAME, fullmatch=True).filter(is_name) | st.just("")
RUNS = st.lists(
    st.builds(
        NamedRun,
        run=IDS,
        name=NAMES,
        tags=st.lists(st.sampled_from(["sweep", "lr", "a1"]), unique=True).map(tuple),
        is_over=st.booleans(),
    ),
    unique_by=lambda one: one.run,
    max_size=6,
)


@given(RUNS, st.data())
def test_a_part_that_only_one_run_has_finds_it(runs: list[NamedRun], data: st.DataObject) -> None:
    for one in runs:
        called = data.draw(st.sampled_from([one.run, one.name or one.run]))
        start = data.draw(st.integers(0, len(called) - 1))
        part = called[start : data.draw(st.integers(start + 1, len(called)))]
        having = [other for other in runs if part in other.run or part in other.name]
        is_more = any(part == other.name or part in other.tags for other in runs)
        if having == [one] and not is_more:
            assert the_one(part, runs) == one
        elif len(having) > 1 and not is_more and part not in [other.run for other in runs]:
            with pytest.raises(AmbiguousRun) as raised:
                the_one(part, runs)
            assert all(other.run in str(raised.value) for other in having)
            assert raised.value.newest == max(other.run for other in having)


@given(RUNS)
def test_a_whole_id_finds_its_run_whatever_others_are_called(runs: list[NamedRun]) -> None:
    for one in runs:
        assert the_one(one.run, runs) == one


@given(RUNS)
def test_a_name_means_the_run_that_is_on_and_else_the_newest(runs: list[NamedRun]) -> None:
    for name in {one.name for one in runs if one.name}:
        named = [one for one in runs if one.name == name]
        on = [one for one in named if not one.is_over]
        found = exactly(name, runs)
        assert sorted(found, key=lambda one: one.run) == sorted(
            on if on and len(named) > 1 else [max(named, key=lambda one: one.run)], key=lambda one: one.run
        )


@given(RUNS, st.text(max_size=12))
def test_every_run_that_is_found_has_the_word(runs: list[NamedRun], word: str) -> None:
    for one in matching(word, runs):
        assert word in one.run or word in one.name or word in one.tags


def test_a_tag_finds_its_only_run() -> None:
    runs = [
        NamedRun(run="20261121-101500-3f9c2a", tags=("best",)),
        NamedRun(run="20261121-101501-3f9c2a", name="best2"),
    ]
    assert the_one("best", runs) == runs[0]
    assert the_one("worst", runs) is None


def test_the_error_of_several_runs_lists_them_with_their_commands() -> None:
    runs = [
        NamedRun(
            run=f"20261121-1015{number:02}-3f9c2a", name="lr" * number, age="2 h ago", command=f"python3 {number}\n.py"
        )
        for number in range(12)
    ]
    with pytest.raises(AmbiguousRun) as raised:
        the_one("3f9c", runs)
    head, *lines, more = str(raised.value).splitlines()
    assert head == "'3f9c' may be any of 12 runs:"
    assert lines[-1].split() == ["20261121-101511-3f9c2a", "lr" * 11, "2", "h", "ago", "python3", "11", ".py"]
    assert (len(lines), more) == (8, "and 4 older ones")


def test_the_command_to_paste_names_the_run_in_the_place_of_the_word() -> None:
    typed = Typed(before=("mesh", "stop", "--cluster", "lr", "--grace=1", "lr"), command=())
    assert typed.with_word("lr", "RUN") == "mesh stop --cluster lr --grace=1 RUN"
    assert typed.with_word("stop", "RUN") == ""


# ---- the runs of this machine


def run_directory(place: Path, run: str, **about: object) -> None:
    directory = place / "mesh/runs" / run
    directory.mkdir(parents=True)
    (directory / "events.jsonl").touch()
    (directory / "run.json").write_text(json.dumps({"run": run, "hosts": ["a"], "ended": 1.0, **about}))


EXEC = {
    "run": "r",
    "project": "p",
    "workspace": "/",
    "groups": [{"command": ["true"], "env": []}],
    "sync": False,
    "lock": False,
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run_directory(tmp_path, "20261121-100000-aaaaaa", kind="run", cause="completed", name="lr3", tags=["sweep"])
    run_directory(tmp_path, "20261121-100001-bbbbbb", kind="run", cause="rank", name="lr4", tags=["sweep"])
    run_directory(tmp_path, "20261121-100002-cccccc", kind="run", cause="completed", spec=EXEC)
    run_directory(tmp_path, "20261121-100003-dddddd", kind="setup", cause="completed")
    run_directory(tmp_path, "20261121-100004-eeeeee", kind="sync", cause="completed")
    run_directory(tmp_path, "20261121-100005-ffffff", kind="run", cause="busy")
    return tmp_path


def test_last_is_the_newest_run_and_no_exec_setup_push_or_run_that_found_its_hosts_busy(place: Path) -> None:
    found = find_record(LAST)
    assert found is not None
    assert found.run.endswith("bbbbbb")
    assert [record.verb for record in list_records()] == ["run", "push", "setup", "exec", "run", "run"]


@pytest.mark.parametrize(
    ("word", "end"),
    [("lr3", "aaaaaa"), ("r4", "bbbbbb"), ("cccc", "cccccc"), ("20261121-100003", "dddddd"), ("100004-e", "eeeeee")],
)
def test_runs_of_this_machine_are_found_by_parts(place: Path, word: str, end: str) -> None:
    found = find_record(word)
    assert found is not None
    assert found.run.endswith(end)
    assert find_record(word, is_exact=True) == (found if word == "lr3" else None)


def test_a_name_in_a_damaged_run_directory_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run_directory(tmp_path, "20261121-100000-aaaaaa", name="last", tags=["\x1b[31m", 3, "ok"])
    (record,) = list_records()
    assert (record.named.name, record.named.tags) == ("", ("ok",))


def test_the_list_has_runs_by_a_part_or_a_tag(place: Path) -> None:
    assert [one.named.name for one in list_records("lr")] == ["lr4", "lr3"]
    assert [one.named.name for one in list_records("3", tag="sweep")] == ["lr3"]
    assert list_records(tag="swee") == []
