"""Files for the client: a child process lists and reads them, as fast as the client takes what it says.

The two talk in frames of their own, within the agent's. The child says ``list`` (entries, as docs/sync.md has them, a
file without its hash), ``problem``, and for each file that the client wants, in that order, ``file``, ``data`` and
``end``, or ``failed``; at last ``done``. The client answers every ``list`` with a ``want``: which of its files, and how
much of each it has already.
"""

from __future__ import annotations

import json
import os
import select
import socket
import stat
import time
import zlib
from collections import deque

from .errand import end_like_others, why
from .frames import Decoder, encode, to_bytes
from .store import HASH, PIECE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import hashlib
    from collections.abc import Iterator
    from typing import Any

CHUNK = 65536  # bytes in one frame of the agent's
BATCH = 500  # entries that are listed together
AHEAD = 4  # such lists that the client has not answered
TRIES = 3  # to read a file that changes meanwhile
TICK = 20_000_000  # nanoseconds: two changes of a file within so much time may leave it with the same mtime
INCOMPRESSIBLE = 16  # pieces of a file that are sent as they are after one that did not shrink
WORTH = 0.9  # what a compressed piece must be smaller than, of its size
KINDS = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
CHANGES = "changes while it is read"


class Pull:
    """The agent's end: a child, and a socket to it that never blocks us."""

    def __init__(self, paths: list[str], workspace: str) -> None:
        """paths: as the user has given them. Raises OSError if there is no fork."""
        ours, theirs = socket.socketpair()
        self.status = -1  # from waitpid, once the child has ended
        self._waiting = bytearray()  # for the child
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                end_like_others()
                ours.close()
                _let_go_of_the_channel()
                Reader(theirs, os.fsencode(workspace)).work(paths)
                status = 0
            finally:
                os._exit(status)
        theirs.close()
        ours.setblocking(False)
        self._socket = ours
        self.channel = ours.fileno()  # -1 once the child has said everything

    def events(self, room: bool) -> int:
        """What poll is to wait for; 0 for nothing. room: what the child says can be handed on."""
        return (select.POLLIN if room else 0) | (select.POLLOUT if self._waiting else 0)

    def give(self, data: bytes) -> None:
        """Hand on what the client says."""
        if self.channel >= 0:
            self._waiting += data
            self.write()

    def write(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: self._socket.send(self._waiting)]
        except BlockingIOError:
            pass
        except OSError:  # its end tells why
            self._waiting.clear()

    def read(self) -> bytes:
        """What the child says; b"" if there is nothing now."""
        try:
            data = self._socket.recv(CHUNK)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            self._socket.close()
            self.channel = -1
        return data

    @property
    def is_over(self) -> bool:
        """True once the child has ended, and all that it said was read."""
        return self.status >= 0 and self.channel < 0


def _let_go_of_the_channel() -> None:
    """Its end must not wait for us."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)


class Reader:
    """The child. It may block, and ends with an OSError when the agent is gone."""

    def __init__(self, channel: socket.socket, workspace: bytes) -> None:
        self._channel, self._workspace = channel, os.path.normpath(workspace)
        self._decoder = Decoder()
        self._heard: deque[tuple[dict[str, Any], bytes]] = deque()
        self._compress = False
        self._as_they_are = 0  # pieces that are not worth a try

    def work(self, paths: list[str]) -> None:
        """List everything, and send what the client wants of it."""
        batch: list[bytes] = []
        rows: list[list[Any]] = []
        unanswered: deque[list[bytes]] = deque()
        for full, row in self._entries(paths):
            batch.append(full)
            rows.append(row)
            if len(rows) == BATCH:
                self._list(rows)
                unanswered.append(batch)
                batch, rows = [], []
                if len(unanswered) > AHEAD:
                    self._bring(unanswered.popleft())
        self._list(rows)
        unanswered.append(batch)
        while unanswered:
            self._bring(unanswered.popleft())
        self._say({"type": "done"})

    # ---- what there is

    def _entries(self, paths: list[str]) -> Iterator[tuple[bytes, list[Any]]]:
        """Everything below the paths: where it is here, and the entry; a directory comes before what is in it."""
        roots: dict[bytes, bool] = {}  # whether a link is to be followed
        for path in paths:
            for found in self._find(path):
                root = os.path.normpath(found)
                # The workspace itself may be a link, if cluster.yaml allows that.
                roots[root] = found.endswith(b"/") or root == self._workspace
        for root, follow in sorted(roots.items()):
            if not any(above in roots and (roots[above] or not os.path.islink(above)) for above in _above(root)):
                yield from self._walk(root, follow)

    def _find(self, path: str) -> list[bytes]:
        """What a path of the user's stands for."""
        given = os.path.expanduser(to_bytes(path))
        full = os.path.join(self._workspace, given)
        try:
            os.lstat(full)
        except OSError as error:
            import glob

            found = []
            if glob.has_magic(given):
                found = sorted(glob.glob(os.path.join(glob.escape(self._workspace), given), recursive=True))
            if not found:
                self._problem(to_bytes(path), "nothing matches" if glob.has_magic(given) else why(_bare(error)))
            return found
        return [full]

    def _walk(self, root: bytes, follow: bool) -> Iterator[tuple[bytes, list[Any]]]:
        todo = [root]
        while todo:
            full = todo.pop()
            try:
                status = os.stat(full) if follow else os.lstat(full)
                follow = False
                kind = stat.S_IFMT(status.st_mode)
                if kind == stat.S_IFDIR:
                    todo += [os.path.join(full, name) for name in sorted(os.listdir(full), reverse=True)]
                elif kind in KINDS:
                    self._problem(self._shown(full), KINDS[kind], full == root)
                    continue
                target = os.readlink(full) if kind == stat.S_IFLNK else b""
            except OSError as error:
                self._problem(self._shown(full), why(_bare(error)))
                continue
            letter = {stat.S_IFDIR: "d", stat.S_IFLNK: "l"}.get(kind, "f")
            size = status.st_size if letter == "f" else 0
            path = self._shown(full).decode("latin-1")
            row = [path, letter, stat.S_IMODE(status.st_mode), status.st_mtime_ns, size, target.decode("latin-1")]
            yield full, row

    def _shown(self, full: bytes) -> bytes:
        """Where it belongs at the client: relative to the workspace if it is in it, else as if this were the root."""
        if full == self._workspace:
            return b""
        if full.startswith(self._workspace + b"/"):
            return full[len(self._workspace) + 1 :]
        return full.lstrip(b"/")

    def _list(self, rows: list[list[Any]]) -> None:
        self._say({"type": "list"}, zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 1))

    def _problem(self, path: bytes, reason: str, fails: bool = True) -> None:
        """fails: the pull is not complete without it."""
        self._say({"type": "problem", "path": path.decode("latin-1"), "why": reason, "fails": fails})

    # ---- contents

    def _bring(self, batch: list[bytes]) -> None:
        """Wait for what the client wants of a list, and send it."""
        while not self._heard:
            data = self._channel.recv(CHUNK)
            if not data:
                raise BrokenPipeError
            self._heard.extend(self._decoder.feed(data))
        header, data = self._heard.popleft()
        self._compress = header["compress"]
        for number, have, known in json.loads(zlib.decompress(data)):
            self._send_file(batch[number], have, known)

    def _send_file(self, path: bytes, have: int, known: str) -> None:
        """have: bytes of its beginning that the client has; known: their hash."""
        reason = ""
        for _ in range(TRIES):
            try:
                # Not a link and not a FIFO, even if it has become one since it was listed.
                file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError as error:
                reason = why(_bare(error))
                break
            try:
                if self._send_open(file, have, known):
                    return
                reason, have = CHANGES, 0
            except BlockingIOError as error:
                reason = why(_bare(error))
                break
            finally:
                os.close(file)
        self._say({"type": "failed", "why": reason})

    def _send_open(self, file: int, have: int, known: str) -> bool:
        """Send a file as it is at one moment; False if it was changed too much for that."""
        before = _settled(file)
        if not stat.S_ISREG(before.st_mode):
            return False
        digest, count = _new_hash(), 0
        if 0 < have <= before.st_size:
            digest, count = _hash_beginning(file, have)
            if digest.hexdigest() != known:
                digest, count = _new_hash(), 0
                os.lseek(file, 0, os.SEEK_SET)
        self._say({"type": "file", "offset": count})
        self._as_they_are = 0
        # Files of the kernel say that they are empty; of others what comes after their size is left for the next time.
        end = before.st_size or float("inf")
        piece = b"?"
        while piece and count < end:
            piece = os.read(file, int(min(PIECE, end - count)))
            digest.update(piece)
            count += len(piece)
            self._say_data(piece)
        after = os.fstat(file)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            os.lseek(file, 0, os.SEEK_SET)  # of a log that has grown meanwhile the beginning is still the same
            again, same = _hash_beginning(file, count)
            if same != count or again.hexdigest() != digest.hexdigest():
                return False
        told = {"mode": stat.S_IMODE(before.st_mode), "mtime": before.st_mtime_ns}
        self._say({"type": "end", "hash": digest.hexdigest(), **told})
        return True

    def _say_data(self, piece: bytes) -> None:
        """Compressed where the client says that the link is slower than that, and only where it pays."""
        if not piece:
            return
        if not piece[0] and not piece.strip(b"\0"):  # of a sparse file
            self._say({"type": "data", "packed": True}, zlib.compress(piece, 1))
            return
        if self._as_they_are:
            self._as_they_are -= 1
        elif self._compress:
            packed = zlib.compress(piece, 1)
            if len(packed) < WORTH * len(piece):
                self._say({"type": "data", "packed": True}, packed)
                return
            self._as_they_are = INCOMPRESSIBLE
        self._say({"type": "data"}, piece)

    def _say(self, header: dict[str, Any], data: bytes = b"") -> None:
        self._channel.sendall(encode(header, data))


def _settled(file: int) -> os.stat_result:
    """What fstat says, once no later change can leave the file with the same time."""
    status = os.fstat(file)
    age = time.time_ns() - status.st_mtime_ns
    if 0 <= age < TICK:
        time.sleep((TICK - age) / 1e9)
        status = os.fstat(file)
    return status


def _new_hash() -> hashlib.blake2b:
    import hashlib  # agents that pull nothing start without it

    return hashlib.blake2b(digest_size=HASH)


def _hash_beginning(file: int, size: int) -> tuple[hashlib.blake2b, int]:
    """The hash of the next ``size`` bytes of a file, and how many there were."""
    digest, left = _new_hash(), size
    piece = b"?"
    while piece and left:
        piece = os.read(file, min(PIECE, left))
        digest.update(piece)
        left -= len(piece)
    return digest, size - left


def _above(path: bytes) -> Iterator[bytes]:
    """The directories on the way to a path."""
    while os.path.dirname(path) != path:
        path = os.path.dirname(path)
        yield path


def _bare(error: OSError) -> OSError:
    """The same without its path, which is told in another way."""
    return OSError(error.errno, error.strerror)
