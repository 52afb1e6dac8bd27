"""Zips as Python's zipfile writes them, read by agents."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.remote.agent.zips import Member, Zip

CONTENTS = st.one_of(
    st.binary(max_size=300), st.builds(lambda data, times: data * times, st.binary(), st.integers(0, 9000))
)
MEMBERS = st.dictionaries(st.text("abc/é", min_size=1), st.tuples(CONTENTS, st.booleans(), st.booleans()), max_size=5)
NO_ZIP = (ValueError, KeyError, EOFError, struct.error, zlib.error)


def zipped(members: dict[str, tuple[bytes, bool, bool]]) -> bytes:
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w") as pack:
        for name, (data, is_deflated, is_large) in members.items():
            pack.compression = zipfile.ZIP_DEFLATED if is_deflated else zipfile.ZIP_STORED
            with pack.open(name, "w", force_zip64=is_large) as member:
                member.write(data)
    return into.getvalue()


def whole(member: Member, size: int = 7000) -> bytes:
    pieces = list(iter(lambda: member.read(size), b""))
    assert all(len(piece) <= size for piece in pieces)
    return b"".join(pieces)


@given(MEMBERS, st.integers(1, 1 << 20))
def test_what_is_read_was_written(members: dict[str, tuple[bytes, bool, bool]], size: int) -> None:
    pack = Zip(io.BytesIO(zipped(members)))
    for name, (data, _, _) in members.items():
        assert pack.size(name) == len(data)
        assert whole(pack.open(name), size) == data
    with pytest.raises(KeyError):
        pack.open("another")


def test_members_may_be_read_in_turns() -> None:
    pack = Zip(io.BytesIO(zipped({"a": (b"aaaa" * 50_000, True, False), "b": (b"bbbb" * 50_000, False, False)})))
    one, other = pack.open("a"), pack.open("b")
    for _ in range(20):
        assert (one.read(10_000), other.read(10_000)) == (b"a" * 10_000, b"b" * 10_000)
    assert (one.read(1), other.read(1)) == (b"", b"")


@given(MEMBERS.filter(bool), st.data())
def test_what_is_damaged_ends(members: dict[str, tuple[bytes, bool, bool]], data: st.DataObject) -> None:
    good = zipped(members)
    place = data.draw(st.integers(0, len(good) - 1))
    bad = good[:place] if data.draw(st.booleans()) else good[:place] + b"\xff" + good[place + 1 :]
    try:
        pack = Zip(io.BytesIO(bad))
        for name in members:
            whole(pack.open(name))
    except NO_ZIP:
        pass


def test_more_than_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """zipfile is told that all is large, as writing 4 GB takes a while."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 0)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 0)
    data = zipped({"a": (b"first", True, True), "b": (b"second" * 1000, False, True)})
    assert struct.pack("<4sQ", b"PK\6\6", 44) in data  # the larger end of the directory
    pack = Zip(io.BytesIO(data))
    assert (whole(pack.open("a")), whole(pack.open("b"))) == (b"first", b"second" * 1000)
