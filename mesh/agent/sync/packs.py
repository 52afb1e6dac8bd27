"""Reads packs: zips of contents, some of which are changes of others. docs/sync.md has the format."""

from __future__ import annotations

from mesh.agent.base.light import loads
from mesh.agent.sync.contents import PIECE_BYTES, is_hash

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator
    from typing import IO

    Operations = list[tuple[int, int]]
    Row = tuple[str, str, int, int, str, Operations]  # of index.json

INDEX = "index.json"
INDEX_BYTES = 1 << 28  # of the index, unpacked


class BadPack(Exception):
    """A file that is no pack, or holds other contents than its index names."""


class Content:
    """A content of a pack, to be read before the next one."""

    def __init__(self, row: Row, stream: _Stream) -> None:
        self.name, _, self._offset, self._length, self.base, self._operations = row
        self._stream = stream

    def size(self) -> int:
        """Return its bytes. Raises BadPack."""
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
        """Read it; fewer than ``size`` bytes if the base ends early. Raises BadPack."""
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
    import zipfile  # takes longer to import than most agents take to start

    try:
        with zipfile.ZipFile(path) as pack:
            if pack.getinfo(INDEX).file_size > INDEX_BYTES:
                raise BadPack("the index is too long")
            rows: list[Row] = loads(b"".join(_read(pack.open(INDEX), INDEX_BYTES)))
            stream, member = _Stream(None), ""
            for row in sorted(_checked(rows), key=lambda row: row[1:4]):
                if row[0] in wanted:
                    if row[1] != member:
                        member = row[1]
                        stream = _Stream(pack.open(member))
                    take(Content(row, stream))
    except (OSError, BadPack):
        raise
    except Exception as error:  # zipfile, zlib and json raise many kinds for a file that is no pack
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
    """A member of the pack, which can only be read forwards."""

    def __init__(self, member: IO[bytes] | None) -> None:
        self._member, self._offset = member, 0

    def go(self, offset: int) -> None:
        """Skip to a place of the member."""
        if offset < self._offset:
            raise BadPack("two contents share bytes")
        for _ in self.read(offset - self._offset):
            pass

    def read(self, length: int) -> Iterator[bytes]:
        """Read the next bytes."""
        assert self._member is not None
        for piece in _read(self._member, length):
            self._offset += len(piece)
            length -= len(piece)
            yield piece
        if length:
            raise BadPack("a member ends early")


def _read(file: IO[bytes], length: int) -> Iterator[bytes]:
    """Read at most so many bytes."""
    while length:
        piece = file.read(min(length, PIECE_BYTES))
        if not piece:
            return
        length -= len(piece)
        yield piece
