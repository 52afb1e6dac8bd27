"""What is sent of a workspace: manifests and changes, the cache of hashes, packs and the blocks of large files."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import socket
import subprocess
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.core.errors import MeshError
from mesh.core.paths import cache_directory
from mesh.workspace.git import asked_git
from mesh.workspace.hashes import MANIFESTS_KEPT, HashCache
from mesh.workspace.listing import Listing, list_workspace
from mesh.workspace.manifest import (
    FEW_CONTENTS,
    Entry,
    Manifest,
    changes,
    contents_in,
    hash_of,
    manifest_of,
    not_in,
    read_manifest,
)
from mesh.workspace.pack import BLOCK_BYTES, Changed, Want, find_operations, read_wants
from mesh.workspace.prepare import FEW_FILES, Prepared, make_manifest, prepare
from tests.conftest import own_children

OLD = 1_700_000_000_000_000_000  # nanoseconds since the epoch
# Among them some that have in them what stands between two entries in JSON.
PATHS = st.lists(st.sampled_from(["a", "b", "/", "\xff", "\n", '"', "\\", "],[", '],["a']), min_size=1, max_size=4).map(
    "".join
)
ENTRIES = st.builds(
    Entry, PATHS, st.sampled_from("fdl"), st.just(0o644), st.integers(0, 3), st.integers(0, 3), st.sampled_from("xyz")
)
TREES = st.lists(ENTRIES, max_size=8, unique_by=lambda entry: entry.path).map(manifest_of)


def apply(base: Manifest | None, data: bytes) -> Manifest:
    """What a host does with changes."""
    told = json.loads(zlib.decompress(data))
    assert told["base"] == (base.tree if base else "")
    entries = {entry.path: entry for entry in base.entries} if base else {}
    for path in told["drop"]:
        del entries[path]
    entries |= {row[0]: Entry(*row) for row in told["put"]}
    new = manifest_of(entries.values())
    assert new.tree == told["tree"]
    return new


@given(TREES | st.none(), TREES)
def test_changes_make_the_new_manifest_of_the_old_one(base: Manifest | None, new: Manifest) -> None:
    found = changes(base, new)
    assert apply(base, found.to_bytes()) == new
    had = {entry.path: entry for entry in base.entries} if base else {}
    assert found.put == [entry for entry in new.entries if had.pop(entry.path, None) != entry]
    assert found.drop == list(had)
    assert json.loads(zlib.decompress(changes(new, new).to_bytes())) == {
        "base": new.tree,
        "put": [],
        "drop": [],
        "tree": new.tree,
    }


@given(st.lists(st.binary(min_size=20, max_size=20), max_size=40), st.sets(st.binary(min_size=20, max_size=20)))
def test_which_contents_are_in_no_manifest(known: list[bytes], others: set[bytes]) -> None:
    entries = [Entry(str(number), "f", 0o644, 0, 1, one.hex()) for number, one in enumerate(known)]
    entries.append(Entry("d", "d", 0o755, 0, 0, ""))
    data = contents_in(manifest_of(entries).to_json())
    assert not_in(data, {one.hex() for one in known}) == set()
    wanted = {one.hex() for one in [*known, *others]}
    left = not_in(data, wanted)
    new = {one.hex() for one in others - set(known)}
    assert left == new if len(wanted) > FEW_CONTENTS else left <= new


@given(TREES)
def test_a_manifest_survives_json(manifest: Manifest) -> None:
    read = read_manifest(manifest.to_json())
    assert (read, read.entries) == (manifest, manifest.entries)
    assert hash_of(manifest.to_json()) == manifest.tree


class Place:
    """A workspace and its cache."""

    def __init__(self, directory: Path) -> None:
        self.root, self.cached = directory / "work", directory / "cache"
        self.root.mkdir()

    def write(self, **files: bytes) -> None:
        for name, data in files.items():
            (self.root / name).write_bytes(data)

    def cache(self) -> HashCache:
        return HashCache(self.root, self.cached)

    def prepare(self) -> Prepared:
        return prepare(self.root, (), self.cache())

    def settled(self) -> Manifest:
        """The manifest, as if all files had been changed long ago; the cache knows them all."""
        return make_manifest(self.some_time_later(), self.cache())

    def some_time_later(self) -> Listing:
        """The files, as if they were listed then."""
        listing = list_workspace(self.root, ())
        later = max(entry.ctime_ns for entry in listing.entries) + 3_000_000_000
        return Listing(listing.root, listing.entries, (), later)

    def read(self) -> list[str]:
        """The files that are read now, as the cache does not know them."""
        seen: list[str] = []
        make_manifest(list_workspace(self.root, ()), self.cache(), lambda path: seen.append(path.decode()))
        return seen


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_manifest_has_everything(place: Place) -> None:
    place.write(a=b"one")
    (place.root / "a").chmod(0o640)
    os.utime(place.root / "a", ns=(OLD, OLD))
    (place.root / "empty").mkdir(mode=0o700)
    os.utime(place.root / "empty", ns=(OLD, OLD))
    (place.root / "link").symlink_to("../\udcff")
    found = place.prepare()
    assert found.manifest.entries == (
        ("a", "f", 0o640, OLD, 3, hash_of(b"one")),
        ("empty", "d", 0o700, OLD, 0, ""),
        ("link", "l", 0o777, 0, 0, "../\xff"),
    )


def test_times_that_eight_bytes_do_not_hold(place: Place) -> None:
    place.write(a=b"1", b=b"2")
    os.utime(place.root / "a", (0, 10_400_000_000))  # in 2299
    os.utime(place.root / "b", (0, -1))
    assert [entry.mtime_ns for entry in place.prepare().manifest.entries] == [(1 << 63) - 1, -1_000_000_000]


def test_a_directory_that_is_deleted_while_all_is_listed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (place.root / name).mkdir()
    scandir = os.scandir

    def delete_before(path: bytes) -> object:
        if path.endswith(b"/a"):
            os.rmdir(path)
        return scandir(path)

    monkeypatch.setattr("os.scandir", delete_before)
    assert [entry.path for entry in list_workspace(place.root, ()).entries] == [b"b"]
    monkeypatch.undo()
    shutil.rmtree(place.root)
    with pytest.raises(MeshError, match="No such file"):
        list_workspace(place.root, ())


def test_hard_links_and_special_files_are_told(place: Place) -> None:
    place.write(one=b"x", three=b"y")
    os.link(place.root / "one", place.root / "two")
    os.link(place.root / "three", place.root.parent / "outside")  # as uv makes them: no other name belongs
    os.mkfifo(place.root / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place.root / "door"))
        found = place.prepare()
    assert sorted(found.skipped) == ["door: a socket", "pipe: a FIFO"]
    assert found.notices == ("hard links are sent as separate files: 2 names of 1 (one = two)",)
    assert [entry.path for entry in found.manifest.entries] == ["one", "three", "two"]


def test_what_is_known_is_not_read_again(place: Place) -> None:
    place.write(a=b"1", b=b"2", c=b"3")
    first = place.settled()
    assert place.read() == []
    assert place.prepare().manifest == first
    place.write(b=b"4")
    assert place.read() == ["b"]


def test_an_edit_or_two_are_not_written_down(place: Place) -> None:
    """All others would be written with them, in each run of a day of edits."""
    place.write(**{f"f{number}": b"1" for number in range(20)})
    place.settled()
    (file,) = place.cached.rglob("hashes-*")
    for count, is_written in ((2, False), (FEW_FILES, False), (FEW_FILES + 1, True)):
        place.write(**{f"f{number}": b"%d" % count for number in range(count)}, recent=b"1")
        listing = place.some_time_later()
        os.utime(place.root / "recent", ns=(listing.started_ns, listing.started_ns))
        before = file.stat().st_ino
        make_manifest(listing, place.cache())
        assert (file.stat().st_ino != before) is is_written
    assert place.read() == ["recent"]


def test_what_was_changed_just_now_is_read_again(place: Place) -> None:
    place.write(a=b"1")
    assert place.read() == ["a"]
    assert place.read() == ["a"]
    before = place.prepare().manifest
    status = (place.root / "a").stat()
    place.write(a=b"2")  # of the same size, and as if in the same tick of the clock
    os.utime(place.root / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert place.prepare().manifest.tree != before.tree


def test_a_touched_and_a_replaced_file(place: Place) -> None:
    place.write(a=b"1", b=b"2")
    for name in "ab":
        os.utime(place.root / name, ns=(OLD, OLD))
    place.settled()
    os.utime(place.root / "a", ns=(OLD + 1, OLD + 1))
    assert place.read() == ["a"]
    place.settled()
    place.write(new=b"3")
    os.utime(place.root / "new", ns=(OLD, OLD))
    (place.root / "new").rename(place.root / "b")  # size and time are the old ones, the inode is not
    assert place.read() == ["b"]
    place.settled()
    place.write(b=b"4")  # in place, the time set back
    os.utime(place.root / "b", ns=(OLD, OLD))
    assert place.read() == ["b"]


def test_a_damaged_cache_is_an_empty_one(place: Place) -> None:
    place.write(a=b"1")
    expected = place.settled()
    (file,) = place.cached.rglob("hashes-*")
    whole = file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    for damaged in (b"", whole[:-1], whole[1:], whole.replace(hash_of(b"1").encode(), hash_of(b"2").encode()), b"\xff"):
        file.write_bytes(damaged)
        assert place.prepare().manifest == expected
    file.unlink()
    file.mkdir()
    assert place.prepare().manifest == expected


def test_a_cache_that_cannot_be_written_is_no_error(place: Place) -> None:
    place.write(a=b"1")
    place.cached.write_text("a file where a directory belongs")
    found = place.prepare()
    found.cache.remember(found.manifest)
    assert found.cache.known_manifest(found.manifest.tree) is None
    assert found.cache.never_sent({hash_of(b"x")}) == {hash_of(b"x")}


def test_the_last_manifests_are_known(place: Place) -> None:
    cache, made = place.cache(), []
    for number in range(MANIFESTS_KEPT + 2):
        content = hash_of(str(number).encode())
        made.append(manifest_of([Entry("a", "f", 0o644, 0, 1, content), Entry("d", "d", 0o755, 0, 0, "")]))
        cache.remember(made[-1])
        os.utime(next(place.cached.rglob(made[-1].tree)), ns=(OLD, OLD + number))
    assert [manifest for manifest in made if place.cache().known_manifest(manifest.tree)] == made[2:]
    contents = [manifest.entries[0].content for manifest in made]
    assert cache.never_sent(set(contents)) == set(contents[:2])
    assert cache.known_manifest(made[-1].tree) == made[-1]
    next(place.cached.rglob(made[-1].tree)).write_bytes(zlib.compress(b"[]"))
    assert cache.known_manifest(made[-1].tree) is None
    assert cache.known_manifest("../../hashes") is None


def test_where_the_cache_is(tmp_path: Path) -> None:
    assert cache_directory({"XDG_CACHE_HOME": "/x"}) == Path("/x/mesh")
    assert cache_directory({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache/mesh"


def test_a_file_that_changes_while_it_is_read_is_read_again_or_named(place: Place) -> None:
    place.write(log=b"x", other=b"")
    changing = 2

    def write(path: bytes) -> None:
        nonlocal changing
        if path == b"log" and changing:
            changing -= 1
            with (place.root / "log").open("ab") as file:
                file.write(b"more")

    listing = list_workspace(place.root, ())
    assert [entry.size for entry in make_manifest(listing, place.cache(), write).entries] == [9, 0]
    changing = 3
    with pytest.raises(MeshError, match="log: changes while it is read"):
        make_manifest(listing, place.cache(), write)


def test_a_file_that_vanished_does_not_belong(place: Place) -> None:
    place.write(a=b"1", b=b"2")
    listing = list_workspace(place.root, ())
    (place.root / "b").unlink()
    assert [entry.path for entry in make_manifest(listing, place.cache()).entries] == ["a"]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    """In a process that is not root: root may read everything."""
    with tempfile.TemporaryDirectory() as public:
        os.chmod(public, 0o777)
        place = Place(Path(public))
        place.write(secret=b"1")
        (place.root / "secret").chmod(0)
        (place.root / "dir").mkdir(mode=0o711)
        pid = os.fork()
        if not pid:
            status = 1
            try:
                if not os.geteuid():
                    os.setgroups([])
                    os.setgid(65534)
                    os.setuid(65534)
                for expected in ("dir: Permission denied", "secret: Permission denied"):
                    try:
                        prepare(place.root, () if "dir" in expected else ("dir",), place.cache())
                    except MeshError as error:
                        status = 0 if expected in str(error) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def unpack(data: bytes, bases: Mapping[str, bytes] = {}) -> dict[str, bytes]:
    """What a host makes of a pack."""
    found = {}
    with zipfile.ZipFile(io.BytesIO(data)) as pack:
        assert pack.testzip() is None
        for content, member, offset, length, base, operations in json.loads(pack.read("index.json")):
            new = pack.read(member)[offset : offset + length]
            assert len(new) == length
            if base:
                pieces = io.BytesIO(new)
                new = b"".join(
                    pieces.read(size) if start < 0 else bases[base][start : start + size] for start, size in operations
                )
                assert not pieces.read()
            assert hash_of(new) == content
            assert content not in found
            found[content] = new
    return found


def wants(manifest: Manifest) -> list[Want]:
    return [Want(entry.content, entry.size) for entry in manifest.entries if entry.kind == "f"]


@settings(max_examples=30, deadline=None)
@given(
    contents=st.lists(
        st.binary(max_size=40) | st.sampled_from([b"a" * 300_000, random.Random(1).randbytes(700_000)]), max_size=6
    ),
    compress=st.booleans(),
)
def test_a_pack_has_what_is_wanted(contents: Sequence[bytes], compress: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        place = Place(Path(directory))
        place.write(**{str(number): content for number, content in enumerate(contents)})
        found, into = place.prepare(), io.BytesIO()
        packed = found.pack(wants(found.manifest), into, compress=compress)
    data = into.getvalue()
    assert unpack(data) == {hash_of(content): content for content in contents}
    assert (packed.contents, packed.size) == (len(set(contents)), len(data))
    assert packed.literal == sum(map(len, set(contents)))


def test_the_holes_of_a_sparse_file_are_compressed_always(place: Place) -> None:
    with (place.root / "sparse").open("wb") as file:
        file.truncate(60_000_000)
        file.seek(20_000_000)
        file.write(random.Random(1).randbytes(1_000_000))
    found = prepare(place.root, (), place.cache())
    into = io.BytesIO()
    assert found.pack(wants(found.manifest), into, compress=False).size < 3_000_000
    assert hash_of(unpack(into.getvalue())[found.manifest.entries[0].content]) == found.manifest.entries[0].content


def test_small_files_share_members_and_what_shrinks_is_compressed(place: Place) -> None:
    place.write(**{f"text{number}": b"%d hello " % number * 1000 for number in range(200)})
    place.write(noise=random.Random(1).randbytes(500_000), words=b"some words " * 50_000)
    found, into = place.prepare(), io.BytesIO()
    assert found.pack(wants(found.manifest), into).size < 600_000
    with zipfile.ZipFile(into) as pack:
        members = [info for info in pack.infolist() if info.filename != "index.json"]
    assert len(members) < 6
    assert [info.file_size for info in members if info.compress_type == zipfile.ZIP_STORED] == [500_000]
    into = io.BytesIO()
    assert found.pack(wants(found.manifest), into, compress=False).size > 2_000_000


def test_a_file_that_is_another_one_by_now_is_named_and_hashed_again(place: Place) -> None:
    place.write(a=b"1", b=b"2", c=b"2", d=b"3")
    place.settled()
    found = place.prepare()
    place.write(a=b"4", b=b"5")
    (place.root / "d").unlink()
    with pytest.raises(Changed, match="a: changes while it is read\nd: changes") as raised:
        found.pack(wants(found.manifest), io.BytesIO())
    assert raised.value.paths == ("a", "d")  # what b had stands in c as well
    assert set(unpack_again(place)) == {hash_of(content) for content in (b"4", b"5", b"2")}

    def write(path: bytes) -> None:
        (place.root / os.fsdecode(path)).write_bytes(b"while it is open")

    found = place.prepare()
    with pytest.raises(Changed):
        found.pack(wants(found.manifest), io.BytesIO(), step=write)


def unpack_again(place: Place) -> dict[str, bytes]:
    found, into = place.prepare(), io.BytesIO()
    found.pack(wants(found.manifest), into)
    return unpack(into.getvalue())


def test_a_cached_hash_that_is_wrong_is_found_out(place: Place) -> None:
    place.write(a=b"1")
    place.settled()
    cache = place.cache()
    (entry,) = list_workspace(place.root, ()).entries
    cache.keep([(entry, hash_of(b"another"))], "")
    found = place.prepare()
    with pytest.raises(Changed):
        found.pack(wants(found.manifest), io.BytesIO())
    assert set(unpack_again(place)) == {hash_of(b"1")}


def test_what_is_not_in_the_workspace_is_not_sent(place: Place) -> None:
    place.write(a=b"1")
    with pytest.raises(MeshError, match="asks for a content"):
        place.prepare().pack([Want(hash_of(b"2"), 1)], io.BytesIO())


def blocks(data: bytes) -> Iterator[bytes]:
    yield from (data[start : start + BLOCK_BYTES] for start in range(0, len(data), BLOCK_BYTES))


def want_of(new: bytes, base: bytes) -> Want:
    ends = range(len(base), 0, -BLOCK_BYTES)
    return Want(
        hash_of(new),
        len(new),
        hash_of(base),
        len(base),
        tuple(hash_of(block) for block in blocks(base)),
        tuple(hash_of(base[max(0, end - BLOCK_BYTES) : end]) for end in ends),
    )


def sent(base: bytes, new: bytes) -> int:
    """How many bytes of a new version go into a pack that makes it from an old one."""
    with tempfile.TemporaryDirectory() as directory:
        place = Place(Path(directory))
        place.write(large=new)
        found, into = place.prepare(), io.BytesIO()
        packed = found.pack([want_of(new, base)], into)
    assert unpack(into.getvalue(), {hash_of(base): base}) == {hash_of(new): new}
    return packed.literal


BASE = random.Random(0).randbytes(10 * BLOCK_BYTES + 777)
EDITS = {
    "nothing": (BASE, 0),
    "overwritten": (BASE[:500_000] + b"x" * 100 + BASE[500_100:], 2),
    "inserted": (BASE[:500_000] + b"x" * 100 + BASE[500_000:], 3),
    "inserted at the start": (b"x" + BASE, 2),
    "appended": (BASE + b"x" * 100, 2),
    "deleted": (BASE[:500_000] + BASE[500_100:], 3),
    "deleted at the start": (BASE[3:], 2),
    "truncated": (BASE[:-100_000], 2),
    "grown twofold": (BASE + BASE, 11),
    "empty": (b"", 0),
    "tiny": (b"x", 1),
    "zeros": (bytes(5 * BLOCK_BYTES), 5),
}


@pytest.mark.parametrize(("new", "most"), EDITS.values(), ids=EDITS)
def test_a_change_of_a_large_file_costs_the_blocks_that_it_touches(new: bytes, most: int) -> None:
    assert sent(BASE, new) <= most * BLOCK_BYTES


def test_equal_blocks_become_one_piece(tmp_path: Path) -> None:
    base = bytes(20 * BLOCK_BYTES)
    new = base[: 10 * BLOCK_BYTES] + b"x" + base[10 * BLOCK_BYTES + 1 :]
    (tmp_path / "new").write_bytes(new)
    with (tmp_path / "new").open("rb", buffering=0) as file:
        pieces = [
            (0, 10 * BLOCK_BYTES),
            (-1, BLOCK_BYTES),
            (11 * BLOCK_BYTES, 9 * BLOCK_BYTES),
        ]
        assert find_operations(file, len(new), want_of(new, base)) == pieces


@pytest.mark.parametrize("seed", range(40))
def test_random_edits_of_a_large_file(seed: int) -> None:
    chance = random.Random(seed)
    base = chance.randbytes(chance.randrange(1 << 20, 3 << 20))
    new, literal, edits = base, 0, chance.randint(1, 3)
    for _ in range(edits):
        start = chance.randrange(len(new))
        end = min(len(new), start + chance.choice([1, 100, 200_000]))
        put = chance.randbytes(end - start)
        new = new[:start] + put + new[end:]
        literal += len(put) + 2 * BLOCK_BYTES
    if seed % 2:  # one insertion or deletion besides
        start = chance.randrange(len(new))
        put = chance.randbytes(chance.choice([0, 1, 1000]))
        new = new[:start] + put + new[start + chance.choice([0, 1, 1000]) :]
        literal = 0 if edits > 1 else literal + len(put) + 4 * BLOCK_BYTES
    assert sent(base, new) <= (literal or len(new))


def test_what_hosts_lack_is_read_from_json() -> None:
    row = {"hash": "h", "size": 3, "base": "b", "base_size": 2, "head": ["x"], "tail": ["y"]}
    assert read_wants([row, {"hash": "g", "size": 0}]) == (Want("h", 3, "b", 2, ("x",), ("y",)), Want("g", 0))
    for wrong in (None, {}, [3], [{}], [{"hash": 1, "size": 1}], [{**row, "size": -1}], [{**row, "head": [1]}]):
        with pytest.raises(ValueError, match="expected"):
            read_wants(wrong)


def git(directory: Path, *words: str) -> str:
    who = ["-c", "user.name=x", "-c", "user.email=x@y"]
    return subprocess.run(
        ["git", "-C", str(directory), *who, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def git_variables(workspace: Path) -> dict[str, str]:
    with asked_git(workspace) as variables:
        return variables().variables


def test_ranks_learn_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mesh.workspace.git.GIT_LIMIT_S", 60.0)
    work = tmp_path / "repository/work"
    work.mkdir(parents=True)
    assert git_variables(work) == {}
    git(work.parent, "init", "-q")
    assert git_variables(work) == {}  # no commit yet
    (work / "a").write_text("1")
    git(work.parent, "add", ".")
    git(work.parent, "commit", "-qm", "first")
    commit = git(work, "rev-parse", "HEAD")
    (work.parent / "beside").write_text("is not sent")
    assert git_variables(work) == {"MESH_GIT_COMMIT": commit, "MESH_GIT_DIRTY": "0"}
    (work / "new").write_text("2")
    assert git_variables(work) == {"MESH_GIT_COMMIT": commit, "MESH_GIT_DIRTY": "1"}


def test_git_ends_with_who_has_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "git"
    slow.write_text("#!/bin/sh\nexec sleep 4567\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("mesh.workspace.git.GIT_LIMIT_S", 0.0)
    before = own_children()
    assert git_variables(tmp_path) == {}
    assert own_children() == before
    with pytest.raises(ZeroDivisionError), asked_git(tmp_path):
        _ = 1 / 0
    assert own_children() == before
    monkeypatch.setenv("PATH", "/nowhere")
    assert git_variables(tmp_path) == {}


def test_git_belongs_if_it_is_included(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert list_workspace(tmp_path, ()).entries == ()
    paths = {entry.path for entry in list_workspace(tmp_path, (".git/hooks",), include_git=True).entries}
    assert b".git/HEAD" in paths
    assert b".git/hooks" not in paths
