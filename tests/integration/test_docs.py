"""The documents do what they say: the tutorial's commands and the examples of the Python API, with their output."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, REPOSITORY, Home
from tests.lab import Lab

INTERRUPT = "^C"
ANY = "..."


def blocks(name: str) -> Iterator[tuple[str, str]]:
    """(language, text) of every fenced block."""
    text = (REPOSITORY / "docs" / name).read_text()
    yield from re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def unmatched(expected: Sequence[str], found: Sequence[str]) -> list[str]:
    """What differs, in no order as ranks speak in any; ``...`` stands for anything in a line, alone for any lines."""
    left = list(found)
    missing = []
    for line in expected:
        pattern = ".*".join(re.escape(part) for part in line.split(ANY))
        match = next((one for one in left if re.fullmatch(pattern, one)), None)
        if line == ANY:
            continue
        if match is None:
            missing.append(f"- {line}")
        else:
            left.remove(match)
    return missing + [f"+ {line}" for line in left if ANY not in expected]


@dataclass
class Step:
    command: str
    expected: list[str]


def steps(text: str) -> Iterator[Step]:
    step: Step | None = None
    for line in text.splitlines():
        if line.startswith("$ "):
            if step:
                yield step
            step = Step(line[2:], [])
        elif line.startswith("> ") and step and not step.expected:
            step.command += "\n" + line[2:]
        elif step:
            step.expected.append(line)
    if step:
        yield step


class Shell:
    """Runs commands as somebody at a terminal would: directory and last status hold for the next one."""

    def __init__(self, home: Home) -> None:
        self._home, self._directory, self._status = home, home.project, 0

    def run(self, step: Step) -> list[str]:
        script = f'(exit {self._status})\n{step.command}\necho "\n__end $? $PWD"'
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=self._directory,
            env=self._home.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert process.stdout is not None
        found: list[str] = []
        if INTERRUPT in step.expected:
            before = step.expected[: step.expected.index(INTERRUPT)]
            while unmatched(before, found):
                found.append(process.stdout.readline().rstrip("\n"))
            for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                os.kill(int(pid), signal.SIGINT)
        rest, _ = process.communicate(timeout=PATIENCE)
        found += rest.splitlines()
        _, status, directory = found.pop().split(" ", 2)
        assert found.pop() == ""
        self._status, self._directory = int(status), Path(directory)
        return found


@pytest.mark.root
@pytest.mark.sshd
def test_the_tutorial(home: Home, lab: Lab, tmp_path: Path) -> None:
    home.trust(lab)
    alpha, beta = lab.hosts[:2]
    (home.path / ".ssh/config").write_text(
        f"Host alpha\n  HostName {alpha.address}\nHost beta\n  HostName {beta.address}\n"
        f"Host *\n  User root\n  IdentityFile {lab.identity}\n  UserKnownHostsFile {home.path}/.ssh/known_hosts\n"
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mesh").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m mesh "$@"\n')
    # The system's ssh reads the configuration of the user that it runs as, whatever HOME says.
    (tmp_path / "bin/ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {home.path}/.ssh/config "$@"\n')
    for program in ("mesh", "ssh"):
        (tmp_path / "bin" / program).chmod(0o755)
    home.environ["PATH"] = f"{tmp_path}/bin:{home.environ['PATH']}"
    shell = Shell(home)
    count = 0
    for language, text in blocks("tutorial.md"):
        if language == "console":
            for step in steps(text):
                found = shell.run(step)
                expected = [line for line in step.expected if line != INTERRUPT]
                assert unmatched(expected, found) == [], step.command
                count += 1
    assert count > 15


EXAMPLES = [
    (text, None if shows == "python" else output)  # None: what it prints depends on the machine
    for (language, text), (shows, output) in zip(
        list(blocks("python.md")), [*list(blocks("python.md"))[1:], ("", "")], strict=True
    )
    if language == "python"
]


@pytest.mark.parametrize(("program", "expected"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_examples_of_the_python_api(home: Home, program: str, expected: str | None) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=home.project,
        env={**home.environ, "PYTHONWARNINGS": ""},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert expected is None or done.stdout == expected
