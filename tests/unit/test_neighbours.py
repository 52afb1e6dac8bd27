"""Announcements of runs to other users of a machine, and what is not believed of them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mesh.agent.base.light import dumps
from mesh.agent.control import neighbours
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.root  # files of other users are made
OTHER = pwd.getpwnam("nobody")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory for notes."""
    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_uid == os.geteuid() and directory != Path("/") and directory != Path("/tmp"):
            directory.chmod(0o755)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes").chmod(0o1777)
    monkeypatch.setattr(neighbours, "PLACES", (str(tmp_path / "missing"), str(tmp_path / "notes")))
    return tmp_path / "notes"


NOTE_OF_ANOTHER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from mesh.agent.control import neighbours
os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
neighbours.PLACES = (sys.argv[3],)
note = neighbours.Announcement("run-7")
print("ready", flush=True)
sys.stdin.readline()
note.remove()
print("removed", flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def run_of_another(place: Path) -> Iterator[subprocess.Popen[str]]:
    """A process of another user that has left a note."""
    argv = [sys.executable, "-I", "-S", "-c", NOTE_OF_ANOTHER, str(REPOSITORY), str(OTHER.pw_uid), str(place)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def told() -> list[tuple[str, str]]:
    return [(other.user, other.run) for other in neighbours.others()]


def forge(place: Path, *, owner: int = OTHER.pw_uid, **changes: Any) -> int:
    """Make a note as another user could, and hold its lock; return the descriptor."""
    path = place / "mesh-run-forged"
    space = neighbours._space()
    about = {"run": "run-8", "since": 1.0, "pid": os.getpid(), "start": neighbours._start(os.getpid()), "space": space}
    path.write_text(dumps({**about, **changes}))
    path.chmod(0o644)
    os.chown(path, owner, -1)
    file = os.open(path, os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def test_a_run_of_another_user_is_seen_until_it_removes_its_note(place: Path) -> None:
    with run_of_another(place) as process:
        assert told() == [(OTHER.pw_name, "run-7")]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "removed\n"
        assert told() == []
        assert list(place.iterdir()) == []


def test_a_killed_run_is_not_seen(place: Path) -> None:
    with run_of_another(place) as process:
        process.kill()
        process.wait()
        assert told() == []
        assert len(list(place.iterdir())) == 1  # only its user may remove it
    with contextlib.closing(_Removed(neighbours.Announcement("run-9"))):
        assert sorted(path.name[:14] for path in place.iterdir()) == ["mesh-run-run-7", "mesh-run-run-9"]


class _Removed:
    def __init__(self, note: neighbours.Announcement) -> None:
        self.close = note.remove


def test_an_own_run_is_no_other_user(place: Path) -> None:
    with contextlib.closing(_Removed(neighbours.Announcement("run-9"))):
        assert told() == []
        (path,) = place.iterdir()
        assert path.stat().st_mode & 0o777 == 0o644
    assert list(place.iterdir()) == []


def test_own_notes_of_killed_agents_are_removed(place: Path) -> None:
    (place / "mesh-run-old").write_text("{}")
    with contextlib.closing(_Removed(neighbours.Announcement("run-9"))):
        (path,) = place.iterdir()
        assert path.name.startswith("mesh-run-run-9-")


def test_a_note_that_is_believed(place: Path) -> None:
    file = forge(place)
    assert told() == [(OTHER.pw_name, "run-8")]
    os.close(file)


@pytest.mark.parametrize(
    "changes",
    [
        {"start": 1},
        {"pid": 2**22 + 1},
        {"pid": 2**70},
        {"run": "\x1b[31m"},
        {"run": "r" * 65},
        {"run": ""},
        {"run": 3},
        {"since": "now"},
        {"since": -1},
        {"since": 1e300},
        {"since": 5e11},
        {"since": True},
        {"padding": "x" * neighbours.FILE_BYTES},
    ],
    ids=lambda changes: f"{next(iter(changes.items()))}"[:30],
)
def test_a_note_that_cannot_be(place: Path, changes: dict[str, Any]) -> None:
    file = forge(place, **changes)
    assert told() == []
    os.close(file)


def test_the_user_is_the_owner_of_the_file(place: Path) -> None:
    file = forge(place, user="root", owner=12345)
    assert told() == [("12345", "run-8")]
    os.close(file)


def test_nothing_but_plain_files_with_one_name_is_read(place: Path, tmp_path: Path) -> None:
    file = forge(place)
    os.link(place / "mesh-run-forged", tmp_path / "another name")
    assert told() == []
    os.close(file)
    (place / "mesh-run-forged").rename(tmp_path / "elsewhere")
    (place / "mesh-run-link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(place / "mesh-run-fifo")
    (place / "mesh-run-directory").mkdir()
    for path in place.iterdir():
        os.chown(path, OTHER.pw_uid, -1, follow_symlinks=False)
    assert told() == []
    with contextlib.closing(_Removed(neighbours.Announcement("run-9"))):
        assert len(list(place.iterdir())) == 4


@pytest.mark.parametrize("text", ["", "[]", "no json", "[" * 500, '"run"', "\udcff"])
def test_what_is_no_note(place: Path, text: str) -> None:
    (place / "mesh-run-x").write_text(text, errors="surrogateescape")
    os.chown(place / "mesh-run-x", OTHER.pw_uid, -1)
    with (place / "mesh-run-x").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert told() == []


def test_a_directory_that_is_not_sticky_has_no_notes(place: Path) -> None:
    place.chmod(0o777)
    assert not neighbours.has_place()
    with pytest.raises(OSError, match="no directory that all users may write"):
        neighbours.Announcement("run-9")
