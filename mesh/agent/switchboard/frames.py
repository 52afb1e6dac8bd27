"""The frames between the switchboard, its nodes and its clients: nine bytes, and then data.

A node and a client each open one connection to the switchboard. A client opens streams, each to a program that a node
starts; DATA, TAKEN and END belong to a stream. The number of a stream holds for one connection.
"""

from __future__ import annotations

import json
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, Tuple

    Frame = Tuple[bytes, int, bytes]  # kind, stream, data
    Fields = Dict[str, object]

SWITCHBOARD_VERSION = 1  # of these frames

HELLO = b"h"  # the first frame of each connection: {"version", "role", "name"}
WELCOME = b"w"  # the answer to a client or node: {"nodes"}, the names of those that are connected
REFUSED = b"r"  # the other answer, before the connection is closed: a text
NODE = b"n"  # to clients: {"name", "is_here"}
OPEN = b"o"  # of a client: {"node", "argv", "window"}, the last one in bytes, for each direction
DATA = b"d"
TAKEN = b"t"  # the other end has taken so many bytes, and takes as many more: four bytes
END = b"e"  # of a client: it has closed the stream. Of a node: {"status", "why"}, a newline and the last of stderr
BUSY = b"b"  # of a node, every BUSY_INTERVAL_S: {"is_busy", "is_ending"}
PING, PONG = b"p", b"q"  # of a client, and the answer
NOTICE = b"x"  # a text of the holder, for nodes or for clients
STOP = b"s"  # to nodes: end all agents, and then yourselves. A text has the reason

NODE_ROLE, CLIENT_ROLE = "node", "client"

HEAD = struct.Struct("!cII")  # kind, stream, bytes of data
COUNT = struct.Struct("!I")
DATA_BYTES = 64 << 10  # of one frame of a stream
FRAME_BYTES = 1 << 20  # of data in any frame
STDERR_BYTES = 64 << 10  # that travel with the end of a stream


class BadFrame(Exception):
    """A connection whose other end does not send frames."""


def frame(kind: bytes, stream: int = 0, data: bytes = b"") -> bytes:
    """Return one frame.

    >>> list(Frames().feed(frame(DATA, 7, b"x")))
    [(b'd', 7, b'x')]
    """
    return HEAD.pack(kind, stream, len(data)) + data


def record(kind: bytes, stream: int = 0, **fields: object) -> bytes:
    """Return a frame whose data is a JSON object."""
    return frame(kind, stream, json.dumps(fields).encode())


def read_record(data: bytes) -> Fields:
    """Return the JSON object in the data of a frame. Raises BadFrame."""
    try:
        found: object = json.loads(data.decode("utf-8", "replace"))
    except ValueError as error:
        raise BadFrame(str(error)) from None
    if not isinstance(found, dict):
        raise BadFrame("a frame without its fields")
    return found


def end_frame(stream: int, status: int | None, why: str = "", stderr: bytes = b"") -> bytes:
    """Return the frame that ends a stream of a node. status: of the program; None: unknown"""
    head = json.dumps({"status": status, "why": why}).encode()
    return frame(END, stream, head + b"\n" + stderr[-STDERR_BYTES:])


def read_end(data: bytes) -> tuple[int | None, str, bytes]:
    """Return the status, the reason and the last of stderr in the END of a node. Raises BadFrame."""
    head, _, stderr = data.partition(b"\n")
    found = read_record(head)
    status, why = found.get("status"), found.get("why")
    if not (status is None or type(status) is int) or not isinstance(why, str):
        raise BadFrame("the end of a stream with wrong fields")
    return status, why, stderr


def read_count(data: bytes) -> int:
    """Return the number of bytes in a TAKEN frame. Raises BadFrame."""
    if len(data) != COUNT.size:
        raise BadFrame("a count of the wrong size")
    count: int = COUNT.unpack(data)[0]
    return count


class Frames:
    """A reader of frames from chunks of any size."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete; all of them have to be taken. Raises BadFrame."""
        data = self._rest + chunk if self._rest else chunk
        place, view = 0, memoryview(data)
        while len(data) - place >= HEAD.size:
            kind, stream, size = HEAD.unpack_from(data, place)
            if size > FRAME_BYTES:
                raise BadFrame(f"a frame of {size} bytes")
            begin = place + HEAD.size
            if len(data) - begin < size:
                break
            place = begin + size
            yield kind, stream, bytes(view[begin:place])
        self._rest = data[place:]
