"""``program.json`` in the directory of a run, by which other processes of this user find the nodes of a program."""

from __future__ import annotations

import contextlib
import os

from msgspec import DecodeError, Struct, json

from mesh.core.errors import UsageError
from mesh.core.paths import runs_directory

NAME = "program.json"


class Description(Struct, frozen=True, kw_only=True):
    """A program that this user has launched."""

    program: str  # its id, which nodes expect of their callers
    labels: tuple[str, ...]  # of the nodes, by rank


def write_description(run: str, description: Description) -> None:
    """Write the description to the directory of a run. A full disk loses it, and the program goes on."""
    with contextlib.suppress(OSError):
        path = runs_directory(os.environ) / run / NAME
        path.touch(mode=0o600)
        path.write_bytes(json.encode(description))


def read_description(run: str) -> Description:
    """Return the program of a run. Raises UsageError if the run is no program of this machine."""
    try:
        return json.decode((runs_directory(os.environ) / run / NAME).read_bytes(), type=Description)
    except (OSError, DecodeError) as error:
        raise UsageError(f"run {run} is no program that this machine has launched", hint="mesh runs") from error
