"""Snapshots of workspaces: whole, unchanging, each content once."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from mesh.core.errors import MeshError
from mesh.workspace import snapshot
from mesh.workspace.hashes import HashCache
from mesh.workspace.prepare import prepare
from mesh.workspace.snapshot import Snapshot, remove_unused, take


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    (place / "sub/deep").mkdir(parents=True)
    (place / "train.py").write_text("print(1)\n")
    (place / "run.sh").write_text("#!/bin/sh\n")
    (place / "run.sh").chmod(0o755)
    (place / "sub/deep/data").write_bytes(os.urandom(3 << 20))
    (place / "sub/left.log").write_text("x")
    (place / ".gitignore").write_text("*.log\n")
    (place / "link").symlink_to("train.py")
    (place / "empty").mkdir()
    return place


def taken(workspace: Path) -> Snapshot:
    return take(workspace, (), workspace.parent / "jobs", workspace.parent / "cache")


def test_a_snapshot_equals_the_workspace(workspace: Path) -> None:
    copy = taken(workspace).directory
    found = sorted(str(path.relative_to(copy)) for path in copy.rglob("*"))
    assert found == [".gitignore", "empty", "link", "run.sh", "sub", "sub/deep", "sub/deep/data", "train.py"]
    assert (copy / "sub/deep/data").read_bytes() == (workspace / "sub/deep/data").read_bytes()
    assert os.readlink(copy / "link") == "train.py"
    for name in ("train.py", "run.sh", "sub", "empty"):
        ours, theirs = (copy / name).stat(), (workspace / name).stat()
        assert (ours.st_mode, ours.st_mtime_ns) == (theirs.st_mode, theirs.st_mtime_ns)
    assert stat.S_IMODE((workspace.parent / "jobs/trees").stat().st_mode) == 0o700


def test_a_snapshot_is_sent_as_it_is(workspace: Path) -> None:
    """Its own .gitignore was tracked, and would leave out what git tracks."""
    (workspace / ".gitignore").write_text("train.py\n!.venv\n")
    place = workspace.parent
    made = take(workspace, ("!train.py",), place / "jobs", place / "cache")
    again = prepare(made.directory, (), HashCache(made.directory, place / "cache"), as_is=True)
    assert again.manifest.tree == made.tree
    assert (made.directory / "train.py").exists()


def test_equal_trees_are_one_and_equal_contents_are_one(workspace: Path) -> None:
    first, again = taken(workspace), taken(workspace)
    assert first == again
    (workspace / "train.py").write_text("print(2)\n")
    second = taken(workspace)
    assert second.tree != first.tree
    assert (first.directory / "train.py").read_text() == "print(1)\n"
    assert os.path.samefile(first.directory / "sub/deep/data", second.directory / "sub/deep/data")
    assert not os.path.samefile(first.directory / "sub/deep/data", workspace / "sub/deep/data")


def test_a_later_change_of_the_workspace_is_none_of_the_snapshot(workspace: Path) -> None:
    copy = taken(workspace).directory
    with (workspace / "run.sh").open("a") as file:
        file.write("rm -rf /\n")
    (workspace / "sub/deep/data").unlink()
    assert (copy / "run.sh").read_text() == "#!/bin/sh\n"
    assert (copy / "sub/deep/data").stat().st_size == 3 << 20


def test_a_file_that_changes_meanwhile_is_read_again(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed, original = [], snapshot._copy

    def copy(source: bytes, entry: object, content: bytes) -> None:
        if source.endswith(b"run.sh") and len(changed) < 2:
            changed.append(source)
            (workspace / "run.sh").write_text(f"changed {len(changed)}")
        original(source, entry, content)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshot, "_copy", copy)
    assert (taken(workspace).directory / "run.sh").read_text() == "changed 2"
    assert os.listdir(workspace.parent / "jobs/trees") == [taken(workspace).tree]


def test_a_file_that_never_rests_is_named(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = snapshot._copy

    def copy(source: bytes, entry: object, content: bytes) -> None:
        if source.endswith(b"run.sh"):
            (workspace / "run.sh").write_text(os.urandom(8).hex())
        original(source, entry, content)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshot, "_copy", copy)
    with pytest.raises(MeshError, match=r"run\.sh"):
        taken(workspace)
    assert os.listdir(workspace.parent / "jobs/trees") == []


def test_what_no_job_uses_is_removed(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = workspace.parent / "jobs"
    (workspace / "empty").chmod(0o555)
    first = taken(workspace)
    (workspace / "train.py").write_text("print(2)\n")
    second = taken(workspace)
    assert remove_unused(place, [second.tree]) == 0  # the job of a new tree may be on its way
    monkeypatch.setattr(snapshot, "UNUSED_TREE_S", -1.0)
    assert remove_unused(place, [second.tree]) == len("print(1)\n")
    assert os.listdir(place / "trees") == [second.tree]
    assert first.tree != second.tree
    assert remove_unused(place, []) > 3 << 20
    assert not [path for path in place.rglob("*") if path.is_file()]
