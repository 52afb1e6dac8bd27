"""A run's stream in files, for whoever comes back: written while the run goes on by itself, read as often as you like.

A tape is a directory. Its pieces, files named by number, hold the frames in order; ``facts`` holds all frames but the
output once more. Each output frame says at which byte of its stream it begins ("at"), so that a reader sees what is
missing; how a rank ended tells how much it has printed, for what is missing at the end. A piece begins with a frame of
its own: what comes before it of each stream ("have") and of ``facts``. A reader begins at the piece that it needs, and
makes up by ``facts`` for pieces that are gone.
"""

from __future__ import annotations

import os
import time

from .doors import door_of, is_open
from .frames import encode, stream_of
from .lean import dumps, loads
from .state import machine_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PIECE = 1 << 20  # bytes of a file
RESERVE = 0.05  # of the disk, that is never used
AGE = 30 * 86400.0  # seconds that the tape of a run that has ended is kept
AGE_FETCHED = 7 * 86400.0  # the same once somebody has read it to its end
ABOUT, FACTS, FETCHED = "about.json", "facts", "fetched"
NAME = r"tape-(.+)-([0-9]+)"


def tape_of(remote_dir: str, run: str, node: int) -> str:
    """The directory of a tape."""
    return os.path.join(machine_directory(remote_dir), f"tape-{run}-{node}")


class Tape:
    """Being written. Nothing of it ever fails: what the disk has no room for is missing, and readers see that."""

    def __init__(self, directory: str, limit: int, about: dict[str, Any]) -> None:
        """limit: bytes on disk; of what is beyond it head and tail are kept. Raises OSError if there is no way to."""
        self._directory, self._limit = directory, limit
        os.makedirs(directory, 0o700)
        try:
            with open(os.path.join(directory, ABOUT), "w") as file:
                file.write(dumps(about))
            self._facts = os.open(os.path.join(directory, FACTS), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError:
            _remove(directory)
            raise
        self._facts_size = 0
        self._owed = b""  # facts that the disk had no room for
        self._have: dict[str, int] = {}  # bytes of each stream that are written, or left out
        self._next: list[tuple[dict[str, Any], bytes, int]] = []  # frames to be written, and the size of their data
        self._piece, self._size, self._count = -1, 0, 0  # the file that is being written: descriptor, bytes, number
        self._sizes: dict[int, int] = {}  # of all pieces that are there
        self._head = 0  # once something was left out: the last piece before that

    def add(self, header: dict[str, Any], data: bytes = b"") -> None:
        """Append a frame; an output frame has "at"."""
        self._next.append((header, encode(header, data), len(data)))

    def flush(self) -> bool:
        """Write what was added; False if there was nothing."""
        if not self._next and not self._owed:
            return False
        frames, self._next = self._next, []
        if self._owed and self._write_facts(self._owed):
            self._owed = b""
            self._close()  # a reader finds them before the next piece
        if self._piece < 0:
            self._open()
        facts = b"".join(frame for header, frame, _ in frames if header["type"] != "output")
        if not self._write_facts(facts):
            self._owed += facts
            frames = [item for item in frames if item[0]["type"] == "output"]
        data = b"".join(frame for _, frame, _ in frames)
        if self._piece >= 0 and _write(self._piece, self._size, data):
            self._size += len(data)
            self._sizes[self._count] = self._size
        else:
            self._close()  # what is missing comes before the next piece
        for header, _, size in frames:
            if header["type"] == "output":
                self._have[stream_of(header)] = header["at"] + size
        if self._size >= PIECE or self._owed:
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
        """Remove it: nobody will come for it."""
        self._close()
        os.close(self._facts)
        _remove(self._directory)

    def _write_facts(self, facts: bytes) -> bool:
        written = _write(self._facts, self._facts_size, facts)
        self._facts_size += len(facts) if written else 0
        return written

    def _open(self) -> None:
        """Begin the next piece, if there is room."""
        head = encode({"type": "head", "have": self._have, "facts": self._facts_size})
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
        """The newest piece stays, as it may be the last one: nothing would tell what was in it."""
        while len(self._sizes) > 2 and (sum(self._sizes.values()) > self._limit or self._is_disk_short()):
            *others, _ = sorted(self._sizes)
            self._head = self._head or others[len(others) // 2]
            after = [number for number in others if number > self._head]
            if not after:
                self._head = others[-2]
            self._remove(min(after, default=others[-1]))

    def _is_disk_short(self) -> bool:
        disk = os.statvfs(self._directory)
        return disk.f_bavail < RESERVE * disk.f_blocks

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
    """Append to a file of that size; False, and the file as it was, if there is no room for all."""
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError:
        os.ftruncate(descriptor, size)
        os.lseek(descriptor, size, os.SEEK_SET)
        return False
    return True


def tapes(machine: str) -> list[dict[str, Any]]:
    """All tapes in a machine's directory, the oldest first, with what was told of each.

    Beside that "run", "node", "path", "is_on": its agent writes it, "is_fetched": a client has read it to its end, and
    "changed": when it was written last, in seconds since the epoch.
    """
    found = []
    import re  # an agent that begins a run does not come here

    for name in os.listdir(machine) if os.path.isdir(machine) else []:
        match = re.fullmatch(NAME, name)
        if match:
            path = os.path.join(machine, name)
            run, node = match.group(1), int(match.group(2))
            try:
                with open(os.path.join(path, ABOUT)) as file:
                    about = loads(file.read())
                changed = os.stat(os.path.join(path, FACTS)).st_mtime
            except (OSError, ValueError):
                about, changed = {}, 0.0
            is_on = is_open(door_of(run, node))
            is_fetched = os.path.exists(os.path.join(path, FETCHED))
            found.append(
                dict(about, run=run, node=node, path=path, is_on=is_on, is_fetched=is_fetched, changed=changed)
            )
    return sorted(found, key=lambda tape: float(tape["changed"]))


def prune(machine: str, limit: int) -> None:
    """Remove the tapes of runs that have ended if they are old, or take more than limit bytes: the oldest ones."""
    ended = [tape for tape in tapes(machine) if not tape["is_on"]]
    sizes = {tape["path"]: size_of(tape["path"]) for tape in ended}
    total = sum(sizes.values())
    import shutil

    for tape in sorted(ended, key=lambda tape: not tape["is_fetched"]):
        age = time.time() - tape["changed"]
        if total > limit or age > (AGE_FETCHED if tape["is_fetched"] else AGE):
            shutil.rmtree(tape["path"], ignore_errors=True)
            total -= sizes[tape["path"]]


def size_of(path: str) -> int:
    """Bytes of the files in a directory."""
    return sum(os.lstat(os.path.join(path, name)).st_size for name in os.listdir(path))
