"""Values and frames between nodes, whatever the pieces in which their bytes arrive."""

from __future__ import annotations

import itertools
import mmap
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.engine.credentials import make_credentials
from mesh.program.runtime.errors import LinkRefused
from mesh.program.runtime.frames import CREDIT, HEAD, MAPPED_BYTES, MARK, Frame, read_frame
from mesh.program.runtime.links import AHEAD_BYTES, SocketLink, TlsStream, tls_context
from tests.conftest import PATIENCE, REPOSITORY

NODE = """
import sys
sys.path.insert(0, sys.argv[1])
from mesh.program.runtime import codec, program_file
program_file.load_main({})
print(codec.loads(*codec.dumps(("act", 1))), "cloudpickle" in sys.modules)
"""
FRAMES = st.builds(
    Frame,
    kind=st.integers(0, CREDIT),
    call=st.integers(0, (1 << 64) - 1),
    body=st.binary(max_size=200),
    buffers=st.lists(st.binary(max_size=100), max_size=4),
    flags=st.integers(0, 255),
)


def bytes_of(frame: Frame) -> bytes:
    return b"".join(bytes(memoryview(one).cast("B")) for one in frame.pieces())


def reader(data: bytes, cuts: Sequence[int] = (1 << 30,)) -> Callable[[memoryview], None]:
    """Return a function that fills memories from data, a cut at a time; it raises EOFError at the end."""
    left, sizes = memoryview(data), itertools.cycle(cuts)

    def read_into(view: memoryview) -> None:
        nonlocal left
        while view.nbytes:
            count = min(view.nbytes, next(sizes), left.nbytes)
            if not count:
                raise EOFError
            view[:count] = left[:count]
            view, left = view[count:], left[count:]

    return read_into


def content(frame: Frame) -> tuple[object, ...]:
    return frame.kind, frame.flags, frame.call, bytes(frame.body), [bytes(one) for one in frame.buffers]


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """The key and certificate of a run."""
    path = tmp_path / "key.pem"
    path.write_text(make_credentials())
    return path


@settings(deadline=None)
@given(frames=st.lists(FRAMES, max_size=4), cuts=st.lists(st.integers(1, 50), min_size=1))
def test_frames_survive_any_cuts(frames: list[Frame], cuts: list[int]) -> None:
    read_into = reader(b"".join(map(bytes_of, frames)), cuts)
    found = [read_frame(read_into) for _ in frames]
    assert [content(one) for one in found] == [content(one) for one in frames]
    assert [one.size for one in found] == [one.size for one in frames]
    with pytest.raises(EOFError):
        read_frame(read_into)


class Pieces:
    """A socket whose bytes arrive in pieces."""

    def __init__(self, data: bytes, cuts: Sequence[int]) -> None:
        self._left, self._sizes = memoryview(data), itertools.cycle(cuts)

    def recv_into(self, view: memoryview) -> int:
        count = min(view.nbytes, next(self._sizes), self._left.nbytes)
        view[:count], self._left = self._left[:count], self._left[count:]
        return count

    def close(self) -> None:
        self._left.release()

    def shutdown(self, how: int) -> None:
        pass


@settings(deadline=None)
@given(
    frames=st.lists(FRAMES, max_size=6),
    large=st.lists(st.integers(0, 3), max_size=2),
    cuts=st.lists(st.integers(20, 400) | st.just(1 << 20), min_size=1),
)
def test_a_link_returns_frames_in_order_whatever_arrives_together(
    frames: list[Frame], large: list[int], cuts: list[int]
) -> None:
    for place in large:  # one that is larger than what is received ahead
        frames.insert(place, Frame(CREDIT, body=b"x" * AHEAD_BYTES, buffers=[b"y" * AHEAD_BYTES] * (place % 2)))
    link = SocketLink(Pieces(b"".join(map(bytes_of, frames)), cuts))  # type: ignore[arg-type]
    assert [content(link.receive()) for _ in frames] == [content(one) for one in frames]
    with pytest.raises(EOFError):
        link.receive()


def test_small_messages_of_tls_arrive_whether_or_not_they_fill_the_memory(key: Path) -> None:
    ours, theirs = socket.socketpair()
    served: list[TlsStream] = []

    def serve() -> None:
        served.append(TlsStream(tls_context(str(key), is_server=True).wrap_socket(theirs, server_side=True)))

    thread = threading.Thread(target=serve)
    thread.start()
    stream = TlsStream(tls_context(str(key), is_server=False).wrap_socket(ours))
    thread.join(PATIENCE)
    sent, received = SocketLink(stream), SocketLink(served[0])
    for size in (0, 1, AHEAD_BYTES - HEAD.size, AHEAD_BYTES - HEAD.size + 1, 3 * AHEAD_BYTES):
        for _ in range(2):
            sent.send(Frame(CREDIT, size, bytes(size)))
        assert [received.receive().size for _ in range(2)] == [size, size]
    sent.release()
    with pytest.raises(EOFError):
        received.receive()
    received.release()


@pytest.mark.parametrize("size", [MAPPED_BYTES - 1, MAPPED_BYTES, 3 * MAPPED_BYTES + 1])
def test_large_parts_arrive_whole_and_can_be_written(size: int) -> None:
    data = os.urandom(1000) * (size // 1000 + 1)
    sent = Frame(CREDIT, 7, data[:size], [memoryview(data)[1 : size + 1], b"", data[:1]])
    found = read_frame(reader(bytes_of(sent)))
    assert content(found) == content(sent)
    memory = memoryview(found.buffers[0])  # type: ignore[arg-type]
    memory[-1] = 7
    assert memory[-1] == 7


def test_a_forked_child_changes_its_own_copy_of_what_arrived() -> None:
    found = read_frame(reader(bytes_of(Frame(CREDIT, body=b"", buffers=[bytes(MAPPED_BYTES)]))))
    memory = found.buffers[0]
    assert isinstance(memory, mmap.mmap)
    child = os.fork()
    if not child:
        memory[0] = 1
        os._exit(memory[0])
    _, status = os.waitpid(child, 0)
    assert (os.waitstatus_to_exitcode(status), memory[0]) == (1, 0)


@pytest.mark.parametrize("count", [0, 1])
def test_a_size_that_no_value_has_is_refused_before_any_memory_is_taken(count: int) -> None:
    head = HEAD.pack(MARK, CREDIT, 0, 0, count, 0 if count else 1 << 60)
    with pytest.raises(LinkRefused):
        read_frame(reader(head + (1 << 60).to_bytes(8, "big")))


def test_a_node_whose_classes_are_in_modules_needs_no_cloudpickle() -> None:
    argv = [sys.executable, "-S", "-c", NODE, str(REPOSITORY)]  # -S: as on a host where nothing is installed
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout == "('act', 1) False\n", done.stderr
