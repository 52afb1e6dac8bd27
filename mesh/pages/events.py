"""events.jsonl of a run, read by places while its client may still be writing."""

from __future__ import annotations

import json
import os
from pathlib import Path

from msgspec import Struct

from mesh.pages.fields import Fields
from mesh.rundir.layout import EVENTS

READ_BYTES = 1 << 20  # of events.jsonl at a time


class Recorded(Struct, frozen=True):
    """An event of a run, as events.jsonl has it."""

    end: int  # place after its line: bytes from the beginning of the file
    fields: Fields


def read_events(directory: Path, place: int = 0) -> tuple[list[Recorded], int]:
    """Return the next events from a place, and the place after them: the same one at the end.

    An unfinished line waits until it is complete. A line that holds no event is left out. Raises OSError.
    """
    with (directory / EVENTS).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if place >= size:
            return [], place
        file.seek(place)
        data = file.read(READ_BYTES)
        if b"\n" not in data and len(data) == READ_BYTES:
            data += file.readline()  # a line of stacks may be long
    whole = data[: data.rfind(b"\n") + 1]
    found: list[Recorded] = []
    for line in whole.splitlines(keepends=True):
        place += len(line)
        if (fields := _event(line)) is not None:
            found.append(Recorded(place, fields))
    return found, place


def all_events(directory: Path) -> list[Recorded]:
    """Return all events of a run; none if its directory has none."""
    found: list[Recorded] = []
    place = -1
    after = 0
    while after != place:
        place = after
        try:
            more, after = read_events(directory, place)
        except OSError:
            return found
        found += more
    return found


def _event(line: bytes) -> Fields | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) and isinstance(fields.get("event"), str) else None
