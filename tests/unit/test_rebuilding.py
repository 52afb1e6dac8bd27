"""Trees that are built again: from kept contents, a directory, and a git commit with changes to it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from mesh.workspace.gitdiff import DIFF_BYTES_MAX, DiffWriter
from mesh.workspace.gitfiles import of_commit
from mesh.workspace.hashes import HashCache
from mesh.workspace.manifest import Entry, Manifest
from mesh.workspace.prepare import prepare
from mesh.workspace.rebuilding import of_directory, rebuild


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "repository" / "project"
    place.mkdir(parents=True)
    return place


def git(place: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *identity, "-C", str(place), *words], check=True, stdout=subprocess.DEVNULL)


def manifest_of(place: Path, cache: Path) -> Manifest:
    return prepare(place, (), HashCache(place, cache)).manifest


def tree(directory: Path) -> dict[str, bytes | str]:
    """The contents of all files and the targets of all links below a directory."""
    found: dict[str, bytes | str] = {}
    for path in sorted(directory.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(directory))] = os.readlink(path)
        elif path.is_file():
            found[str(path.relative_to(directory))] = path.read_bytes()
    return found


def fill(project: Path) -> None:
    (project / "src").mkdir()
    (project / "src/main.py").write_bytes(b"print('first')\n")
    (project / "data.bin").write_bytes(bytes(range(256)) * 40)
    (project / "run.sh").write_bytes(b"#!/bin/sh\n")
    (project / "run.sh").chmod(0o755)
    (project / "link").symlink_to("src/main.py")
    (project / "empty").mkdir()


def test_a_tree_is_as_it_was_with_modes_times_links_and_empty_directories(project: Path, tmp_path: Path) -> None:
    fill(project)
    manifest = manifest_of(project, tmp_path / "cache")
    directory, missing = rebuild(manifest, tmp_path / "kept", [of_directory(project)], tmp_path / "cache")
    assert (missing, tree(directory)) == ([], tree(project))
    assert (directory / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (directory / "empty").is_dir()
    assert manifest_of(directory, tmp_path / "cache").tree == manifest.tree
    (project / "src/main.py").write_bytes(b"print('other')\n")  # the kept tree needs it no more
    again, missing = rebuild(manifest, tmp_path / "kept", [of_directory(project)], tmp_path / "cache")
    assert (again, missing) == (directory, [])


def test_files_that_are_nowhere_are_listed_and_no_tree_is_made(project: Path, tmp_path: Path) -> None:
    fill(project)
    manifest = manifest_of(project, tmp_path / "cache")
    (project / "src/main.py").write_bytes(b"print('other')\n")  # as long as before
    (project / "data.bin").unlink()
    (project / "run.sh").unlink()
    (project / "run.sh").symlink_to("/bin/sh")
    _, missing = rebuild(manifest, tmp_path / "kept", [of_directory(project)], tmp_path / "cache")
    assert missing == ["data.bin", "run.sh", "src/main.py"]
    assert not (tmp_path / "kept/trees").exists()


def test_a_source_that_lies_is_not_believed(project: Path, tmp_path: Path) -> None:
    fill(project)
    manifest = manifest_of(project, tmp_path / "cache")

    def lies(entry: Entry) -> Iterable[bytes]:
        return [b"x" * entry.size]

    _, missing = rebuild(manifest, tmp_path / "kept", [lies], tmp_path / "cache")
    assert missing == ["data.bin", "run.sh", "src/main.py"]
    assert not any(path.is_file() for path in (tmp_path / "kept").rglob("*"))


def test_a_commit_and_the_changes_to_it_have_what_the_directory_has_lost(project: Path, tmp_path: Path) -> None:
    fill(project)
    git(project.parent, "init", "-q")
    git(project.parent, "add", ".")
    git(project.parent, "commit", "-q", "-m", "first")
    commit = subprocess.check_output(["git", "-C", str(project), "rev-parse", "HEAD"], text=True).strip()
    (project / "src/main.py").write_bytes(b"print('changed')\n")
    (project / "data.bin").write_bytes(bytes(reversed(range(256))) * 41)
    (project / "new.txt").write_bytes(b"not tracked\n")
    git(project, "add", "-N", "new.txt")  # to be added: the changes have it
    (project / "untracked.txt").write_bytes(b"not tracked\n")
    manifest = manifest_of(project, tmp_path / "cache")
    diff = tmp_path / "changes.diff"
    DiffWriter(project, diff).close()
    assert diff.stat().st_mode & 0o777 == 0o600
    git(project.parent, "reset", "-q", "--hard")
    git(project.parent, "clean", "-q", "-f", "-d")
    (project / "run.sh").unlink()
    before = sorted((project.parent / ".git").rglob("*"))
    with of_commit(project, commit, diff) as source:
        _, missing = rebuild(manifest, tmp_path / "kept", [of_directory(project), source], tmp_path / "cache")
        assert missing == ["untracked.txt"]
    (project / "untracked.txt").write_bytes(b"not tracked\n")
    with of_commit(project, commit, diff) as source:
        directory, missing = rebuild(manifest, tmp_path / "kept", [of_directory(project), source], tmp_path / "cache")
    assert missing == []
    assert (directory / "src/main.py").read_bytes() == b"print('changed')\n"
    assert manifest_of(directory, tmp_path / "cache").tree == manifest.tree
    assert sorted((project.parent / ".git").rglob("*")) == before  # the repository has nothing of it


def test_changes_that_are_too_large_leave_an_empty_file(project: Path, tmp_path: Path) -> None:
    (project / "big").write_bytes(b"")
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "first")
    (project / "big").write_bytes(b"0123456789abcde\n" * (DIFF_BYTES_MAX // 16 + 1))
    DiffWriter(project, tmp_path / "changes.diff").close()
    found = [(path.name, path.stat().st_size) for path in tmp_path.iterdir() if path.name.startswith("changes")]
    assert found == [("changes.diff", 0)]


@pytest.mark.parametrize("commit", ["", "0" * 40], ids=["none", "unknown"])
def test_without_a_commit_git_has_nothing(project: Path, tmp_path: Path, commit: str) -> None:
    fill(project)
    entry = manifest_of(project, tmp_path / "cache").entries[0]
    with of_commit(project, commit, tmp_path / "changes.diff") as source:
        assert source(entry) is None


def test_a_path_with_spaces_that_git_lacks_is_missing(project: Path, tmp_path: Path) -> None:
    fill(project)
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "first")
    commit = subprocess.check_output(["git", "-C", str(project), "rev-parse", "HEAD"], text=True).strip()
    (project / "a blob").write_bytes(b"not tracked\n")  # git's own answer for a file has this word there
    manifest = manifest_of(project, tmp_path / "cache")
    with of_commit(project, commit, tmp_path / "changes.diff") as source:
        _, missing = rebuild(manifest, tmp_path / "kept", [source], tmp_path / "cache")
    assert missing == ["a blob"]
