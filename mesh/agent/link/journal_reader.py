"""Reads a journal (link/journal.py), while it is written or later."""

from __future__ import annotations

import os

from mesh.agent.base.light import loads
from mesh.agent.link.journal import FACTS
from mesh.protocol.answers import Gone, Output
from mesh.protocol.frames import Decoder, FrameError
from mesh.protocol.journal import Head
from mesh.protocol.kinds import as_it_is
from mesh.protocol.messages import Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

READ_BYTES = 1 << 18  # that are read and sent together
HEADS: Table[Head] = Table(Head)


class EmptySource:
    """The source of an outbox that has only urgent messages."""

    def __bool__(self) -> bool:
        return False

    def add(self, frame: bytes) -> None:
        raise NotImplementedError  # an outbox that reads a journal sends only urgent messages

    def take(self) -> bytes:
        return b""

    def close(self) -> None: ...


class JournalReader(EmptySource):
    """The source of an outbox that sends a journal, from the place up to which its client has it."""

    def __init__(self, directory: str, have: Mapping[str, int]) -> None:
        """have: bytes of each stream that the client has; the first output may begin before that"""
        self._directory = directory
        self._number = self._first(have)
        self._file = -1
        self._decoder = Decoder()
        self._coming = b""  # read, and not yet whole frames
        self._ready: list[bytes] = []
        self._facts = 0  # bytes of the facts that were passed
        self._looked_at, self._found = 0, [0]  # when the directory had last changed, and the pieces there were then
        self.is_whole = False  # the last frame was passed

    def __bool__(self) -> bool:
        while not self._ready and self._read():
            pass
        return bool(self._ready)

    def take(self) -> bytes:
        """Remove and return the next frames, whole ones; b"" if there is nothing now."""
        ready, self._ready = (b"".join(self._ready) if self else b""), []
        return ready

    def end(self) -> None:
        """Read the rest of a journal that has no writer any more, also facts that no piece has."""
        while self._read():
            pass
        self._pass_facts(-1)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _pieces(self) -> list[int]:
        return sorted(int(name) for name in os.listdir(self._directory) if name.isdigit())

    def _first(self, have: Mapping[str, int]) -> int:
        """Return the number of the last piece before which the client lacks nothing."""
        pieces = self._pieces()
        low, high = 0, len(pieces)  # the client has all before low
        while low + 1 < high:
            middle = (low + high) // 2
            head = self._head_of(pieces[middle])
            if head is None or all(have.get(stream, 0) >= count for stream, count in head.have.items()):
                low = middle
            else:
                high = middle
        return pieces[low] if pieces else 1

    def _head_of(self, number: int) -> Head | None:
        try:
            with open(os.path.join(self._directory, str(number)), "rb") as file:
                return HEADS.read(loads(file.readline().rstrip(b"\n")), as_it_is)
        except (OSError, ValueError, FrameError):
            return None

    def _read(self) -> bool:
        """Read the next bytes; return False if there are none now."""
        if self._file < 0 and not self._open():
            return False
        chunk = os.read(self._file, READ_BYTES)
        if not chunk:
            following = self._following()
            if not following:
                return False
            chunk = os.read(self._file, READ_BYTES)  # written here before that one began
            if not chunk:
                self.close()
                self._number = following
                return True
        self._feed(chunk)
        return True

    def _following(self) -> int:
        """Return the number of the next piece that is there; 0 if there is none."""
        if os.path.exists(self._path(self._number + 1)):
            return self._number + 1
        changed = os.stat(self._directory).st_mtime_ns
        if changed != self._looked_at:
            self._looked_at, self._found = changed, self._pieces()
        return min((number for number in self._found if number > self._number), default=0)

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, str(number))

    def _open(self) -> bool:
        while True:
            try:
                self._file = os.open(self._path(self._number), os.O_RDONLY)
            except FileNotFoundError:
                following = self._following()
                if not following:
                    return False
                self._number = following
            else:
                self._decoder, self._coming = Decoder(), b""
                return True

    def _feed(self, chunk: bytes) -> None:
        self._coming += chunk
        begin = self._decoder.consumed
        base = begin
        for (header, _), end in zip(self._decoder.feed(chunk), self._decoder.ends):
            frame = self._coming[begin - base : end - base]
            begin = end
            if header["type"] == Head.NAME:
                self._pass_facts(HEADS.read(header, as_it_is).facts)
                continue
            self._ready.append(frame)
            if header["type"] != Output.NAME:
                self._facts += len(frame)
                self.is_whole = self.is_whole or header["type"] == Gone.NAME
        self._coming = self._coming[begin - base :]

    def _pass_facts(self, until: int) -> None:
        """Take the facts up to a place from the file ``facts``; -1: all."""
        try:
            with open(os.path.join(self._directory, FACTS), "rb") as file:
                file.seek(self._facts)
                data = file.read(until - self._facts if until >= 0 else -1)
        except OSError:
            return
        decoder = Decoder()
        frames = decoder.feed(data)
        self.is_whole = self.is_whole or any(header["type"] == Gone.NAME for header, _ in frames)
        self._facts += decoder.consumed
        if decoder.consumed:
            self._ready.append(data[: decoder.consumed])
