"""The example workflow: its own steps, as GitHub's runner would run and cancel them, without a terminal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from tests.conftest import REPOSITORY, Home
from tests.lab import Lab, eventually

pytestmark = [pytest.mark.root, pytest.mark.sshd]
EXAMPLE = REPOSITORY / "examples/ci"
SECRET = "hf_0123456789"
WITHIN_S = 300.0
TO_SIGTERM = 7.5  # seconds from the runner's SIGINT
RUN = "Run the tests"
TEST = """\
import os, unittest
class Test(unittest.TestCase):
    def test(self):
        self.assertEqual(len(os.environ["HF_TOKEN"]), 13)
        self.assertNotEqual(os.environ["RANK"], os.environ.get("HF_TOKEN") and open("fails").read())
"""


class Job:
    """One job on a runner: a machine, its directories, and what the steps know of each other."""

    def __init__(self, home: Home, lab: Lab) -> None:
        self._home, self.temp, self._count = home, home.path.parent / "temp", 0
        self.temp.mkdir()
        for program in ("mesh", "python3"):
            words = {"mesh": "-m mesh", "python3": ""}[program]
            file = self.temp / program
            file.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
            file.chmod(0o755)
        (home.project / "mesh.yaml").write_text((EXAMPLE / "mesh.yaml").read_text())
        clusters = lab.cluster_yaml("pod", "host_keys: strict", hosts=lab.hosts[:2])
        self._settings = {
            "secrets.MESH_SSH_KEY": lab.identity.read_text(),
            "secrets.HF_TOKEN": SECRET,
            "vars.MESH_KNOWN_HOSTS": lab.known_hosts.read_text(),
            "vars.MESH_CLUSTER_YAML": clusters.replace(str(lab.identity), "~/.ssh/mesh"),
        }
        self._environ = {
            **home.environ,
            "PATH": f"{self.temp}:{home.environ['PATH']}",
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_REPOSITORY": "me/project",
            "GITHUB_ENV": str(self.temp / "env"),
            "RUNNER_TEMP": str(self.temp),
        }
        workflow = yaml.safe_load((EXAMPLE / "cluster-tests.yml").read_text())
        self.steps: list[dict[str, Any]] = workflow["jobs"]["tests"]["steps"]

    def start(self, step: Mapping[str, Any], text: str = "") -> subprocess.Popen[bytes]:
        """Start a step as the runner does: a script for bash, nothing to read, no terminal.

        text: to be run instead
        """
        self._count += 1
        script = self.temp / f"script-{self._count}.sh"  # of its own: bash reads one while it runs
        script.write_text(text or step["run"])
        given = {name: self._filled(value) for name, value in step.get("env", {}).items()}
        return subprocess.Popen(
            ["bash", "-e", script],
            cwd=self._home.project,
            env={**self._environ, **self._from_steps(), **given},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self) -> tuple[int, str]:
        """Run all steps, after a failure only what always runs; return status and log of the one with the tests."""
        failed, found = False, (-1, "")
        for step in self.steps:
            always = step.get("if") == "always()"
            # What is installed is this checkout.
            if "run" not in step or step["name"] == "Install mesh" or (failed and not always):
                continue
            process = self.start(step)
            log, _ = process.communicate(timeout=WITHIN_S)
            failed = failed or process.returncode != 0
            if step["name"] == RUN:
                found = process.returncode, log.decode()
            else:
                assert process.returncode == 0, log
        return found

    def step(self, name: str) -> dict[str, Any]:
        return next(step for step in self.steps if step.get("name") == name)

    def _filled(self, value: str) -> str:
        return re.sub(r"\$\{\{ *(\S+) *\}\}", lambda found: self._settings[found.group(1)], value)

    def _from_steps(self) -> dict[str, str]:
        file = self.temp / "env"
        return dict(line.split("=", 1) for line in file.read_text().splitlines()) if file.exists() else {}


@pytest.fixture
def job(home: Home, lab: Lab) -> Job:
    return Job(home, lab)


def test_the_steps(job: Job, home: Home, lab: Lab) -> None:
    home.files(test_it__py=TEST, fails="none")
    status, log = job.run()
    assert status == 0, log
    print(log)  # shown when the test fails
    lines = log.splitlines()
    lines = [line for line in lines if not re.fullmatch(r"::(stop-commands::)?[0-9a-f]{32}(::)?", line)]
    begin, end = lines.index("::group::python3 -m unittest -v"), len(lines) - lines[::-1].index("::endgroup::") - 1
    # A machine with much to do may have a notice before the first event, with which the first group begins.
    assert [line for line in lines[:begin] if line.startswith("::group::mesh: ")]
    assert lines[begin - 1] == "::endgroup::"
    for rank in "01":
        assert any(line.startswith(f"[{rank}] Ran 1 test") for line in lines[begin:end])
    assert lines[end + 1].startswith("==> done: 2 ranks exited 0")
    assert "::error" not in log

    home.files(fails="1")
    status, log = job.run()
    assert status == 1
    (annotation,) = [line for line in log.splitlines() if line.startswith("::error")]
    assert annotation.startswith("::error title=mesh::rank 1 on ")
    assert "%0A    AssertionError: '1' == '1'" in annotation
    assert SECRET not in log
    with tarfile.open(job.temp / "run.tgz") as packed:
        contents = {member.name: packed.extractfile(member) for member in packed if member.isfile()}
        told = [json.load(file) for name, file in contents.items() if name.endswith("/run.json") and file]
        assert [one["exit_code"] for one in sorted(told, key=lambda one: one["created"])] == [0, 1]
        texts = [file.read() for file in contents.values() if file]
    assert not any(SECRET.encode() in text for text in texts)
    # The machine that GitHub makes for the next job has another name, and finds the same workspace.
    assert len(list(lab.hosts[0].path("/root/.mesh/workspaces").glob("project-*"))) == 1


def test_a_cancelled_job_leaves_nothing_behind_and_blocks_nobody(job: Job, home: Home, lab: Lab) -> None:
    job.start(job.step("Get to know the hosts")).communicate(timeout=WITHIN_S)
    home.files(
        test_it__py="import os, signal, time\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\n"
        "print('up', flush=True)\nos.fork() or os.setsid()\ntime.sleep(12345)\n"
    )
    text = job.step(RUN)["run"]
    given = re.search(r"--grace (\S+)", text)
    assert given is not None
    assert float(given.group(1)) < TO_SIGTERM
    process = job.start(job.step(RUN), text.replace(given.group(), "--grace 0.5"))
    read_until(process, "[0] up")
    waiting = job.start(job.step(RUN), text.replace("python3 -m unittest -v", "true"))
    read_until(waiting, "busy")
    os.kill(process.pid, signal.SIGINT)  # the first process alone, as the runner does
    log, _ = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 130, log
    assert b"::error title=mesh::ended by SIGINT" in log
    log, _ = waiting.communicate(timeout=WITHIN_S)
    assert waiting.returncode == 0, log
    assert eventually(lambda: not [one for host in lab.hosts[:2] for one in host.processes()], WITHIN_S)


def read_until(process: subprocess.Popen[bytes], text: str) -> None:
    """Read a step's log up to a line that holds a text."""
    assert process.stdout is not None
    seen = b""
    while text.encode() not in (line := process.stdout.readline()):
        seen += line
        assert line, seen
