"""The journal: the stream of a detached run in files, for clients that come back, as often as they like.

A journal is a directory. Its pieces, files named by number, hold the frames in order; ``facts`` holds all frames but
the output once more. Each output frame carries its place in its stream ("at"), so that a reader sees how much is
missing; the exit of a rank carries how much it has printed, for the end. A piece begins with the message ``head``: the
bytes of each stream, and of ``facts``, before it. A reader begins at the piece that it needs, and takes facts from
``facts`` in place of pieces that are gone.
"""

from __future__ import annotations

import os
import time

from mesh.agent.base.directories import machine_directory
from mesh.agent.base.light import dumps, loads
from mesh.agent.control.sockets import has_agent, socket_path
from mesh.protocol.frames import FrameError
from mesh.protocol.journal import About, Head, read_about
from mesh.protocol.messages import encode
from mesh.protocol.records import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh.protocol.messages import Message

PIECE_BYTES = 1 << 20  # of a file
DISK_RESERVE_SHARE = 0.05  # of the disk, that is never used
AGE_LIMIT_S = 30 * 86400.0  # that the journal of a run that has ended is kept
FETCHED_AGE_LIMIT_S = 7 * 86400.0  # the same once a client has read it to its end
ABOUT, FACTS, FETCHED = "about.json", "facts", "fetched"
NAME = r"tape-(.+)-([0-9]+)"  # of the directory; detached runs of earlier versions have it


def journal_directory(remote_dir: str, run: str, node: int) -> str:
    """Return the directory of a run's journal."""
    return os.path.join(machine_directory(remote_dir), f"tape-{run}-{node}")


class Journal:
    """A journal that is being written. Output that the disk has no room for is missing, and readers see that."""

    def __init__(self, directory: str, limit: int, about: About) -> None:
        """limit: bytes on disk; beyond it head and tail are kept. Raises OSError if it cannot be begun."""
        self._directory, self._limit = directory, limit
        os.makedirs(directory, 0o700)
        try:
            with open(os.path.join(directory, ABOUT), "w") as file:
                file.write(dumps(plain(about)))
            self._facts = os.open(os.path.join(directory, FACTS), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError:
            _remove(directory)
            raise
        self._facts_size = 0
        self._owed = b""  # facts that the disk had no room for
        self._have: dict[str, int] = {}  # bytes of each stream that are written, or left out
        self._next: list[tuple[bytes, str, int]] = []  # frames to be written: of output, its stream and its end there
        self._piece, self._size, self._count = -1, 0, 0  # the file that is being written: descriptor, bytes, number
        self._sizes: dict[int, int] = {}  # of all pieces that are there
        self._head = 0  # once something was left out: the last piece before that

    def add(self, fact: Message) -> None:
        """Append a message that is no output."""
        self._next.append((encode(fact), "", 0))

    def add_output(self, stream: str, end: int, frame: bytes) -> None:
        """Append a frame of output. end: bytes of the stream with it"""
        self._next.append((frame, stream, end))

    def flush(self) -> bool:
        """Write all that was added; return False if there was nothing."""
        if not self._next and not self._owed:
            return False
        frames, self._next = self._next, []
        if self._owed and self._write_facts(self._owed):
            self._owed = b""
            self._close()  # a reader finds them before the next piece
        if self._piece < 0:
            self._open()
        facts = b"".join(frame for frame, stream, _ in frames if not stream)
        if not self._write_facts(facts):
            self._owed += facts
            frames = [item for item in frames if item[1]]
        data = b"".join(frame for frame, _, _ in frames)
        if self._piece >= 0 and _write(self._piece, self._size, data):
            self._size += len(data)
            self._sizes[self._count] = self._size
        else:
            self._close()  # the missing part comes before the next piece
        for _, stream, end in frames:
            if stream:
                self._have[stream] = end
        if self._size >= PIECE_BYTES or self._owed:
            self._close()
            self._keep_within_limit()
        return True

    def close(self) -> None:
        """Write the rest, by giving up output where there is no room for it."""
        self.flush()
        self._close()
        while self._owed and self._sizes:
            self._remove(max(self._sizes))
            if self._write_facts(self._owed):
                self._owed = b""
        os.close(self._facts)

    def discard(self) -> None:
        """Remove the journal, because the client has everything."""
        self._close()
        os.close(self._facts)
        _remove(self._directory)

    def _write_facts(self, facts: bytes) -> bool:
        written = _write(self._facts, self._facts_size, facts)
        self._facts_size += len(facts) if written else 0
        return written

    def _open(self) -> None:
        """Begin the next piece, if there is room."""
        head = encode(Head(have=self._have, facts=self._facts_size))
        try:
            path = os.path.join(self._directory, str(self._count + 1))
            self._piece = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError:
            return
        self._count += 1
        self._size = len(head)
        self._sizes[self._count] = self._size
        if not _write(self._piece, 0, head):
            self._remove(self._count)
            self._close()

    def _close(self) -> None:
        if self._piece >= 0:
            os.close(self._piece)
        self._piece, self._size = -1, 0

    def _keep_within_limit(self) -> None:
        """Remove pieces beyond the limit, but never the newest: if it is the last one, no other shows what it held."""
        while len(self._sizes) > 2 and (sum(self._sizes.values()) > self._limit or self._is_disk_short()):
            *others, _ = sorted(self._sizes)
            self._head = self._head or others[len(others) // 2]
            after = [number for number in others if number > self._head]
            if not after:
                self._head = others[-2]
            self._remove(min(after, default=others[-1]))

    def _is_disk_short(self) -> bool:
        disk = os.statvfs(self._directory)
        return disk.f_bavail < DISK_RESERVE_SHARE * disk.f_blocks

    def _remove(self, number: int) -> None:
        del self._sizes[number]
        try:
            os.unlink(os.path.join(self._directory, str(number)))
        except OSError:
            pass


def _remove(directory: str) -> None:
    import shutil

    shutil.rmtree(directory, ignore_errors=True)


def _write(descriptor: int, size: int, data: bytes) -> bool:
    """Append to a file of that size. Return False, and leave the file as it was, if there is no room for all."""
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError:
        os.ftruncate(descriptor, size)
        os.lseek(descriptor, size, os.SEEK_SET)
        return False
    return True


class FoundJournal:
    """A journal in a machine's directory."""

    def __init__(self, path: str, run: str, node: int) -> None:
        self.path, self.run, self.node = path, run, node
        self.about, self.changed = About(), 0.0  # changed: when it was written last, in seconds since the epoch
        try:
            with open(os.path.join(path, ABOUT)) as file:
                self.about = read_about(loads(file.read()))
            self.changed = os.stat(os.path.join(path, FACTS)).st_mtime
        except (OSError, ValueError, FrameError):
            pass
        self.is_on = has_agent(socket_path(run, node))  # its agent writes it
        self.is_fetched = os.path.exists(os.path.join(path, FETCHED))  # a client has read it to its end


def journals(machine: str) -> list[FoundJournal]:
    """Return all journals in a machine's directory, the oldest first."""
    import re  # an agent that begins a run does not come here

    names = os.listdir(machine) if os.path.isdir(machine) else []
    matches = [match for match in (re.fullmatch(NAME, name) for name in names) if match]
    found = [FoundJournal(os.path.join(machine, match[0]), match[1], int(match[2])) for match in matches]
    return sorted(found, key=lambda journal: journal.changed)


def prune(machine: str, limit: int) -> None:
    """Remove the journals of ended runs that are old, and the oldest ones while all take more than limit bytes."""
    ended = [journal for journal in journals(machine) if not journal.is_on]
    sizes = {journal.path: size_of(journal.path) for journal in ended}
    total = sum(sizes.values())
    for journal in sorted(ended, key=lambda journal: not journal.is_fetched):
        age = time.time() - journal.changed
        if total > limit or age > (FETCHED_AGE_LIMIT_S if journal.is_fetched else AGE_LIMIT_S):
            _remove(journal.path)
            total -= sizes[journal.path]


def size_of(path: str) -> int:
    """Return the bytes of the files in a directory."""
    return sum(os.lstat(os.path.join(path, name)).st_size for name in os.listdir(path))
