"""Rows of contents that a host lacks, which follow its message ``lacks``."""

from __future__ import annotations

import json

from mesh.core.text import one_line
from mesh.core.wants import Want
from mesh.protocol.answers import Lack, Lacks
from mesh.protocol.frames import FrameError
from mesh.protocol.kinds import Wrong, described, within
from mesh.protocol.packed import unpacked
from mesh.protocol.records import record

HASH_DIGITS = 40  # of a content
LACK = record(Lack)


def read_lacks(data: bytes, bytes_max: int) -> tuple[Want, ...]:
    """Return the rows of contents that a host lacks. Raises FrameError.

    bytes_max: that they may unpack to
    """
    try:
        rows = json.loads(unpacked(data, bytes_max))
        if not isinstance(rows, list):
            raise Wrong(f"expected a list, found {described(rows)}")
        return tuple(row if _is_usual(row) else _checked(place, row) for place, row in enumerate(rows))
    except (Wrong, ValueError, RecursionError) as error:
        raise FrameError(f"{Lacks.NAME}: {error}") from None


def _is_usual(row: object) -> bool:
    """Return True for a hash and a size alone. There may be a million of these, and records take longer."""
    if type(row) is not dict or len(row) != 2:
        return False
    content, size = row.get("hash"), row.get("size")
    is_hash = type(content) is str and len(content) == HASH_DIGITS and content.isalnum()
    return is_hash and type(size) is int and size >= 0


def _checked(place: int, row: object) -> Want:
    lack = within(place, LACK, row, one_line)
    return Want(
        hash=lack.hash, size=lack.size, base=lack.base, base_size=lack.base_size, head=lack.head, tail=lack.tail
    )
