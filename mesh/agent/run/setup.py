"""Setup: the project's commands, each in a bash of its own, one after the other in a child process of the agent."""

from __future__ import annotations

import os
import signal

from mesh.agent.base.background import fork
from mesh.agent.process.spawning import Setting, die_with, output_pipe, spawn
from mesh.agent.run.rank import Rank, Source
from mesh.protocol.frames import to_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypedDict

    class Command(TypedDict):
        """A command of a setup, as the client sends it."""

        run: str
        unless: str  # a command whose success skips this one; "": none
        sudo: bool


NO_PASSWORD = "mesh: sudo wants a password on this host, and there is none"


class Setup(Rank):
    """The process that runs the commands, as a rank whose two outputs are one stream."""

    def __init__(self, rank: int, commands: Sequence[Command], force: bool, setting: Setting) -> None:
        """Start it. commands: each with "run", "unless" and "sudo". Raises OSError if there is no way to."""
        self._commands = commands
        self._received = b""
        self.number = 0  # of the command that runs
        self._status: int | None = None  # how it failed, if it did
        words, words_end = os.pipe()
        answers_end, self._answers = os.pipe()
        out, out_end = output_pipe()
        os.set_blocking(words, False)
        self.words = words  # the descriptor of its messages
        try:
            pid = fork()
            if not pid:
                os.close(self._answers)  # or it would never see the end of its input
                _become(setting, words_end, answers_end, out_end, commands, force)
        finally:
            for descriptor in (words_end, answers_end, out_end):
                os.close(descriptor)
        Rank.__init__(self, rank, pid, [Source(out, rank, "setup")])

    def receive(self) -> list[str]:
        """Return the messages of the process, each of them once.

        "show": it waits to run the command ``number``, which is to be shown first. "password": it waits for the
        password that sudo wants now. "wants": a later command will ask for that.
        """
        try:
            self._received += os.read(self.words, 65536)
        except BlockingIOError:
            return []
        *words, self._received = self._received.split(b"\n")
        asked = []
        for word in words:
            name, _, number = word.decode().partition(" ")
            if name == "failed":
                self._status = int(number)
            elif name == "show":
                self.number = int(number)
            if name != "failed":
                asked.append(name)
        return asked

    def shown(self) -> bytes:
        """Return the line that shows the command."""
        return b"$ %s\n" % to_bytes(self._commands[self.number]["run"])

    def answer(self, line: bytes = b"") -> None:
        """Let the process continue, with a line of text."""
        if self._answers >= 0:
            try:
                os.write(self._answers, line + b"\n")
            except BrokenPipeError:  # it was ended meanwhile
                pass

    def end(self, status: int, now: float) -> None:
        self.receive()  # its last words may still be in the pipe
        for descriptor in (self.words, self._answers):
            os.close(descriptor)
        self.words = self._answers = -1
        # If a command failed, its own status counts and not that of the process that ran it.
        Rank.end(self, status if self._status is None else self._status, now)

    def failed_command(self) -> str:
        return str(self._commands[self.number]["run"]) if self.status else ""


def _become(setting: Setting, words: int, answers: int, out: int, commands: Sequence[Command], force: bool) -> None:
    """Run the commands in the child, and end."""
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
        os._exit(1 if _Commands(setting, words, answers).run(commands, force) else 0)
    except BaseException as error:
        os.write(2, f"mesh: {type(error).__name__}: {error}\n".encode("utf-8", "replace"))
    finally:
        os._exit(1)


class _Commands:
    """The commands, in the process that was forked for them. It may block."""

    def __init__(self, setting: Setting, words: int, answers: int) -> None:
        self._setting, self._words, self._answers = setting, words, answers
        self._wants_password = False  # for sudo
        self._password: bytes | None = None  # None: not asked for yet

    def run(self, commands: Sequence[Command], force: bool) -> bool:
        """Run them in order, up to the first that fails; return True if one did."""
        is_root = os.geteuid() == 0
        # The user is asked before the first command, so that no host waits in the middle for a user who has left.
        if not is_root and any(command["sudo"] for command in commands):
            self._wants_password = self._needs_password()
            if self._wants_password:
                self._send("wants")
        for number, command in enumerate(commands):
            self._ask(f"show {number}")
            if command["unless"] and not force and self._is_done(command["unless"]):
                self._print(f"(skipped: {command['unless']})")
                continue
            argv = ["bash", "-c", command["run"]]
            status = self._sudo(argv) if command["sudo"] and not is_root else self._call(argv)
            if status:
                self._send(f"failed {status}")
                return True
        return False

    def _is_done(self, unless: str) -> bool:
        status = self._call(["bash", "-c", unless], quiet=True)
        if status not in (0, 1 << 8):  # neither yes nor no: a slip of the pen would run the command every time
            self._print(f"(unless: exit {status >> 8 or 128 + status}: {unless})")
        return status == 0

    def _needs_password(self) -> bool:
        # -k: what sudo remembers now may be forgotten before the last command.
        return self._call(["sudo", "-k", "-n", "true"], quiet=True) != 0 and not self._is_missing("sudo")

    def _ask(self, word: str) -> bytes:
        """Send the agent a message, and wait for its answer."""
        self._send(word)
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self._answers, 1)
            if not byte:
                raise EOFError("the agent is gone")
            line += byte
        return line[:-1]

    def _sudo(self, argv: list[str]) -> int:
        """Run argv as root. The password goes over stdin, of which the command itself sees nothing."""
        if self._wants_password and self._password is None:  # the client gives it only while such a command runs
            self._password = self._ask("password")
        if self._password == b"":
            self._print(NO_PASSWORD)
            return 1 << 8
        inner = ["bash", "-c", 'exec "$@" </dev/null', "bash", *argv]
        stdin, stdin_end = os.pipe()
        try:
            os.write(stdin_end, (self._password or b"") + b"\n")
            os.close(stdin_end)
            return self._call(["sudo", "-S", "-p", "", "--", *inner], stdin=stdin)
        finally:
            os.close(stdin)

    def _is_missing(self, program: str) -> bool:
        return self._call(["bash", "-c", f"command -v {program}"], quiet=True) != 0

    def _call(self, argv: list[str], *, stdin: int = 0, quiet: bool = False) -> int:
        """Run argv to its end; return the status from waitpid."""
        null = os.open(os.devnull, os.O_RDWR) if quiet else 1
        try:
            pid = spawn([to_bytes(word) for word in argv], self._setting, stdin, null, null)
            return os.waitpid(pid, 0)[1]
        finally:
            if quiet:
                os.close(null)

    def _print(self, text: str) -> None:
        data = to_bytes(text + "\n")
        while data:
            data = data[os.write(1, data) :]

    def _send(self, word: str) -> None:
        os.write(self._words, word.encode() + b"\n")
