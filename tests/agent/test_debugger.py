"""The debugger within a rank, on every Python of this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.agent.ask import handlers
from mesh.agent.forward import attaching, debugging
from mesh.agent.forward.inside import OWNER_VARIABLE, STOP_SIGNAL, VARIABLE
from tests.lab import eventually
from tests.pythons import outermost, pythons

PROGRAM = """\
import subprocess, sys, time
def work(word):
    breakpoint()
    word += "!"
    return word
print(work("here"), flush=True)
child = subprocess.run([sys.executable, "-c", "raise OSError('on purpose')"], stderr=subprocess.PIPE)  # does not stop
assert child.returncode == 1
print("runs", flush=True)
end = time.monotonic() + 120
while "stop" not in globals() and time.monotonic() < end:
    time.sleep(0.01)
answer = 42
raise ValueError("the end")
"""
THREADS = """\
import threading
def work(word):
    breakpoint()
    print(word, flush=True)
both = [threading.Thread(target=work, args=(word,), name=word) for word in ("one", "two")]
for thread in both:
    thread.start()
for thread in both:
    thread.join()
"""
# It executes a file as sys.remote_exec of Python 3.14 has it do: in its main thread, with names of its own.
UNPREPARED = """\
import signal, sys, time
def load(number, frame):
    exec(open(open(sys.argv[1] + "/order").read()).read(), {})
signal.signal(signal.SIGUSR1, load)
print("up", flush=True)
end = time.monotonic() + 120
while "stop" not in globals() and time.monotonic() < end:
    time.sleep(0.01)
raise ValueError("the end")
"""
STAND_IN = """\
#!/bin/sh
printf %s "$6" > "{place}/order"
kill -USR1 "$5"
"""
WITHIN_S = 60.0
REMOTE = (3, 14)


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mesh-") as directory:  # the name of a socket must be short
        yield Path(directory)


class Rank:
    """A Python that began as a rank of a run with --debug."""

    def __init__(self, python: str, place: Path, text: str = PROGRAM) -> None:
        self.sockets = place / "sockets"
        self.sockets.mkdir(mode=0o700)
        (place / "sitecustomize.py").write_bytes(handlers.source() + debugging.source())
        env = {**os.environ, "PYTHONPATH": str(place), VARIABLE: str(self.sockets / "3")}
        for name in ("PYTHONBREAKPOINT", OWNER_VARIABLE):
            env.pop(name, None)
        program = place / "program.py"
        program.write_text(text)
        self.process = subprocess.Popen([python, str(program)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def attach(self, *, is_asked: bool = False) -> socket.socket:
        assert eventually(lambda: debugging.waiting(str(self.sockets)), WITHIN_S)
        (path,) = debugging.waiting(str(self.sockets)).values()
        assert (os.stat(path).st_mode & 0o777, path.endswith("-asked")) == (0o600, is_asked)
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(WITHIN_S)
        client.connect(path)
        return client

    def close(self) -> tuple[str, str]:
        out, errors = self.process.communicate(timeout=WITHIN_S)
        return out.decode(), errors.decode()


def read(client: socket.socket) -> str:
    """Read up to the next prompt, or the end."""
    text = ""
    while not text.endswith("(Pdb) "):
        data = client.recv(1 << 16)
        if not data:
            break
        text += data.decode()
    return text


def ask(client: socket.socket, line: str) -> str:
    client.sendall(f"{line}\n".encode())
    return read(client)


@pytest.mark.parametrize("python", outermost().values(), ids=outermost())
def test_a_rank_stops_at_a_breakpoint_on_request_and_at_its_last_exception(python: str, place: Path) -> None:
    rank = Rank(python, place)
    try:
        with rank.attach() as client:
            read(client)
            assert ask(client, "p word * 2") == "'herehere'\n(Pdb) "
        with rank.attach() as client:  # the first client has left, and the rank waits for the next one
            read(client)
            assert "return word" in ask(client, "next") + ask(client, "next")
            assert ask(client, "continue") == ""
        assert rank.process.stdout is not None
        assert [rank.process.stdout.readline() for _ in range(2)] == [b"here!\n", b"runs\n"]
        os.kill(rank.process.pid, STOP_SIGNAL)
        with rank.attach(is_asked=True) as client:
            read(client)
            os.kill(rank.process.pid, STOP_SIGNAL)  # another terminal asks as well: the rank has stopped already
            assert ask(client, "p 6 * 7") == "42\n(Pdb) "
            ask(client, "!globals().update(stop=1)")
            assert ask(client, "continue") == ""
        with rank.attach() as client:
            read(client)
            assert ask(client, "p answer") == "42\n(Pdb) "
            assert ask(client, "continue") == ""
        _, errors = rank.close()
        assert rank.process.returncode == 1
        assert errors.count("ValueError: the end") == 1
        assert not os.listdir(rank.sockets)
    finally:
        if rank.process.poll() is None:
            rank.process.send_signal(signal.SIGKILL)
            rank.close()


@pytest.mark.parametrize("python", pythons().values(), ids=pythons())
def test_threads_that_stop_together_have_the_client_one_after_the_other(python: str, place: Path) -> None:
    rank = Rank(python, place, THREADS)
    try:
        words = []
        for _ in range(2):
            with rank.attach() as client:
                name = read(client).splitlines()[0]
                words.append(ask(client, "p word"))
                assert (name, words[-1]) in (("thread one", "'one'\n(Pdb) "), ("thread two", "'two'\n(Pdb) "))
                assert "return" in ask(client, "p 'return'")
                assert ask(client, "continue") == ""
        out, errors = rank.close()
        assert (rank.process.returncode, sorted(out.split()), len(set(words))) == (0, ["one", "two"], 2), errors
    finally:
        if rank.process.poll() is None:
            rank.process.send_signal(signal.SIGKILL)
            rank.close()


@pytest.mark.parametrize("python", pythons().values(), ids=pythons())
def test_a_rank_that_no_debugger_can_reach_goes_on(python: str, place: Path) -> None:
    (place / "sockets").symlink_to(place / "gone")
    env = {**os.environ, "PYTHONPATH": str(place), VARIABLE: str(place / "sockets/3")}
    for name in ("PYTHONBREAKPOINT", OWNER_VARIABLE):
        env.pop(name, None)
    (place / "sitecustomize.py").write_bytes(debugging.source())
    argv = [python, "-c", "breakpoint()\nprint('on')\nprint('and on')"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    assert (done.returncode, done.stdout) == (0, "on\nand on\n"), done.stderr
    assert "mesh: rank 3 goes on, as no debugger can reach it (No such file or directory)" in done.stderr


class Unprepared(Rank):
    """A Python that began as a rank of a run without --debug."""

    def __init__(self, python: str, place: Path) -> None:
        self.sockets = place / "sockets"
        program = place / "program.py"
        program.write_text(UNPREPARED)
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        argv = [python, str(program), str(place)]
        self.process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"up\n"

    def look_and_end(self) -> None:
        """Stop it, look at it, and let it go on: its exception does not stop it, as nobody would come."""
        os.kill(self.process.pid, STOP_SIGNAL)
        with self.attach(is_asked=True) as client:
            read(client)
            assert ask(client, "p len(sys.argv) * 21") == "42\n(Pdb) "
            ask(client, "!globals().update(stop=1)")
            assert ask(client, "continue") == ""
        _, errors = self.close()
        assert (self.process.returncode, "ValueError: the end" in errors) == (1, True), errors
        assert not os.listdir(self.sockets)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.close()


def of_versions(*, remote: bool) -> dict[str, str]:
    found = pythons().items()
    return {name: path for name, path in found if (tuple(map(int, name.split("."))) >= REMOTE) == remote}


@pytest.mark.parametrize("python", of_versions(remote=False).values(), ids=of_versions(remote=False))
def test_a_rank_that_executes_the_script_stops_on_request_alone(python: str, place: Path) -> None:
    stand_in = place / "python"
    stand_in.write_text(STAND_IN.format(place=place))
    stand_in.chmod(0o700)
    rank = Unprepared(python, place)
    try:
        assert attaching.attach_by(str(stand_in), rank.process.pid, 3, str(rank.sockets), WITHIN_S) == ""
        rank.look_and_end()
    finally:
        rank.end()


@pytest.mark.parametrize("python", of_versions(remote=True).values(), ids=of_versions(remote=True))
def test_a_rank_of_python_3_14_loads_the_debugger(python: str, place: Path) -> None:
    rank = Unprepared(python, place)
    try:
        assert attaching.attach(rank.process.pid, 3, str(rank.sockets), WITHIN_S) == ""
        rank.look_and_end()
    finally:
        rank.end()


@pytest.mark.parametrize("python", list(of_versions(remote=False).values())[:1])
def test_an_older_python_is_named_and_nothing_is_left(python: str, place: Path) -> None:
    rank = Unprepared(python, place)
    try:
        failure = attaching.attach(rank.process.pid, 3, str(rank.sockets), WITHIN_S)
        assert failure.startswith("it runs Python 3."), failure
        assert not os.listdir(rank.sockets)
    finally:
        rank.end()


def test_a_program_that_is_no_python_has_no_interpreter_to_run(place: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            path, failure = attaching.interpreter_of(process.pid)
        finally:
            process.kill()
    assert (path, "without --debug" in failure) == ("", True)
