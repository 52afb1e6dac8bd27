"""Which files belong: against the real git, on random trees and patterns, and what git does not know."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from mesh.core.errors import MeshError
from mesh.workspace.ignore import left_by_default
from mesh.workspace.listing import DIRECTORY, list_workspace
from tests.conftest import own_children

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


def has_link_above(directory: Path, path: str) -> bool:
    """Report a path that leads through a symbolic link: git calls such a tracked file deleted."""
    return any((directory / parent).is_symlink() for parent in Path(path).parents)


def existing_files_of_git(directory: Path) -> set[bytes]:
    """List the files that git tracks or does not ignore, less those that are gone from the disk."""
    paths = map(os.fsdecode, files_of_git(directory))
    return {
        os.fsencode(path)
        for path in paths
        if (directory / path).is_symlink() or (directory / path).is_file()
        if not has_link_above(directory, path)
    }


def track_some(directory: Path, chance: random.Random) -> None:
    """Have git track random files, ignored ones as well."""
    found = [path for path in directory.rglob("*") if path.is_symlink() or path.is_file()]
    found = [path for path in found if ".git" not in path.parts]
    chosen = chance.sample(found, chance.randint(0, len(found)))
    paths = [os.fsencode(path.relative_to(directory)) for path in chosen]
    if paths:
        git(directory, "--literal-pathspecs", "add", "-f", "--", *map(os.fsdecode, paths))


def change_some(directory: Path, chance: random.Random) -> None:
    """Replace random paths after git has tracked them: delete them, or exchange files, links and directories."""
    found = sorted(path for path in directory.rglob("*") if ".git" not in path.parts and path.name != ".gitignore")
    for path in chance.sample(found, min(len(found), chance.randint(0, 3))):
        if not (path.is_symlink() or path.exists()) or has_link_above(directory, str(path.relative_to(directory))):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        match chance.choice(["gone", "file", "link", "directory"]):
            case "file":
                path.write_bytes(b"new")
            case "link":
                path.symlink_to(chance.choice(["a", "..", "nowhere"]))
            case "directory":
                path.mkdir()
                (path / chance.choice(NAMES)).write_bytes(b"")


@pytest.mark.parametrize("batch", range(10))
def test_random_trees_with_tracked_files_as_git_has_them(tmp_path: Path, batch: int) -> None:
    for case in range(CASES // 10):
        chance = random.Random(f"tracked-{batch}-{case}")
        directory = tmp_path / str(case)
        directory.mkdir()
        git(directory, "init", "-q")
        grow(directory, chance)
        track_some(directory, chance)
        directories = [directory, *(path for path in directory.rglob("*") if path.is_dir() and not path.is_symlink())]
        directories = [path for path in directories if ".git" not in path.parts]
        for where in chance.sample(directories, min(len(directories), chance.randint(1, 3))):
            (where / ".gitignore").write_bytes(random_file(chance))
        track_some(directory, chance)
        change_some(directory, chance)
        expected, found = existing_files_of_git(directory), files_of_ours(directory)
        if expected != found:
            ignores = {str(path): path.read_bytes() for path in directory.rglob(".gitignore")}
            raise AssertionError(f"{case=} {expected - found=} {found - expected=} {ignores=}")


def make(directory: Path, *paths: str) -> None:
    for path in paths:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(path)


def test_tracked_files_of_an_ignored_directory_belong_and_nothing_else_in_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    make(tmp_path, "build/keep.bin", "build/other", "build/deep/er/x", "build/deep/y", "data/a.bin", "data/b.bin")
    (tmp_path / "build/link").symlink_to("nowhere")
    (tmp_path / ".gitignore").write_text("build/\n*.bin\n")
    git(tmp_path, "add", "-f", "build/keep.bin", "build/deep/er/x", "build/link", "data/a.bin")
    expected = {b"build/keep.bin", b"build/deep/er/x", b"build/link", b"data/a.bin", b".gitignore"}
    assert files_of_ours(tmp_path) == expected == files_of_git(tmp_path)
    assert files_of_ours(tmp_path / "build") == {b"keep.bin", b"deep/er/x", b"link", b"other", b"deep/y"}


def test_rules_of_mesh_exclude_tracked_files(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    make(tmp_path, "a.bin", "b.bin", "c.bin", "build/d", "build/e", "out/f")
    (tmp_path / ".gitignore").write_text("*.bin\nbuild\nout\n.meshignore\n")
    (tmp_path / ".meshignore").write_text("/b.bin\n")
    (tmp_path / "build/.meshignore").write_text("e\n")
    git(tmp_path, "add", "-f", "a.bin", "b.bin", "c.bin", "build/d", "build/e", "out/f")
    assert files_of_ours(tmp_path, "c.bin", "out") == {b"a.bin", b"build/d", b".gitignore"}


def test_a_submodule_has_an_index_of_its_own(tmp_path: Path) -> None:
    source, directory = tmp_path / "source", tmp_path / "main"
    for path in (source, directory):
        path.mkdir()
        git(path, "init", "-q")
    make(source, "in.bin", "code")
    git(source, "add", "-f", ".")
    git(source, "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-qm", "first")
    git(directory, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(source), "third/party")
    (directory / ".gitignore").write_text("*.bin\nthird/\n")
    make(directory, "third/party/new.bin", "third/party/new", "third/other", "x.bin")
    found = files_of_ours(directory)
    assert found == {b".gitignore", b".gitmodules", b"third/party/in.bin", b"third/party/code", b"third/party/new"}
    assert files_of_ours(directory / "third/party") == {b"code", b"in.bin", b"new", b"new.bin"}


def test_a_second_work_tree_has_an_index_of_its_own(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    git(first, "init", "-q")
    make(first, "a.bin")
    git(first, "add", "-f", ".")
    git(first, "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-qm", "first")
    git(first, "worktree", "add", "-q", str(second))
    git(first, "rm", "-q", "--cached", "a.bin")
    for directory in (first, second):
        (directory / ".gitignore").write_text("*.bin\n")
    assert files_of_ours(first) == {b".gitignore"}
    assert files_of_ours(second) == {b".gitignore", b"a.bin", b".git"} - {b".git"}


def test_a_workspace_below_the_repository_has_its_tracked_files(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    make(tmp_path, "pkg/app/[x]/a.log", "pkg/app/[x]/b.log", "pkg/other/a.log")
    (tmp_path / ".gitignore").write_text("*.log\n")
    git(tmp_path, "--literal-pathspecs", "add", "-f", "pkg/app/[x]/a.log", "pkg/other/a.log")
    assert files_of_ours(tmp_path / "pkg/app/[x]") == {b"a.log"}


def test_variables_of_a_git_hook_do_not_lead_to_another_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q")
    make(tmp_path, "a.log", "sub/b.log")
    (tmp_path / ".gitignore").write_text("*.log\n")
    git(tmp_path, "add", "-f", "a.log")
    monkeypatch.setenv("GIT_DIR", ".git")
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "none"))
    assert files_of_ours(tmp_path) == {b"a.log", b".gitignore"}


def test_without_a_git_program_no_file_counts_as_tracked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q")
    make(tmp_path, "a.log", "b")
    (tmp_path / ".gitignore").write_text("*.log\n")
    git(tmp_path, "add", "-f", "a.log")
    monkeypatch.setenv("PATH", "/nowhere")
    found = list_workspace(tmp_path, ())
    assert {entry.path for entry in found.entries} == {b"b", b".gitignore"}
    assert found.git_problem == ""


def test_a_repository_that_git_refuses_is_named(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    make(tmp_path, "a.log", "b")
    assert list_workspace(tmp_path, ()).git_problem == ""  # no rule excludes anything: git need not answer
    (tmp_path / ".gitignore").write_text("*.log\n")
    (tmp_path / ".git/index").write_bytes(b"damaged")
    found = list_workspace(tmp_path, ())
    assert {entry.path for entry in found.entries} == {b"b", b".gitignore"}
    assert found.git_problem.startswith("git: ")


def test_a_git_that_does_not_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").write_text("#!/bin/sh\nexec sleep 4568\n")
    (tmp_path / "bin/git").chmod(0o755)
    git(tmp_path, "init", "-q")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr("mesh.workspace.tracked.LS_FILES_LIMIT_S", 0.0)
    before = own_children()
    list_workspace(tmp_path, ("*",))  # git is not needed, and ended
    (tmp_path / ".gitignore").write_text("*\n")
    with pytest.raises(MeshError, match="git did not list its files within 0 s"):
        list_workspace(tmp_path, ())
    assert own_children() == before


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


def test_names_that_are_left_out_by_default(tmp_path: Path) -> None:
    for path in (".venv/a", "b/__pycache__/c.pyc", "node_modules/d", "venv/e", "b/f"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x")
    found = list_workspace(tmp_path, [])
    assert [entry.path for entry in found.entries] == [b"b", b"b/f", b"venv", b"venv/e"]
    assert found.by_default == (".venv", "__pycache__", "node_modules")
    assert left_by_default(tmp_path, []) == (".venv", "__pycache__", "node_modules")
    asked = list_workspace(tmp_path, ["!.venv"])
    assert b".venv/a" in [entry.path for entry in asked.entries]
    assert asked.by_default == ("__pycache__", "node_modules")
    assert left_by_default(tmp_path, ["!.venv"]) == ("__pycache__", "node_modules")
    (tmp_path / ".meshignore").write_text("!node_modules\n__pycache__\n")
    ruled = list_workspace(tmp_path, [])
    assert b"node_modules/d" in [entry.path for entry in ruled.entries]
    assert ruled.by_default == (".venv",)
    assert left_by_default(tmp_path, []) == (".venv",)


def test_what_git_tracks_below_names_that_are_left_out_by_default_belongs(tmp_path: Path) -> None:
    for path in ("node_modules/tracked/a", "node_modules/other/b", "__pycache__/c"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x")
    for words in (["init", "-q"], ["add", "node_modules/tracked/a"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    found = list_workspace(tmp_path, [])
    paths = [entry.path for entry in found.entries]
    assert paths == [b"node_modules", b"node_modules/tracked", b"node_modules/tracked/a"]
    assert found.by_default == ("__pycache__",)
