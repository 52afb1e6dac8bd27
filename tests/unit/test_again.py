"""mesh again: which command line is repeated, and on which hosts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.api.repeating import failed_hosts, last_command, repeated
from mesh.cli import options as o
from mesh.cli.command import COMMANDS
from mesh.cli.options import Given
from mesh.cli.parser import parse
from mesh.cli.program import status
from mesh.core.errors import UsageError
from mesh.core.masking import Secrets
from mesh.rundir.commandline import COMMAND, CommandLine, read_command_line, write_command_line
from mesh.rundir.records import read_record
from tests.conftest import Home

WORDS = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
OPTIONS = st.lists(st.sampled_from(["--json", "--nproc=2", "-i", "--hosts=a,b", "--launcher=torchrun", "--wait"]))


def parsed(*words: str) -> Given:
    return parse(COMMANDS[words[0]], words[1:])


def again_of(*words: str) -> tuple[str, ...]:
    typed = parsed(*words).typed
    assert typed is not None
    return typed.again


@given(OPTIONS, st.sampled_from([["pod"], ["--cluster=pod"], []]), st.lists(WORDS, max_size=4))
def test_a_repeated_line_means_the_same(options: list[str], cluster: list[str], words: list[str]) -> None:
    command = ["x", *words] if cluster == ["pod"] else ["--", *words]
    first = parsed("run", *options, *cluster, *command)
    second = parsed(*again_of("run", *options, *cluster, *command))
    assert second.words == first.words
    assert second[o.CLUSTER] == first[o.CLUSTER]
    assert second.options() == first.options()
    assert second[o.JSON] == first[o.JSON]


def test_values_of_variables_are_left_out() -> None:
    typed = parsed("run", "--env", "KEY=hidden", "--env=LR=1", "-d", "pod", "python3", "--env=MINE=2").typed
    assert typed is not None
    assert typed.again == ("run", "--detach", "pod", "python3", "--env=MINE=2")
    assert typed.env == ("KEY", "LR")


def test_a_secret_in_the_words_is_masked() -> None:
    typed = Secrets(["correct horse"]).typed(parsed("run", "pod", "login", "correct horse").typed)
    assert typed is not None
    assert typed.again == ("run", "pod", "login", "***")


def run_in(home: Path, run: str, directory: Path, *words: str, **more: object) -> Path:
    """A run that has ended, with its command line."""
    path = home / ".local/state/mesh/runs" / run
    path.mkdir(parents=True)
    about = {"run": run, "kind": "run", "hosts": ["a", "b", "c", "d"], "created": 1, "ended": 2, "exit_code": 1, **more}
    (path / "run.json").write_text(json.dumps(about))
    write_command_line(path, CommandLine(directory=os.path.realpath(directory), words=words))
    return path


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    return tmp_path


def test_the_last_one_of_this_directory(runs: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    (tmp_path / "link").symlink_to(one)
    run_in(runs, "20261121-101500-000001", one, "run", "pod", "first")
    run_in(runs, "20261121-101500-000002", one, "run", "pod", "second")
    run_in(runs, "20261121-101500-000003", other, "exec", "pod", "third")
    (run_in(runs, "20261121-101500-000004", one, "run", "pod", "torn") / COMMAND).write_text('{"direct')
    assert last_command(one).line.words == ("run", "pod", "second")
    assert last_command(tmp_path / "link").line.words == ("run", "pod", "second")
    with pytest.raises(UsageError, match="no mesh run or mesh exec was started in this directory"):
        last_command(tmp_path)


def test_the_file_is_private_and_a_broken_word_leaves_none(tmp_path: Path) -> None:
    write_command_line(tmp_path, CommandLine(directory="/", words=("run", "pod", "\udcff")))
    assert read_command_line(tmp_path) is None
    write_command_line(tmp_path, CommandLine(directory="/", words=("run", "pod", "é")))
    assert read_command_line(tmp_path) == CommandLine(directory="/", words=("run", "pod", "é"))
    assert (tmp_path / COMMAND).stat().st_mode & 0o777 == 0o600


RANKS = [
    {"rank": 0, "host": "a", "signal": 15},  # stopped by mesh
    {"rank": 1, "host": "b", "code": 3},
    {"rank": 2, "host": "c", "code": 0},
    {"rank": 3, "host": "d"},
]


def test_hosts_that_have_failed(runs: Path, tmp_path: Path) -> None:
    path = run_in(runs, "20261121-101500-000001", tmp_path, ranks=RANKS, stopped=[0], lost=[{"host": "d"}])
    assert failed_hosts(read_record(path)) == ["b", "d"]
    path = run_in(runs, "20261121-101500-000002", tmp_path, failures=[{"host": "c", "step": "reach"}, {"step": "x"}])
    assert failed_hosts(read_record(path)) == ["c"]
    path = run_in(runs, "20261121-101500-000003", tmp_path, ranks=RANKS[2:])
    with pytest.raises(UsageError, match=r"no host of run .* has failed"):
        failed_hosts(read_record(path))
    path = run_in(runs, "20261121-101500-000004", tmp_path, ranks=RANKS, ended=None)
    with pytest.raises(UsageError, match="is not recorded"):
        failed_hosts(read_record(path))


def test_failed_hosts_replace_those_of_the_line(runs: Path, tmp_path: Path) -> None:
    line = ("run", "--hosts=a,b", "--nproc=2", "--exclude=x", "pod", "python3", "--hosts=mine")
    run_in(runs, "20261121-101500-000001", tmp_path, *line, ranks=RANKS, stopped=[0])
    found = last_command(tmp_path)
    assert repeated(found, (), only_failed=True) == ["run", "--hosts=b", "--nproc=2", "pod", "python3", "--hosts=mine"]
    assert repeated(found, (), only_failed=False) == list(line)
    run_in(runs, "20261121-101500-000002", tmp_path, "run", "--role=a@b: x", "pod", ranks=RANKS)
    with pytest.raises(UsageError, match="--failed: the roles"):
        repeated(last_command(tmp_path), (), only_failed=True)


def test_what_no_file_has_is_asked_for(runs: Path, tmp_path: Path) -> None:
    path = run_in(runs, "20261121-101500-000001", tmp_path)
    words = ("run", "pod", "x")
    write_command_line(path, CommandLine(directory=os.path.realpath(tmp_path), words=words, env=("A", "B")))
    with pytest.raises(UsageError, match="values of --env are in no file: B") as raised:
        repeated(last_command(tmp_path), ("A",), only_failed=False)
    assert raised.value.hint == "mesh again --env B=VALUE"
    assert repeated(last_command(tmp_path), ("A", "B"), only_failed=False) == list(words)
    write_command_line(path, CommandLine(directory=os.path.realpath(tmp_path), words=words, is_masked=True))
    with pytest.raises(UsageError, match="held a secret"):
        repeated(last_command(tmp_path), (), only_failed=False)


def test_edit_needs_a_terminal(runs: Path) -> None:
    with pytest.raises(UsageError, match="--edit: an editor needs a terminal"):
        status(["again", "--edit"])


def test_an_edited_line(home: Home) -> None:
    run_in(home.path, "20261121-101500-000001", home.project, "run", "pod", "x")
    for editor, code, message in (
        ("sed -i s/run/push/", 2, b"expected mesh run or mesh exec, found 'push'"),
        ("false", 125, b"the editor exited 1, and nothing was started"),
    ):
        home.environ["VISUAL"] = editor
        with home.terminal("again", "--edit") as terminal:
            assert terminal.end() == code
            assert message in terminal.shown
