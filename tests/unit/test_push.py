"""mesh push: what would be sent, why a path is or is not, and the sync alone."""

from __future__ import annotations

import json
import os
import socket

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


def test_a_cluster_must_be_named(project: Home) -> None:
    done = project.mesh("push")
    assert (done.status, done.out) == (2, b"")
    assert "no cluster was named" in done.err


def test_options_reach_the_run() -> None:
    with pytest.raises(UsageError, match="fresh"):
        api.sync(cluster="local", options=api.Options(fresh="yes"))  # type: ignore[arg-type]
