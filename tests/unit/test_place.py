"""The hosts' half of a sync: random trees and edits, crashes at every step, hostile changes and packs.

The client's half stands here as small as docs/sync.md lets it be.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mesh.agent.ask.clean import _stagings
from mesh.agent.base.directories import known_tree
from mesh.agent.sync.apply import Workspace
from mesh.agent.sync.contents import Store
from mesh.agent.sync.manifest import BadChanges, Manifest, OtherBase
from mesh.agent.sync.packs import BadPack
from tests.agent.conftest import PYTHONS
from tests.conftest import REPOSITORY
from tests.full import times

Tree = dict[bytes, "Tree | bytes | tuple[str, bytes]"]
Row = list[Any]

PLAIN = [b"a", b"b", b"A", b"a-", b" ", b"-x", b"it's", b"],[", b",f,"]
ODD = [b"new\nline", b"\xff\xfe", "ü".encode(), b'"', b"\\"]  # what JSON has in another way: such a record is parsed
TARGETS = [b"a", b"../..", b"/etc/passwd", b"nowhere", b"]"]
FILES = st.binary(max_size=3)  # short: many are equal


def trees(names: list[bytes], targets: list[bytes]) -> st.SearchStrategy[Tree]:
    name, leaves = st.sampled_from(names), FILES | st.sampled_from([("link", target) for target in targets])
    return st.recursive(
        st.dictionaries(name, leaves, max_size=4),
        lambda inner: st.dictionaries(name, leaves | inner, max_size=4),
        max_leaves=8,
    )


TREES = trees(PLAIN, TARGETS) | trees(PLAIN + ODD, [*TARGETS, b"\xff"])
BLOCK = 1 << 17
RSYNC_CASES = int(os.environ.get("MESH_RSYNC_CASES", "0")) or times(5, full=15)
KILL_CASES = int(os.environ.get("MESH_KILL_CASES", "0")) or times(4, full=10)


def hash_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def text_of(entries: list[Row]) -> bytes:
    return json.dumps(entries, separators=(",", ":")).encode()


@given(
    st.dictionaries(
        st.text(st.characters(max_codepoint=255, exclude_characters="\0"), min_size=1, max_size=4)
        | st.text('a],["f', min_size=1, max_size=5),
        st.tuples(st.sampled_from("fdl"), st.sampled_from(["", "0" * 40, '","f",', "]", '"]', "\xff"])),
        max_size=6,
    )
)
@example({" ": ("l", "x["), ",": ("f", "0" * 40), "],[": ("f", "0" * 40)})
def test_a_tree_that_is_not_parsed_tells_the_same(tree: dict[str, tuple[str, str]]) -> None:
    entries = [[path, kind, 0o644, 10**18, 5, content] for path, (kind, content) in sorted(tree.items())]
    for places in (range(len(entries)), ()):
        manifest = Manifest(text_of(entries))
        assert [manifest.entry(place) for place in places] == [entries[place] for place in places]
        assert manifest.paths == [path.encode("latin-1") for path in sorted(tree)]
        assert [manifest.place_of(path) for path in sorted(tree)] == list(range(len(entries)))
        assert manifest.place_of("a") == (sorted(tree).index("a") if "a" in tree else -1)
        assert manifest.place_of("\u0100") == -1
        assert manifest.files == sum(kind == "f" for kind, _ in tree.values())
        assert manifest.entries == entries


def manifest(root: Path) -> tuple[list[Row], dict[str, bytes]]:
    """The entries of a tree, and its contents by hash."""
    entries: list[Row] = []
    contents = {}
    for path in sorted(root.rglob("*"), key=lambda path: os.fsencode(path.relative_to(root))):
        name, status = os.fsencode(path.relative_to(root)).decode("latin-1"), path.lstat()
        mode = stat.S_IMODE(status.st_mode)
        if path.is_symlink():
            entries.append([name, "l", mode, 0, 0, os.fsencode(path.readlink()).decode("latin-1")])
        elif path.is_dir():
            entries.append([name, "d", mode, status.st_mtime_ns, 0, ""])
        else:
            data = path.read_bytes()
            contents[hash_of(data)] = data
            entries.append([name, "f", mode, status.st_mtime_ns, len(data), hash_of(data)])
    return entries, contents


def changes(old: list[Row], new: list[Row], base: str = "", tree: str = "") -> bytes:
    before = {entry[0]: entry for entry in old}
    put = [entry for entry in new if before.get(entry[0]) != entry]
    drop = sorted(before.keys() - {entry[0] for entry in new})
    object_ = {"base": base, "put": put, "drop": drop, "tree": tree or hash_of(text_of(new))}
    return zlib.compress(json.dumps(object_).encode())


def write_pack(path: Path, contents: dict[str, bytes], rows: list[Row] | None = None) -> None:
    """Three contents share a member; ``rows`` instead of the right index."""
    index: list[Row] = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as pack:
        for number, start in enumerate(range(0, len(contents), 3)):
            names = list(contents)[start : start + 3]
            offset = 0
            for name in names:
                index.append([name, str(number), offset, len(contents[name]), "", []])
                offset += len(contents[name])
            pack.writestr(str(number), b"".join(contents[name] for name in names))
        random.Random(1).shuffle(index)
        pack.writestr("index.json", json.dumps(index if rows is None else rows))


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
            os.chmod(path, (0o640, 0o755, 0o000, 0o444)[len(what) % 4])
            os.utime(path, ns=(0, 10**18 + len(what)))


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
                found[relative] = ("directory", stat.S_IMODE(status.st_mode), status.st_mtime_ns)
            else:
                content = Path(os.fsdecode(path)).read_bytes()
                found[relative] = ("file", stat.S_IMODE(status.st_mode), content, status.st_mtime_ns)
    return found


def timeless(directory: Path) -> dict[bytes, tuple[object, ...]]:
    """The same, without the times of directories."""
    return {path: what[:2] if what[0] == "directory" else what for path, what in seen(directory).items()}


class Place:
    """A local workspace and its copy on a host."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.here, self.there, self.store = directory / "here", directory / "there", directory / "store"
        self.record = directory / ".there.record"
        self.here.mkdir()
        self.there.mkdir()  # as an agent does
        self.known: dict[str, list[Row]] = {}
        self.packs = 0

    def open(self) -> Workspace:
        return Workspace(str(self.there), str(self.record), str(self.store))

    def set(self, tree: Tree) -> None:
        shutil.rmtree(self.here)
        self.here.mkdir()
        grow(os.fsencode(self.here), tree)

    def plan(self, workspace: Workspace) -> list[dict[str, Any]]:
        entries, _ = manifest(self.here)
        base = known_tree(str(self.record))
        base = base if base in self.known else ""
        self.known[hash_of(text_of(entries))] = entries
        lacks: list[dict[str, Any]] = workspace.plan(changes(self.known.get(base, []), entries, base))
        return lacks

    def pack(self, lacks: list[dict[str, Any]]) -> str:
        _, contents = manifest(self.here)
        self.packs += 1
        path = self.directory / f"pack-{self.packs}"
        write_pack(path, {lack["hash"]: contents[lack["hash"]] for lack in lacks})
        return str(path)

    def sync(self, step: Callable[[str], None] = lambda what: None, *, fresh: bool = False) -> dict[str, Any]:
        """Sync, as two processes or as one; return the answer, and the hashes that were asked for."""
        workspace = self.open()
        try:
            lacks = self.plan(workspace)
        except OtherBase:  # the record was damaged, which nobody saw in its first line
            assert not known_tree(str(self.record))
            lacks = self.plan(workspace)
        asked, packs = [lack["hash"] for lack in lacks], []
        for _ in range(3):
            if lacks:
                packs.append(self.pack(lacks))
                workspace = self.open()
            answer = workspace.apply(packs, fresh, step)
            lacks = answer.lacks
            if not lacks:
                assert answer.tree == known_tree(str(self.record)) == hash_of(text_of(manifest(self.here)[0]))
                return {"changed": answer.changed, "asked": asked}
            asked += [lack["hash"] for lack in lacks]
        raise AssertionError("it never has enough")

    def beside(self) -> set[str]:
        """What lies beside the workspace."""
        return {path.name for path in self.directory.iterdir() if not path.name.startswith("pack-")}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_first_tree_is_moved_as_it_is(place: Place) -> None:
    place.set({b"a": {b"b": b"1", b"c": {b"d": b"2"}}, b"e": b"3"})
    steps: list[str] = []
    place.sync(steps.append)
    assert seen(place.there) == seen(place.here)
    assert steps.count("replace") == 2


@settings(max_examples=times(40, full=150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees=st.lists(TREES, min_size=1, max_size=4), is_bare=st.booleans())
def test_the_copy_equals_the_tree_after_any_edits(
    tmp_path_factory: pytest.TempPathFactory, trees: list[Tree], is_bare: bool
) -> None:
    place = Place(tmp_path_factory.mktemp("place"))
    if not is_bare:
        (place.there / "made there").mkdir()
    asked: list[str] = []
    for tree in trees:
        place.set(tree)
        asked += place.sync()["asked"]
        assert seen(place.there, without="made there") == seen(place.here)
        again = {path: path.lstat() for path in place.there.rglob("*")}
        assert place.sync()["changed"] == 0
        assert again == {path: path.lstat() for path in place.there.rglob("*")}
    assert len(asked) == len(set(asked))  # what a host had once is there for good
    assert place.beside() <= {"here", "there", ".there.record", ".there.record.plan", "store"}


@settings(max_examples=times(25, full=60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=TREES, after=TREES, made=st.dictionaries(st.sampled_from([b"made", b"z"]), st.binary(), max_size=2))
def test_what_the_host_made_stays_whatever_was_edited(
    tmp_path_factory: pytest.TempPathFactory, before: Tree, after: Tree, made: dict[bytes, bytes]
) -> None:
    place = Place(tmp_path_factory.mktemp("place"))
    place.set(before)
    place.sync()
    inside = [path for path in place.there.rglob("*") if path.is_dir() and not path.is_symlink()]
    for directory in [place.there, *inside]:
        for name, data in made.items():
            (directory / os.fsdecode(name)).write_bytes(data)
    found = {path: what for path, what in seen(place.there).items() if path.rpartition(b"/")[2] in made}
    place.set(after)
    place.sync()
    expected, now = timeless(place.here), timeless(place.there)
    for path, what in found.items():
        parent = path
        while parent and expected.get(parent, ("directory",))[0] == "directory":
            parent = os.path.dirname(parent)
        if not parent:  # nothing of the tree takes its place
            assert now.pop(path) == what
    for path in [path for path, what in now.items() if path not in expected and what[0] == "directory"]:
        assert any(other.startswith(path + b"/") for other in found)  # it stays for what was made in it
        del now[path]
    assert now == expected
    place.sync(fresh=True)
    assert seen(place.there) == seen(place.here)


def test_what_the_host_made_stays(place: Place) -> None:
    place.set({b"src": {b"a.py": b"1", b"old.py": b"2"}, b"gone": {b"x": b""}})
    place.sync()
    (place.there / "checkpoint").write_text("made there")
    (place.there / "src/made.pyc").write_text("made there")
    (place.there / "gone/made").write_text("made there")
    (place.there / "deep/er").mkdir(parents=True)
    (place.there / "deep/er/x").symlink_to("/etc")
    (place.there / "deep/er").chmod(0o000)
    place.set({b"src": {b"a.py": b"changed"}})
    place.sync()
    assert (place.there / "src/a.py").read_text() == "changed"
    found = {b"src", b"src/a.py", b"src/made.pyc", b"checkpoint", b"gone", b"gone/made", b"deep", b"deep/er"}
    assert set(seen(place.there)) == found | {b"deep/er/x"}
    place.sync(fresh=True)
    assert seen(place.there) == seen(place.here)


class Editor:
    """Edits a tree at random."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.random = root, random.Random(seed)

    def edit(self) -> None:
        random_ = self.random
        paths = sorted(self.root.rglob("*"))
        directories = [self.root, *(path for path in paths if path.is_dir() and not path.is_symlink())]
        files = [path for path in paths if path.is_file() and not path.is_symlink()]
        new = random_.choice(directories) / f"{random_.choice('abcAB')}{random_.randrange(4)}"
        what = random_.randrange(10)
        if what < 3 and not os.path.lexists(new):
            new.write_bytes(random_.randbytes(random_.choice([0, 1, 100, 5000])))
        elif what == 3 and not os.path.lexists(new):
            new.mkdir()
        elif what == 4 and not os.path.lexists(new):
            new.symlink_to(random_.choice(["a1", "..", "/etc", "nowhere"]))
        elif what == 5 and files:  # the same size and time
            file = random_.choice(files)
            status = file.stat()
            file.write_bytes(random_.randbytes(status.st_size))
            os.utime(file, ns=(0, status.st_mtime_ns))
        elif what == 6 and files and not os.path.lexists(new):
            random_.choice(files).rename(new)
        elif what == 7 and paths:
            path = random_.choice(paths)
            if not path.is_symlink():
                path.chmod(random_.choice([0o755, 0o700, 0o500] if path.is_dir() else [0o644, 0o400, 0o6755]))
        elif what == 8 and paths:
            path = random_.choice(paths)
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        elif what == 9 and paths:  # one thing in the place of another
            path = random_.choice(paths)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
                path.write_bytes(b"a file now")
            else:
                path.unlink()
                path.mkdir()
                (path / "in").write_bytes(b"inside")


@pytest.mark.skipif(not shutil.which("rsync"), reason="no rsync here")
@pytest.mark.parametrize("seed", range(RSYNC_CASES))
def test_the_copy_equals_that_of_rsync(place: Place, seed: int) -> None:
    other = place.directory / "rsync"
    editor = Editor(place.here, seed)
    for _ in range(4):
        for _ in range(editor.random.randrange(1, 25)):
            editor.edit()
        subprocess.run(["rsync", "-a", "--checksum", "--delete", f"{place.here}/", f"{other}/"], check=True)
        place.sync()
        assert seen(place.there) == seen(place.here)
        assert timeless(place.there) == timeless(other)  # rsync does not keep the time of every directory


def test_a_file_where_a_directory_was_and_the_reverse(place: Place) -> None:
    place.set({b"one": {b"x": b"1"}, b"two": b"2"})
    place.sync()
    (place.there / "one/made").write_text("made there")
    (place.there / "one/deep").mkdir(mode=0o000)
    place.set({b"one": b"a file now", b"two": {b"y": b"3"}})
    place.sync()
    assert seen(place.there) == seen(place.here)


def as_nobody(place: Place, work: Callable[[], None]) -> None:
    """Do it in a process that is not root, which may read and write everything."""
    for directory in (place.directory, *place.directory.parents):
        if directory != Path("/tmp") and directory != Path("/"):
            directory.chmod(0o755)
    pid = os.fork()
    if not pid:
        status = 1
        try:
            if not os.geteuid():
                subprocess.run(["chown", "-hR", "65534:65534", str(place.directory)], check=True)
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            work()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_read_only_directories_and_unreadable_files_for_a_plain_user(place: Place) -> None:
    def work() -> None:
        place.set({b"locked": {b"x": b"1", b"y": b"2", b"in": {b"z": b"3"}, b"old": {b"z": b"4"}}, b"secret": b"5"})
        (place.here / "locked/in").chmod(0o555)
        (place.here / "locked/old").chmod(0o555)
        (place.here / "locked").chmod(0o555)
        place.sync()
        assert seen(place.there) == seen(place.here)
        (place.there / "locked/old").chmod(0o755)
        (place.there / "locked/old/made").write_text("made there")
        (place.there / "locked/old").chmod(0o555)
        (place.there / "secret").chmod(0o000)
        for name in ("locked", "locked/in", "locked/old"):
            (place.here / name).chmod(0o755)
        place.set({b"locked": {b"y": b"changed", b"in": {b"z": b"3", b"new": b"6"}}, b"secret": b"5", b"copy": b"5"})
        (place.here / "locked/in").chmod(0o555)
        (place.here / "locked").chmod(0o555)
        place.sync()
        assert seen(place.there, without="old") == seen(place.here)
        assert (place.there / "locked/old/made").read_text() == "made there"
        assert (place.there / "locked/old").stat().st_mode & 0o777 == 0o555
        place.sync(fresh=True)
        assert seen(place.there) == seen(place.here)

    as_nobody(place, work)


def test_a_tree_deeper_than_python_recurses(place: Place) -> None:
    deep = "/".join("d" * (sys.getrecursionlimit() + 50))
    entries = [[deep[: n + 1], "d", 0o755, 0, 0, ""] for n in range(0, len(deep), 2)]
    place.open().plan(changes([], entries))
    assert place.open().apply([]).changed == len(entries)
    assert (place.there / deep).is_dir()
    place.open().plan(changes([], []))
    place.open().apply([])
    assert seen(place.there) == {}


def test_a_running_program_keeps_its_file(place: Place) -> None:
    place.set({b"program": b"old"})
    place.sync()
    with (place.there / "program").open("rb") as running:
        place.set({b"program": b"new and longer"})
        place.sync()
        assert running.read() == b"old"


def killed_at(place: Place, step: int) -> int:
    """Sync in a process that is killed at a step; how it ended: 9, or 0 if there are fewer steps."""
    pid = os.fork()
    if not pid:
        left = iter(range(step))
        place.sync(lambda what: None if next(left, -1) >= 0 else os._exit(9))
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert ended in (0, 9)
    return ended


def test_a_kill_at_every_step_is_completed_by_the_next_sync(tmp_path: Path) -> None:
    before: Tree = {
        b"a": {b"x": b"1", b"y": b"2222"},
        b"b": b"333",
        b"c": {b"z": b"44"},
        b"d": ("link", b"b"),
        b"g": {b"deep": {b"f": b"5"}},
    }
    after: Tree = {
        b"a": {b"x": b"changed", b"moved": b"2222"},
        b"b": {b"in": b"555"},
        b"c": b"a file",
        b"d": ("link", b"e"),
        b"e": b"333",
        b"h": {b"f": b"5"},
    }
    killed, steps = 9, 0
    while killed:
        place = Place(tmp_path / str(steps))
        place.set(before)
        place.sync()
        (place.there / "made").write_text("made there")
        place.set(after)
        killed = killed_at(place, steps)
        place.known[hash_of(text_of(manifest(place.here)[0]))] = manifest(place.here)[0]
        place.sync()
        assert seen(place.there, without="made") == seen(place.here)
        assert (place.there / "made").read_text() == "made there"
        assert not [name for name in place.beside() if ".new" in name]
        steps += 1
    assert steps > 25


def test_a_kill_at_every_step_of_the_first_sync(tmp_path: Path) -> None:
    tree: Tree = {b"a": {b"x": b"1", b"y": b"1", b"in": {}}, b"b": b"333", b"d": ("link", b"b")}
    killed, steps = 9, 0
    while killed:
        place = Place(tmp_path / str(steps))
        place.set(tree)
        killed = killed_at(place, steps)
        place.sync()
        assert seen(place.there) == seen(place.here)
        assert not [name for name in place.beside() if ".new" in name]
        steps += 1
    assert steps > 10


@pytest.mark.parametrize("seed", range(KILL_CASES))
def test_kills_and_edits_by_turns(place: Place, seed: int) -> None:
    editor = Editor(place.here, seed)
    for _ in range(6):
        for _ in range(10):
            editor.edit()
        killed_at(place, editor.random.randrange(40))
        if editor.random.randrange(2):
            place.sync()
            assert seen(place.there) == seen(place.here)
    place.sync()
    assert seen(place.there) == seen(place.here)


def test_a_staging_that_a_killed_sync_left_is_removed(place: Place) -> None:
    place.set({b"a": b"1"})
    other = place.directory / ".there.new-another.new-999"  # that of the workspace there.new-another
    other.mkdir()
    stale = place.directory / ".there.new-999"
    stale.mkdir()
    (stale / "1").write_text("half")
    place.sync()
    assert not stale.exists()
    assert other.exists()


def test_a_staging_in_which_somebody_writes_is_no_leftover(tmp_path: Path) -> None:
    """Somebody on another machine that shares the file system, so that there is no such process here."""
    nobody = int(Path("/proc/sys/kernel/pid_max").read_text())
    (tmp_path / f".one.new-{nobody}/tree/deep").mkdir(parents=True)
    (tmp_path / f".two.new-{nobody}/tree/deep").mkdir(parents=True)
    long_ago = time.time() - 7200
    for directory in tmp_path.rglob("*"):
        if directory != tmp_path / f".one.new-{nobody}/tree/deep":
            os.utime(directory, (long_ago, long_ago))
    assert _stagings(str(tmp_path)) == [str(tmp_path / f".two.new-{nobody}")]


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
    place.sync(fresh=True)
    (place.there / "made").symlink_to(outside)
    place.sync(fresh=True)
    assert (outside / "precious").read_text() == "stay"


def test_a_link_in_the_place_of_a_directory_is_not_followed(place: Place) -> None:
    outside = place.directory / "outside"
    (outside / "in").mkdir(parents=True, mode=0o700)
    place.set({b"dir": {b"in": {b"x": b"1"}}})
    (place.here / "dir/in").chmod(0o555)
    place.sync()
    place.set({b"dir": ("link", os.fsencode(outside))})
    place.sync()
    assert seen(place.there) == seen(place.here)
    assert (outside / "in").stat().st_mode & 0o777 == 0o700


def test_blocks_of_zeros_become_holes(place: Place) -> None:
    data = bytes(8 << 20)
    random_ = random.Random(1).randbytes(100_000)
    place.set({b"a": data + random_ + data, b"b": random_ + data, b"c": data, b"d": bytes(70_001), b"e": bytes(10)})
    place.sync()
    assert seen(place.there) == seen(place.here)
    for name in "abcd":
        assert (place.there / name).stat().st_blocks * 512 < 400_000
    place.set({b"copy": data + random_ + data, b"c": bytes(80_000) + b"x"})
    assert len(place.sync()["asked"]) == 1
    assert seen(place.there) == seen(place.here)
    assert (place.there / "copy").stat().st_blocks * 512 < 400_000


def test_nothing_is_removed_behind_a_workspace_that_is_a_link(place: Place) -> None:
    place.set({b"dir": {b"x": b"1"}, b"gone": b"2"})
    place.sync()
    outside = place.directory / "outside"
    place.there.rename(outside)
    place.there.symlink_to(outside)
    (outside / "dir/made").write_text("stay")
    place.set({b"dir": {b"x": b"3"}})
    with pytest.raises(OSError, match="--fresh deletes nothing behind a symbolic link"):
        place.sync(fresh=True)
    assert (outside / "gone").exists()
    place.sync()
    assert not (outside / "gone").exists()
    assert (outside / "dir/x").read_bytes() == b"3"
    assert (outside / "dir/made").read_text() == "stay"


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="there is no other file system")
def test_a_workspace_may_be_a_link_to_another_file_system(place: Place) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        assert os.stat(elsewhere).st_dev != os.stat(place.directory).st_dev
        outside = Path(elsewhere, "outside")
        outside.mkdir()
        place.there.rmdir()
        place.there.symlink_to(outside)
        for tree in ({b"a": b"1", b"d": {b"b": b"2"}}, {b"a": b"3", b"d": {b"c": b"2"}}, {b"b": b"1"}):
            place.set(tree)
            place.sync()
            assert seen(place.there) == seen(place.here)
        assert [path.name for path in Path(elsewhere).iterdir()] == ["outside"]


def test_a_directory_moved_away_and_linked_is_made_anew(place: Place) -> None:
    """What is behind the link has the same inodes as what we put there."""
    place.set({b"dir": {b"x": b"1", b"in": {b"y": b"2"}}})
    place.sync()
    moved = place.directory / "moved"
    (place.there / "dir").rename(moved)
    (place.there / "dir").symlink_to(moved)
    place.sync()
    assert seen(place.there) == seen(place.here)
    assert (moved / "x").read_bytes() == b"1"


def test_renamed_copied_and_reverted_files_lack_nothing(place: Place) -> None:
    place.set({b"a": b"content", b"b": {b"c": b"other"}})
    assert len(place.sync()["asked"]) == 2
    for tree in (
        {b"renamed": b"content", b"b": {b"c": b"other"}},
        {b"renamed": b"content", b"copy": b"content", b"b": {b"c": b"other"}},
        {b"moved": {b"c": b"other"}, b"renamed": b"other", b"x": b"content"},  # contents change places
        {},
        {b"a": b"content", b"b": {b"c": b"other"}},
    ):
        place.set(tree)  # type: ignore[arg-type]
        assert place.sync()["asked"] == []
        assert seen(place.there) == seen(place.here)


def test_what_did_not_change_is_not_touched(place: Place) -> None:
    place.set({b"same": b"1", b"mode": b"2", b"changed": b"3"})
    place.sync()
    before = {path.name: path.lstat() for path in place.there.iterdir()}
    (place.here / "mode").chmod(0o700)
    (place.here / "changed").write_bytes(b"4")
    assert place.sync()["changed"] == 2
    after = {path.name: path.lstat() for path in place.there.iterdir()}
    assert after["same"] == before["same"]
    assert after["mode"].st_ino == before["mode"].st_ino
    assert seen(place.there) == seen(place.here)


def test_what_the_host_edited_deleted_or_replaced_is_repaired(place: Place) -> None:
    place.set({b"edited": b"12", b"gone": b"34", b"dir": {b"x": b"5"}, b"mode": b"6", b"d": {}, b"l": ("link", b"a")})
    place.sync()
    before = (place.there / "edited").stat()
    (place.there / "edited").write_bytes(b"21")  # the same size, and then the same time
    os.utime(place.there / "edited", ns=(before.st_mtime_ns, before.st_mtime_ns))
    (place.there / "gone").unlink()
    shutil.rmtree(place.there / "dir")
    (place.there / "dir").write_text("a file")
    (place.there / "mode").chmod(0o777)
    (place.there / "d").rmdir()
    (place.there / "l").unlink()
    (place.there / "l").mkdir()
    assert place.sync()["changed"] == 7
    assert seen(place.there) == seen(place.here)
    assert not (place.store / hash_of(b"21")).exists()


def test_a_file_that_was_only_touched_there_travels_nothing(place: Place) -> None:
    place.set({b"a": b"1"})
    place.sync()
    (place.there / "a").touch()
    assert place.sync()["asked"] == []
    assert seen(place.there) == seen(place.here)


@pytest.mark.parametrize("damage", [b"", b"xxx", b"longer"])
def test_a_damaged_store_is_found_out(place: Place, damage: bytes) -> None:
    place.set({b"a": b"old"})
    place.sync()
    place.set({b"a": b"new"})
    place.sync()
    kept = place.store / hash_of(b"old")
    assert kept.read_bytes() == b"old"
    kept.write_bytes(damage)
    place.set({b"a": b"old"})
    assert place.sync()["asked"] == [hash_of(b"old")]
    assert seen(place.there) == seen(place.here)
    assert not kept.exists()


def test_contents_that_vanish_between_plan_and_apply_are_asked_for(place: Place) -> None:
    place.set({b"a": b"1"})
    place.sync()
    place.set({b"b": b"1"})
    workspace = place.open()
    assert place.plan(workspace) == []
    (place.there / "a").write_bytes(b"2")
    lacks = workspace.apply([]).lacks
    assert lacks == [{"hash": hash_of(b"1"), "size": 1}]
    assert (place.there / "a").exists()
    workspace.apply([place.pack(lacks)])  # which is told of again: nobody remembers the plan but its file
    assert seen(place.there) == seen(place.here)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-20],
        lambda data: data.replace(b'"a"', b'"b"'),
        lambda data: data.replace(b"\n", b" "),
        lambda data: b"\xff" + data,
        lambda data: data[: data.rindex(b"\n")] + b"\n[1,2]",
        lambda data: data[: data.rindex(b"\n")] + b'\n["x","y","z","u","v"]',
        lambda data: data.split(b" clean")[0] + b" dirty\n" + data.split(b"\n")[1] + b"\n[1,2]",
        lambda data: data.split(b" clean")[0] + b" dirty\n" + data.split(b"\n")[1] + b"\n7",
    ],
)
def test_a_damaged_record_costs_nothing_but_a_look_at_everything(
    place: Place, damage: Callable[[bytes], bytes]
) -> None:
    place.set({b"a": b"1"})
    place.sync()
    place.record.write_bytes(damage(place.record.read_bytes()))
    (place.there / "a").write_bytes(b"2")
    place.set({b"a": b"1", b"c": b"3"})
    place.sync()
    assert seen(place.there) == seen(place.here)


def test_a_dirty_record_may_not_lead_outside(place: Place) -> None:
    (place.directory / "precious").write_text("stay")
    text = text_of([])
    place.record.write_bytes(hash_of(text).encode() + b" dirty\n" + text + b'\n["../precious"]')
    place.set({b"a": b"1"})
    place.sync()
    assert (place.directory / "precious").read_text() == "stay"


def test_hosts_that_share_the_file_system_write_once(place: Place) -> None:
    place.set({b"a": b"1"})
    place.sync()
    place.set({b"a": b"2", b"b": b"3"})
    one, two = place.open(), place.open()
    lacks = place.plan(one)
    assert place.plan(two) == lacks
    pack = place.pack(lacks)
    assert one.apply([pack]).changed == 2
    after = (place.there / "a").lstat()
    late = place.open()
    old = place.known[next(tree for tree in place.known if tree != known_tree(str(place.record)))]
    new = place.known[known_tree(str(place.record))]
    assert late.plan(changes(old, new, hash_of(text_of(old)))) == []  # it told of what it had before
    for workspace in (place.open(), late):
        assert workspace.apply([pack]).changed == 0
    assert (place.there / "a").lstat() == after


FILE = ["f", 0o644, 0, 1, hash_of(b"x")]


@pytest.mark.parametrize(
    "entries",
    [
        [["../x", *FILE]],
        [["/etc/x", *FILE]],
        [["a/../../x", *FILE]],
        [["", *FILE]],
        [["a//b", *FILE]],
        [["a/", *FILE]],
        [[".", "d", 0o755, 0, 0, ""]],
        [["a\0b", *FILE]],
        [["\u20ac", *FILE]],
        [["a", "l", 0o777, 0, 0, "/etc"], ["a/passwd", *FILE]],
        [["a", *FILE], ["a/b", *FILE]],
        [["missing/b", *FILE]],
        [["a", *FILE], ["a", "d", 0o755, 0, 0, ""]],
        [["a", "x", 0o644, 0, 0, ""]],
        [["a", "f", 0o10000, 0, 1, hash_of(b"x")]],
        [["a", "f", -1, 0, 1, hash_of(b"x")]],
        [["a", "f", 0o644, 1 << 63, 1, hash_of(b"x")]],
        [["a", "f", 0o644, 0, -1, hash_of(b"x")]],
        [["a", "f", 0o644, 0, True, hash_of(b"x")]],
        [["a", "f", 0o644, 0, 1, "../../x"]],
        [["a", "f", 0o644, 0, 1]],
        [["a", "l", 0o777, 0, 0, ""]],
        [["a", "l", 0o777, 0, 0, "a\0b"]],
        [["a", "d", 0o755, 0, 0, "x"]],
        [[["a"], *FILE]],
        ["abcdef"],
        [None],
    ],
)
def test_hostile_changes_are_refused_before_anything_is_written(place: Place, entries: list[Row]) -> None:
    body = {"base": "", "put": entries, "drop": [], "tree": hash_of(text_of(entries))}
    with pytest.raises(BadChanges):
        place.open().plan(zlib.compress(json.dumps(body).encode()))
    assert seen(place.there) == {}
    assert place.beside() == {"here", "there"}


def test_changes_must_fit(place: Place) -> None:
    place.set({b"a": b"1", b"d": {b"x": b"2"}})
    place.sync()
    before = seen(place.there)
    entries = manifest(place.here)[0]
    tree = known_tree(str(place.record))
    for bad in (
        b"",
        b"no zlib",
        zlib.compress(b"[]"),
        zlib.compress(b"{}"),
        zlib.compress(b"{"),
        changes(entries, entries, tree)[:-4],
        changes([], entries, hash_of(b"another"), hash_of(b"")),  # another base
        changes(entries, entries[:1], tree, tree[::-1]),  # another tree
        changes(entries, [entries[0], entries[2]], tree),  # a file in a directory that is gone
        changes([*entries, ["z", *FILE]], entries, tree, hash_of(b"")),  # to be dropped, and not there
        changes(entries, [], "", hash_of(b"")),
    ):
        with pytest.raises(BadChanges):
            place.open().plan(bad)
    assert seen(place.there) == before


@pytest.mark.parametrize(
    ("rows", "member"),
    [
        ([[hash_of(b"x"), "0", 0, 1, "", []]], b"y"),  # another hash
        ([[hash_of(b"x"), "0", 0, 2, "", []]], b"xx"),  # another size
        ([[hash_of(b"x"), "0", 0, 1, "", []]], b""),
        ([[hash_of(b"x"), "0", -1, 1, "", []]], b"x"),
        ([[hash_of(b"x"), "0", 5, 1, "", []]], b"x"),
        ([[hash_of(b"x"), "1", 0, 1, "", []]], b"x"),  # no such member
        ([["../x", "0", 0, 1, "", []]], b"x"),
        ([[hash_of(b"x"), "0", 0, 1, "../x", []]], b"x"),
        ([[hash_of(b"x"), "0", 0, 0, hash_of(b"old"), [[2, 2]]]], b""),  # outside the base
        ([[hash_of(b"x"), "0", 0, 0, hash_of(b"old"), [[3, 1]]]], b""),
        ([[hash_of(b"x"), "0", 0, 0, hash_of(b"old"), [[1 << 70, 1]]]], b""),
        ([[hash_of(b"x"), "0", 0, 0, hash_of(b"old"), [[-5, 1]]]], b""),
        ([[hash_of(b"x"), "0", 0, 0, hash_of(b"old"), [[0, 2], [0, -1]]]], b""),
        ([[hash_of(b"x"), "0", 0, 0, hash_of(b"old"), [[0, 1]]]], b""),  # another hash
        ([[hash_of(b"x"), "0", 0, 1 << 40, "", []]], bytes(1 << 20)),  # a bomb
        ([[hash_of(b"x"), "0", 0, 1, "", [0]], None], b"x"),
        (None, b"x"),
    ],
)
def test_hostile_packs_change_nothing(place: Place, rows: list[Row] | None, member: bytes) -> None:
    place.set({b"a": b"old"})
    place.sync()
    before = seen(place.there)
    place.set({b"a": b"x"})
    assert len(place.plan(place.open())) == 1
    pack = place.directory / "pack-hostile"
    if rows is None:
        pack.write_bytes(b"no zip")
    else:
        write_pack(pack, {hash_of(member): member}, rows)
    with pytest.raises(BadPack):
        place.open().apply([str(pack)])
    assert seen(place.there) == before
    assert not [name for name in place.beside() if ".new" in name]
    assert known_tree(str(place.record)) in place.known


def large(place: Place) -> tuple[bytes, bytes]:
    """A large file is there, and a block of it is to change."""
    old = random.Random(7).randbytes(10 * BLOCK + 1000)
    new = old[: 4 * BLOCK] + b"changed" + old[5 * BLOCK :]
    (place.here / "model").write_bytes(old)
    place.sync()
    (place.here / "model").write_bytes(new)
    return old, new


def delta(place: Place, old: bytes, new: bytes) -> str:
    path = place.directory / "pack-delta"
    operations = [[0, 4 * BLOCK], [-1, 7], [5 * BLOCK, len(old) - 5 * BLOCK]]
    write_pack(path, {"": b"changed"}, [[hash_of(new), "0", 0, 7, hash_of(old), operations]])
    return str(path)


def test_a_large_file_that_changed_a_little_is_asked_for_by_blocks(place: Place) -> None:
    old, new = large(place)
    (lack,) = place.plan(place.open())
    blocks = [old[n * BLOCK : (n + 1) * BLOCK] for n in range(10)]
    ends = [old[len(old) - (n + 1) * BLOCK : len(old) - n * BLOCK] for n in range(10)]
    assert lack == {
        "hash": hash_of(new),
        "size": len(new),
        "base": hash_of(old),
        "base_size": len(old),
        "head": [hash_of(block) for block in blocks],
        "tail": [hash_of(block) for block in ends],
    }
    assert place.open().apply([delta(place, old, new)]).changed == 1
    assert seen(place.there) == seen(place.here)


def test_a_base_that_the_host_changed_meanwhile_is_no_base(place: Place) -> None:
    old, new = large(place)
    place.plan(place.open())
    before = (place.there / "model").stat()
    with (place.there / "model").open("r+b") as file:
        file.write(b"edited")
    os.utime(place.there / "model", ns=(before.st_mtime_ns, before.st_mtime_ns))
    assert place.open().apply([delta(place, old, new)]).lacks == [{"hash": hash_of(new), "size": len(new)}]
    place.sync()
    assert seen(place.there) == seen(place.here)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system can only be mounted by root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_changes_nothing_and_the_next_sync_completes(tmp_path: Path, small_disk: Path) -> None:
    place = Place(tmp_path / "place")
    place.there, place.store = small_disk / "there", small_disk / "store"
    place.record = small_disk / ".there.record"
    place.there.mkdir()
    place.set({b"a": b"1", b"b": b"2"})
    place.sync()
    before = seen(place.there)
    (place.there / "made").write_bytes(random.randbytes(2 << 20))
    place.set({b"a": random.randbytes(1 << 20), b"b": random.randbytes(1 << 20), b"c": random.randbytes(500_000)})
    with pytest.raises(OSError, match="No space left"):
        place.sync()
    assert seen(place.there, without="made") == before
    assert {path.name for path in small_disk.iterdir()} <= {"there", "store", ".there.record", ".there.record.plan"}
    assert known_tree(str(place.record)) in place.known
    (place.there / "made").unlink()
    place.sync()
    assert seen(place.there) == seen(place.here)


def test_the_store_forgets_what_was_used_least_recently(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    contents = [bytes([n]) * 100 for n in range(5)]
    for number, data in enumerate(contents):
        (tmp_path / "file").write_bytes(data)
        assert store.keep(os.fsencode(tmp_path / "file"), hash_of(data))
        os.utime(store.path(hash_of(data)), ns=(0, number))
    assert store.take(hash_of(contents[0]), str(tmp_path / "taken"))
    assert (tmp_path / "taken").read_bytes() == contents[0]
    store.trim()
    assert all(store.has(hash_of(data), 100) for data in contents)
    store.trim(250)
    assert [store.has(hash_of(data), 100) for data in contents] == [True, False, False, False, True]
    store.trim(0)
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["kept"]


def test_the_store_is_counted_when_too_much_may_have_come(tmp_path: Path, small_disk: Path) -> None:
    (small_disk / "new").write_bytes(b"")
    for number in range(20):
        store = Store(str(small_disk / "store"))  # its limit is a tenth of the disk
        data = bytes([number]) * 50_000
        (small_disk / "new").write_bytes(data)
        assert store.keep(os.fsencode(small_disk / "new"), hash_of(data))
        store.trim()
    files = [path for path in (small_disk / "store").iterdir() if len(path.name) == 40]
    assert 4 <= len(files) <= 8
    (small_disk / "new").write_bytes(bytes(1 << 20))
    assert not store.keep(os.fsencode(small_disk / "new"), hash_of(bytes(1 << 20)))  # all else would have to go


def test_a_store_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    store = Store(str(tmp_path / "file" / "store"))
    assert not store.keep(os.fsencode(tmp_path / "file"), hash_of(b"1"))
    assert not store.take(hash_of(b"1"), str(tmp_path / "taken"))
    store.trim()
    assert (tmp_path / "file").read_bytes() == b"1"


SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from mesh.agent.base.directories import known_tree
from mesh.agent.sync.apply import Workspace
there, record, store, changes, pack = sys.argv[2:]
workspace = Workspace(there, record, store)
with open(changes, "rb") as file:
    lacks = workspace.plan(file.read())
answer = Workspace(there, record, store).apply([pack])
print(json.dumps([len(lacks), answer.files, answer.tree == known_tree(record)]))
"""


@pytest.mark.parametrize("version", PYTHONS)
def test_each_python(place: Place, version: str) -> None:
    place.set({b"a": b"1", b"d": {b"\xff": b"22"}, b"l": ("link", b"a")})
    entries, contents = manifest(place.here)
    (place.directory / "changes").write_bytes(changes([], entries))
    write_pack(place.directory / "pack", contents)
    folder = str(REPOSITORY)
    paths = [place.there, place.record, place.store, place.directory / "changes", place.directory / "pack"]
    command = [PYTHONS[version], "-I", "-W", "error", "-c", SCRIPT, folder, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[2, 2, true]\n", "")
    assert seen(place.there) == seen(place.here)


def about(path: Path) -> tuple[int, int, bytes]:
    status = path.lstat()
    return stat.S_IMODE(status.st_mode), status.st_mtime_ns, path.read_bytes()


@pytest.mark.parametrize("known", [False, True])  # to the last sync
@pytest.mark.parametrize("edit", ["mode", "time", "content", "deleted"])
def test_hard_links_of_the_host_are_not_changed_with_their_file(place: Place, edit: str, known: bool) -> None:
    place.set({b"a": b"1", b"b": b"2"})
    place.sync()
    (place.there / "snapshot").mkdir()
    other = place.there / "snapshot/a"
    other.hardlink_to(place.there / "a")
    before = about(other)
    if known:
        place.sync()
    if edit == "mode":
        (place.here / "a").chmod(0o711)
    elif edit == "time":
        os.utime(place.here / "a", ns=(5, 5))
    elif edit == "content":
        (place.here / "a").write_bytes(b"3")
    else:
        (place.here / "a").unlink()
    assert len(place.sync()["asked"]) == (edit == "content")
    assert about(other) == before
    assert other.stat().st_nlink == 1
    assert (place.there / "a").exists() == (edit != "deleted")
    if edit != "deleted":
        assert about(place.there / "a") == about(place.here / "a")
    assert place.sync()["changed"] == 0


def test_a_new_name_of_a_file_is_no_reason_to_copy_it(place: Place) -> None:
    place.set({b"a": b"1"})
    place.sync()
    (place.there / "other").hardlink_to(place.there / "a")
    inode = (place.there / "a").stat().st_ino
    place.sync()
    assert (place.there / "a").stat().st_ino == inode
