"""Which files belong: against the real git, on random trees and patterns, and what git does not know."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from mesh.workspace.listing import DIRECTORY, list_workspace

CASES = int(os.environ.get("MESH_TEST_IGNORE_CASES", "120"))  # random trees, each compared with git
NAMES = [
    "a",
    "b",
    "ab",
    "build",
    "x.py",
    "x.pyc",
    "[x]",
    "a b",
    "é",
    "#c",
    "!d",
    "a\\b",
    "*",
    "data",
    "t ",
    "Ab-1",
    "z\nz",
]
# No "a**": whether git before 2.42 takes it for "a*" depends on where its memory lies (it compares pointers into two
# strings); test_stars_within_a_name has what its page says.
ATOMS = [
    *NAMES,
    *[
        "*",
        "**",
        "?",
        "*.py",
        "*.py?",
        "[ab]",
        "[!ab]",
        "[^a]*",
        "[a-c]*",
        "[[:alpha:]]",
        "[]a]",
        "[a",
        "\\*",
        "\\a",
        "??",
        "é?",
    ],
    *[
        "a*b",
        "**b",
        "[!é]",
        "\\#c",
        "\\!d",
        "[[:upper:]]*",
        "*[0-9]",
        "[a\\]]",
        "[",
        "\\",
        "x.*",
        "***",
        "[--0]",
        "[[:x:]]",
    ],
]


def git(directory: Path, *words: str) -> bytes:
    environment = {
        **os.environ,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "HOME": str(directory),
    }
    environment.pop("GIT_DIR", None)
    return subprocess.run(["git", *words], cwd=directory, env=environment, check=True, capture_output=True).stdout


def files_of_git(directory: Path) -> set[bytes]:
    return set(git(directory, "ls-files", "-co", "--exclude-standard", "-z").split(b"\0")) - {b""}


def files_of_ours(directory: Path, *ignore: str) -> set[bytes]:
    return {entry.path for entry in list_workspace(directory, ignore).entries if entry.kind != DIRECTORY}


def grow(directory: Path, chance: random.Random, depth: int = 0) -> None:
    """Put a random tree there."""
    for name in chance.sample(NAMES, chance.randint(1, 6)):
        path = directory / name
        if depth < 3 and chance.random() < 0.45:
            path.mkdir()
            grow(path, chance, depth + 1)
        elif chance.random() < 0.08:
            path.symlink_to(chance.choice(["a", "..", "nowhere"]))
        else:
            path.write_bytes(b"")


def random_pattern(chance: random.Random) -> str:
    parts = [chance.choice(ATOMS) for _ in range(chance.choice([1, 1, 1, 2, 2, 3]))]
    pattern = "/".join(parts)
    pattern = chance.choice(["", "", "", "/", "**/", "!", "!/", "//"]) + pattern
    return pattern + chance.choice(["", "", "", "/", "/**", "/*", " ", "\\ ", "  ", "//", "\t"])


def random_file(chance: random.Random) -> bytes:
    lines = [random_pattern(chance) for _ in range(chance.randint(1, 5))]
    lines += chance.choice([[], [], ["# comment"], [""], ["/"], ["!"], ["**"], ["/**"], ["!**/"], ["*/"]])
    chance.shuffle(lines)
    end = chance.choice(["\n", "\n", "\r\n"])
    text = end.join(line.replace("\n", "?") for line in lines) + chance.choice(["", end])
    return chance.choice([b"", b"", b"", b"\xef\xbb\xbf"]) + text.encode()


@pytest.mark.parametrize("batch", range(10))
def test_random_trees_as_git_has_them(tmp_path: Path, batch: int) -> None:
    for case in range(CASES // 10):
        chance = random.Random(f"{batch}-{case}")
        directory = tmp_path / str(case)
        directory.mkdir()
        git(directory, "init", "-q")
        grow(directory, chance)
        directories = [directory, *(path for path in directory.rglob("*") if path.is_dir() and not path.is_symlink())]
        directories = [path for path in directories if ".git" not in path.parts]
        for where in chance.sample(directories, min(len(directories), chance.randint(1, 3))):
            (where / ".gitignore").write_bytes(random_file(chance))
        if chance.random() < 0.3:
            (directory / ".git/info/exclude").write_bytes(random_file(chance))
        expected, found = files_of_git(directory), files_of_ours(directory)
        if expected != found:
            ignores = {str(path): path.read_bytes() for path in directory.rglob(".gitignore")}
            ignores["exclude"] = (directory / ".git/info/exclude").read_bytes()
            raise AssertionError(f"{expected - found=} {found - expected=} {ignores=}")


def make(directory: Path, *paths: str) -> None:
    for path in paths:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(path)


def test_a_workspace_within_a_repository_obeys_the_files_above_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    make(tmp_path, "pkg/app/a.log", "pkg/app/keep.log", "pkg/app/out/x", "pkg/app/src/out", "pkg/other/z")
    (tmp_path / ".gitignore").write_text("*.log\n/pkg/app/out/\n")
    (tmp_path / "pkg/.gitignore").write_text("!keep.log\n")
    workspace = tmp_path / "pkg/app"
    assert files_of_ours(workspace) == {b"keep.log", b"src/out"} == files_of_git(workspace)


def test_patterns_of_mesh_yaml(tmp_path: Path) -> None:
    make(
        tmp_path,
        "a.pyc",
        "deep/b.pyc",
        "deep/er/__pycache__/c",
        "__pycache__/d",
        "top/x",
        "deep/top/y",
        "prerun/p",
        "mesh.yaml",
    )
    (tmp_path / ".git").mkdir()
    make(tmp_path, ".git/config", "sub/.git/config", "sub/file")
    ignore = ["*.pyc", "*/__pycache__/*", "./git/*", "./top", ".env", "mesh.yaml", "*/prerun/*"]
    assert files_of_ours(tmp_path, *ignore) == {b"deep/top/y", b"sub/file"}


def test_ours_win_over_meshignore_and_that_over_gitignore(tmp_path: Path) -> None:
    make(tmp_path, "one", "two", "three")
    (tmp_path / ".gitignore").write_text("one\ntwo\nthree\n.meshignore\n.gitignore\n")
    (tmp_path / ".meshignore").write_text("!one\n!two\n")
    assert files_of_ours(tmp_path, "two") == {b"one"}


def test_names_that_are_no_text(tmp_path: Path) -> None:
    names = [b"new\nline", b"\xff\xfe", "ünï".encode(), b"back\\slash", b"-dash", b" space "]
    for name in names:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(b"")
    assert files_of_ours(tmp_path) == set(names)


def test_stars_within_a_name_are_one_star(tmp_path: Path) -> None:
    make(tmp_path, "ab/c", "ab/d/c", "a/c", "x/a/c")
    (tmp_path / ".gitignore").write_text("/a**/c\n.gitignore\n")
    assert files_of_ours(tmp_path) == {b"ab/d/c", b"x/a/c"}
