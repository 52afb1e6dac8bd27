"""Reads the zips that packs are: of Python's zipfile, which takes longer to import than a small pack to put in place.

The format is PKWARE's APPNOTE.TXT 6.3.10; the numbers in brackets are its sections. Contents have hashes of their own,
so that nobody looks at checksums here.
"""

from __future__ import annotations

import struct
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

END = struct.Struct("<4s4H2LH")  # of the central directory [4.3.16]; it is the end of the file, as there is no comment
LOCATOR = struct.Struct("<4sLQL")  # where the larger one is [4.3.15], before END
LARGE_END = struct.Struct("<4sQ2H2L4Q")  # [4.3.14]
ENTRY = struct.Struct("<4s6H3L5H2L")  # of the central directory [4.3.12]; name, extra fields and comment follow
MEMBER = struct.Struct("<4s5H3L2H")  # before the bytes [4.3.7]; name and extra fields follow
LARGE = 0xFFFFFFFF  # the number is in an extra field [4.5.3]
DEFLATED = 8  # [4.4.5]; 0: stored
READ = 1 << 16  # compressed bytes that are read together


class Zip:
    """The members of one zip. What is none raises ValueError, KeyError, EOFError, struct.error or zlib.error."""

    def __init__(self, file: IO[bytes]) -> None:
        """file: stays open as long as members are read."""
        self._file = file
        self._members: dict[str, tuple[bool, int, int, int]] = {}  # deflated or not; packed and own size; place
        self._size = file.seek(0, 2)
        end = self._size - END.size
        size, start = self._unpack(END, end, b"PK\5\6")[5:7]
        if LARGE in (size, start):
            (place,) = self._unpack(LOCATOR, end - LOCATOR.size, b"PK\6\7")[2:3]
            size, start = self._unpack(LARGE_END, place, b"PK\6\6")[8:10]
        self._list(self._read(start, size))

    def size(self, name: str) -> int:
        """Bytes of a member."""
        return self._members[name][2]

    def open(self, name: str) -> Member:
        """A member, from its beginning."""
        is_deflated, packed, _, place = self._members[name]
        lengths = self._unpack(MEMBER, place, b"PK\3\4")[9:11]
        return Member(self._file, place + MEMBER.size + sum(lengths), packed, is_deflated)

    def _list(self, directory: bytes) -> None:
        place = 0
        while place < len(directory):
            found = ENTRY.unpack_from(directory, place)
            method, packed, size, begin = found[4], found[8], found[9], found[16]
            name_size, extra_size, comment_size = found[10:13]
            place += ENTRY.size
            name = directory[place : place + name_size].decode()
            extra = directory[place + name_size : place + name_size + extra_size]
            numbers = (size, packed, begin)
            large = numbers.count(LARGE)
            if large:  # they come in this order, those that are too large only
                more = iter(struct.unpack_from(f"<{large}Q", _field(extra)))
                size, packed, begin = (next(more) if number == LARGE else number for number in numbers)
            if method not in (0, DEFLATED):
                raise ValueError("a member is compressed in an unknown way")
            self._members[name] = (method == DEFLATED, packed, size, begin)
            place += name_size + extra_size + comment_size

    def _unpack(self, form: struct.Struct, place: int, signature: bytes) -> tuple[int, ...]:
        data = self._read(place, form.size)
        if not data.startswith(signature):
            raise ValueError("no zip")
        return form.unpack(data)

    def _read(self, place: int, size: int) -> bytes:
        if not 0 <= place <= self._size:
            raise ValueError("no zip")
        self._file.seek(place)
        return self._file.read(size)


class Member:
    """The bytes of one, to be read once. Others of the same file may be read in between."""

    def __init__(self, file: IO[bytes], place: int, packed: int, is_deflated: bool) -> None:
        self._file, self._place, self._left = file, place, packed
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS) if is_deflated else None

    def read(self, size: int) -> bytes:
        """At most so many bytes, and at least one; b"" at its end. Raises zlib.error; EOFError if the file is cut."""
        if self._inflate is None:
            return self._more(size)
        while True:
            piece = self._inflate.decompress(self._inflate.unconsumed_tail or self._more(READ), size)
            if piece or self._inflate.eof or not (self._left or self._inflate.unconsumed_tail):
                return piece

    def _more(self, most: int) -> bytes:
        if not self._left:
            return b""
        self._file.seek(self._place)
        piece = self._file.read(min(most, self._left))
        if not piece:
            raise EOFError("the zip is too short")
        self._place, self._left = self._place + len(piece), self._left - len(piece)
        return piece


def _field(extra: bytes) -> bytes:
    """The extra field that has large numbers."""
    place = 0
    while True:
        kind, size = struct.unpack_from("<2H", extra, place)
        if kind == 1:
            return extra[place + 4 : place + 4 + size]
        place += 4 + size
