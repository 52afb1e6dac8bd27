"""What the inputs of a prerun entry are on a host, after a real sync there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mesh.agent.prerun import inputs
from tests.unit.test_place import Place

TREE = {
    b"uv.lock": b"1",
    b"requirements.txt": b"a",
    b"requirements-dev.txt": b"b",
    b"data[1].txt": b"c",
    b"src": {b"a.py": b"a", b"deep": {b"b.py": b"b", b"pyproject.toml": b"t"}, b"empty": {}},
    b"\xfc": b"d",
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.set(TREE)  # type: ignore[arg-type]
    place.sync()
    return place


def contents(place: Place, *written: str) -> list[str]:
    found = inputs.contents(str(place.there), str(place.record), written)
    assert list(found) == list(dict.fromkeys(written))
    return list(found.values())


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("uv.lock", "uv.lock"),
        ("requirements*.txt", "requirements-dev.txt"),
        ("**/pyproject.toml", "src/deep/pyproject.toml"),
        ("src/**/b.py", "src/deep/b.py"),
        ("**/*.lock", "uv.lock"),
        ("s?c", "src/a.py"),
        ("src", "src/deep/b.py"),
        ("src/*", "src/deep/b.py"),
        (".", "src/deep/b.py"),
        ("**", "src/deep/b.py"),
        ("data[1].txt", "data[1].txt"),
        ("[ab]*", ""),
        ("*.py", ""),
        ("src/*.toml", ""),
        ("nothing", ""),
    ],
)
def test_what_a_pattern_covers(place: Place, written: str, path: str) -> None:
    before = contents(place, written)
    assert all(before) is bool(path)
    assert contents(place, written) == before
    for other in place.there.rglob("*"):
        if other.is_file() and not path:
            other.write_bytes(b"changed")
    assert not path or (place.there / path).write_bytes(b"changed")
    assert (contents(place, written) != before) is bool(path)


def test_paths_of_any_bytes(place: Place) -> None:
    before = contents(place, "ü", os.fsdecode(b"\xfc"))
    assert [bool(found) for found in before] == [False, True]


def test_what_hosts_make_in_a_directory_that_was_sent_does_not_count(place: Place) -> None:
    before = contents(place, "src", ".", "**/*.pyc")
    (place.there / "src/__pycache__").mkdir()
    (place.there / "src/__pycache__/a.pyc").write_bytes(b"code")
    (place.there / ".venv").mkdir()
    assert contents(place, "src", ".", "**/*.pyc") == before
    assert all(contents(place, "src/__pycache__", ".venv", "src/__pycache__/a.pyc"))


def test_what_was_done_to_a_file_on_the_host_counts(place: Place) -> None:
    """Also to one that shows the same size and time."""
    before = contents(place, "src")
    file = place.there / "src/a.py"
    status = file.stat()
    file.write_bytes(b"x")
    os.utime(file, ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert contents(place, "src") != before
    file.write_bytes(b"a")
    assert contents(place, "src") == before
    file.unlink()
    gone = contents(place, "src")
    assert gone != before
    file.mkdir()
    assert contents(place, "src") not in (before, gone)


def test_after_a_sync_that_was_cut_short_everything_is_read(place: Place) -> None:
    before = contents(place, "src", "uv.lock", "requirements.txt")
    head, _, rest = place.record.read_bytes().partition(b" clean\n")
    text, _, _ = rest.partition(b"\n")
    place.record.write_bytes(head + b" dirty\n" + text + b"\n[]")
    assert contents(place, "src", "uv.lock", "requirements.txt") == before
    (place.there / "uv.lock").unlink()
    (place.there / "requirements.txt").write_bytes(b"changed")
    first, second, third = contents(place, "src", "uv.lock", "requirements.txt")
    assert first == before[0]
    assert second not in ("", before[1])
    assert third != before[2]


def test_special_files_and_links_to_nowhere(place: Place) -> None:
    os.mkfifo(place.there / "fifo")
    (place.there / "loop").symlink_to("loop")
    (place.there / "nowhere").symlink_to("/nowhere")
    (place.there / "up").symlink_to("..")
    assert all(contents(place, "fifo", "loop", "nowhere", "up"))
    assert contents(place, "uv.lock/below") == [""]
