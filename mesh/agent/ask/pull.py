"""Files for the client: a child process lists and reads them, as fast as the client takes its messages.

Client and child exchange messages of their own (mesh/protocol/pulling.py), within those of the agent. The child lists
entries, and the client answers each list with the files that it wants, and how much of each it has already. The child
sends those in that order, and ``done`` at last.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import time
import zlib
from collections import deque

from mesh.agent.base.background import fork
from mesh.agent.base.errors import why
from mesh.agent.sync.contents import PIECE_BYTES, new_digest
from mesh.protocol.frames import Decoder, to_bytes
from mesh.protocol.messages import encode
from mesh.protocol.packed import packed, read_rows
from mesh.protocol.pulling import TO_PULL, WISHES, Data, Done, End, Entry, Failed, File, Listing, Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from hashlib import blake2b as Digest

    from mesh.protocol.pulling import OfPull, Want

MESSAGE_BYTES = 1 << 16  # behind one message of the agent
LIST_ENTRIES = 500  # that are listed together
UNANSWERED_LISTS_MAX = 4
READ_TRIES = 3  # of a file that changes meanwhile
CLOCK_TICK_NS = 20_000_000  # two changes of a file within this time may leave it with the same mtime
UNPACKED_PIECES = 16  # of a file, that are sent as they are after one that did not shrink
WISHES_BYTES = 1 << 20  # of one answer, unpacked
PACKED_SHARE_MAX = 0.9  # of its size, below which a piece is sent compressed
KINDS = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
CHANGES = "changes while it is read"


class Pull:
    """The agent's end: a child, and a socket to it that never blocks the agent."""

    def __init__(self, paths: list[str], workspace: str) -> None:
        """paths: as the user gave them. Raises OSError if there is no fork."""
        ours, theirs = socket.socketpair()
        self.status = -1  # from waitpid, once the child has ended
        self._waiting = bytearray()  # for the child
        self.pid = fork()
        if not self.pid:
            status = 1
            try:
                ours.close()
                _release_channel()
                Reader(theirs, os.fsencode(workspace)).work(paths)
                status = 0
            finally:
                os._exit(status)
        theirs.close()
        ours.setblocking(False)
        self._socket = ours
        self.channel = ours.fileno()  # -1 once everything from the child was read

    def events(self, room: bool) -> int:
        """Return the events to poll for; 0 for none. room: the client takes messages of the child"""
        return (select.POLLIN if room else 0) | (select.POLLOUT if self._waiting else 0)

    def give(self, data: bytes) -> None:
        """Pass bytes of the client on to the child."""
        if self.channel >= 0:
            self._waiting += data
            self.write()

    def write(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: self._socket.send(self._waiting)]
        except BlockingIOError:
            pass
        except OSError:  # the status of the child has the reason
            self._waiting.clear()

    def read(self) -> bytes:
        """Read messages of the child; b"" if there is nothing now."""
        try:
            data = self._socket.recv(MESSAGE_BYTES)
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
        """True once the child has ended, and everything from it was read."""
        return self.status >= 0 and self.channel < 0


def _release_channel() -> None:
    """Close the client's channel in the child, so that its end does not wait for the child."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)


class Reader:
    """The child. It may block, and ends with an OSError when the agent is gone."""

    def __init__(self, channel: socket.socket, workspace: bytes) -> None:
        self._channel, self._workspace = channel, os.path.normpath(workspace)
        self._decoder = Decoder()
        self._answers: deque[tuple[Want, bytes]] = deque()
        self._compress = False
        self._unpacked = 0  # next pieces that are sent as they are

    def work(self, paths: list[str]) -> None:
        """List everything, and send what the client wants of it."""
        batch: list[bytes] = []
        entries: list[Entry] = []
        unanswered: deque[list[bytes]] = deque()
        for full, entry in self._entries(paths):
            batch.append(full)
            entries.append(entry)
            if len(entries) == LIST_ENTRIES:
                self._list(entries)
                unanswered.append(batch)
                batch, entries = [], []
                if len(unanswered) > UNANSWERED_LISTS_MAX:
                    self._send_wanted(unanswered.popleft())
        self._list(entries)
        unanswered.append(batch)
        while unanswered:
            self._send_wanted(unanswered.popleft())
        self._send(Done())

    # ---- lists

    def _entries(self, paths: list[str]) -> Iterator[tuple[bytes, Entry]]:
        """Find everything below the paths: the path here, and the entry; a directory comes before its entries."""
        roots: dict[bytes, bool] = {}  # True: a link is followed
        for path in paths:
            for found in self._find(path):
                root = os.path.normpath(found)
                # The workspace itself may be a link, if cluster.yaml allows that.
                roots[root] = found.endswith(b"/") or root == self._workspace
        for root, follow in sorted(roots.items()):
            if not any(above in roots and (roots[above] or not os.path.islink(above)) for above in _above(root)):
                yield from self._walk(root, follow)

    def _find(self, path: str) -> list[bytes]:
        """Return the paths here that match one of the user."""
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

    def _walk(self, root: bytes, follow: bool) -> Iterator[tuple[bytes, Entry]]:
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
            entry = Entry(
                path=path,
                kind=letter,
                mode=stat.S_IMODE(status.st_mode),
                mtime_ns=status.st_mtime_ns,
                size=size,
                target=target.decode("latin-1"),
            )
            yield full, entry

    def _shown(self, full: bytes) -> bytes:
        """Return the path for the client: relative to the workspace, or else to the root."""
        if full == self._workspace:
            return b""
        if full.startswith(self._workspace + b"/"):
            return full[len(self._workspace) + 1 :]
        return full.lstrip(b"/")

    def _list(self, entries: Sequence[Entry]) -> None:
        self._send(Listing(), packed(entries))

    def _problem(self, path: bytes, reason: str, fails: bool = True) -> None:
        """Report a path that cannot be read. fails: the pull is not complete without it"""
        self._send(Problem(path=path.decode("latin-1"), why=reason, fails=fails))

    # ---- contents

    def _send_wanted(self, batch: list[bytes]) -> None:
        """Wait for the answer to a list, and send the files that the client wants."""
        while not self._answers:
            data = self._channel.recv(MESSAGE_BYTES)
            if not data:
                raise BrokenPipeError
            self._answers.extend((TO_PULL.read(header), rows) for header, rows in self._decoder.feed(data))
        want, data = self._answers.popleft()
        self._compress = want.compress
        for wish in read_rows(want.NAME, WISHES, data, WISHES_BYTES):
            self._send_file(batch[wish.number], wish.have, wish.hash)

    def _send_file(self, path: bytes, have: int, name: str) -> None:
        """Send a file. have: bytes of its beginning that the client has; name: their hash"""
        reason = ""
        for _ in range(READ_TRIES):
            try:
                # Not a link and not a FIFO, even if it has become one since it was listed.
                file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError as error:
                reason = why(_bare(error))
                break
            try:
                if self._send_open(file, have, name):
                    return
                reason, have = CHANGES, 0
            except BlockingIOError as error:
                reason = why(_bare(error))
                break
            finally:
                os.close(file)
        self._send(Failed(why=reason))

    def _send_open(self, file: int, have: int, name: str) -> bool:
        """Send a file as it is at one moment; return False if it was changed too much for that."""
        before = _settled(file)
        if not stat.S_ISREG(before.st_mode):
            return False
        digest, count = new_digest(), 0
        if 0 < have <= before.st_size:
            digest, count = _hash_beginning(file, have)
            if digest.hexdigest() != name:
                digest, count = new_digest(), 0
                os.lseek(file, 0, os.SEEK_SET)
        self._send(File(offset=count))
        self._unpacked = 0
        # Files of the kernel have the size 0. Bytes beyond the size of others are left for the next pull.
        end = before.st_size or float("inf")
        piece = b"?"
        while piece and count < end:
            piece = os.read(file, int(min(PIECE_BYTES, end - count)))
            digest.update(piece)
            count += len(piece)
            self._send_data(piece)
        after = os.fstat(file)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            os.lseek(file, 0, os.SEEK_SET)  # of a log that has grown meanwhile the beginning is still the same
            again, same = _hash_beginning(file, count)
            if same != count or again.hexdigest() != digest.hexdigest():
                return False
        self._send(End(hash=digest.hexdigest(), mode=stat.S_IMODE(before.st_mode), mtime=before.st_mtime_ns))
        return True

    def _send_data(self, piece: bytes) -> None:
        """Send a piece, compressed if the client finds the link slower than that, and only where it pays."""
        if not piece:
            return
        if not piece[0] and not piece.strip(b"\0"):  # of a sparse file
            self._send(Data(packed=True), zlib.compress(piece, 1))
            return
        if self._unpacked:
            self._unpacked -= 1
        elif self._compress:
            shorter = zlib.compress(piece, 1)
            if len(shorter) < PACKED_SHARE_MAX * len(piece):
                self._send(Data(packed=True), shorter)
                return
            self._unpacked = UNPACKED_PIECES
        self._send(Data(), piece)

    def _send(self, message: OfPull, data: bytes = b"") -> None:
        self._channel.sendall(encode(message, data))


def _settled(file: int) -> os.stat_result:
    """Return the status of a file, once no later change can leave it with the same time."""
    status = os.fstat(file)
    age = time.time_ns() - status.st_mtime_ns
    if 0 <= age < CLOCK_TICK_NS:
        time.sleep((CLOCK_TICK_NS - age) / 1e9)
        status = os.fstat(file)
    return status


def _hash_beginning(file: int, size: int) -> tuple[Digest, int]:
    """Return the hash of the next ``size`` bytes of a file, and how many there were."""
    digest, left = new_digest(), size
    piece = b"?"
    while piece and left:
        piece = os.read(file, min(PIECE_BYTES, left))
        digest.update(piece)
        left -= len(piece)
    return digest, size - left


def _above(path: bytes) -> Iterator[bytes]:
    """List the directories on the way to a path."""
    while os.path.dirname(path) != path:
        path = os.path.dirname(path)
        yield path


def _bare(error: OSError) -> OSError:
    """Return an error without its path, which the message has already."""
    return OSError(error.errno, error.strerror)
