"""The base of all messages: name, sender and bytes of each, tables to read them by, and the version of the protocol.

A reader takes a header through a ``Table``, which returns a message whose fields were checked, or raises FrameError
with the names of message and field. It ignores fields that it does not have: a newer peer may send them.
"""

from __future__ import annotations

from .coding import dumps
from .frames import FrameError
from .kinds import Wrong, described, integer, unfiltered
from .records import Record, field, fields_of
from .typed import Generic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import ClassVar, TypeVar

    from typing_extensions import Self

    from .frames import Header
    from .kinds import Clean, Kind

    M = TypeVar("M", bound="Message", covariant=True)
    R = TypeVar("R", bound=Record)
else:
    M = None

PROTOCOL_VERSION = 1  # in the first message of each channel and in its answer; mesh before this sent none, which is 0
PIECE_BYTES = 1 << 20  # behind one message; both ends send at most 64 KiB at once, but for output

VERSION = integer(0, 1 << 31)

CLIENT, AGENT, PEER, CONTROL = "client", "agent", "peer", "control"
JOURNAL_READER, PULL_READER = "journal reader", "pull reader"


class Message(Record):
    """A message: the header of a frame, as a record, and how many bytes may follow it."""

    if TYPE_CHECKING:
        NAME: ClassVar[str]
        SENDER: ClassVar[str]
        DATA_BYTES: ClassVar[int]
    NAME, SENDER, DATA_BYTES = "", "", 0

    def __init_subclass__(cls, *, name: str = "", sender: str = "", data_bytes: int = 0) -> None:
        """name: in "type" of the header; sender: the program that sends it; data_bytes: that may follow it"""
        super().__init_subclass__()
        cls.NAME, cls.SENDER, cls.DATA_BYTES = name, sender or cls.SENDER, data_bytes

    def header(self) -> Header:
        """Return the header of the message's frame."""
        return {"type": self.NAME, **fields_of(self)}


class Versioned(Message):
    """A message that begins a channel, or answers it. It is refused unless both ends have the same protocol."""

    protocol: int = field(VERSION, default=PROTOCOL_VERSION, absent=0)

    @classmethod
    def take(cls, value: object, clean: Clean, kinds: Mapping[str, Kind[object]] | None = None) -> Self:
        found = value.get("protocol", 0) if isinstance(value, dict) else 0
        if type(found) is int and found != PROTOCOL_VERSION:  # other fields may differ as well
            text = f"{cls.SENDER}: speaks protocol {found}, this mesh speaks {PROTOCOL_VERSION}"
            raise VersionError(f"{text} (another version of mesh)", UPGRADE if found > PROTOCOL_VERSION else END_OLDER)
        return super().take(value, clean, kinds)


END_OLDER = "mesh stop RUN, with the mesh that started it"
UPGRADE = "on the machine with the older mesh, in its clone: git pull && pipx install --force ."


class VersionError(FrameError):
    """A message or a journal of another version of mesh. ``hint`` is the next step."""


class Table(Generic[M]):
    """The messages that one reader accepts, by their names."""

    def __init__(self, *messages: type[M], by: str = "type") -> None:
        """by: the field of a header that has the name"""
        self._by = by
        self._classes: dict[str, type[M]] = {message.NAME: message for message in messages}
        self.sizes = {message.NAME: message.DATA_BYTES for message in messages if message.DATA_BYTES}

    def __iter__(self) -> Iterator[type[M]]:
        return iter(self._classes.values())

    def read(self, header: object, clean: Clean = unfiltered) -> M:
        """Return the message of a header. Raises FrameError.

        clean: the filter for texts that the reader shows; needed for messages that have any
        """
        if not isinstance(header, dict):
            raise FrameError(f"expected an object, found {described(header)}")
        name = header.get(self._by)
        message = self._classes.get(name) if isinstance(name, str) else None
        if message is None:
            raise FrameError(f"no message is called {described(name)}")
        try:
            return message.take(header, clean)
        except Wrong as wrong:
            raise FrameError(f"{name}: {wrong}") from None


def read_record(name: str, kind: type[R], value: object, clean: Clean = unfiltered) -> R:
    """Return the record of a JSON value that is no message. Raises FrameError. name: of the value, for the reason"""
    try:
        return kind.take(value, clean)
    except Wrong as wrong:
        raise FrameError(f"{name}: {wrong}") from None


def encode(message: Message, data: bytes = b"") -> bytes:
    """Return the frame of a message and the bytes that follow it.

    >>> class Printed(Message, name="printed"):
    ...     rank: int = field(integer(0, 9))
    >>> encode(Printed(rank=3), b"hello")
    b'{"type":"printed","rank":3,"size":5}\\nhello'
    """
    header = message.header()
    if data:
        header["size"] = len(data)
    return dumps(header).encode() + b"\n" + data
