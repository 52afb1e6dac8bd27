"""Output of the commands themselves: results on stdout, notices and errors with their hints on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from io import TextIOWrapper
from typing import TYPE_CHECKING, TextIO

from mesh.core.errors import MeshError, OutputClosed

if TYPE_CHECKING:
    from mesh.core.look import Paint


class _Choice:
    """The --color of the command that this process carries out."""

    color = "auto"


def use_color(when: str) -> None:
    """Set the --color for what follows."""
    _Choice.color = when


def paint_of(stream: TextIO | None) -> Paint:
    """Return the colours for stdout or stderr."""
    from mesh.core.look import Paint, has_colours

    is_terminal = stream is not None and stream.isatty()
    return Paint(has_colours(_Choice.color, os.environ, is_terminal=is_terminal))


def columns() -> int:
    """Return the width of stdout: COLUMNS, else the terminal's; 0: unlimited."""
    from mesh.core.look import width_of

    return width_of(1, os.environ)


def show(lines: Iterable[str]) -> None:
    """Print lines on stdout. Raises OutputClosed if its reader is gone, MeshError if it cannot be written."""
    if sys.stdout is None:  # mesh ... >&-
        return
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # a locale may lack characters of a name or an output
    try:
        sys.stdout.writelines(f"{line}\n" for line in lines)
        sys.stdout.flush()
    except OSError as error:
        # Python reports at its exit what it cannot flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise OutputClosed("") from error
        raise MeshError(
            f"cannot write to stdout: {error.strerror}", hint="the disk that it goes to may be full"
        ) from error


def say(text: str) -> None:
    """Print a notice on stderr, with the lead that notices of runs have."""
    if sys.stderr is not None:
        sys.stderr.write(f"{paint_of(sys.stderr).bold('==>')} {text}\n")
        sys.stderr.flush()


def complain(error: MeshError) -> None:
    """Print an error and its hint on stderr. An error without text prints nothing."""
    if not str(error) or sys.stderr is None:
        return
    from mesh.api.choosing import masked  # only for errors

    lines = [*str(error).split("\n"), *(error.hint.split("\n") if error.hint else [])]
    lead = paint_of(sys.stderr).bad("error:")
    text = masked(f"{lead} " + "\n       ".join(lines) + "\n")
    sys.stderr.buffer.write(text.encode("utf-8", "backslashreplace"))
    sys.stderr.flush()


def without_value(flag: str, word: str) -> str:
    """Return a notice that a flag with an optional time was taken without one, as the word after it is no time."""
    return f"{flag} was taken without a value, as {word!r} is no time such as 30s, 5m or 2h"
