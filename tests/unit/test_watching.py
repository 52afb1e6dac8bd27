"""What of a workspace is watched, and which changes count."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from mesh.workspace.listing import list_workspace
from mesh.workspace.watching import ADDED, DELETED, MODIFIED, Survey, Watch, survey


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace in a repository."""
    root = tmp_path / "repository/project"
    for name in ("src/deep", "build/deep", "keep", "build.d", "../.git/info", "../other"):
        (root / name).mkdir(parents=True)
    for name in ("a.py", "src/b.py", "src/deep/c", "src/x.log", "build/deep/d", "keep/x.log", "build.d/e", "mesh.yaml"):
        (root / name).write_text("")
    (root / ".gitignore").write_text("build/\n*.log\n/local\n")
    (root / "keep/.gitignore").write_text("!*.log\n")
    (root / "../.gitignore").write_text("*.o\n")
    (root / "out").symlink_to(tmp_path)
    return root


def git(directory: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=directory, check=True)


def look(root: Path, ignore: Sequence[str] = ()) -> Survey:
    return survey(root, ignore, [root / "mesh.yaml", root.parent / "mesh.yaml"], include_git=False)


def test_only_what_belongs_is_watched_and_where_rules_are(root: Path) -> None:
    top = root.resolve().parent
    watched = {os.path.relpath(os.fsdecode(path), top) for path in look(root).directories}
    assert watched == {
        "project",
        "project/src",
        "project/src/deep",
        "project/keep",
        "project/build.d",
        ".",
        ".git/info",
    }


CHANGES: dict[str, tuple[int, str, bool]] = {
    "a file": (MODIFIED, "a.py", True),
    "a new one": (ADDED, "src/new.py", True),
    "one that was deleted": (DELETED, "src/b.py", True),
    "an ignored one": (MODIFIED, "src/x.log", False),
    "a new ignored one": (ADDED, "src/deep/y.log", False),
    "an ignored one that was deleted": (DELETED, "src/y.log", False),
    "one that is kept": (MODIFIED, "keep/x.log", True),
    "a directory": (MODIFIED, "src/deep", True),
    "a directory that was deleted": (DELETED, "src/gone", True),
    "an ignored directory": (ADDED, "build", False),
    "an ignored directory that was deleted": (DELETED, "src/build", False),
    "what is in an ignored directory": (ADDED, "build/deep/new", False),
    "what is in a directory that is not known": (ADDED, "src/unknown/new", False),
    "a link to a directory": (MODIFIED, "out", True),
    "rules": (MODIFIED, ".gitignore", True),
    "rules deeper down": (ADDED, "src/deep/.meshignore", True),
    "rules that do not count": (ADDED, "build/.gitignore", False),
    "rules above": (MODIFIED, "../.gitignore", True),
    "rules of the repository": (MODIFIED, "../.git/info/exclude", True),
    "settings": (MODIFIED, "mesh.yaml", True),
    "settings above": (ADDED, "../mesh.yaml", True),
    "something else above": (MODIFIED, "../file", False),
    "a neighbour": (MODIFIED, "../project2/a.py", False),
    "by a pattern of mesh.yaml": (ADDED, "local.tmp", False),
    "git's own": (MODIFIED, ".git", False),
    "the workspace itself": (DELETED, ".", True),
}


@pytest.mark.parametrize(("change", "path", "counts"), CHANGES.values(), ids=CHANGES)
def test_which_changes_count(root: Path, change: int, path: str, counts: bool) -> None:
    changed = os.path.normpath(root.resolve() / path)
    assert look(root, ("*.tmp",)).concerns(change, os.fsencode(changed)) is counts


@pytest.fixture
def tracked(root: Path) -> Path:
    """The same, where git tracks files that .gitignore names."""
    git(root.parent, "init", "-q")
    git(root, "add", "-f", "build/deep/d", "src/x.log")
    (root / "build/deep/more").mkdir()
    return root


TRACKED = {
    "a tracked file in an ignored directory": (MODIFIED, "build/deep/d", True),
    "a tracked file that was deleted": (DELETED, "src/x.log", True),
    "an ignored directory with tracked files": (ADDED, "build", True),
    "a file beside it": (ADDED, "build/deep/new", False),
    "a directory beside it": (ADDED, "build/deep/more", False),
    "an ignored file": (MODIFIED, "src/y.log", False),
    "the index of the same files": (MODIFIED, "../.git/index", False),
    "another file of git's": (MODIFIED, "../.git/HEAD", False),
}


@pytest.mark.parametrize(("change", "path", "counts"), TRACKED.values(), ids=TRACKED)
def test_which_changes_count_where_git_tracks_ignored_files(
    tracked: Path, change: int, path: str, counts: bool
) -> None:
    found = look(tracked)
    assert found.concerns(change, os.fsencode(os.path.normpath(tracked.resolve() / path))) is counts


def test_a_file_that_git_begins_to_track_counts(tracked: Path) -> None:
    pytest.importorskip("watchfiles")
    known = look(tracked)
    watch = Watch(known)
    git(tracked, "add", "src/b.py")  # no rule names it: not a change
    git(tracked, "add", "-f", "keep/x.log", "build.d/e")
    (tracked / "src/y.log").write_text("")
    assert not known.concerns(MODIFIED, os.fsencode(tracked.resolve().parent / ".git/index"))
    git(tracked, "add", "-f", "src/y.log")
    watch.wait(known)
    watch.close()
    assert b"src/y.log" in {entry.path for entry in list_workspace(tracked, ()).entries}


@pytest.mark.parametrize("fixture", ["root", "tracked"])
def test_it_agrees_with_the_listing(request: pytest.FixtureRequest, fixture: str) -> None:
    root: Path = request.getfixturevalue(fixture)
    found = look(root, ("*.py",))
    listed = {os.fsdecode(entry.path) for entry in list_workspace(root, ("*.py",)).entries}
    for directory, names, files in os.walk(root):
        for name in (*names, *files):
            path = os.path.join(directory, name)
            belongs = os.path.relpath(path, root) in listed
            assert found.concerns(MODIFIED, os.fsencode(os.path.realpath(directory)) + b"/" + name.encode()) is belongs
            assert found.concerns(DELETED, os.fsencode(os.path.realpath(directory)) + b"/" + name.encode()) is belongs


def test_changes_are_kept_until_somebody_asks(root: Path) -> None:
    pytest.importorskip("watchfiles")
    known = look(root)
    watch = Watch(known)
    (root / "src/x.log").write_text("ignored")
    (root / "src/b.py").write_text("changed")
    watch.wait(known)
    watch.close()


def test_a_directory_that_is_gone_already(root: Path) -> None:
    pytest.importorskip("watchfiles")
    known = look(root)
    (root / "src/deep/c").unlink()
    (root / "src/deep").rmdir()
    with pytest.raises(FileNotFoundError):
        Watch(known)


def test_names_that_are_not_utf_8(root: Path) -> None:
    pytest.importorskip("watchfiles")
    os.mkdir(os.fsencode(root) + b"/src/\xff")
    known = look(root)
    watch = Watch(known)
    Path(os.fsdecode(os.fsencode(root) + b"/src/\xfe")).write_text("")
    watch.wait(known)
    assert watch.is_broken
    watch.close()
