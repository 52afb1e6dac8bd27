"""What the commands themselves print: results on stdout, errors on stderr with what to do next."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from mesh.core.errors import MeshError, OutputClosed


def show(lines: Iterable[str]) -> None:
    """Print lines on stdout. Raises OutputClosed where nobody reads it, and MeshError where it cannot be written."""
    if sys.stdout is None:  # mesh ... >&-
        return
    try:
        sys.stdout.writelines(f"{line}\n" for line in lines)
        sys.stdout.flush()
    except OSError as error:
        # Python would complain at its end about what it cannot flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise OutputClosed("") from error
        raise MeshError(f"cannot write to stdout: {error.strerror}", hint="is there room where it goes to?") from error


def say(text: str) -> None:
    """Tell something beside the results, as runs do."""
    if sys.stderr is not None:
        lead = "\x1b[1m==>\x1b[0m" if sys.stderr.isatty() and not os.environ.get("NO_COLOR") else "==>"
        sys.stderr.write(f"{lead} {text}\n")
        sys.stderr.flush()


def complain(error: MeshError) -> None:
    """Tell an error, unless it has nothing to tell."""
    if not str(error) or sys.stderr is None:
        return
    lines = [*str(error).split("\n"), *(error.hint.split("\n") if error.hint else [])]
    text = "error: " + "\n       ".join(lines) + "\n"
    sys.stderr.buffer.write(text.encode("utf-8", "backslashreplace"))
    sys.stderr.flush()


def without_value(flag: str, word: str) -> str:
    """What to say where a word after a flag with an optional time is none."""
    return f"{flag} was taken without a value, as {word!r} is no time such as 30s, 5m or 2h"
