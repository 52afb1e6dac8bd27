"""Mistakes of newcomers and the answers, as in tests/golden/words*.txt (WRITE_GOLDEN=1 writes them)."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest

from mesh.cli.habits import ELSEWHERE, notices, unknown_command
from mesh.cli.program import COMMANDS
from mesh.core.typed import Typed
from tests.conftest import REPOSITORY, Home
from tests.screen import TMUX, Screen

GOLDEN = REPOSITORY / "tests/golden"
GENEROUS_S = 300.0  # for all commands

CLUSTERS = "pair:\n  hosts: [alpha, beta]\nempty:\n"

# A command line, and before it the files of the project, "NAME: TEXT" with \n in it; they go with the next command.
MISTAKES = r"""
mesh kill
mesh cancel 20261121-101500-3f9c2a
mesh sync pod
mesh scp
mesh status
mesh htop
mesh tail
mesh shell
mesh doctor
mesh list
mesh snyc
mesh frobnicate
mesh run local -d python3 train.py
mesh run local:1 cd /tmp '&&' ls
mesh exec local:1 echo '$RANK'
mesh exec local:1 echo a '|' cat
mesh exec local:1 top -n x
mesh run --hosts 'tpu-[0-3' pair true
mesh run 'pair:tpu-[0-3' true
mesh run local:0 true
mesh exec alpha uptime
mesh exec me@10.0.0.1 uptime
mesh logs --grep '['
mesh run --clusters nowhere.yaml pod true
mesh run --clusters empty.yaml pod true
mesh setup local
mesh__yaml: prerun: source x
mesh run local:1 true
mesh__yaml: prerun:\n  - echo a: b
mesh run local:1 true
mesh__yaml: commands:\n  - echo a: b
mesh setup local:1
mesh__yaml: prerun:\n  - sourc venv/bin/activate
mesh run local:1 true
mesh__yaml: prerun: [
mesh run local:1 true
mesh__yaml: ignore:\n  - data
mesh run local:1 cat data/x.txt
mesh run local:1 ls /nonexist
mesh run local:1 cat ../x.txt
mesh run local:1 cat trian.py
mesh run local:1 pyhton3 train.py
mesh signal last USR1
"""


# Mistakes whose messages are compared on terminals too, one of each kind.
KINDS = r"""
mesh kill
mesh list
mesh run local:1 cd /tmp '&&' ls
mesh exec local:1 echo '$RANK'
mesh exec local:1 top -n x
mesh run --clusters empty.yaml pod true
mesh__yaml: prerun: source x
mesh__yaml: prerun:\n  - sourc venv/bin/activate
mesh__yaml: ignore:\n  - data
mesh run local:1 pyhton3 train.py
mesh signal last USR1
"""


def of_kinds(lines: list[str]) -> list[str]:
    """Return the lines of KINDS, and after a file the command that it is for."""
    kinds, kept = KINDS.strip().split("\n"), []
    for before, line in zip(["", *lines], lines, strict=False):
        if line in kinds or (before in kinds and not before.startswith("mesh ")):
            kept.append(line)
    return kept


def as_golden(text: str, home: Home) -> str:
    """Return a session without what differs from run to run."""
    text = re.sub(r"^.*(still connecting to|not reached after) .*\n", "", text, flags=re.MULTILINE)
    text = text.replace(str(home.project), "/home/me/project").replace(str(home.path), "/home/me")
    text = re.sub(r"\d+(\.\d)? k?B sent, \d+\.\d s", "1.2 kB sent, 0.1 s", text)
    text = re.sub(r"\d+\.\d s after", "0.1 s after", re.sub(r"in \d+\.\d s", "in 0.1 s", text))
    text = re.sub(r"synced \d+ files?", "synced 2 files", text)
    text = re.sub(r"line \d+: sourc", "line 2: sourc", text)
    text = re.sub(r"/proc/self/fd/\d+", "/proc/self/fd/192", text)
    text = re.sub(r"\d{8}-\d{6}-[0-9a-f]{6}", "20261121-101500-3f9c2a", text)
    return re.sub(r"ended \d+ (s|min) ago", "ended 1 s ago", text)


def session(home: Home, lines: list[str]) -> list[str]:
    """Return the argv that types lines in a project with some files."""
    home.clusters(CLUSTERS)
    home.files(train__py="print('hi')\n", empty__yaml="")
    (home.project / "data").mkdir()
    (home.project / "data/x.txt").write_text("here")
    (home.path / "lines").write_text("\n".join(lines))
    return [sys.executable, "-m", "tests.typist", str(home.path / "lines")]


def test_mistakes_are_answered_with_what_to_type(home: Home) -> None:
    done = subprocess.run(
        session(home, MISTAKES.strip().split("\n")),
        cwd=home.project,
        env=home.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=GENEROUS_S,
        check=True,
    )
    check("words", as_golden(done.stdout.decode(), home))


def check(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.skipif(TMUX is None, reason="needs tmux")
@pytest.mark.parametrize(("colours", "columns"), [(False, 80), (True, 120)])
def test_mistakes_on_a_terminal(home: Home, colours: bool, columns: int) -> None:
    """The terminal wraps long lines, and they are compared whole: the messages are the same at any width."""
    argv = session(home, of_kinds(MISTAKES.strip().split("\n")))
    environ = home.environ if colours else {**home.environ, "NO_COLOR": "1"}
    with Screen(argv, home.project, environ, columns=columns, rows=60) as screen:
        screen.wait(GENEROUS_S)
        shown = screen.coloured() if colours else screen.text()
    check(f"words-terminal{'-colours' if colours else ''}", as_golden(shown, home))


def test_words_of_other_tools_are_no_commands_of_mesh_and_lead_to_one() -> None:
    for names, meant in ELSEWHERE.items():
        for name in set(names.split()) - COMMANDS.keys():
            error = unknown_command(name, [], list(COMMANDS), "")
            assert [f"mesh {one}" for one in meant] == error.hint.split("\n"), name
        for one in meant:
            assert {one.split()[0], " ".join(one.split()[:2])} & {*COMMANDS, "--version"}, names


@pytest.mark.parametrize(
    "command",
    [
        "echo hi",
        "bash -c 'echo $RANK | cat'",
        "docker exec c sh -c 'echo $RANK'",
        "grep '|' file",
        "find . -name x -exec rm {} ;",
        "python3 -c 'print(\"$HOME\")'",
        "awk '{print $NF}' x",
        "top -b -n 1",
        "'echo $RANK | cat'",
        "-c 'echo $RANK'",
    ],
)
def test_a_command_that_is_right_gets_no_notice(command: str) -> None:
    typed = Typed(before=("mesh", "exec", "pod"), command=tuple(shlex.split(command)))
    assert list(notices(typed, "pod")) == []


def test_advice_names_the_cluster_that_was_typed(home: Home) -> None:
    home.clusters("quad:\n  hosts: [nowhere.invalid]\n")
    full = home.mesh("exec", "local:1", "echo hi > /dev/full").err
    assert "try: mesh exec local:1 df -h shows which one; mesh clean local:1 finds what mesh keeps\n" in full
    assert "name its interpreter: mesh run local:1 python3 FILE\n" in home.mesh("exec", "local:1", "/etc/passwd").err
    assert "`mesh check quad` shows what is wrong there" in home.mesh("stop", "--cluster", "quad", "none").err
    home.files(mesh__yaml="prerun:\n  - frobnicate\n")
    assert "may install frobnicate: mesh setup local:1\n" in home.mesh("run", "local:1", "true").err


def test_an_ambiguous_id_lists_runs_with_their_commands(home: Home) -> None:
    for word in ("one", "two"):
        home.mesh("exec", "local:1", "echo", word)
    year = home.mesh("runs").lines[1][:3]
    done = home.mesh("logs", year)
    assert done.status == 2
    one, two = (rf" +\S+  \d+ (?:s|min) ago  echo {word}\n" for word in ("one", "two"))
    assert re.search(rf"'{year}' may be any of 2 runs:\n{one}{two} +mesh logs \S+\n", done.err), done.err


def test_q_leaves_notices_about_the_command_out(home: Home) -> None:
    assert "no shell reads $RANK here" in home.mesh("exec", "local:1", "echo", "$RANK").err
    assert home.mesh("exec", "-q", "local:1", "echo", "$RANK").err == ""
