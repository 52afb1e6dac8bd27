"""Completion: what mesh proposes, and that each shell asks for it and takes it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mesh.cli.program import COMMANDS, candidates
from tests.conftest import Home


@pytest.fixture
def user(home: Home, tmp_path: Path) -> Home:
    """Somebody with two clusters and a mesh on PATH."""
    home.clusters("pod:\n  hosts: [a]\npotato:\n  hosts: [b, bee, c]\nbad:\n  hosts: 3\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mesh").write_text(f'#!/bin/sh\nexec {sys.executable} -m mesh "$@"\n')
    (tmp_path / "bin/mesh").chmod(0o755)
    home.environ["PATH"] = f"{tmp_path}/bin:{home.environ['PATH']}"
    home.files(train__py="")
    return home


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["set"], ["setup"]),
        (["job", "s"], ["submit", "show", "stop", "setup", "storage", "selftest"]),
        (["job", "submit", "--ar"], ["--array"]),
        (["serve", "st"], ["status", "stop"]),
        (["run", "--ho"], ["--host-grace", "--hosts"]),
        (["run", "--output", ""], ["all", "fold", "rank0", "none"]),
        (["run", "local", "--ho"], []),
        (["setup", "local", "--fo"], ["--force"]),
        (["completion", "z"], ["zsh"]),
        (["nonsense", ""], []),
    ],
)
def test_candidates(words: list[str], found: list[str]) -> None:
    assert candidates(words) == found


def test_clusters_that_can_be_used(user: Home) -> None:
    assert user.mesh("__complete", "run", "po").out == b"pod\npotato\n"
    assert user.mesh("__complete", "run", "").out == b"local\npod\npotato\n"
    assert user.mesh("__complete", "ssh", "--clusters", "/nowhere", "pod").out == b"pod\n"


def shell(user: Home, name: str, script: str) -> str:
    if shutil.which(name) is None:
        pytest.skip(f"needs {name}")
    text = user.mesh("completion", name).out.decode()
    (user.path / "completion").write_text(text)
    return subprocess.run(
        [name, "-c", script], cwd=user.project, env=user.environ, capture_output=True, text=True, check=True
    ).stdout


def test_bash(user: Home) -> None:
    script = (
        ". ~/completion; complete -p mesh\n"
        "for line in 'run p' 'setup --fo' 'run pod tr' 'ssh potato :' 'ssh potato : be' 'run --hosts a,b'; do\n"
        "COMP_WORDS=(mesh $line); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=(); _mesh; echo ${COMPREPLY[@]}.\n"
        "done"
    )
    found = shell(user, "bash", script).splitlines()
    assert found == [
        "complete -o bashdefault -o default -F _mesh mesh",
        *("pod potato.", "--force.", ".", "b bee c.", "bee.", "a,b a,bee."),
    ]


# In place of zsh's own builtin, which works within a widget alone: shows the list, and the words.
COMPADD = """\
compadd() { [[ $1 == -l ]] && print -l -- "${shown[@]}"; echo "${@[$(( ${@[(i)--]} + 1 )),-1]}" }
"""


def test_zsh(user: Home) -> None:
    script = (
        "compdef() { echo compdef $@ }; . ~/completion; _files() { echo files }\n" + COMPADD + "\n"
        "words=(mesh run p); CURRENT=3; _mesh; words=(mesh run pod tr); CURRENT=4; _mesh\n"
        "words=(mesh set); CURRENT=2; _mesh; words=(mesh run pod:); CURRENT=3; _mesh"
    )
    about = f"setup  -- {COMMANDS['setup'].summary}"
    expected = ["compdef _mesh mesh", "pod potato", "files", about, "setup", "pod:a"]
    assert shell(user, "zsh", script).splitlines() == expected


def test_fish(user: Home) -> None:
    lines = ("run p", "run pod tr", "setup --forc", "run potato:be")
    script = ". ~/completion; " + "; ".join(f"complete -C 'mesh {line}'" for line in lines)
    found = shell(user, "fish", script).splitlines()
    assert found[:3] == ["pod", "potato", "train.py"]
    assert found[3].split("\t")[0] == "--force"
    assert len(found[3].split("\t")[1].split()) > 2
    assert found[4] == "potato:bee"


def test_a_shell_that_is_unknown(user: Home) -> None:
    done = user.mesh("completion", "csh")
    assert done.status == 2
    assert "expected one of bash, zsh, fish, found 'csh'" in done.err


def test_runs_by_their_names(user: Home) -> None:
    assert user.mesh("run", "--name", "lr3", "local:1", "true").status == 0
    assert user.mesh("__complete", "logs", "l").out == b"last\nlr3\nlocal\n"
    for words in (["replay"], ["bisect"], ["bisect", "lr3"], ["diff", "lr3"]):  # they take runs of this machine alone
        assert user.mesh("__complete", *words, "l").out == b"last\nlr3\n"
    assert user.mesh("__complete", "init", "--template", "t").out == b"torch-ddp\n"


def test_hosts_of_clusters(user: Home) -> None:
    assert user.mesh("__complete", "run", "--hosts", "").out == b"a\nb\nbee\nc\n"
    assert user.mesh("__complete", "check", "--exclude", "b,b").out == b"b,bee\n"
    assert user.mesh("__complete", "ssh", "potato:b").out == b"potato:b\npotato:bee\n"
    assert user.mesh("__complete", "run", "pod:").out == b"pod:a\n"
    assert user.mesh("__complete", "run", "nowhere:").out == b""


def test_commands_for_runs_that_are_on_offer_no_others(user: Home) -> None:
    assert user.mesh("run", "--name", "over", "local:1", "true").status == 0
    run = user.mesh("run", "-d", "--name", "on", "local:1", "sleep 1000").out.decode().strip()
    try:
        for command in ("stop", "signal", "detach", "stacks", "debug"):
            found = user.mesh("__complete", command, "").out.decode().split()
            assert found == ["last", "on", run, "local", "pod", "potato"]
        described = user.mesh("__describe", "logs", "o").out.decode().splitlines()
        assert [line.split(",")[0] for line in described] == ["over\ttrue", "on\tbash -c 'sleep 1000'"]
    finally:
        user.mesh("stop", "on")
    assert user.mesh("__complete", "stop", "o").out == b""
