"""The project's card, sentence by sentence: what it is made of, and what its users type."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import fabric
import gitignore_parser
import pytest

from mesh.backends.ssh.backend import ConnectionGroup
from mesh.cli.options import options_of
from mesh.cli.program import COMMANDS
from mesh.tasks import namespace
from mesh.workspace import patterns
from mesh.workspace.hashes import HashCache
from mesh.workspace.pack import Want, find, make
from mesh.workspace.prepare import prepare
from tests.conftest import REPOSITORY, Home
from tests.lab import Lab, eventually

PLAIN_DEPENDENCIES = ("fabric", "invoke", "PyYAML", "gitignore-parser")
TOP_LEVEL = ("pyproject.toml", "mesh", "tasks.py", "tests", "configs", "README.md")


def inv(home: Home, *words: str) -> subprocess.CompletedProcess[str]:
    home.files(tasks__py="from mesh.tasks import namespace\n")
    argv, environ = [sys.executable, "-m", "invoke", *words], {**home.environ, "PYTHONWARNINGS": ""}
    return subprocess.run(argv, cwd=home.project, env=environ, capture_output=True, text=True, check=False)


def test_packages_and_top_level() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text()
    plain = text.partition("\ndependencies = [")[2].partition("]")[0]
    assert set(PLAIN_DEPENDENCIES) <= set(re.findall(r'"([\w-]+)', plain))
    assert 'mesh = "mesh.__main__:main"' in text  # the `mesh` console script
    assert all((REPOSITORY / name).exists() for name in TOP_LEVEL)


def test_every_command_is_an_invoke_task_with_the_options_of_the_table(home: Home) -> None:
    listed = re.findall(r"^  ([\w.-]+)", inv(home, "--list").stdout, re.MULTILINE)
    assert set(listed) == {name.replace(" ", ".") for name in COMMANDS}
    contexts = {context.name: context for context in namespace.to_contexts()}
    for name in COMMANDS:
        flags = contexts[name.replace(" ", ".")].flags.keys()
        assert {option.flag.replace("_", "-") for option in options_of(name)} <= flags, name


@pytest.mark.root
def test_setup_through_invoke_on_hosts_over_ssh(home: Home, lab: Lab) -> None:
    home.clusters(lab.cluster_yaml("testWatch"))
    home.trust(lab)
    home.files(mesh__yaml="commands:\n  - echo set up $HOSTNAME\n")
    done = inv(home, "setup", "--cluster", "testWatch")
    assert done.returncode == 0, done.stderr
    assert all(f"from {host.name}" in done.stdout or f"set up {host.name}" in done.stdout for host in lab.hosts)


def test_connections_are_opened_by_a_threading_group() -> None:
    assert issubclass(ConnectionGroup, fabric.ThreadingGroup)


@pytest.mark.root
def test_the_workspace_is_on_every_host_and_rank_differs(pod: Home, lab: Lab) -> None:
    pod.files(a__txt="a" * 1000, b__txt="b" * 1000)
    show = "import os; print(os.environ['RANK'], open('a.txt').read()[:1], open('b.txt').read()[:1])"
    done = pod.mesh("run", "pod", "python3", "-c", show)
    assert done.status == 0, done.err
    assert done.lines == [f"[{rank}] {rank} a b" for rank in range(len(lab.hosts))]


def test_the_workspace_travels_as_one_zip(tmp_path: Path) -> None:
    contents = [b"a" * 400, b"b" * 400]
    for number, data in enumerate(contents):
        (tmp_path / f"{number}.txt").write_bytes(data)
    manifest = prepare(tmp_path, (), HashCache(tmp_path, tmp_path.with_suffix(".cache"))).manifest
    wanted = [Want(hash=entry.content, size=entry.size) for entry in manifest.entries if entry.kind == "f"]
    into = io.BytesIO()
    make(os.fsencode(tmp_path), find(manifest, wanted), into)
    with zipfile.ZipFile(into) as pack:
        assert pack.testzip() is None
        travelled = b"".join(pack.read(name) for name in pack.namelist())
    assert all(data in travelled for data in contents)


def test_ignore_rules_are_read_by_gitignore_parser() -> None:
    assert patterns.rule_from_pattern is gitignore_parser.rule_from_pattern


@pytest.mark.root
def test_remote_processes_end_when_the_client_ends(pod: Home, lab: Lab) -> None:
    process = pod.popen("exec", "pod", "sleep", "98761")
    assert eventually(lambda: all(any("98761" in text for _, text in host.processes()) for host in lab.hosts), 60.0)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert eventually(lambda: not any(host.processes() for host in lab.hosts), 60.0)
