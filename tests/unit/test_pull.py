"""Pulling without a network: the hosts' child and our receiver, joined by a socket; and hosts that lie."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import shutil
import socket
import stat
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh.agent.ask.pull import Pull
from mesh.core.errors import PathRefused
from mesh.core.events import Event, PrepareFailed
from mesh.core.pull import NotPulled, Offer, Pulled
from mesh.engine.receiver import Receiver
from mesh.protocol.frames import FrameError, encode
from mesh.workspace.manifest import hash_of
from mesh.workspace.pulled import PulledFiles, part_of
from tests.full import times
from tests.unit.test_place import Editor

MB = 1_000_000
PARTS = ".mesh-parts"


def part(into: Path, path: str) -> Path:
    """Where a file is as long as it is not complete."""
    return into / PARTS / os.fsdecode(part_of(os.fsencode(path)))


class Pulling:
    """One pull, from one directory into another."""

    def __init__(self, host: Path, into: Path, *paths: str, near: bool = True) -> None:
        self.child = Pull(list(paths), str(host))
        self.receiver = Receiver(0, PulledFiles(into), self.child.give, lambda: near)
        self.events: list[Event] = []
        self.came = 0  # bytes

    def until(self, enough: Callable[[], bool]) -> None:
        """Let the child speak, in small pieces, until this is so or it has said everything."""
        while self.child.channel >= 0 and not enough():
            poll = select.poll()
            poll.register(self.child.channel, self.child.events(True))
            poll.poll()
            self.child.write()
            data = self.child.read()
            self.came += len(data)
            self.events += self.receiver.take(data)

    def break_off(self) -> None:
        """As a link that is cut."""
        self.receiver.close()
        self.child._socket.close()
        os.waitpid(self.child.pid, 0)

    def finish(self) -> Pulled:
        self.until(lambda: False)
        self.receiver.close()
        assert os.waitpid(self.child.pid, 0)[1] == 0
        (pulled,) = [event for event in self.events if isinstance(event, Pulled)]
        return pulled

    @property
    def missing(self) -> list[tuple[str, str]]:
        return [(event.path, event.reason) for event in self.events if isinstance(event, NotPulled)]


@pytest.fixture
def host(tmp_path: Path) -> Path:
    (tmp_path / "host").mkdir()
    return tmp_path / "host"


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "into"


def seen(root: Path) -> dict[str, tuple[object, ...]]:
    """What is below a directory: kind, mode, time and content of everything."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [root, *root.rglob("*")]:
        status, name = path.lstat(), str(path.relative_to(root))
        content: object = None
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = path.read_bytes()
        found[name] = (stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode), status.st_mtime_ns, content)
    return found


def timeless(root: Path) -> dict[str, tuple[object, ...]]:
    """The same, directories and links without their times."""
    return {name: row if row[0] == stat.S_IFREG else (*row[:2], row[3]) for name, row in seen(root).items()}


@pytest.mark.skipif(not shutil.which("rsync"), reason="no rsync here")
@pytest.mark.parametrize("seed", range(times(4, full=10)))
def test_what_is_pulled_equals_the_copy_of_rsync(host: Path, into: Path, tmp_path: Path, seed: int) -> None:
    """Also the second and third time, less what is gone there: a pull deletes nothing, and no directory gives way."""
    editor = Editor(host, seed)
    for round_ in range(3):
        for _ in range(editor.random.randrange(1, 25)):
            editor.edit()
        for path in host.rglob("*"):
            if path.is_file() and not path.is_symlink():
                os.utime(path)  # the editor also makes changes that neither size nor time tells
                path.chmod(path.stat().st_mode & 0o777)  # and programs that run as somebody else
        for path in sorted(into.rglob("*"), reverse=True):
            there = host / path.relative_to(into)
            if not os.path.lexists(there) or stat.S_IFMT(there.lstat().st_mode) != stat.S_IFMT(path.lstat().st_mode):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        other = tmp_path / f"rsync{round_}"
        subprocess.run(["rsync", "-a", f"{host}/", f"{other}/"], check=True)
        pull = Pulling(host, into, ".", near=seed % 2 == 0)
        pull.finish()
        assert not pull.missing
        assert seen(into) == seen(host)
        assert timeless(into) == timeless(other)  # rsync does not keep all of these times


def test_paths(host: Path, into: Path, tmp_path: Path) -> None:
    for name in ("a/one.pt", "a/two.pt", "a/three.txt", "b", "[x]", "x", ".hidden"):
        (host / name).parent.mkdir(exist_ok=True)
        (host / name).write_text(name)
    outside = tmp_path / "outside"
    outside.write_text("outside")
    (host / "latest").symlink_to("a")
    pull = Pulling(host, into, "a/*.pt", "./b", "[x]", str(outside), "nope", "no*", "latest", "a/one.pt")
    assert pull.finish().files == 6
    found = {str(path.relative_to(into)) for path in into.rglob("*") if not path.is_dir() or path.is_symlink()}
    assert found == {"a/one.pt", "a/two.pt", "b", "[x]", "latest", str(outside)[1:]}
    assert (into / "latest").is_symlink()
    assert pull.missing == [("nope", "No such file or directory"), ("no*", "nothing matches")]


def test_a_link_with_a_slash_is_the_directory_behind_it(host: Path, into: Path) -> None:
    (host / "a").mkdir()
    (host / "a/f").write_text("f")
    (host / "latest").symlink_to("a")
    Pulling(host, into, "latest/").finish()
    assert not (into / "latest").is_symlink()
    assert (into / "latest/f").read_text() == "f"


def test_home_and_what_is_above(host: Path, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (host / "work").mkdir()
    (host / "f").write_text("f")
    monkeypatch.setenv("HOME", str(host))
    for path in ("~/f", "../f", "../../../../../../../../../../.." + str(host / "f")):
        pull = Pulling(host / "work", into, path)
        pull.finish()
        assert (into / str(host)[1:] / "f").read_text() == "f"
        assert not pull.missing
        shutil.rmtree(into)


def test_what_is_here_is_not_fetched_again(host: Path, into: Path) -> None:
    (host / "big").write_bytes(random.Random(1).randbytes(3 * MB))
    (host / "log").write_bytes(b"line\n" * 100_000)
    assert Pulling(host, into, ".").finish().bytes == 3 * MB + 500_000
    pulled = Pulling(host, into, ".").finish()
    assert (pulled.files, pulled.unchanged, pulled.bytes) == (2, 2, 0)
    with (host / "log").open("ab") as log:
        log.write(b"one more\n")
    os.utime(host / "big")
    pull = Pulling(host, into, ".")
    assert pull.finish().bytes == len(b"one more\n")  # big has another time, and the same content
    assert pull.came < 10_000
    assert seen(into) == seen(host)


def test_it_goes_on_where_it_was_broken_off(host: Path, into: Path) -> None:
    data = random.Random(1).randbytes(5 * MB)
    (host / "d").mkdir()
    (host / "d/big").write_bytes(data)
    pull = Pulling(host, into, "d")
    pull.until(lambda: pull.came > 3 * MB)
    pull.break_off()
    assert list((into / "d").iterdir()) == []
    assert list((into / PARTS).iterdir()) == [part(into, "d/big")]
    assert Pulling(host, into, "d").finish().bytes < 2.2 * MB
    assert seen(into / "d") == seen(host / "d")


def test_what_was_begun_of_another_content_is_begun_anew(host: Path, into: Path) -> None:
    (host / "big").write_bytes(random.Random(1).randbytes(3 * MB))
    part(into, "big").parent.mkdir(parents=True)
    part(into, "big").write_bytes(random.Random(2).randbytes(2 * MB))
    assert Pulling(host, into, ".").finish().bytes == 3 * MB
    assert seen(into)["big"] == seen(host)["big"]
    assert not (into / PARTS).exists()


def test_a_log_that_grows_meanwhile_is_a_beginning_of_it(host: Path, into: Path) -> None:
    file = host / "log"
    file.write_bytes(random.Random(1).randbytes(5 * MB))
    pull = Pulling(host, into, "log")
    pull.until(lambda: pull.came > MB)
    with file.open("ab") as log:
        log.write(b"more")
    pull.finish()
    assert not pull.missing
    assert (into / "log").read_bytes() == file.read_bytes()[: 5 * MB]


def test_a_file_that_is_changed_once_is_read_again(host: Path, into: Path) -> None:
    file = host / "f"
    file.write_bytes(b"x" * 5 * MB)
    pull = Pulling(host, into, "f")
    pull.until(lambda: pull.came > MB)
    with file.open("r+b") as changed:
        changed.write(b"changed")
    pull.finish()
    assert not pull.missing
    assert seen(into)["f"] == seen(host)["f"]


def test_a_file_that_is_changed_all_the_time_is_named(host: Path, into: Path) -> None:
    file = host / "f"
    file.write_bytes(b"x" * 5 * MB)
    pull = Pulling(host, into, "f")
    for number in range(1, 30):
        pull.until(lambda number=number: pull.came > number * MB)  # type: ignore[misc]
        with file.open("r+b") as changed:
            changed.write(b"%02d" % number)
    assert pull.finish().files == 0
    assert pull.missing == [("f", "changes while it is read")]
    assert list(into.iterdir()) == []


def test_a_file_that_vanishes_or_cannot_be_read_is_named(host: Path, into: Path) -> None:
    (host / "a").write_bytes(b"x" * 3 * MB)
    (host / "b").write_text("b")
    (host / "c").write_text("c")
    pull = Pulling(host, into, "a", "b", "c")
    pull.until(lambda: pull.came > MB)
    (host / "b").unlink()
    (host / "c").unlink()
    (host / "c").symlink_to("/etc/passwd")
    pull.finish()
    assert pull.missing == [("b", "No such file or directory"), ("c", "Too many levels of symbolic links")]
    assert [path.name for path in into.iterdir()] == ["a"]


def test_special_files_are_named(host: Path, into: Path) -> None:
    (host / "d").mkdir()
    os.mkfifo(host / "d/fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(host / "d/s"))
        pull = Pulling(host, into, "d", "d/fifo")
        pull.finish()
    assert sorted(pull.missing) == [("d/fifo", "a FIFO"), ("d/s", "a socket")]
    assert not any(event.fails for event in pull.events if isinstance(event, NotPulled))
    pull = Pulling(host, into, "d/fifo")
    pull.finish()
    assert [event.fails for event in pull.events if isinstance(event, NotPulled)] == [True]


def test_files_of_the_kernel_have_their_content(into: Path) -> None:
    Pulling(Path("/proc"), into, "version").finish()
    assert (into / "version").read_text() == Path("/proc/version").read_text()


def test_many_files_and_odd_names(host: Path, into: Path) -> None:
    """More than are listed at a time; names of any bytes and of the greatest length."""
    for number in range(2600):
        if number % 100 == 0:
            (host / f"d{number // 100}").mkdir()
        (host / f"d{number // 100}/{number}").write_text(str(number))
    for name in (b"x" * 255, b"\xff\n\x1b[31m", "ü".encode() * 127, b" ", b"-rf"):
        Path(os.fsdecode(os.fsencode(host) + b"/" + name)).write_bytes(name)
    assert Pulling(host, into, ".").finish().files == 2605
    assert seen(into) == seen(host)


def test_far_away_it_is_compressed_where_that_pays(host: Path, into: Path) -> None:
    (host / "zeros").write_bytes(b"0123456789" * 1_000_000)
    (host / "random").write_bytes(random.Random(1).randbytes(3 * MB))
    pull = Pulling(host, into, ".", near=False)
    assert pull.finish().bytes == 13 * MB
    assert 3 * MB < pull.came < 3.5 * MB
    assert seen(into) == seen(host)


def test_directories_that_cannot_be_written(host: Path, into: Path) -> None:
    """Twice: what the first pull has made so must not be in the way of the second."""
    (host / "closed").mkdir()
    (host / "closed/f").write_text("1")
    (host / "closed").chmod(0o500)
    before = seen(host)
    try:
        for text in ("1", "22"):
            (host / "closed/f").write_text(text)
            pull = Pulling(host, into, ".")
            pull.finish()
            assert not pull.missing
            assert seen(into) == seen(host)
        assert seen(into).keys() == before.keys()
        Pulling(host, into, "closed/f").finish()
        assert stat.S_IMODE((into / "closed").stat().st_mode) == 0o500
    finally:
        for root in (host, into):
            (root / "closed").chmod(0o700)


def test_what_is_in_the_way_is_named_and_stays(host: Path, into: Path, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (host / name).mkdir()
        (host / name / "f").write_text("new")
    for name in ("d", "e", "g"):
        (host / name).write_text("new")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("untouched")
    into.mkdir()
    (into / "a").symlink_to(outside)
    (into / "b").write_text("a file")
    os.mkfifo(into / "c")
    (into / "d").mkdir()
    (into / "e").symlink_to(outside / "f")
    part(into, "g").parent.mkdir()
    os.link(outside / "f", part(into, "g"))
    pull = Pulling(host, into, ".")
    assert pull.finish().files == 2
    assert [path for path, _ in pull.missing] == ["a", "b", "c", "d"]  # and not what is in them as well
    assert (outside / "f").read_text() == "untouched"
    assert not (into / "e").is_symlink()  # a file takes the place of a link, and does not go through it
    assert ((into / "e").read_text(), (into / "g").read_text()) == ("new", "new")
    assert sorted(path.name for path in outside.iterdir()) == ["f"]


def test_two_pulls_into_one_directory(host: Path, into: Path) -> None:
    (host / "f").write_bytes(b"x" * 5 * MB)
    first = Pulling(host, into, "f")
    first.until(lambda: first.came > MB)
    second = Pulling(host, into, "f")
    second.until(lambda: any(isinstance(event, PrepareFailed) for event in second.events))
    second.break_off()
    (failed,) = [event for event in second.events if isinstance(event, PrepareFailed)]
    assert failed.message == f"another pull is writing into {into}"
    first.finish()
    assert seen(into)["f"] == seen(host)["f"]


def test_a_full_disk_here(host: Path, tmp_path: Path) -> None:
    """Nothing half-written has a final name, and there is one error."""
    if os.geteuid():
        pytest.skip("needs root, to mount")
    into = tmp_path / "small"
    into.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(into)], check=True)
    try:
        (host / "big").write_bytes(random.Random(1).randbytes(5 * MB))
        pull = Pulling(host, into / "rank-0000", "big")
        pull.until(lambda: any(isinstance(event, PrepareFailed) for event in pull.events))
        pull.break_off()
        (failed,) = [event for event in pull.events if isinstance(event, PrepareFailed)]
        assert failed.message == "cannot be written here: No space left on device"
        assert [path.name for path in (into / "rank-0000").iterdir()] == [PARTS]
        subprocess.run(["mount", "-o", "remount,size=20m", str(into)], check=True)
        assert Pulling(host, into / "rank-0000", "big").finish().bytes < 4 * MB
        assert seen(into / "rank-0000")["big"] == seen(host)["big"]
    finally:
        subprocess.run(["umount", str(into)], check=True)


# ---- hosts that lie

NAMES = st.sampled_from(["..", ".", "", "a", "b", "evil", "out", PARTS, "f.mesh-part", "x" * 300, "\xff"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join) | st.sampled_from(["/etc/x", "../out/canary", "/"])
TARGETS = st.sampled_from(["..", "../..", "/", "../../out", "a", ".", "/etc/passwd"])
NUMBERS = st.sampled_from([0, 0o644, 0o7777, 3, 10**15])
ROWS = st.tuples(PATHS, st.sampled_from(["f", "d", "l"]), NUMBERS, NUMBERS, st.sampled_from([0, 3]), TARGETS).map(list)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=6)
)
FIELDS = st.dictionaries(st.sampled_from(["offset", "hash", "mode", "mtime", "path", "why", "fails", "packed"]), ANY)
FRAMES = st.tuples(
    st.sampled_from(["list", "problem", "file", "data", "end", "failed", "done", "what"]),
    FIELDS,
    st.binary(max_size=20) | ANY.map(lambda value: zlib.compress(json.dumps(value).encode())),
)
EFFORT = settings(
    max_examples=times(30, full=100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def trap() -> Iterator[Path]:
    """A directory to pull into, ``base/into/rank``, with links in it that lead to ``base/out``."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def set_trap(base: Path) -> Path:
    for name in ("into", "out"):
        shutil.rmtree(base / name, ignore_errors=True)
    (base / "into/rank").mkdir(parents=True)
    (base / "out").mkdir()
    (base / "out/canary").write_text("untouched")
    (base / "into/rank/evil").symlink_to("../../out")
    (base / "into/rank/b").mkdir()
    (base / "into/rank/b/evil").symlink_to("../../../out/canary")
    return base / "into/rank"


def outside(base: Path) -> dict[str, object]:
    return {**seen(base / "out"), "": os.listdir(base / "into")}


@EFFORT
@given(rows=st.lists(ROWS, max_size=12))
def test_no_name_leaves_the_directory(trap: Path, rows: list[list[Any]]) -> None:
    place = set_trap(trap)
    before = outside(trap)
    replies: list[bytes] = []
    receiver = Receiver(0, PulledFiles(place), replies.append, lambda: True)
    content = {"hash": hash_of(b"new"), "mode": 0o4777, "mtime": 5}
    with contextlib.suppress(FrameError):
        list(receiver.take(encode({"type": "list"}, zlib.compress(json.dumps(rows).encode()))))
        for _ in rows:  # more than may be wanted: the last ones are against the protocol
            for frame in (encode({"type": "file", "offset": 0}), encode({"type": "data"}, b"new")):
                list(receiver.take(frame))
            list(receiver.take(encode({"type": "end", **content})))
    receiver.close()
    assert outside(trap) == before
    for path in place.rglob("*"):
        assert path.is_symlink() or not path.lstat().st_mode & 0o7000


@EFFORT
@given(frames=st.lists(FRAMES, max_size=8))
def test_nonsense_ends_it_with_an_error(trap: Path, frames: list[tuple[str, dict[str, Any], bytes]]) -> None:
    place = set_trap(trap)
    before = outside(trap)
    receiver = Receiver(0, PulledFiles(place), lambda data: None, lambda: True)
    events: list[Event] = []
    with contextlib.suppress(FrameError):
        for kind, fields, data in frames:
            events += receiver.take(encode({**fields, "type": kind}, data))
    receiver.close()
    assert len([event for event in events if isinstance(event, PrepareFailed)]) <= 1
    assert outside(trap) == before


@pytest.mark.parametrize(
    "data",
    [
        b"[1]\n",
        encode({"type": "list"}, zlib.compress(bytes(40 << 20))),
        encode({"type": "list"}, zlib.compress(json.dumps([["a", "f", 0, 0, 0, ""]] * 10_001).encode())),
        b'{"type":"data","size":1000000000}\n' + bytes(5 << 20),
        encode({"type": "end", "hash": "", "mode": 0, "mtime": 0}),
        encode({"type": "done", "size": -1}),
    ],
    ids=["no frame", "a bomb", "a long list", "an endless frame", "an end without a file", "a bad size"],
)
def test_what_is_against_the_protocol(into: Path, data: bytes) -> None:
    receiver = Receiver(0, PulledFiles(into), lambda data: None, lambda: True)
    with pytest.raises(FrameError):
        list(receiver.take(data))
    receiver.close()


def test_what_arrives_damaged_is_not_kept(into: Path) -> None:
    receiver = Receiver(0, PulledFiles(into), lambda data: None, lambda: True)
    rows = [["f", "f", 0o644, 5, 3, ""]]
    events = list(receiver.take(encode({"type": "list"}, zlib.compress(json.dumps(rows).encode()))))
    for frame in (
        encode({"type": "file", "offset": 0}),
        encode({"type": "data"}, b"new"),
        encode({"type": "end", "hash": hash_of(b"old"), "mode": 0o644, "mtime": 5}),
        encode({"type": "done"}),
    ):
        events += receiver.take(frame)
    assert [event.reason for event in events if isinstance(event, NotPulled)] == ["arrived damaged"]
    assert list(into.iterdir()) == []


def test_an_offset_that_was_not_offered(into: Path) -> None:
    files = PulledFiles(into)
    with pytest.raises(ValueError, match="not offered"):
        files.begin(b"f", Offer(size=0, hash=""), 5)
    with pytest.raises(PathRefused):
        files.begin(b"a/../f", Offer(size=0, hash=""), 0)
    files.close()


def test_files_of_the_users_that_are_called_mesh_part_are_pulled(host: Path, into: Path) -> None:
    """Also where the file whose unfinished name that could be comes at the same time, and is broken off."""
    for name in ("big", "big.mesh-part", "big.mesh-part.mesh-part"):
        (host / name).write_bytes(name.encode() + random.Random(name).randbytes(2 * MB))
    pull = Pulling(host, into, ".")
    pull.until(lambda: pull.came > 3 * MB)
    pull.break_off()
    pull = Pulling(host, into, ".")
    assert pull.finish().bytes < 4 * MB
    assert pull.missing == []
    assert timeless(into) == timeless(host)
    assert Pulling(host, into, ".").finish().unchanged == 3


def test_the_directory_of_unfinished_files_is_not_a_hosts(host: Path, into: Path) -> None:
    (host / PARTS).mkdir()
    (host / PARTS / "f").write_text("theirs")
    (host / "d").mkdir()
    (host / "d" / PARTS).write_text("a file")
    pull = Pulling(host, into, ".")
    pull.finish()
    assert pull.missing == [(PARTS, f"has a name that is kept for unfinished files ({PARTS})")]
    assert seen(into / "d") == seen(host / "d")


def test_a_directory_that_cannot_be_written_has_room_for_unfinished_files(host: Path, into: Path) -> None:
    (host / "f").write_text("1")
    host.chmod(0o555)
    for text in ("1", "22"):
        (host / "f").write_text(text)
        Pulling(host, into, ".").finish()
        assert timeless(into) == timeless(host)


def test_sparse_files_stay_sparse(host: Path, into: Path) -> None:
    size = 16 * MB
    for name, places in {"middle": [8 * MB], "end": [size - MB], "start": [0], "none": []}.items():
        with (host / name).open("wb") as file:
            file.truncate(size)
            for place in places:
                file.seek(place)
                file.write(random.Random(1).randbytes(MB))
    pull = Pulling(host, into, ".")
    pull.until(lambda: pull.came > MB)
    pull.break_off()
    pull = Pulling(host, into, ".")
    assert pull.finish().bytes <= 4 * size
    assert pull.came < 10 * MB
    for path in host.iterdir():
        assert subprocess.run(["cmp", path, into / path.name], check=False).returncode == 0
        assert (into / path.name).stat().st_blocks * 512 < 3 * MB


def test_special_mode_bits_are_counted(host: Path, into: Path) -> None:
    for name, mode in {"setuid": 0o4755, "setgid": 0o2755, "plain": 0o755}.items():
        (host / name).write_text("")
        (host / name).chmod(mode)
    (host / "sticky").mkdir()
    (host / "sticky").chmod(0o1777)
    (host / "link").symlink_to("setuid")
    assert Pulling(host, into, ".").finish().special_modes == 3
    assert not any(path.lstat().st_mode & 0o7000 for path in into.rglob("*"))


def test_a_workspace_that_is_a_link_is_the_directory_behind_it(host: Path, into: Path, tmp_path: Path) -> None:
    (host / "f").write_text("1")
    (tmp_path / "workspace").symlink_to(host)
    pull = Pulling(tmp_path / "workspace", into, ".")
    pull.finish()
    assert pull.missing == []
    assert timeless(into) == timeless(host)
