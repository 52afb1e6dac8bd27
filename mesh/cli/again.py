"""mesh again: the last command line of this directory once more."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mesh.cli import dailyoptions as d
from mesh.cli import options as o
from mesh.cli.command import COMMANDS, command
from mesh.cli.options import Given
from mesh.cli.parser import HelpWanted, parse
from mesh.cli.speech import say, use_color
from mesh.core.errors import MeshError, UsageError

REPEATED = ("run", "exec")  # commands that can be repeated
EDITOR = "vi"  # without VISUAL and EDITOR
CONTINUATION = re.compile(r"""('[^']*'|"(?:[^"\\]|\\.)*")|\\\n""", re.DOTALL)  # a quoted part; the end of a line


@command(
    "again",
    "Run",
    examples=(
        ("mesh again", "the last mesh run or exec of this directory"),
        ("mesh again --failed", "only on the hosts that have failed"),
        ("mesh again --env LR=1e-3", "values of --env are in no file, so they are given again"),
        ("mesh again --edit", "change it before"),
    ),
)
def again(given: Given) -> int:
    """Repeat the last `mesh run` or `mesh exec` of this directory."""
    from mesh.api.choosing import here
    from mesh.api.repeating import last_command, repeated

    if given[d.EDIT] and not (sys.stdin is not None and sys.stdin.isatty() and os.isatty(1)):
        raise UsageError("--edit: an editor needs a terminal", hint="mesh again")
    env = given[o.ENV]
    words = repeated(last_command(here()), env, only_failed=given[d.FAILED])
    if given[d.EDIT]:
        words = edited(words)
    name, *rest = words
    if name not in REPEATED:
        raise UsageError(f"again: expected mesh run or mesh exec, found {name!r}", hint="mesh again")
    say(shlex.join(["mesh", name, *(f"--env={variable}=..." for variable in env), *rest]))
    rest = [*(f"--env={variable}={value}" for variable, value in env.items()), *rest]
    try:
        repeat = parse(COMMANDS[name], rest)
    except HelpWanted:
        raise UsageError("again: expected a command to run, found --help", hint=f"mesh help {name}") from None
    use_color(repeat.look().color)
    try:
        return COMMANDS[name].body(repeat) or 0
    except MeshError as error:
        if repeat.typed:
            error.hint = repeat.typed.filled(error.hint)
        raise


def edited(words: Sequence[str]) -> list[str]:
    """Return a command line after the user has changed it in an editor. Raises UsageError, and MeshError."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or EDITOR
    with tempfile.TemporaryDirectory(prefix="mesh-again-") as directory:
        file = Path(directory, "command.sh")
        file.write_text(f"mesh {shlex.join(words)}\n", encoding="utf-8")
        try:
            status = subprocess.run([*shlex.split(editor), str(file)], check=False).returncode
            text = file.read_text(encoding="utf-8", errors="replace")
        except (OSError, ValueError) as error:
            message = f"again: the editor {editor!r} failed ({error})"
            raise MeshError(message, hint="EDITOR=vi mesh again --edit") from error
    if status:
        raise MeshError(f"again: the editor exited {status}, and nothing was started", hint="mesh again --edit")
    return read_line(text)


def read_line(text: str) -> list[str]:
    """Return the words of a command line after ``mesh``. Raises UsageError.

    >>> read_line("mesh run pod \\\\\\n  python3 'a b.py'\\n")
    ['run', 'pod', 'python3', 'a b.py']
    """
    try:
        words = shlex.split(CONTINUATION.sub(lambda found: found.group(1) or " ", text), comments=False)
    except ValueError as error:
        raise UsageError(f"again: this is no command line ({error})", hint="mesh again --edit") from error
    if words[:1] == ["mesh"]:
        words = words[1:]
    if not words:
        raise UsageError("again: the command line is empty, and nothing was started", hint="mesh again --edit")
    return words
