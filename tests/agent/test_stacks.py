"""What a rank is doing, asked by another agent: by py-spy, by the handler of a prepared rank, by the kernel."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mesh.agent.ask import handlers, spying, stacks
from mesh.agent.control.requests import NOT_ANSWERING
from mesh.agent.process.processes import Process, look_at
from mesh.core.events import Answered, Connected, Exited, Output
from mesh.protocol import replies
from mesh.protocol.answers import Owner
from mesh.protocol.questions import AskStacks
from mesh.protocol.records import Record, fields_of
from tests.lab import eventually

from .conftest import PYTHONS, Open, Run

HANG = """\
import os, sys, threading, time
there = threading.Event()
def inner(*words): print(*words, flush=True) if words else there.set(); time.sleep(1000)
def outer(*words): inner(*words)
threading.Thread(target=inner, daemon=True).start()
there.wait()
outer("up", [path for path in sys.path if "mesh" in path], getattr(sys, "theirs", ""))
"""
BARE = str(getattr(sys, "_base_executable", sys.executable))  # beside which there is no py-spy
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow the processes that are asked here so much time that a slow machine suffices."""
    monkeypatch.setattr(handlers, "WRITE_LIMIT_S", 60.0)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a program that says a line once it is where it stays; it is old enough to be asked."""
    started = []

    def begin(*argv: str, **environment: str) -> subprocess.Popen[str]:
        environ = {"PATH": os.environ["PATH"], **environment}
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environ, cwd=tmp_path)
        started.append(process)
        assert process.stdout is not None
        process.said = process.stdout.readline()  # type: ignore[attr-defined]
        assert eventually(lambda: look(process).age() > handlers.AGE_MIN_S)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def look(process: subprocess.Popen[str]) -> Process:
    (found,) = look_at([process.pid])
    return found


def prepared(tmp_path: Path, theirs: str = "") -> str:
    place = tmp_path / "mesh-python"
    place.mkdir()
    (place / "sitecustomize.py").write_bytes(handlers.source())
    return f"{place}:{theirs}" if theirs else str(place)


def functions(text: str) -> list[list[str]]:
    return [[frame[0] for frame in thread.frames] for thread in handlers.read(text)]


def test_a_prepared_python_tells_its_stacks(python: str, start: Start, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/sitecustomize.py").write_text("import sys; sys.theirs = __file__")
    process = start(python, "-c", HANG, PYTHONPATH=prepared(tmp_path, str(tmp_path / "theirs")))
    # The user's own sitecustomize has run, and ours is nowhere on the path.
    assert process.said == f"up [] {tmp_path}/theirs/sitecustomize.py\n"  # type: ignore[attr-defined]
    for _ in range(2):
        told = functions(handlers.ask(look(process)))
        assert told[-1] == ["inner", "outer", "<module>"]
        assert "inner" in told[0]
    assert process.poll() is None


def test_without_one_of_the_users_own_nothing_is_different(start: Start, tmp_path: Path) -> None:
    show = "import sys, time; print(sys.path, flush=True); time.sleep(99)"
    plain, process = start(BARE, "-c", show), start(BARE, "-c", show, PYTHONPATH=prepared(tmp_path))
    assert process.said == plain.said  # type: ignore[attr-defined]


FORK = """\
import os, time
def child(): os.write(1, b"%d\\n" % os.getpid()); time.sleep(1000)
def parent(): time.sleep(1000)
if not os.fork(): child()
parent()
"""


def test_forks_answer_each_for_itself(start: Start, tmp_path: Path) -> None:
    process = start(sys.executable, "-c", FORK, PYTHONPATH=prepared(tmp_path))
    child = int(process.said)  # type: ignore[attr-defined]
    assert eventually(lambda: look_at([child])[0].age() > handlers.AGE_MIN_S)
    try:
        for pid, where in ((process.pid, "parent"), (child, "child"), (process.pid, "parent")):
            # The parent may not have come to its function yet.
            assert eventually(lambda pid=pid, where=where: innermost(pid) == where), where
    finally:
        os.kill(child, signal.SIGKILL)


def innermost(pid: int) -> str:
    (process,) = look_at([pid])
    found = functions(handlers.ask(process))
    return found[-1][0] if found else ""


# Each would be killed, or have something written where it must not be, if it was asked.
CLOSES = "import os; os.closerange(3, 1000); f = [open('data', 'w') for _ in range(200)]; " + HANG
UNREGISTERS = f"import faulthandler; faulthandler.unregister({handlers.STACKS_SIGNAL})\n" + HANG
BLOCKS = f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [{handlers.STACKS_SIGNAL}]); " + HANG
HEEDLESS = {
    "not prepared": (HANG, False),
    "it has closed all files and opened others": (CLOSES, True),
    "it gives up the handler": (
        f"import faulthandler; faulthandler.unregister({handlers.STACKS_SIGNAL})\n" + HANG,
        True,
    ),
    "it blocks the signal": (BLOCKS, True),
}


@pytest.mark.parametrize(("program", "is_prepared"), HEEDLESS.values(), ids=HEEDLESS)
def test_who_has_no_handler_gets_no_signal(start: Start, tmp_path: Path, program: str, is_prepared: bool) -> None:
    environ = {"PYTHONPATH": prepared(tmp_path)} if is_prepared else {}
    process = start(sys.executable, "-c", program, **environ)
    assert handlers.ask(look(process)) == ""
    assert process.poll() is None
    assert not (tmp_path / "data").exists() or not (tmp_path / "data").read_bytes()
    pending = Path(f"/proc/{process.pid}/status").read_text().partition("ShdPnd:\t")[2][:16]
    assert int(pending, 16) == 0


def test_a_stopped_process_gets_no_signal(start: Start, tmp_path: Path) -> None:
    process = start(sys.executable, "-c", HANG, PYTHONPATH=prepared(tmp_path))
    process.send_signal(signal.SIGSTOP)
    assert eventually(lambda: look(process).state == "T")
    assert handlers.ask(look(process)) == ""


# ---- through agents


@pytest.fixture
def no_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return path


def up(run: Run, ranks: int) -> None:
    said: dict[int, bytes] = {}
    while sum(b"up" in text for text in said.values()) < ranks:
        event = run.until(Output)
        assert isinstance(event, Output)
        said[event.rank] = said.get(event.rank, b"") + event.data


def ask(opener: Open, tool: dict[str, str], enclosed: bytes = b"") -> dict[str, Any]:
    """Return the answer of an agent, as JSON has it."""
    asker = opener(sys.executable, run="asker")
    asker.until(Connected)
    question = AskStacks(run=f"run-{os.getpid()}", tool=tool)
    asker.session.ask_with(question, enclosed)
    event = asker.until(Answered)
    asker.finish()
    assert isinstance(event, Answered)
    assert isinstance(event.answer, Record)
    return fields_of(event.answer)


def ranks_of(answer: dict[str, Any]) -> dict[int, tuple[str, str, str]]:
    """How each rank was told, what of it, and its innermost call."""
    return {
        rank: (one["how"], one["words"], (one["frames"] or [["", "", 0]])[0][0] if one["how"] != "kernel" else "")
        for one in answer["stacks"]
        for rank, _ in one["of"]
        if one["main"]
    }


SAYS = '{"pid":1,"thread_name":"MainThread","os_thread_id":1,"frames":[{"name":"spied","filename":"a.py","line":1}]}'


def test_a_py_spy_that_a_client_has_sent_is_kept_by_its_hash(opener: Open, remote_dir: Path, no_py_spy: None) -> None:
    run = opener(sys.executable)
    run.prepare()
    run.start(BARE, "-c", HANG, nproc=2)
    up(run, 2)
    program = f"#!/bin/sh\necho '[{SAYS}]'\n".encode()
    digest = hashlib.blake2b(program, digest_size=20).hexdigest()
    tool = {"machine": os.uname().machine, "hash": digest, "path": "/nowhere"}
    old = script(remote_dir / "tools" / f"py-spy-{os.uname().machine}-0123", "exit 1")
    assert ask(opener, tool) == {"wants": digest}
    damaged = ask(opener, tool, zlib.compress(program[:-1]))
    assert "cannot be kept" in damaged["notes"][0][0]
    assert old.exists()
    answer = ask(opener, tool, zlib.compress(program))
    assert ranks_of(answer) == {0: ("py-spy", "", "spied"), 1: ("py-spy", "", "spied")}
    assert [path.name for path in (remote_dir / "tools").iterdir()] == [f"py-spy-{os.uname().machine}-{digest}"]
    assert ranks_of(ask(opener, tool)) == ranks_of(answer)
    assert "wants" not in ask(opener, {**tool, "machine": "another"})
    run.finish()


TROUBLES = {
    "it is not let": ("echo 'Error: Permission Denied: try sudo' >&2; exit 1", "py-spy may not trace"),
    "it says something else": ("echo '{}'", "py-spy cannot read it"),
    "it fails": ("echo 'Error: no version' >&2; exit 1", "py-spy cannot read it: Error: no version"),
    "it is no program": ("\0", "cannot be run"),
}


@pytest.mark.parametrize(("text", "told"), TROUBLES.values(), ids=TROUBLES)
def test_where_py_spy_fails_the_others_tell(
    opener: Open, remote_dir: Path, no_py_spy: None, text: str, told: str
) -> None:
    """Rank 0 and 1 are Pythons, 2 has ended, 3 runs no Python."""
    program = script(remote_dir / "bin/py-spy", text)
    if text == "\0":
        program.write_bytes(b"\x7fELF")
    run = opener(sys.executable, stacks=told.startswith("py-spy may"))
    run.prepare(env={"PATH": f"{program.parent}:/usr/bin:/bin"})
    run.start("sh", "-c", '[ $RANK != 2 ] || exit 0; [ $RANK != 3 ] || { echo up; exec sleep 1000; }; "$@"; true',
              "sh", BARE, "-c", HANG, nproc=4)  # fmt: skip
    up(run, 3)
    if not any(isinstance(event, Exited) for event in run.events):
        run.until(Exited)
    is_prepared = told.startswith("py-spy may")
    answers: list[dict[str, Any]] = []

    def are_told() -> bool:
        """True at once for Pythons that are not prepared. One that has just been started is told by the kernel."""
        answers.append(ask(opener, {}))
        return not is_prepared or [ranks_of(answers[-1])[rank][0] for rank in (0, 1)] == ["faulthandler"] * 2

    assert eventually(are_told)
    answer = answers[-1]
    found = ranks_of(answer)
    assert found[3][0] == "kernel"
    assert found[3][1].startswith("in ")
    assert {rank["rank"] for rank in answer["ranks"] if rank["ended"]} == {2}
    if is_prepared:
        assert found[0] == found[1] == ("faulthandler", "", "inner")
        assert answer["notes"] == []
    else:
        assert found[0][0] == "kernel"
        assert any(told in text for text, _ in answer["notes"]), answer["notes"]
    run.finish()


def test_a_rank_lives_though_its_python_has_ended_meanwhile(opener: Open, remote_dir: Path, no_py_spy: None) -> None:
    """The program that stands for py-spy ends what it is to read."""
    program = script(remote_dir / "bin/py-spy", "kill -9 $5; exit 1")
    run = opener(sys.executable)
    run.prepare(env={"PATH": f"{program.parent}:/usr/bin:/bin"})
    run.start("sh", "-c", '"$@"; exec sleep 1000', "sh", BARE, "-c", HANG)
    up(run, 1)
    answer = ask(opener, {})
    assert answer["ranks"] == [{"rank": 0, "ended": False}]
    (told,) = answer["stacks"]
    assert told["how"] == "kernel"
    run.finish()


def test_an_agent_that_does_not_answer_is_no_run_that_has_ended(tmp_path: Path) -> None:
    hung = replies.Run(run="r", node=0, about=Owner(), attached=True, state=NOT_ANSWERING, ranks=[])
    for runs in ([hung], []):
        found = stacks.gather(runs, str(tmp_path), {}, b"")
        assert isinstance(found, replies.Stacks)
        assert found.silent == bool(runs)


def test_a_stopped_rank_and_a_zombie(opener: Open, no_py_spy: None) -> None:
    """The child of rank 0 has ended, and is not waited for."""
    run = opener(sys.executable, stacks=True)
    run.prepare()
    stop = "import os, signal, subprocess; child = subprocess.Popen(['true']); "
    stop += "os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT); "
    stop += "print('up', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
    run.start(BARE, "-c", stop)
    up(run, 1)
    answers: list[dict[str, Any]] = []

    def stopped() -> bool:
        answers.append(ask(opener, {}))
        return ranks_of(answers[-1]) == {0: ("kernel", "stopped by a signal", "")}

    assert eventually(stopped)
    assert len(answers[-1]["stacks"]) == 1
    run.session.kill()
    run.finish()


def test_a_py_spy_that_hangs_is_not_waited_for(start: Start, tmp_path: Path) -> None:
    program = script(tmp_path / "py-spy", f"[ $5 = {os.getpid()} ] && exec sleep 1000; echo '[{SAYS}]'")
    found = spying.dump(str(program), [os.getpid(), os.getppid()], time.monotonic() + 6.0)
    assert found[os.getpid()] == ([], "there was no time")
    assert found[os.getppid()][0][0].frames == [("spied", "a.py", 1)]


def test_the_real_py_spy(start: Start) -> None:
    program = spying.find([os.environb[b"PATH"], os.fsencode(os.path.dirname(sys.executable))], "/nowhere", {})
    assert program
    process = start(sys.executable, "-c", HANG)
    gone = 1 << 22
    found = spying.dump(program, [process.pid, gone], time.monotonic() + 60.0)
    threads, why = found[process.pid]
    assert why == ""
    assert [thread.frames[0][0] for thread in threads] == ["inner", "inner"]
    (main,) = [thread for thread in threads if thread.is_main]
    assert [frame[0] for frame in main.frames] == ["inner", "outer", "<module>"]
    assert found[gone][0] == []


def test_there_is_a_python_to_test_with() -> None:
    assert PYTHONS
