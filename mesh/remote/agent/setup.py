"""Setup: the project's commands one after the other, each in a bash of its own, in a process that is a fork of ours."""

from __future__ import annotations

import os
import signal

from .frames import to_bytes
from .processes import Setting, die_with, output_pipe, spawn
from .ranks import Rank, Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

NO_PASSWORD = "mesh: sudo wants a password on this host, and there is none"


class Setup(Rank):
    """The process that runs the commands, as a rank whose two outputs are one stream."""

    def __init__(self, rank: int, commands: Sequence[dict[str, Any]], force: bool, setting: Setting) -> None:
        """Start it. commands: each with "run", "unless" and "sudo". Raises OSError if there is no way to."""
        self._commands = commands
        self._heard = b""
        self._failed = -1  # the command that failed, and how
        self._status: int | None = None
        words, words_end = os.pipe()
        password_end, self._password = os.pipe()
        out, out_end = output_pipe()
        os.set_blocking(words, False)
        self.words = words  # the descriptor of what it tells us
        try:
            pid = os.fork()
            if not pid:
                os.close(self._password)  # or it would never see the end of what comes
                _become(setting, words_end, password_end, out_end, commands, force)
        finally:
            for descriptor in (words_end, password_end, out_end):
                os.close(descriptor)
        Rank.__init__(self, rank, pid, [Source(out, rank, "setup")])

    def asks_password(self) -> bool:
        """Read what it tells; True if it waits for sudo's password now."""
        try:
            self._heard += os.read(self.words, 65536)
        except BlockingIOError:
            return False
        *words, self._heard = self._heard.split(b"\n")
        for word in words:
            if word.startswith(b"failed"):
                self._failed, self._status = (int(number) for number in word.split()[1:])
        return b"asks" in words

    def give_password(self, password: bytes) -> None:
        """Answer; b"" if there is none."""
        if self._password >= 0:
            try:
                os.write(self._password, password)
            except BrokenPipeError:  # it was ended meanwhile
                pass
            os.close(self._password)
            self._password = -1

    def end(self, status: int, now: float) -> None:
        self.asks_password()  # its last words may still be in the pipe
        for descriptor in (self.words, self._password):
            if descriptor >= 0:
                os.close(descriptor)
        self.words = self._password = -1
        # Of a command that failed, its own end counts and not that of the process that ran it.
        Rank.end(self, status if self._status is None else self._status, now)

    def about_its_end(self) -> dict[str, Any]:
        return {"during": self._commands[self._failed]["run"]} if self._failed >= 0 else {}


def _become(
    setting: Setting, words: int, password: int, out: int, commands: Sequence[dict[str, Any]], force: bool
) -> None:
    """In the child: run the commands, and end."""
    agent = os.getppid()
    try:
        os.setsid()
        # The agent's own numbers 0 and 1 are its channel, which is not ours to hold.
        null = os.open(os.devnull, os.O_RDONLY)
        for number, source in ((0, null), (1, out), (2, out)):
            os.dup2(source, number)
        for number in range(3):
            os.set_inheritable(number, False)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        die_with(agent)
        os._exit(1 if _Commands(setting, words, password).run(commands, force) else 0)
    except BaseException as error:
        os.write(2, f"mesh: {type(error).__name__}: {error}\n".encode("utf-8", "replace"))
    finally:
        os._exit(1)


class _Commands:
    """Runs them, in the process that was forked for it. It may block."""

    def __init__(self, setting: Setting, words: int, password: int) -> None:
        self._setting, self._words, self._from_agent = setting, words, password
        self._password: bytes | None = None  # None: sudo wants none

    def run(self, commands: Sequence[dict[str, Any]], force: bool) -> bool:
        """Run them in order, up to the first that fails; True if one did."""
        is_root = os.geteuid() == 0
        # Asked before the first command, so that nobody waits in the middle for somebody who went for a coffee.
        if not is_root and any(command["sudo"] for command in commands):
            self._learn_password()
        for number, command in enumerate(commands):
            if command["unless"] and not force and self._call(["bash", "-c", command["unless"]], quiet=True) == 0:
                self._print(f"$ {command['run']}\n(skipped: {command['unless']})")
                continue
            self._print(f"$ {command['run']}")
            argv = ["bash", "-c", command["run"]]
            status = self._sudo(argv) if command["sudo"] and not is_root else self._call(argv)
            if status:
                self._tell(f"failed {number} {status}")
                return True
        return False

    def _learn_password(self) -> None:
        # -k: what sudo remembers now may be forgotten before the last command.
        if self._call(["sudo", "-k", "-n", "true"], quiet=True) == 0 or self._is_missing("sudo"):
            return
        self._tell("asks")
        self._password = b""
        while True:
            data = os.read(self._from_agent, 4096)
            if not data:
                return
            self._password += data

    def _sudo(self, argv: list[str]) -> int:
        """Run argv as root. The password goes over stdin, of which the command itself sees nothing."""
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
        """Run argv to its end; return what waitpid says."""
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

    def _tell(self, word: str) -> None:
        os.write(self._words, word.encode() + b"\n")
