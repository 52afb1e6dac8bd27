"""The protocol's frames, and the blob that the agent travels as."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.protocol.frames import Decoder, FrameError, encode, to_bytes, to_text
from mesh.remote.blob import start_command

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
FRAMES = st.lists(
    st.tuples(st.dictionaries(st.text().filter(lambda key: key != "size"), JSON, max_size=3), st.binary(max_size=80)),
    max_size=6,
)


@given(frames=FRAMES, cuts=st.lists(st.integers(1, 50), min_size=1))
def test_frames_survive_any_cuts(frames: list[tuple[dict[str, object], bytes]], cuts: list[int]) -> None:
    stream = b"".join(encode(header, data) for header, data in frames)
    decoder, found = Decoder(), []
    position = turn = 0
    while position < len(stream):
        size = cuts[turn % len(cuts)]
        found += decoder.feed(stream[position : position + size])
        position, turn = position + size, turn + 1
    assert [({k: v for k, v in header.items() if k != "size"}, data) for header, data in found] == frames


@given(st.binary())
def test_any_bytes_travel_as_text(data: bytes) -> None:
    ((header, _),) = Decoder().feed(encode({"word": to_text(data)}))
    assert to_bytes(header["word"]) == data


@pytest.mark.parametrize("line", [b"no json\n", b"[1]\n", b'{"size":-1}\n', b'{"size":"x"}\n', b"\xff\n"])
def test_what_is_no_frame(line: bytes) -> None:
    with pytest.raises(FrameError):
        Decoder().feed(line)


def test_the_start_command_is_the_same_for_every_shell() -> None:
    for word in start_command("~/python"):
        assert not set(word) & set("'!\\\n")
