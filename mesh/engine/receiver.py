"""Reads the messages of one host's pull, and asks for files that are missing here. Runs in the host's own thread."""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial

from msgspec import Struct

from mesh.core.errors import MeshError, PathRefused
from mesh.core.events import HostEvent, PrepareFailed
from mesh.core.pull import Destination, NotPulled, Offer, Pulled, Pulling
from mesh.core.text import one_line
from mesh.protocol import pulling
from mesh.protocol.frames import Decoder, FrameError
from mesh.protocol.messages import encode
from mesh.protocol.packed import packed, read_rows, unpacked
from mesh.protocol.pulling import ENTRIES, OF_PULL, Entry, OfPull, Want, Wish
from mesh.remote.session import HEADER_BYTES

PULLING_PERIOD_S = 0.25  # between two Pulling
FILES_LISTED = 10_000  # that were listed and have not come
LIST_BYTES = 32 << 20  # of a list, uncompressed
SPECIAL_MODES = 0o7000  # setuid, setgid and sticky: no pulled file gets them from a host
PIECE_BYTES = 1 << 20  # of a piece of a file, uncompressed
# The same error would stop every other file.
FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE)


class _State(Enum):
    """The state of the file that comes now."""

    BETWEEN = "none comes"
    WRITING = "it is written"
    IGNORING = "it was refused: its bytes are dropped"


class _Wanted(Struct, frozen=True):
    path: bytes
    size: int  # bytes, from the list
    offer: Offer


class Receiver:
    """The local end of one host's pull. agent/ask/pull.py has the other one, and the format of its frames."""

    def __init__(
        self, node: int, destination: Destination, reply: Callable[[bytes], None], is_near: Callable[[], bool]
    ) -> None:
        """reply: sends bytes to the host; is_near: returns True if the link is faster than a compressor."""
        self._node, self._destination, self._reply, self._is_near = node, destination, reply, is_near
        self._decoder = Decoder(OF_PULL.sizes, HEADER_BYTES)
        self._wanted: deque[_Wanted] = deque()  # files that the host is to send, in this order
        self._state = _State.BETWEEN
        self._barred: tuple[bytes, ...] = ()  # a directory that was refused, whose entries are not named as well
        self._began = time.monotonic()
        self._tell_at = self._began + PULLING_PERIOD_S
        self._files = self._unchanged = self._bytes = self._of = self._special_modes = 0
        self._is_over = False

    def take(self, data: bytes) -> Iterator[HostEvent]:
        """Read bytes and yield their events. After a PrepareFailed, all bytes are ignored. Raises FrameError."""
        if self._is_over:
            return
        try:
            for header, piece in self._decoder.feed(data):
                yield from self._take(OF_PULL.read(header, one_line), piece)
        except MeshError as error:
            yield self._failed("here", str(error), error.hint)
        except OSError as error:
            place = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else ""
            text = f"cannot be written here: {error.strerror}" + (f": {place}" if place else "")
            yield self._failed("here", text, "the next pull goes on where this one has ended")
        if not self._is_over and time.monotonic() >= self._tell_at:
            self._tell_at = time.monotonic() + PULLING_PERIOD_S
            yield self._how_far()

    def close(self) -> None:
        """Stop reading; files that are complete stay. Raises nothing."""
        self._is_over = True
        try:
            self._destination.close()
        except (OSError, MeshError):
            pass

    # ---- frames

    def _take(self, message: OfPull, data: bytes) -> Iterator[HostEvent]:
        match message:
            case pulling.Listing():
                yield from self._listed(read_rows(message.NAME, ENTRIES, data, LIST_BYTES))
            case pulling.Problem(path=path, why=why, fails=fails):
                yield self._problem(_path(path), why, fails=fails)
            case pulling.File(offset=offset) if self._wanted:
                yield from self._guarded(self._wanted[0].path, partial(self._begin, offset))
            case pulling.Data(packed=is_packed) if self._state is not _State.BETWEEN:
                piece = _unpacked(data) if is_packed else data
                self._bytes += len(piece)
                if self._state is _State.WRITING:
                    yield from self._guarded(self._wanted[0].path, lambda: self._destination.write(piece))
            case pulling.End() if self._state is not _State.BETWEEN:
                wanted, state, self._state = self._wanted.popleft(), self._state, _State.BETWEEN
                if state is _State.WRITING:
                    yield from self._guarded(wanted.path, partial(self._finish, message))
            case pulling.Failed(why=why) if self._wanted:
                self._state = _State.BETWEEN
                self._destination.drop(keep=False)
                yield self._problem(self._wanted.popleft().path, why)
            case pulling.Done() if not self._wanted:
                yield from self._done()
            case other:
                raise FrameError(f"an unexpected message {other.NAME!r}")

    def _listed(self, entries: Sequence[Entry]) -> Iterator[HostEvent]:
        wishes = []
        for number, entry in enumerate(entries):
            path = _path(entry.path)
            if path.startswith(self._barred):
                continue
            found: list[_Wanted] = []
            for problem in self._guarded(path, partial(self._place, path, entry, found)):
                self._barred = (path + b"/",) if entry.kind == "d" else ()
                yield problem
            for wanted in found:
                self._wanted.append(wanted)
                self._of += wanted.size
                wishes.append(Wish(number=number, have=wanted.offer.size, hash=wanted.offer.hash))
        if len(self._wanted) > FILES_LISTED:
            raise FrameError("a list without end")
        self._reply(encode(Want(compress=not self._is_near()), packed(wishes)))

    def _place(self, path: bytes, entry: Entry, found: list[_Wanted]) -> None:
        """Make a directory or link; add a file to the list if it is not here already."""
        kind, mode, mtime_ns, size = entry.kind, entry.mode, entry.mtime_ns, entry.size
        self._special_modes += kind != "l" and bool(mode & SPECIAL_MODES)
        if kind == "d":
            self._destination.directory(path, mode, mtime_ns)
        elif kind == "l":
            self._unchanged += not self._destination.link(path, _path(entry.target), mtime_ns)
            self._files += 1
        elif self._destination.has(path, mode, mtime_ns, size):
            self._files += 1
            self._unchanged += 1
        else:
            found.append(_Wanted(path, size, self._destination.offer(path, size)))

    def _begin(self, offset: int) -> None:
        if offset not in (0, self._wanted[0].offer.size):
            raise FrameError("file: offset: was not offered")
        self._state = _State.IGNORING
        self._destination.begin(self._wanted[0].path, self._wanted[0].offer, offset)
        self._of -= offset
        self._state = _State.WRITING

    def _finish(self, end: pulling.End) -> None:
        self._destination.finish(end.hash, end.mode, end.mtime)
        self._files += 1

    def _guarded(self, path: bytes, work: Callable[[], None]) -> Iterator[HostEvent]:
        """Do work that may be refused for one path only."""
        try:
            work()
        except PathRefused as error:
            reason = str(error)
        except OSError as error:
            if error.errno in FATAL:
                raise
            reason = f"cannot be written here: {error.strerror}"
        else:
            return
        if self._state is _State.WRITING:
            self._state = _State.IGNORING
            self._destination.drop(keep=False)
        yield self._problem(path, reason)

    def _done(self) -> Iterator[HostEvent]:
        self._destination.close()
        self._is_over = True
        yield self._how_far()
        yield Pulled(
            time=time.time(),
            node=self._node,
            files=self._files,
            unchanged=self._unchanged,
            bytes=self._bytes,
            special_modes=self._special_modes,
            seconds=time.monotonic() - self._began,
        )

    def _how_far(self) -> Pulling:
        return Pulling(time=time.time(), node=self._node, files=self._files, bytes=self._bytes, of=self._of)

    def _problem(self, path: bytes, reason: str, *, fails: bool = True) -> NotPulled:
        text = _shown(path.decode("utf-8", "backslashreplace")) or "."
        return NotPulled(time=time.time(), node=self._node, path=text, reason=_shown(reason), fails=fails)

    def _failed(self, step: str, message: str, hint: str) -> PrepareFailed:
        self.close()
        return PrepareFailed(time=time.time(), node=self._node, step=step, message=message, hint=hint)


def _shown(text: str) -> str:
    """Escape and shorten a text for people."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:1000])


def _path(text: str) -> bytes:
    """Return a path of a message as bytes."""
    return text.encode("latin-1")


def _unpacked(data: bytes) -> bytes:
    """Uncompress a piece of a file. Raises FrameError."""
    try:
        return unpacked(data, PIECE_BYTES)
    except ValueError as error:
        raise FrameError(f"data: {error}") from None
