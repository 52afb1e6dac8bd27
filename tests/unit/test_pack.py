"""The workspace from here to there: random trees and edits, crashes at every step, hostile packs."""

from __future__ import annotations

import json
import os
import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh.remote.agent.workspace import BadPack, put_in_place
from mesh.workspace.listing import list_workspace
from mesh.workspace.pack import make

Tree = dict[bytes, "Tree | bytes | tuple[str, bytes]"]

NAMES = st.sampled_from([b"a", b"b", b"c", b"new\nline", b"\xff\xfe", "ü".encode(), b" ", b"-x", b"it's"])
FILES = st.binary(max_size=30)
LINKS = st.sampled_from([("link", target) for target in (b"a", b"../..", b"/etc/passwd", b"\xff", b"nowhere")])
TREES = st.recursive(
    st.dictionaries(NAMES, FILES | LINKS, max_size=4),
    lambda inner: st.dictionaries(NAMES, FILES | LINKS | inner, max_size=4),
    max_leaves=8,
)


def grow(directory: bytes, tree: Tree) -> None:
    for name, what in tree.items():
        path = directory + b"/" + name
        if isinstance(what, dict):
            os.mkdir(path)
            grow(path, what)
            os.chmod(path, 0o755 if len(what) % 2 else 0o700)
        elif isinstance(what, tuple):
            os.symlink(what[1], path)
        else:
            Path(os.fsdecode(path)).write_bytes(what)
            os.chmod(path, 0o755 if len(what) % 2 else 0o640)


def seen(directory: Path, *, without: str = "") -> dict[bytes, tuple[object, ...]]:
    """Everything below a directory: kind, mode, content, time."""
    found: dict[bytes, tuple[object, ...]] = {}
    for where, directories, files in os.walk(os.fsencode(directory)):
        for name in directories + files:
            path = os.path.join(where, name)
            status = os.lstat(path)
            relative = os.path.relpath(path, os.fsencode(directory))
            if without and os.fsencode(without) in relative:
                continue
            if stat.S_ISLNK(status.st_mode):
                found[relative] = ("link", os.readlink(path))
            elif stat.S_ISDIR(status.st_mode):
                found[relative] = ("directory", stat.S_IMODE(status.st_mode))
            else:
                content = Path(os.fsdecode(path)).read_bytes()
                found[relative] = ("file", stat.S_IMODE(status.st_mode), content, status.st_mtime_ns)
    return found


class Place:
    """A local workspace and its copy on a host."""

    def __init__(self, directory: Path) -> None:
        self.here, self.there = directory / "here", directory / "there"
        self.pack, self.record = directory / "pack", directory / "record"
        self.here.mkdir()
        self.there.mkdir()

    def set(self, tree: Tree) -> None:
        shutil.rmtree(self.here)
        self.here.mkdir()
        grow(os.fsencode(self.here), tree)

    def sync(self, step: Callable[[str], None] = lambda what: None) -> dict[str, int]:
        with self.pack.open("wb") as file:
            make(list_workspace(self.here, ()), file)
        return put_in_place(str(self.pack), str(self.there), str(self.record), step)

    def hostile(self, *entries: tuple[str, str], member: bytes = b"x") -> None:
        """Put a pack in place that we would not make: (path, kind), a link goes to /etc."""
        with zipfile.ZipFile(self.pack, "w") as pack:
            pack.writestr("1", member)
            rows = [[path, kind, 0o644, 0, "/etc" if kind == "l" else "", "1"] for path, kind in entries]
            pack.writestr("index.json", json.dumps(rows))
        put_in_place(str(self.pack), str(self.there), str(self.record))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees=st.lists(TREES, min_size=1, max_size=3))
def test_the_copy_equals_the_tree_after_any_edits(tmp_path_factory: pytest.TempPathFactory, trees: list[Tree]) -> None:
    place = Place(tmp_path_factory.mktemp("place"))
    for tree in trees:
        place.set(tree)
        place.sync()
        assert seen(place.there) == seen(place.here)
    assert {path.name for path in place.there.parent.iterdir()} == {"here", "there", "pack", "record"}


def test_what_the_host_made_stays(place: Place) -> None:
    place.set({b"src": {b"a.py": b"1", b"old.py": b"2"}, b"gone": {b"x": b""}})
    place.sync()
    (place.there / "checkpoint").write_text("made there")
    (place.there / "src/made.pyc").write_text("made there")
    (place.there / "gone/made").write_text("made there")
    place.set({b"src": {b"a.py": b"changed"}})
    place.sync()
    assert (place.there / "src/a.py").read_text() == "changed"
    found = seen(place.there)
    assert set(found) == {b"src", b"src/a.py", b"src/made.pyc", b"checkpoint", b"gone", b"gone/made"}


def test_a_file_where_a_directory_was_and_the_reverse(place: Place) -> None:
    place.set({b"one": {b"x": b"1"}, b"two": b"2"})
    place.sync()
    (place.there / "one/made").write_text("made there")
    place.set({b"one": b"a file now", b"two": {b"y": b"3"}})
    place.sync()
    assert seen(place.there) == seen(place.here)


def test_read_only_directories_for_a_plain_user(place: Place) -> None:
    place.set({b"locked": {b"x": b"1", b"y": b"2"}})
    (place.here / "locked").chmod(0o555)
    place.sync()
    assert stat.S_IMODE((place.there / "locked").stat().st_mode) == 0o555
    (place.here / "locked").chmod(0o755)
    place.set({b"locked": {b"y": b"changed"}})
    (place.here / "locked").chmod(0o555)
    place.sync()
    assert seen(place.there) == seen(place.here)
    (place.here / "locked").chmod(0o755)


def test_a_running_program_keeps_its_file(place: Place) -> None:
    place.set({b"program": b"old"})
    place.sync()
    with (place.there / "program").open("rb") as running:
        place.set({b"program": b"new and longer"})
        place.sync()
        assert running.read() == b"old"


def test_a_crash_at_every_step_is_completed_by_the_next_sync(tmp_path: Path) -> None:
    before: Tree = {b"a": {b"x": b"1", b"y": b"2"}, b"b": b"3", b"c": {b"z": b"4"}, b"d": ("link", b"b")}
    after: Tree = {b"a": {b"x": b"changed"}, b"b": {b"in": b"5"}, b"c": b"a file", b"e": b"6", b"d": ("link", b"e")}
    steps = 0
    while True:
        directory = tmp_path / str(steps)
        directory.mkdir()
        place = Place(directory)
        place.set(before)
        place.sync()
        (place.there / "made").write_text("made there")
        place.set(after)
        left = steps

        def crash(what: str) -> None:
            nonlocal left
            if not left:
                raise KeyboardInterrupt(what)
            left -= 1

        try:
            place.sync(crash)
        except KeyboardInterrupt:
            place.sync()
            assert seen(place.there, without="made") == seen(place.here)
            assert (place.there / "made").read_text() == "made there"
            steps += 1
        else:
            break
    assert steps > 10


def test_a_staging_that_a_killed_sync_left_is_removed(place: Place) -> None:
    place.set({b"a": b"1"})
    stale = place.there.parent / "there.new-999"
    stale.mkdir()
    (stale / "1").write_text("half")
    place.sync()
    assert not stale.exists()


def test_a_link_that_the_host_made_is_not_followed(place: Place, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("stay")
    place.set({b"dir": {b"precious": b"ours"}})
    place.sync()
    shutil.rmtree(place.there / "dir")
    (place.there / "dir").symlink_to(outside)
    place.set({})
    place.sync()  # dir/precious was ours, but what is behind the link is not
    assert (outside / "precious").read_text() == "stay"
    place.set({b"dir": {b"precious": b"ours"}})
    place.sync()
    assert (outside / "precious").read_text() == "stay"
    assert seen(place.there) == seen(place.here)


@pytest.mark.parametrize(
    "entries",
    [
        [("../x", "f")],
        [("/etc/x", "f")],
        [("a/../../x", "f")],
        [("", "f")],
        [("a//b", "f")],
        [(".", "f")],
        [("a\0b", "f")],
        [("a", "l"), ("a/passwd", "f")],
        [("a", "f"), ("a/b", "f")],
        [("missing/b", "f")],
        [("a", "f"), ("a", "d")],
        [("a", "x")],
    ],
)
def test_hostile_packs_are_refused_before_anything_is_written(place: Place, entries: list[tuple[str, str]]) -> None:
    with pytest.raises(BadPack):
        place.hostile(*entries)
    assert seen(place.there) == {}
    assert not list(place.there.parent.glob("there.new-*"))
