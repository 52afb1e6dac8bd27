"""Output of the commands themselves: results on stdout, notices and errors with their hints on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from mesh.core.errors import MeshError, OutputClosed


def show(lines: Iterable[str]) -> None:
    """Print lines on stdout. Raises OutputClosed if its reader is gone, MeshError if it cannot be written."""
    if sys.stdout is None:  # mesh ... >&-
        return
    try:
        sys.stdout.writelines(f"{line}\n" for line in lines)
        sys.stdout.flush()
    except OSError as error:
        # Python reports at its exit what it cannot flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise OutputClosed("") from error
        raise MeshError(f"cannot write to stdout: {error.strerror}", hint="is there room where it goes to?") from error


def say(text: str) -> None:
    """Print a notice on stderr, with the lead that notices of runs have."""
    if sys.stderr is not None:
        lead = "\x1b[1m==>\x1b[0m" if sys.stderr.isatty() and not os.environ.get("NO_COLOR") else "==>"
        sys.stderr.write(f"{lead} {text}\n")
        sys.stderr.flush()


def complain(error: MeshError) -> None:
    """Print an error and its hint on stderr. An error without text prints nothing."""
    if not str(error) or sys.stderr is None:
        return
    lines = [*str(error).split("\n"), *(error.hint.split("\n") if error.hint else [])]
    text = "error: " + "\n       ".join(lines) + "\n"
    sys.stderr.buffer.write(text.encode("utf-8", "backslashreplace"))
    sys.stderr.flush()


def without_value(flag: str, word: str) -> str:
    """Return a notice that a flag with an optional time was taken without one, as the word after it is no time."""
    return f"{flag} was taken without a value, as {word!r} is no time such as 30s, 5m or 2h"
