"""Frames of a link: a head of fixed size, a body, and buffers that are read straight into their memory."""

from __future__ import annotations

import contextlib
import mmap
import struct
from typing import Callable, List, Sequence, Tuple, Union

from mesh.program.runtime.errors import LinkRefused

HEAD = struct.Struct(">4sBBQIQ")  # mark, kind, flags, call, number of buffers, length of the body
MARK = b"mesh"
BODY_BYTES_LIMIT = 1 << 32
BUFFERS_LIMIT = 1 << 14
BUFFER_BYTES_LIMIT = 1 << 38
MAPPED_BYTES = 1 << 20  # larger memory is mapped: it costs nothing before its bytes arrive

HELLO, WELCOME, CALL, RESULT, ERROR, CANCEL, ITEM, CREDIT = range(8)
ONE_WAY, STREAM, PLAIN, AT_ONCE = 1, 2, 4, 8  # flags
STOP_CALL = "__mesh_stop__"  # the method that ends the program
READY_CALL = "__mesh_ready__"  # is answered once the node is ready for calls
ROUND_CALL = "__mesh_round__"  # belongs to a collective

Memory = Union[bytes, bytearray, memoryview, mmap.mmap]


class Frame:
    """Message of a link."""

    __slots__ = ("body", "buffers", "call", "flags", "kind")

    def __init__(self, kind: int, call: int = 0, body: Memory = b"", buffers: Sequence[Memory] = (), flags: int = 0):
        self.kind, self.call, self.body, self.buffers, self.flags = kind, call, body, buffers, flags

    @property
    def size(self) -> int:
        """The number of bytes of body and buffers."""
        if not self.buffers:
            return len(self.body)
        return len(self.body) + sum(len(memoryview(one).cast("B")) for one in self.buffers)

    def pieces(self) -> "List[Memory]":
        """Return the bytes of the frame, in order."""
        views = [memoryview(one).cast("B") for one in self.buffers]
        head = HEAD.pack(MARK, self.kind, self.flags, self.call, len(views), len(self.body))
        if views:
            head += struct.pack(f">{len(views)}Q", *map(len, views))
        if len(self.body) < MAPPED_BYTES:
            return [b"".join((head, self.body)), *views]
        return [head, self.body, *views]


def read_frame(read_into: "Callable[[memoryview], None]") -> Frame:
    """Read one frame. read_into: fills a memory, and raises EOFError at the end of the link

    Raises LinkRefused for lengths that no mesh sends.
    """
    head = bytearray(HEAD.size)
    read_into(memoryview(head))
    mark, kind, flags, call, count, size = HEAD.unpack(head)
    if mark != MARK or kind > CREDIT or count > BUFFERS_LIMIT or size > BODY_BYTES_LIMIT:
        raise LinkRefused("the other end does not send frames of a mesh program")
    if not count:
        return Frame(kind, call, _read(size, read_into), (), flags)
    lengths = bytearray(8 * count)
    read_into(memoryview(lengths))
    sizes = struct.unpack(f">{count}Q", lengths)
    if sum(sizes) > BUFFER_BYTES_LIMIT:
        raise LinkRefused("the other end announces more bytes than any value has")
    body = _read(size, read_into)
    return Frame(kind, call, body, [_read(one, read_into) for one in sizes], flags)


def small_frame(data: memoryview) -> "Tuple[Frame, int] | None":
    """Return the frame at the start of data, and its size; None if it has buffers, is not whole, or is none."""
    if data.nbytes < HEAD.size:
        return None
    mark, kind, flags, call, count, size = HEAD.unpack_from(data)
    end = HEAD.size + size
    if count or end > data.nbytes or mark != MARK or kind > CREDIT:
        return None
    return Frame(kind, call, bytes(data[HEAD.size : end]), (), flags), end


def _read(size: int, read_into: "Callable[[memoryview], None]") -> Memory:
    try:
        memory: "bytearray | mmap.mmap" = bytearray(size) if size < MAPPED_BYTES else _mapped(size)
    except (OSError, ValueError, OverflowError) as error:
        raise LinkRefused(f"no memory for {size} bytes that the other end announces: {error}") from error
    if size:
        read_into(memoryview(memory))
    return memory


def _mapped(size: int) -> mmap.mmap:
    """Return new memory of this process alone: a child that it forks has a copy of its own."""
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them; pages of 4 KB cost as much as the transfer itself
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
