"""command.json in a run directory: the command line that has started the run, for ``mesh again``."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from msgspec import Struct

COMMAND = "command.json"


class CommandLine(Struct, frozen=True, kw_only=True):
    """A command line that can be repeated."""

    directory: str  # where it was typed, without symbolic links
    words: tuple[str, ...]  # after the program's name; without values of --env
    env: tuple[str, ...] = ()  # the variables of --env, whose values are in no file
    is_masked: bool = False  # a word holds a mask in the place of a secret


def write_command_line(directory: Path, line: CommandLine) -> None:
    """Write the command line of a run to its directory. A word that is not UTF-8 leaves no file. Raises OSError."""
    try:
        data = msgspec.json.encode(line)
    except UnicodeEncodeError:
        return
    descriptor = os.open(directory / COMMAND, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data + b"\n")


def read_command_line(directory: Path) -> CommandLine | None:
    """Return the command line of a run; None if its directory has none that can be read."""
    try:
        return msgspec.json.decode((directory / COMMAND).read_bytes(), type=CommandLine)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
