"""The documents do what they say: the tutorial's commands and the examples of the Python API, with their output."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from mesh.cli import otherstlaunch
from mesh.cli.command import FAMILIES
from mesh.cli.habits import ELSEWHERE
from mesh.cli.parser import HelpWanted, parse
from mesh.cli.program import COMMANDS
from mesh.config.project import load_project
from tests.clone import make_clone
from tests.conftest import REPOSITORY, Home, new_home
from tests.lab import Lab
from tests.screen import PATIENT

INTERRUPT = "^C"
ANY = "..."


def blocks(name: str) -> Iterator[tuple[str, str]]:
    """(language, text) of every fenced block."""
    text = (REPOSITORY / name).read_text()
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


def missing(expected: Sequence[str], found: Sequence[str]) -> list[str]:
    """Return the expected lines that have not come."""
    return [line for line in unmatched(expected, found) if line.startswith("- ")]


FAILED = re.compile(r"error: rank (\d+) .*failed first")
# Lines of mesh about ranks that were still there after a failure.
STOPPED = re.compile(r"\+ (==> stopping \d+ rank|       after it: |==> \d+/\d+ hosts? clean )")

SLOW = re.compile(r"\+ ==> (still connecting to|not reached after) ")  # on a busy machine


def differences(expected: Sequence[str], found: Sequence[str]) -> list[str]:
    """Return what differs. After a failure the other ranks may have been stopped before they have printed all."""
    failed = next((match[1] for line in expected if (match := FAILED.match(line))), "")
    other = re.compile(rf"- \[(?!{failed}\])\d+\] ")
    differing = [line for line in unmatched(expected, found) if not SLOW.match(line)]
    return [line for line in differing if not (failed and (other.match(line) or STOPPED.match(line)))]


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
            bufsize=0,  # communicate() would leave out lines that a buffer has
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert process.stdout is not None
        data = b""
        if INTERRUPT in step.expected:
            before = step.expected[: step.expected.index(INTERRUPT)]
            while missing(before, data.decode(errors="replace").splitlines()):
                more = os.read(process.stdout.fileno(), 65536)
                assert more, f"{step.command} ended: {data.decode(errors='replace')}"
                data += more
            for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                os.kill(int(pid), signal.SIGINT)
        rest, _ = process.communicate(timeout=GENEROUS_S)
        found = (data + rest).decode().splitlines()
        _, status, directory = found.pop().split(" ", 2)
        assert found.pop() == ""
        self._status, self._directory = int(status), Path(directory)
        return found


HERE = f"{shlex.quote(sys.executable)} -m mesh"
GENEROUS_S = 300.0  # for one command, which may wait for jobs
# Shell text that waits until a command of a page shows what the page says: people need longer to type it.
HANGS = "mesh logs last --rank 1 | grep -q 'step 2'"  # of the program of the README, whose other rank ends
BEFORE = {"mesh stacks": f"until {HANGS} && mesh stacks | grep -qF '[0] ended'; do sleep 0.2; done"}


def terminal_of(home: Home, lab: Lab, tmp_path: Path, script: str, mesh: str = HERE) -> Shell:
    """Return a shell with the hosts alpha and beta, and mesh on its PATH.

    script: the lines of ``mesh``; mesh: the command that they run
    """
    home.trust(lab)
    alpha, beta = lab.hosts[:2]
    (home.path / ".ssh/config").write_text(
        f"Host alpha\n  HostName {alpha.address}\nHost beta\n  HostName {beta.address}\n"
        f"Host *\n  User root\n  IdentityFile {lab.identity}\n  UserKnownHostsFile {home.path}/.ssh/known_hosts\n"
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mesh").write_text(f"#!/bin/sh\nmesh={shlex.quote(mesh)}\n{script}\n")
    # The system's ssh reads the configuration of the user that it runs as, whatever HOME says.
    (tmp_path / "bin/ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {home.path}/.ssh/config "$@"\n')
    for program in ("mesh", "ssh"):
        (tmp_path / "bin" / program).chmod(0o755)
    home.environ["PATH"] = f"{tmp_path}/bin:{home.environ['PATH']}"
    return Shell(home)


def run_page(shell: Shell, name: str) -> int:
    """Run all console blocks of a page, and compare their output; return how many commands there were."""
    count = 0
    for language, text in blocks(name):
        if language == "console":
            for step in steps(text):
                if step.command in BEFORE:
                    shell.run(Step(BEFORE[step.command], []))
                found = shell.run(step)
                expected = [line for line in step.expected if line != INTERRUPT]
                assert differences(expected, found) == [], f"{step.command}\n{found}"
                count += 1
    return count


@pytest.mark.root
@pytest.mark.sshd
def test_the_tutorial(home: Home, lab: Lab, tmp_path: Path) -> None:
    assert run_page(terminal_of(home, lab, tmp_path, 'exec $mesh "$@"'), "docs/tutorial.md") > 15


@pytest.mark.parametrize(("page", "count"), [("docs/jobs.md", 25), ("docs/tasks.md", 10)])
def test_the_first_hour_with_jobs(home: Home, tmp_path: Path, page: str, count: int) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mesh").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m mesh "$@"\n')
    (tmp_path / "bin/mesh").chmod(0o755)
    home.environ["PATH"] = f"{tmp_path}/bin:{home.environ['PATH']}"
    with tempfile.TemporaryDirectory(prefix="mesh-") as runtime:  # the name of a socket must be short
        home.environ["XDG_RUNTIME_DIR"] = runtime
        try:
            assert run_page(Shell(home), page) > count
        finally:
            home.mesh("serve", "stop")


README_LINES, SENTENCE_WORDS = 150, 25
INSTALL_LIMIT_S = 900.0
# Commands that need a fresh machine: a test below runs the first, .ci/run the second, test_package.py the third.
ON_A_FRESH_MACHINE = ("bash examples/first-run.sh", "bash tests/run.sh", "pipx install .")
# The README shows a terminal, where output is folded.
FOLDING = 'case "$1" in run|exec|logs|attach) c=$1; shift; exec $mesh $c --output fold "$@";; esac; exec $mesh "$@"'


FirstRun = tuple[Path, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> FirstRun:
    """A clean clone in which the first command of the README was run, and its output. All workers share one."""
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent
    with (place / "first-run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        clone, told = place / "first-run/project/clone", place / "first-run/told"
        if not told.exists():
            shutil.rmtree(place / "first-run", ignore_errors=True)  # of a worker that was killed
            (place / "first-run").mkdir()
            done = run_first_command(place / "first-run")
            told.write_text(json.dumps([done.returncode, done.stdout, done.stderr]))
        return clone, subprocess.CompletedProcess([], *json.loads(told.read_text()))


def run_first_command(directory: Path) -> subprocess.CompletedProcess[str]:
    """Make a clean clone, and run the first command of the README in it."""
    home = new_home(directory)
    clone = make_clone(home.project / "clone")
    environ = {name: value for name, value in home.environ.items() if not name.startswith("PYTHON")}
    environ["PIP_NO_COMPILE"] = "1"  # modules are compiled when they are imported
    argv = ["bash", "examples/first-run.sh"]
    return subprocess.run(
        argv, cwd=clone, env=environ, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False
    )


def test_the_first_command_of_the_readme_runs_in_a_clean_clone(first_run: FirstRun) -> None:
    _, done = first_run
    assert done.returncode == 0, done.stderr
    assert "2 ranks exited 0" in done.stderr
    assert sorted(line[:21] for line in done.stdout.splitlines()) == ["[0] hello from rank 0", "[1] hello from rank 1"]


@pytest.mark.root
@pytest.mark.sshd
def test_every_command_of_the_readme_runs_from_a_clean_clone(
    home: Home, lab: Lab, tmp_path: Path, first_run: FirstRun
) -> None:
    clone, _ = first_run
    del home.environ["PYTHONPATH"]
    (tmp_path / "patient.py").write_text(PATIENT)
    shell = terminal_of(home, lab, tmp_path, FOLDING, f"{clone}/.venv/bin/python {tmp_path}/patient.py")
    assert run_page(shell, "README.md") >= 9
    # In the table of commands, a run is started before it is asked about and stopped.
    table = re.findall(r"`(mesh [^`]+)`", (REPOSITORY / "README.md").read_text().partition("| to | type |")[2])
    listed = table[: table.index("mesh check pair") + 1]
    assert len(listed) > 10
    for command in listed:
        if command in BEFORE:
            shell.run(Step(BEFORE[command], []))
        *_, status = shell.run(Step(f"{command}; echo $?", []))
        expected = "143" if command == "mesh attach last" else "0"  # of a run that was stopped
        assert status == expected, command


def test_the_first_commands_of_the_readme_are_run_by_others() -> None:
    found = [text for language, text in blocks("README.md") if language == "sh"]
    commands = [line.partition("#")[0].strip() for text in found for line in text.splitlines()]
    assert commands == [*ON_A_FRESH_MACHINE]
    assert "bash tests/run.sh" in (REPOSITORY / ".ci/run").read_text()


def test_the_project_of_the_readme_is_read(home: Home) -> None:
    (text,) = (text for language, text in blocks("README.md") if language == "yaml")
    home.files(mesh__yaml=text)
    project = load_project(home.project)
    assert (len(project.prerun), len(project.commands), project.passed) == (2, 1, ("WANDB_*",))


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page, without code, headings and markup; lines of a table's cells are sentences."""
    text = re.sub(r"^```.*?^```$|^    [^\n]*$", "", text, flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.split(r"\n\s*\n|\n(?=\* |\| |#)", text):
        plain = re.sub(r"\]\([^)]*\)", "]", " ".join(paragraph.split()))
        for cell in re.split(r" \| |<br>", plain) if plain.startswith("|") else [plain]:
            yield from re.split(r"(?<=[.!?])\s+", re.sub(r"`[^`]*`", "code", cell))


def test_the_readme_is_short() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= README_LINES


PAGES = sorted(str(path.relative_to(REPOSITORY)) for path in REPOSITORY.glob("docs/*.md"))
LONG_SENTENCES = {"docs/programs-performance.md"}  # measurements with their conditions


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", *(page for page in PAGES if page not in LONG_SENTENCES)]
)
def test_no_sentence_is_long(name: str) -> None:
    text = (REPOSITORY / name).read_text()
    assert [one for one in sentences(text) if len(one.split()) > SENTENCE_WORDS] == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", *PAGES])
def test_links_between_pages_lead_somewhere(name: str) -> None:
    page = REPOSITORY / name
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        assert target.startswith("http") or (page.parent / target).exists(), target


def examples(name: str) -> list[tuple[str, str | None]]:
    """Each Python block of a page with its output; None: that depends on the machine."""
    found = list(blocks(name))
    return [
        (text, None if shows == "python" else output)
        for (language, text), (shows, output) in zip(found, [*found[1:], ("", "")], strict=True)
        if language == "python"
    ]


EXAMPLES = examples("docs/python.md")


@pytest.mark.parametrize(("program", "expected"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_examples_of_the_python_api(home: Home, program: str, expected: str | None) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=home.project,
        env={**home.environ, "PYTHONWARNINGS": ""},
        capture_output=True,
        text=True,
        timeout=GENEROUS_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert expected is None or done.stdout == expected


def test_ranks_that_are_stopped_may_have_printed_less() -> None:
    verdict = "error: rank 1 on beta failed first: exit 1, "
    expected = ["[0] step", "[1] no data", f"{verdict}..."]
    late = [
        "[1] no data",
        "==> stopping 1 rank: SIGTERM, 10 s of grace, then SIGKILL",
        f"{verdict}0.2 s after the start",
        "       after it: rank 0 stopped by mesh",
        "==> 2/2 hosts clean in 0.0 s: 1 rank ended, no process left",
    ]
    assert differences(expected, late) == []
    assert differences(expected, ["==> still connecting to alpha, beta", *late]) == []
    assert differences(expected, [*late[1:], "[0] step", "more"]) == ["- [1] no data", "+ more"]
    assert differences(expected[:1], late[1:2]) == ["- [0] step", f"+ {late[1]}"]


PROGRAMS = [(text, output) for text, output in examples("docs/programs.md") if "__main__" in text]


@pytest.mark.parametrize(("program", "expected"), PROGRAMS, ids=range(len(PROGRAMS)))
def test_the_programs_of_the_page(home: Home, program: str, expected: str | None) -> None:
    home.files(example__py=program)
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=home.project,
        env={**home.environ, "PYTHONWARNINGS": ""},
        capture_output=True,
        text=True,
        timeout=GENEROUS_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected


def test_the_page_of_programs_has_examples_from_threads_to_processes() -> None:
    assert [("local" in text) for text, _ in PROGRAMS][:3] == [False, False, True]


ELSEWHERE_NAMES = " ".join(ELSEWHERE).split()  # of commands of other tools


@pytest.mark.parametrize("name", ["README.md", *(page for page in PAGES if page != "docs/protocol.md")])
def test_every_command_line_of_a_page_has_words_that_mesh_takes(name: str) -> None:
    """Those of README and tutorial are run; the others name hosts and files that no test has."""
    text = (REPOSITORY / name).read_text()
    lines = re.findall(r"^    (mesh [^\n]*?)(?:\s+#.*)?$", text, re.MULTILINE)
    if name != "docs/reference.md":  # which names options without their values
        lines += re.findall(r"`(mesh [^`]+)`", text)
    for line in lines:
        if "[options]" in line:  # a usage line
            continue
        words = shlex.split(" ".join(line.split()).replace("...", "x").rstrip("\\"), comments=True)
        end = next((place for place, word in enumerate(words) if word in ("|", ">")), len(words))
        verb, *arguments = words[1:end]
        arguments = otherstlaunch.ordered(arguments) if verb == otherstlaunch.FAMILY else arguments
        if verb in FAMILIES and arguments:
            verb, arguments = f"{verb} {arguments[0]}", arguments[1:]
        if verb in COMMANDS:
            with contextlib.suppress(HelpWanted):
                parse(COMMANDS[verb], arguments)
        else:
            assert verb in ("help", "--help", *FAMILIES, *ELSEWHERE_NAMES), line
