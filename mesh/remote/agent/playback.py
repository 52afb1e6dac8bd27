"""Reading a tape (tape.py), while it is written or later."""

from __future__ import annotations

import json
import os

from .frames import Decoder
from .tape import FACTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

READ = 1 << 18  # bytes that are read and handed on together


class Nothing:
    """What an outbox takes from where there is no tape."""

    def __bool__(self) -> bool:
        return False

    def add(self, frame: bytes) -> None:
        raise NotImplementedError  # nobody sends through an outbox that reads

    def take(self) -> bytes:
        return b""

    def close(self) -> None: ...


class Playback(Nothing):
    """A tape being read, from what its reader has on; as an outbox reads a spool."""

    def __init__(self, directory: str, have: dict[str, int]) -> None:
        """have: bytes of each stream that need not come again; what comes may all the same begin before that."""
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
        """What comes next: whole frames; b"" if there is nothing now."""
        ready, self._ready = (b"".join(self._ready) if self else b""), []
        return ready

    def end(self) -> None:
        """Nobody writes it any more: what is left to be read are facts that no piece has."""
        while self._read():
            pass
        self._pass_facts(-1)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _pieces(self) -> list[int]:
        return sorted(int(name) for name in os.listdir(self._directory) if name.isdigit())

    def _first(self, have: dict[str, int]) -> int:
        """The piece to begin with: the last one before which there is nothing that must come."""
        pieces = self._pieces()
        low, high = 0, len(pieces)  # all before low may be left out; what comes before the first is not there
        while low + 1 < high:
            middle = (low + high) // 2
            head = self._head_of(pieces[middle])
            if head is None or all(have.get(stream, 0) >= count for stream, count in head["have"].items()):
                low = middle
            else:
                high = middle
        return pieces[low] if pieces else 1

    def _head_of(self, number: int) -> dict[str, Any] | None:
        try:
            with open(os.path.join(self._directory, str(number)), "rb") as file:
                head: dict[str, Any] = json.loads(file.readline())
                return head
        except (OSError, ValueError):
            return None

    def _read(self) -> bool:
        """Read on; False if there is nothing now."""
        if self._file < 0 and not self._open():
            return False
        chunk = os.read(self._file, READ)
        if not chunk:
            following = self._following()
            if not following:
                return False
            chunk = os.read(self._file, READ)  # what was written here before that one began
            if not chunk:
                self.close()
                self._number = following
                return True
        self._feed(chunk)
        return True

    def _following(self) -> int:
        """The next piece that is there; 0 if there is none."""
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
            if header["type"] == "head":
                self._pass_facts(header["facts"])
                continue
            self._ready.append(frame)
            if header["type"] != "output":
                self._facts += len(frame)
                self.is_whole = self.is_whole or header["type"] == "gone"
        self._coming = self._coming[begin - base :]

    def _pass_facts(self, until: int) -> None:
        """Pass the facts up to a place; -1: all."""
        try:
            with open(os.path.join(self._directory, FACTS), "rb") as file:
                file.seek(self._facts)
                data = file.read(until - self._facts if until >= 0 else -1)
        except OSError:
            return
        decoder = Decoder()
        frames = decoder.feed(data)
        self.is_whole = self.is_whole or any(header["type"] == "gone" for header, _ in frames)
        self._facts += decoder.consumed
        if decoder.consumed:
            self._ready.append(data[: decoder.consumed])
