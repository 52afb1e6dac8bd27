"""The frames of a pull, within messages ``piece`` and ``reply``: from the process that reads files, and to it."""

from __future__ import annotations

from .kinds import BYTE_PATH, COUNT, HASH, SHOWN, SIGNED, TRUTH, listed, word
from .messages import CLIENT, PIECE_BYTES, PULL_READER, Message, Table
from .records import Row, field, record


class Entry(Row):
    """A directory, link or file of a pull. Rows of these follow ``list``, as compressed JSON."""

    path: str = field(BYTE_PATH)
    kind: str = field(word("d", "l", "f"))
    mode: int = field(COUNT)
    mtime_ns: int = field(SIGNED)
    size: int = field(COUNT)
    target: str = field(BYTE_PATH)  # of a link; "" for others


class Wish(Row):
    """A file of a list that the client wants. Rows of these follow ``want``, as compressed JSON."""

    number: int = field(COUNT)  # of the entry in its list
    have: int = field(COUNT)  # bytes that the client has already
    hash: str = field(HASH)  # of those


ENTRIES = listed(record(Entry))
WISHES = listed(record(Wish))


class OfPull(Message, sender=PULL_READER):
    """A message of the process that reads files for a pull."""


class Listing(OfPull, name="list", data_bytes=PIECE_BYTES):
    """Lists entries; the client answers with ``want``."""


class Problem(OfPull, name="problem"):
    """Names a path that cannot be read."""

    path: str = field(BYTE_PATH)
    why: str = field(SHOWN)
    fails: bool = field(TRUTH)  # False: it is left out on purpose


class File(OfPull, name="file"):
    """Begins the next file that the client wants."""

    offset: int = field(COUNT)  # 0, or the bytes that the client has already


class Data(OfPull, name="data", data_bytes=PIECE_BYTES):
    """Carries a piece of the file."""

    packed: bool = field(TRUTH, default=False)  # it is compressed


class End(OfPull, name="end"):
    """Ends the file."""

    hash: str = field(HASH)
    mode: int = field(COUNT)
    mtime: int = field(SIGNED)  # nanoseconds


class Failed(OfPull, name="failed"):
    """Reports that the file cannot be read."""

    why: str = field(SHOWN)


class Done(OfPull, name="done"):
    """Ends the pull."""


class Want(Message, name="want", sender=CLIENT, data_bytes=PIECE_BYTES):
    """Answers a list with the files that the client wants."""

    compress: bool = field(TRUTH)  # the link is slower than a compressor


OF_PULL: Table[OfPull] = Table(Listing, Problem, File, Data, End, Failed, Done)
TO_PULL: Table[Want] = Table(Want)
