"""Places of nodes by what hosts have."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.agent.ask.gpus import memory_bytes
from mesh.core.errors import UsageError
from mesh.program import has
from mesh.program.placing import Facts, Wish, place
from mesh.program.processes import devices_of

FACTS = {"a": Facts(gpus=0, memory=16_000_000_000), "b": Facts(gpus=0, memory=64_000_000_000), "c": Facts()}


def test_a_node_goes_to_a_host_with_enough_memory() -> None:
    (one,) = place([Wish(label="big", has=has(memory="32GB"))], ["a", "b", "c"], FACTS)
    assert one.host == "b"


def test_a_wish_for_memory_that_no_host_fulfils_names_the_largest() -> None:
    with pytest.raises(UsageError, match="big: no host has what it asks for") as caught:
        place([Wish(label="big", has=has(memory="1TB"))], ["a", "b", "c"], FACTS)
    assert "a: it has 16.0 GB of memory, and 1000.0 GB are asked for" in str(caught.value)
    assert "c: it has an unknown amount of memory" in str(caught.value)
    assert caught.value.hint == "the largest is b with 64.0 GB"


def test_no_two_nodes_of_a_host_share_a_gpu_and_sums_count_all_groups() -> None:
    facts = {"a": Facts(gpus=4), "b": Facts(gpus=2)}
    wishes = [
        Wish(label="actor", hosts=("a", "b"), per_host=2, gpus=1),
        Wish(label="learner", hosts=("a",), gpus=2),
        Wish(label="log", hosts=("b",)),
    ]
    found = place(wishes, ["a", "b"], facts)
    taken = [(one.host, number) for one in found for number in one.gpus]
    assert sorted(taken) == [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 0), ("b", 1)]
    with pytest.raises(UsageError, match="b: its nodes ask for 3 GPUs, and it has 2"):
        place([*wishes, Wish(label="more", hosts=("b",), gpus=1)], ["a", "b"], facts)


@pytest.mark.parametrize("text", ["32 XB", "1.2.3GB", "much"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected a size"):
        has(memory=text)


LIMITS = {
    "no limit": ({}, 8 << 30),
    "a limit of version 2": ({"memory.max": "1073741824\n"}, 1 << 30),
    "none in version 2": ({"memory.max": "max\n"}, 8 << 30),
    "none in version 1": ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 8 << 30),
}


@pytest.mark.parametrize(("files", "expected"), LIMITS.values(), ids=LIMITS)
def test_the_memory_of_a_host_is_that_of_its_container(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal:       {8 << 20} kB\nMemFree: 1 kB\n")
    (tmp_path / "memory").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert memory_bytes(str(tmp_path), str(tmp_path)) == expected


def test_a_host_that_shows_no_memory_has_an_unknown_amount(tmp_path: Path) -> None:
    assert memory_bytes(str(tmp_path), str(tmp_path)) == 0


def test_a_wish_for_a_part_of_the_name_needs_no_facts() -> None:
    (one,) = place([Wish(label="quick", has=has(label="fast"))], ["slow-0", "fast-0"], {})
    assert one.host == "fast-0"


def test_nodes_without_gpus_see_none_where_others_have_them_for_themselves() -> None:
    wishes = [Wish(label="learner", hosts=("a",), gpus=2), Wish(label="actor", hosts=("a", "b"), per_host=1)]
    places = place(wishes, ["a", "b"], {"a": Facts(gpus=4), "b": Facts(gpus=2)})
    assert [devices_of(one, {"a"}) for one in places] == ["0,1", "-1", ""]
