"""Reads packs: zips of contents, some of which are changes of others. docs/sync.md has the format."""

from __future__ import annotations

from .lean import loads
from .store import PIECE, is_hash
from .zips import Zip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator
    from typing import IO

    from .zips import Member

    Operations = list[tuple[int, int]]
    Row = tuple[str, str, int, int, str, Operations]  # of index.json

INDEX = "index.json"
MOST = 1 << 28  # bytes of the index, unpacked


class BadPack(Exception):
    """A pack that is none, or holds other contents than it says."""


class Content:
    """One content of a pack, to be read before the next one."""

    def __init__(self, row: Row, stream: _Stream) -> None:
        self.name, _, self._offset, self._length, self.base, self._operations = row
        self._stream = stream

    def size(self) -> int:
        """Bytes of it. Raises BadPack."""
        if not self.base:
            return self._length
        new = 0
        for offset, length in self._operations:
            if offset < -1 or length < 0:
                raise BadPack("a change goes backwards")
            new += length if offset == -1 else 0
        if new != self._length:
            raise BadPack("a change does not use its bytes")
        return sum(length for _, length in self._operations)

    def pieces(self, base: IO[bytes] | None) -> Iterator[bytes]:
        """Its bytes; fewer than ``size`` if the base ends early. Raises BadPack."""
        self._stream.go(self._offset)
        if base is None:
            yield from self._stream.read(self._length)
            return
        for offset, length in self._operations:
            if offset == -1:
                yield from self._stream.read(length)
            else:
                base.seek(offset)
                yield from _read(base, length)


def unpack(path: str, wanted: Container[str], take: Callable[[Content], None]) -> None:
    """Call ``take`` with each content of the pack that is wanted by then. Raises BadPack, and OSError."""
    try:
        with open(path, "rb", buffering=0) as file:
            pack = Zip(file)
            if pack.size(INDEX) > MOST:
                raise BadPack("the index is too long")
            rows: list[Row] = loads(b"".join(_read(pack.open(INDEX), MOST)))
            stream, member = _Stream(None), ""
            for row in sorted(_checked(rows), key=lambda row: row[1:4]):
                if row[0] in wanted:
                    if row[1] != member:
                        member = row[1]
                        stream = _Stream(pack.open(member))
                    take(Content(row, stream))
    except (OSError, BadPack):
        raise
    except Exception as error:  # whatever struct, zlib and json say of things that are no pack
        raise BadPack(f"the pack cannot be read: {error}") from error


def _checked(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        name, member, offset, length, base, operations = row
        if not is_hash(name) or not isinstance(member, str) or not (base == "" or is_hash(base)):
            raise BadPack("the index names something that is no content")
        if min(offset, length, 0) or not isinstance(operations, list):
            raise BadPack("the index has a place that is none")
        yield row


class _Stream:
    """A member of the pack, which can only be read on."""

    def __init__(self, member: Member | None) -> None:
        self._member, self._place = member, 0

    def go(self, offset: int) -> None:
        if offset < self._place:
            raise BadPack("two contents share bytes")
        for _ in self.read(offset - self._place):
            pass

    def read(self, length: int) -> Iterator[bytes]:
        """The next bytes."""
        assert self._member is not None
        for piece in _read(self._member, length):
            self._place += len(piece)
            length -= len(piece)
            yield piece
        if length:
            raise BadPack("a member ends early")


def _read(file: IO[bytes] | Member, length: int) -> Iterator[bytes]:
    """At most so many bytes."""
    while length:
        piece = file.read(min(length, PIECE))
        if not piece:
            return
        length -= len(piece)
        yield piece
