"""Runs by their names, the default cluster, the list of runs, and projects that `mesh init --template` begins."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Home
from tests.lab import eventually

GENEROUS_S = 120.0  # for looks by commands, on a machine with much to do
LOOP = "import signal, time; signal.signal(10, lambda *_: print('signalled', flush=True)); print('up', flush=True)"


# No other process of tests uses them: on the hosts of `local`, commands find the runs of all processes.
NAME, TAG = f"lr{os.getpid()}", f"sweep{os.getpid()}"


@pytest.fixture
def named(home: Home) -> Iterator[str]:
    """A detached run that has a name and a tag; other runs have come after it."""
    home.files(loop__py=LOOP + "\nwhile True: time.sleep(0.05)\n")
    done = home.mesh("run", "-d", "--name", NAME, "--tag", TAG, "local:1", "python3", "loop.py")
    assert done.status == 0, done.err
    assert home.mesh("exec", "--name", "look", "local:1", "true").status == 0
    assert home.mesh("run", "--name", "other", "local:1", "true").status == 0
    try:
        yield done.out.decode().strip()
    finally:
        home.mesh("stop", NAME)


def test_every_command_finds_a_run_by_its_name_its_tag_or_a_part(home: Home, named: str, tmp_path: Path) -> None:
    assert eventually(lambda: home.mesh("logs", NAME).lines == ["[0] up"], GENEROUS_S)
    assert home.mesh("signal", NAME[1:], "USR1").out == b"signalled rank 0\n"
    assert eventually(lambda: home.mesh("logs", named[-6:]).lines == ["[0] signalled", "[0] up"], GENEROUS_S)
    assert home.mesh("detach", TAG).err == f"==> {named} is still running, detached; `mesh attach {named}` comes back\n"
    assert json.loads(home.mesh("stacks", "--json", NAME).out)["run"] == named
    (row,) = [one for one in json.loads(home.mesh("ps", "--json", "local:1").out) if one["run"] == named]
    assert (row["run"], row["name"], row["tags"]) == (named, NAME, [TAG])
    (tmp_path / "elsewhere").mkdir()
    other = replace(home, environ={**home.environ, "XDG_STATE_HOME": str(tmp_path / "elsewhere")})
    shown = other.mesh("logs", "--cluster", "local:1", NAME)
    assert shown.lines[:2] == ["[0] signalled", "[0] up"], shown.err
    (record,) = [json.loads(line) for line in other.mesh("runs", "--json").out.splitlines()]
    assert (record["run"], record["name"], record["tags"]) == (named, NAME, [TAG])
    assert other.mesh("stop", "--cluster", "local:1", TAG).lines == [f"stopped {named}"]
    assert home.mesh("attach", "--output", "none", NAME).status == 143


def test_stop_finds_the_name_of_a_run_that_only_its_hosts_know(home: Home, named: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    other = replace(home, environ={**home.environ, "XDG_STATE_HOME": str(tmp_path / "elsewhere")})
    assert other.mesh("stop", "--cluster", "local:1", NAME).lines == [f"stopped {named}"]


def test_last_is_the_newest_run_for_every_command_and_never_an_exec(home: Home) -> None:
    assert home.mesh("run", "local:1", "echo", "first").status == 0
    assert home.mesh("exec", "local:1", "echo", "second").status == 0
    assert home.mesh("push", "local:1").status == 0
    assert home.mesh("logs").lines == home.mesh("logs", "last").lines == ["[0] first"]
    first = home.mesh("runs").lines
    run = next(line.split()[0] for line in home.mesh("runs").out.decode().splitlines() if " run " in line)
    assert first
    assert f"{run} has ended" in home.mesh("attach").err
    assert f"no rank of run {run}" in home.mesh("stacks").err
    assert f"run {run}" in home.mesh("detach").err
    assert home.mesh("stop", "last").out.startswith(b"nothing to stop: ")


def test_a_part_of_several_runs_lists_them_with_a_command_to_paste(home: Home) -> None:
    for name in ("lr3", "lr4"):
        assert home.mesh("run", "--name", name, "local:1", "echo", name).status == 0
    done = home.mesh("logs", "--grep", "x y", "lr")
    assert done.status == 2
    head, first, second, command = done.err.splitlines()
    assert head == "error: 'lr' may be any of 2 runs:"
    for line, name in ((first, "lr3"), (second, "lr4")):
        assert re.fullmatch(rf" +\S+  {name}  \d+ (s|min) ago  echo {name}", line), line
    assert command.strip() == f"mesh logs --grep 'x y' {second.split()[0]}"
    words = shlex.split(command)[1:]
    assert home.mesh(*words).status == 0


def test_a_name_that_several_runs_have_means_the_newest(home: Home) -> None:
    for word in ("old", "new"):
        assert home.mesh("run", "--name", "lr3", "local:1", "echo", word).status == 0
    assert home.mesh("logs", "lr3").lines == ["[0] new"]


@pytest.mark.parametrize("name", ["last", "local", "local:2", "a b", "-x", "20261121-101500-3f9c2a", "x" * 65])
def test_names_that_mean_something_else_are_refused(home: Home, name: str) -> None:
    done = home.mesh("run", f"--name={name}", "local:1", "true")
    assert (done.status, done.err.startswith("error: --name: ")) == (2, True), done.err
    assert home.mesh("runs").lines == ["this machine has started no run yet"]


def test_a_cluster_wins_over_a_part_of_a_name_and_a_whole_name_over_a_cluster(home: Home) -> None:
    assert home.mesh("run", "--name", "pod", "local:1", "echo", "named").status == 0
    assert home.mesh("run", "--name", "my-local", "local:1", "echo", "part").status == 0
    assert home.mesh("run", "local", "echo", "cluster").status == 0
    assert home.mesh("logs", "local").lines == ["[0] cluster", "[1] cluster"]
    home.clusters("pod:\n  hosts: [unreachable.invalid]\n")
    assert home.mesh("logs", "pod").lines == ["[0] named"]


def test_pull_takes_a_run_for_its_hosts_and_workspace(home: Home, tmp_path: Path) -> None:
    home.files(data__txt="x")
    assert home.mesh("run", "--name", "made", "local:2", "sh", "-c", "echo $RANK > made.txt").status == 0
    other = replace(home, project=tmp_path / "other")
    other.project.mkdir()
    done = other.mesh("pull", "made", "made.txt")
    assert done.status == 0, done.err
    assert [(other.project / f"pulled/rank-000{rank}/made.txt").read_text() for rank in (0, 1)] == ["0\n", "1\n"]
    assert other.mesh("pull", "--ranks", "1", "last", "data.txt").status == 0


# ---- mesh runs


def test_the_list_has_the_newest_20_runs_with_words_for_their_ends(home: Home) -> None:
    ends = {"timeout": 124, "prepare": 125, "busy": 75, "lost": 76, "output-closed": 141, "completed": 0, "rank": 3}
    for number in range(22):
        cause = list(ends)[number % len(ends)]
        directory = home.path / f".local/state/mesh/runs/20260101-0000{number:02}-aaaaaa"
        directory.mkdir(parents=True)
        about = {"kind": "run", "cause": cause, "exit_code": ends[cause], "created": 1.0, "ended": 2.0}
        (directory / "run.json").write_text(json.dumps({**about, "tags": ["odd"] if number % 2 else []}))
    done = home.mesh("runs")
    rows = done.out.decode().splitlines()[1:]
    assert (len(rows), done.err) == (20, "==> 20 of 22 runs; `mesh runs --all` lists all\n")
    words = ("done", "failed, exit 3", "timed out", "not started", "hosts busy", "host lost", "output closed")
    assert all(any(f" {word} " in row for row in rows) for word in words)
    assert len(home.mesh("runs", "--all").out.splitlines()) == 23
    assert len(home.mesh("runs", "--json").out.splitlines()) == 22
    assert len(home.mesh("runs", "--tag", "odd").out.splitlines()) == 12
    assert len(home.mesh("runs", "000021").out.splitlines()) == 2
    for words_of_list in (["--tag", "even"], ["nothing"], ["prune", "--all"]):
        assert home.mesh("runs", *words_of_list).status == 2
    assert "did you mean 'prune'?" in home.mesh("runs", "prun").err


# ---- the default cluster


def test_run_and_exec_take_the_default_cluster_only_before_a_dash(home: Home) -> None:
    home.files(mesh__yaml="default: local:1\n")
    assert home.mesh("run", "--", "echo", "hi").lines == ["[0] hi"]
    assert home.mesh("run", "--", "echo $RANK | tr 0 x").lines == ["[0] x"]
    assert home.mesh("exec", "-c", "echo $RANK ${1}", "zero", "one").lines == ["[0] 0 one"]
    refused = home.mesh("run", "echo", "hi")
    assert refused.status == 2
    assert "no cluster 'echo'" in refused.err
    assert "the default cluster is local:1: mesh run -- echo hi\n" in refused.err
    home.environ["MESH_CLUSTER"] = "local:3"
    assert home.mesh("exec", "--output", "rank0", "-c", "echo $WORLD_SIZE").lines == ["3"]
    assert home.mesh("exec", "--output", "rank0", "local:2", "sh", "-c", "echo $WORLD_SIZE").lines == ["2"]


def test_other_commands_take_the_default_cluster_where_none_is_named(home: Home) -> None:
    home.files(mesh__yaml="default: local:1\ncommands: [echo prepared]\n")
    assert len(json.loads(home.mesh("check", "--json").out)) == 1
    for words in (["push"], ["setup"], ["clean"]):
        done = home.mesh(*words)
        assert done.status == 0, done.err


def test_an_empty_word_is_never_the_default_cluster(home: Home) -> None:
    home.environ["MESH_CLUSTER"] = "local:1"
    for words in (
        ["run", "", "true"],
        ["push", ""],
        ["check", ""],
        ["logs", ""],
        ["run", "--cluster", "", "--", "true"],
    ):
        done = home.mesh(*words)
        assert done.status == 2, words
        assert "empty" in done.err


def test_a_default_cluster_that_is_none_is_named_with_its_place(home: Home) -> None:
    home.files(mesh__yaml="grace: 5\ndefault: nope\n")
    assert home.mesh("push").err.startswith("error: mesh.yaml:2: no cluster 'nope'")
    home.environ["MESH_CLUSTER"] = "no"
    assert home.mesh("push").err.startswith("error: MESH_CLUSTER: no cluster 'no'")
    del home.environ["MESH_CLUSTER"]
    home.files(mesh__yaml="default: [a]\n")
    assert "mesh.yaml:1: default: expected a cluster, found a list" in home.mesh("push").err


# ---- templates

# In place of uv, which needs a network: environments with the packages of the Python that runs the tests.
UV = """\
#!/bin/sh
echo uv "$@" >> "$UV_LOG"
mkdir -p .venv/bin
echo 'export PATH="$PWD/.venv/bin:{python}:$PATH"' > .venv/bin/activate
printf '#!/bin/sh\\necho github deps >> "$UV_LOG"\\n' > .venv/bin/install_maxtext_github_deps
chmod +x .venv/bin/install_maxtext_github_deps
"""
STEPS = {
    "jax-tpu": ["uv venv --allow-existing --python 3.12", "uv pip install -r requirements.txt"],
    "torch-ddp": ["uv venv --allow-existing --python 3.12", "uv pip install -r requirements.txt"],
    "maxtext": [
        "uv venv --allow-existing --seed --python 3.12",
        "uv pip install -e .[tpu] --resolution=lowest",
        "github deps",
    ],
    "uv": ["uv sync"],
}
PROGRAMS = {
    "jax-tpu": ["python3", "train.py"],
    "torch-ddp": ["python3", "train.py"],
    "maxtext": ["python3", "-m", "MaxText.train", "steps=10"],
    "uv": ["python3", "main.py"],
}
LAST_LINES = {
    "jax-tpu": "2 processes, 2 devices: y = 3.00 x + 1.00",
    "torch-ddp": "2 processes: y = 3.00 x + 1.00",
    "maxtext": "['steps=10']",
    "uv": f"rank 0 of 2, Python {sys.version.split()[0]}",
}


@pytest.mark.parametrize("template", STEPS)
def test_a_project_of_a_template_prepares_its_hosts_and_runs(home: Home, template: str, tmp_path: Path) -> None:
    for package in {"jax-tpu": ["jax"], "torch-ddp": ["torch"]}.get(template, []):
        pytest.importorskip(package, reason=f"{package} is not installed here")
    local = home.path / ".local/bin"
    local.mkdir(parents=True)
    (local / "uv").write_text(UV.format(python=f"{sys.prefix}/bin"))
    (local / "uv").chmod(0o755)
    # Threads that wait for each other by spinning would take the processor from other tests.
    home.environ |= {"UV_LOG": str(tmp_path / "uv"), "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    if template == "maxtext":
        home.files(pyproject__toml="[project]\n")
        (home.project / "MaxText").mkdir()
        (home.project / "MaxText/train.py").write_text("import sys\nprint(sys.argv[1:])\n")
    assert home.mesh("init", "--template", template).status == 0
    with (home.project / "mesh.yaml").open("a") as file:
        file.write("env:\n  JAX_PLATFORMS: cpu\n" + f"  UV_LOG: {tmp_path}/uv\n")
    assert home.mesh("setup", "local:2").status == 0
    done = home.mesh("run", "local:2", *PROGRAMS[template])
    assert done.status == 0, done.err
    assert f"[0] {LAST_LINES[template]}" in done.lines
    assert sorted((tmp_path / "uv").read_text().splitlines()) == sorted(2 * STEPS[template])
    assert home.mesh("run", "--output", "none", "local:2", "true").status == 0
    assert len((tmp_path / "uv").read_text().splitlines()) == 2 * len(STEPS[template]), (
        "skipped, as nothing has changed"
    )
    assert not os.path.exists(home.project / ".venv")
