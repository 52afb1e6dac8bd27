"""A node at work: its object is made, served, and run."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Callable, Sequence, Tuple

from mesh.program.runtime import codec
from mesh.program.runtime.deferred import Command, made
from mesh.program.runtime.here import CURRENT, Context
from mesh.program.runtime.serving import Server

FAILURE_STATUS = 1


class CommandFailed(Exception):
    """The process of a command node has ended with another status than 0."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit {status}" if status >= 0 else f"signal {-status}")
        self.status = status


def exit_status(error: BaseException) -> int:
    """Return the exit status of a process that an exception ends. Writes the text of ``sys.exit`` to stderr."""
    if isinstance(error, SystemExit):
        if isinstance(error.code, int):
            return error.code & 0xFF
        if error.code:
            sys.stderr.write(f"{error.code}\n")
        return int(bool(error.code))
    if isinstance(error, CommandFailed) and error.status > 0:
        return error.status & 0xFF or FAILURE_STATUS
    return FAILURE_STATUS


def needs_run(what: object) -> bool:
    """Return True for a node that has something to run: a class with ``run``, a function, a command."""
    return not inspect.isclass(what) or callable(getattr(what, "run", None))


class Member:
    """A node of this process."""

    def __init__(self, context: Context, server: Server, calls_run: bool = True) -> None:
        """calls_run: False for a test that steps nodes by their handles"""
        self.context, self.server, self._calls_run = context, server, calls_run
        self._run: "Callable[[], object] | None" = None

    def construct(self, body: bytes, buffers: "Sequence[object]" = ()) -> None:
        """Make the node's object from its payload, and begin to serve it. Raises what its constructor raises."""
        CURRENT.context = self.context
        what, args, kwargs = self._parts(codec.loads(body, buffers))
        if isinstance(what, Command):
            self._run = lambda: _run_command(what)
            self.server.open(None)
            return
        arguments, named = [made(one) for one in args], {name: made(one) for name, one in kwargs.items()}
        if not inspect.isclass(what):
            assert callable(what)
            self._run = lambda: what(*arguments, **named)
            self.server.open(None)
            return
        served: object = what(*arguments, **named)
        self._run = getattr(served, "run", None)
        self.server.open(served)

    @staticmethod
    def _parts(payload: object) -> "Tuple[object, Tuple[object, ...], dict[str, object]]":
        parts: "Tuple[object, Tuple[object, ...], dict[str, object]]" = payload  # type: ignore[assignment]
        return parts

    @property
    def runs(self) -> bool:
        """True for a node that has something to run."""
        return self._run is not None and self._calls_run

    def run(self) -> object:
        """Call ``run()`` or the function, or run the command; return the value. Raises what it raises."""
        CURRENT.context = self.context
        return self._run() if self._run is not None and self._calls_run else None


def _run_command(command: Command) -> None:
    status = subprocess.call(command.words)
    if status:
        raise CommandFailed(status)
