"""mesh push: what would be sent, why a path is or is not, and the sync alone."""

from __future__ import annotations

import json
import os
import socket
import subprocess

import pytest

from mesh import api
from mesh.core.errors import UsageError
from tests.conftest import Home


@pytest.fixture
def project(home: Home) -> Home:
    home.files(mesh__yaml="include_git: false\nignore:\n  - '*.pyc'\n\n  - /data\n", a__py="12345", b__pyc="")
    for name in ("data/deep", "keep", ".git"):
        (home.project / name).mkdir(parents=True)
    (home.project / ".gitignore").write_text("*.log\n!keep.log\n")
    (home.project / "keep/x.log").write_text("")
    (home.project / "keep/keep.log").write_text("1" * 2000)
    (home.project / "link").symlink_to("data")
    (home.project / "pulled/rank-0000").mkdir(parents=True)
    (home.project / "pulled/.gitignore").write_text("*\n")
    os.mkfifo(home.project / "fifo")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(home.project / "socket"))
    return home


def test_what_would_be_sent(project: Home) -> None:
    assert project.mesh("push", "--list").out.decode() == (
        "2.0 kB  keep/keep.log\n"
        "  50 B  mesh.yaml\n"
        "  16 B  .gitignore\n"
        "   5 B  a.py\n"
        "   0 B  link\n"
        "2.1 kB  5 files in all\n"
    )
    listed = json.loads(project.mesh("push", "--list", "--json").out)
    assert listed[0] == {"path": "keep/keep.log", "size": 2000}


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("a.py", "a.py is sent: no rule leaves it out"),
        ("b.pyc", "b.pyc is not sent: *.pyc (PROJECT/mesh.yaml:3)"),
        ("data", "data is not sent: /data (PROJECT/mesh.yaml:5)"),
        ("data/deep/x", "data/deep/x is not sent: data/ is left out by /data (PROJECT/mesh.yaml:5)"),
        ("keep/x.log", "keep/x.log is not sent: *.log (PROJECT/.gitignore:1)"),
        ("keep/keep.log", "keep/keep.log is sent: !keep.log (PROJECT/.gitignore:2)"),
        ("not/there.log", "not/there.log is not sent: *.log (PROJECT/.gitignore:1)"),
        ("not/there.py", "not/there.py is not sent: there is no such file"),
        ("a.py/below", "a.py/below is not sent: there is no such file"),
        ("link", "link is sent: no rule leaves it out"),
        ("keep", "keep is sent: no rule leaves it out"),
        (
            "pulled",
            "pulled is sent as an empty directory: all that is in it is left out, by * (PROJECT/pulled/.gitignore:1)",
        ),
        ("fifo", "fifo is not sent: it is a FIFO"),
        ("socket", "socket is not sent: it is a socket"),
        ("link/deep", "link/deep is not sent: link is a symbolic link, which is sent as one"),
        (".git/HEAD", ".git/HEAD is not sent: .git/ is left out by .git (mesh leaves it out unless mesh.yaml"),
    ],
)
def test_why_a_path_is_sent_or_not(project: Home, path: str, told: str) -> None:
    done = project.mesh("push", "--explain", path)
    assert done.out.decode().startswith(told.replace("PROJECT", str(project.project))), done
    if not path.startswith(".git"):
        inside = project.project / path
        there = project.mesh("push", "--explain", str(inside), cwd=project.project / "keep")
        assert there.out.decode().strip() == told.replace("PROJECT", str(project.project)).replace(path, str(inside), 1)


def test_paths_that_are_none_of_the_workspace(project: Home) -> None:
    assert "is not in the workspace" in project.mesh("push", "--explain", "/etc/passwd").err
    assert "is the workspace itself" in project.mesh("push", "--explain", ".").err
    found = json.loads(project.mesh("push", "--explain", "data/x", "--json").out)
    assert found["above"] == "data"
    assert not found["belongs"]
    found = json.loads(project.mesh("push", "--explain", "fifo", "--json").out)
    assert (found["belongs"], found["obstacle"]) == (False, "it is a FIFO")


@pytest.fixture
def repository(home: Home) -> Home:
    """A project in which git tracks files that .gitignore names."""
    home.files(mesh__yaml="ignore:\n  - '*.tmp'\n", a__log="", b__log="", c__tmp="", __meshignore="d.log\n", d__log="")
    (home.project / ".gitignore").write_text("*.log\n*.tmp\n/build/\n")
    (home.project / "build").mkdir()
    for name in ("kept", "other"):
        (home.project / "build" / name).write_text("")
    for words in (["init", "-q"], ["add", "-f", "a.log", "c.tmp", "d.log", "build/kept"]):
        subprocess.run(["git", *words], cwd=home.project, env=home.environ, check=True)
    return home


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("a.log", "a.log is sent: git tracks it, which overrules *.log (PROJECT/.gitignore:1)"),
        ("b.log", "b.log is not sent: *.log (PROJECT/.gitignore:1)"),
        ("c.tmp", "c.tmp is not sent: *.tmp (PROJECT/mesh.yaml:2)"),
        ("d.log", "d.log is not sent: d.log (PROJECT/.meshignore:1)"),
        ("build", "build is sent: git tracks files in it, which overrules /build/ (PROJECT/.gitignore:3)"),
        ("build/kept", "build/kept is sent: git tracks it, which overrules /build/ (PROJECT/.gitignore:3)"),
        ("build/other", "build/other is not sent: /build/ (PROJECT/.gitignore:3)"),
    ],
)
def test_explain_names_what_git_tracks(repository: Home, path: str, told: str) -> None:
    done = repository.mesh("push", "--explain", path)
    assert done.out.decode().strip() == told.replace("PROJECT", str(repository.project))


def test_explain_names_a_git_that_cannot_be_asked(repository: Home) -> None:
    done = repository.mesh("push", "--explain", "a.log", env={**repository.environ, "PATH": "/nowhere"})
    unasked = "unknown if git tracks it (git: No such file or directory)"
    assert done.out.decode() == f"a.log is not sent: *.log ({repository.project}/.gitignore:1); {unasked}\n"
    (repository.project / ".git/index").write_bytes(b"damaged")
    done = repository.mesh("push", "--explain", "a.log", "--json")
    assert json.loads(done.out)["git_problem"].startswith("git: ")
    done = repository.mesh("push", "local:1")
    assert done.status == 0
    assert "no file that .gitignore names is sent, tracked or not (git: " in done.err


def test_tracked_files_reach_the_hosts_and_leave_with_the_index(repository: Home) -> None:
    def sent() -> set[str]:
        assert repository.mesh("push", "local:1").status == 0
        (root,) = (path for path in repository.path.glob(".mesh/local/*/workspaces/*") if path.name[0] != ".")
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}

    always = {".gitignore", ".meshignore", "mesh.yaml"}
    assert sent() == {*always, "a.log", "build/kept"}
    subprocess.run(["git", "rm", "-q", "--cached", "a.log", "build/kept"], cwd=repository.project, check=True)
    assert sent() == always


def test_a_cluster_must_be_named(project: Home) -> None:
    done = project.mesh("push")
    assert (done.status, done.out) == (2, b"")
    assert "no cluster was named" in done.err


def test_options_reach_the_run() -> None:
    with pytest.raises(UsageError, match="fresh"):
        api.sync(cluster="local", options=api.Options(fresh="yes"))  # type: ignore[arg-type]
