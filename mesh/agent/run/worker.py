"""A child process of the agent that runs shell text and may block; pipes carry its messages and the answers."""

from __future__ import annotations

import os
import signal

from mesh.agent.base.background import fork
from mesh.agent.process.spawning import Setting, die_with, output_pipe, spawn
from mesh.protocol.frames import to_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MESSAGES_BYTES = 1 << 16
NO_PASSWORD = "mesh: sudo wants a password on this host, and there is none"


class WorkerProcess:
    """The agent's end of the process."""

    def __init__(self, setting: Setting, work: Callable[[Worker], bool]) -> None:
        """Start it. work: called in the child, with its end; true for a failure. Raises OSError."""
        self._received = b""
        words, words_end = os.pipe()
        answers_end, self._answers = os.pipe()
        self.out, out_end = output_pipe()  # all that it and its programs print
        os.set_blocking(words, False)
        self.words = words  # the descriptor of its messages
        try:
            self.pid = fork()
            if not self.pid:
                os.close(self._answers)  # or it would never see the end of its input
                _become(Worker(setting, words_end, answers_end), out_end, work)
        finally:
            for descriptor in (words_end, answers_end, out_end):
                os.close(descriptor)

    def receive(self) -> list[str]:
        """Return the messages of the process, one line each, each of them once."""
        try:
            self._received += os.read(self.words, MESSAGES_BYTES)
        except BlockingIOError:
            return []
        *words, self._received = self._received.split(b"\n")
        return [word.decode("utf-8", "replace") for word in words]

    def answer(self, line: bytes = b"") -> None:
        """Let the process continue, with a line of text."""
        if self._answers >= 0:
            try:
                os.write(self._answers, line + b"\n")
            except BrokenPipeError:  # it was ended meanwhile
                pass

    def close(self) -> None:
        """Close the pipes of a process that has ended, but for the one of its output."""
        for descriptor in (self.words, self._answers):
            os.close(descriptor)
        self.words = self._answers = -1


def _become(worker: Worker, out: int, work: Callable[[Worker], bool]) -> None:
    """Do the work in the child, and end."""
    agent = os.getppid()
    try:
        os.setsid()
        # Descriptors 0 and 1 are the agent's channel, which a child must not hold.
        null = os.open(os.devnull, os.O_RDONLY)
        for number, source in ((0, null), (1, out), (2, out)):
            os.dup2(source, number)
        for number in range(3):
            os.set_inheritable(number, False)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with(agent)
        os._exit(1 if work(worker) else 0)
    except BaseException as error:
        os.write(2, f"mesh: {type(error).__name__}: {error}\n".encode("utf-8", "replace"))
    finally:
        os._exit(1)


class Worker:
    """The child's end: it runs programs, sends messages and waits for answers."""

    def __init__(self, setting: Setting, words: int, answers: int) -> None:
        """words, answers: descriptors of the two pipes"""
        self.setting, self._words, self._answers = setting, words, answers
        self._has_looked = self._wants_password = False  # for sudo
        self._password: bytes | None = None  # None: not asked for yet
        self.is_root = os.geteuid() == 0

    def look_for_password(self, *, announce: bool) -> None:
        """Find out if sudo wants a password. announce: have the user asked now, and not by the command that needs it"""
        if not self.is_root and not self._has_looked:
            self._has_looked = True
            # -k: what sudo remembers now may be forgotten before the last command.
            needs = self.call(["sudo", "-k", "-n", "true"], quiet=True) != 0
            self._wants_password = needs and not self._is_missing("sudo")
            if self._wants_password and announce:
                self.send("wants")

    def ask(self, word: str) -> bytes:
        """Send the agent a message, and wait for its answer."""
        self.send(word)
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self._answers, 1)
            if not byte:
                raise EOFError("the agent is gone")
            line += byte
        return line[:-1]

    def sudo(self, argv: Sequence[str], call: Callable[[list[str], int], int]) -> int:
        """Run argv as root; return the status from waitpid. call: runs words with a descriptor as their stdin

        The password goes over stdin, of which the command itself sees nothing.
        """
        if self._wants_password and self._password is None:  # the client gives it only while such a command runs
            self._password = self.ask("password")
        if self._password == b"":
            self.print(NO_PASSWORD)
            return 1 << 8
        inner = ["bash", "-c", 'exec "$@" </dev/null', "bash", *argv]
        stdin, stdin_end = os.pipe()
        try:
            os.write(stdin_end, (self._password or b"") + b"\n")
            os.close(stdin_end)
            return call(["sudo", "-S", "-p", "", "--", *inner], stdin)
        finally:
            os.close(stdin)

    def call(self, argv: Sequence[str], stdin: int = 0, *, quiet: bool = False) -> int:
        """Run argv to its end; return the status from waitpid."""
        null = os.open(os.devnull, os.O_RDWR) if quiet else 1
        try:
            pid = spawn([to_bytes(word) for word in argv], self.setting, stdin, null, null)
            return os.waitpid(pid, 0)[1]
        finally:
            if quiet:
                os.close(null)

    def print(self, text: str) -> None:
        """Write a line to the output."""
        data = to_bytes(text + "\n")
        while data:
            data = data[os.write(1, data) :]

    def send(self, word: str) -> None:
        """Send the agent a message."""
        os.write(self._words, word.encode("utf-8", "replace") + b"\n")

    def _is_missing(self, program: str) -> bool:
        return self.call(["bash", "-c", f"command -v {program}"], quiet=True) != 0
