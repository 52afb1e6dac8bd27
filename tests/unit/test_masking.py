"""Masking of secret values in streams: however a stream is cut, no value is shown."""

from __future__ import annotations

import json
import random
import re
import shlex

from hypothesis import given
from hypothesis import strategies as st

from mesh.core.events import Connected, Gone, Lost
from mesh.core.masking import MASK, MASK_BYTES, Masker, Piece, Secrets

LETTERS = st.sampled_from("abc")
VALUES = st.lists(st.text(LETTERS, min_size=8, max_size=14), min_size=1, max_size=3)
CUTS = st.lists(st.integers(0, 400), max_size=30)


@st.composite
def streams(draw: st.DrawFn) -> tuple[Secrets, bytes, list[bytes]]:
    """Values, a stream that has them and parts of them, and the stream in chunks."""
    values = draw(VALUES)
    parts = st.sampled_from(values).flatmap(
        lambda value: st.tuples(st.integers(0, len(value)), st.integers(0, len(value))).map(
            lambda ends: value[min(ends) : max(ends)]
        )
    )
    data = "".join(draw(st.lists(st.sampled_from(values) | parts | st.text(LETTERS, max_size=5), max_size=12))).encode()
    cuts = sorted({min(cut, len(data)) for cut in draw(CUTS)})
    return Secrets(values), data, [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def whole(secrets: Secrets, data: bytes) -> bytes:
    """The specification: the leftmost longest value is masked, then what follows it."""
    return re.sub(b"|".join(map(re.escape, secrets.values)), MASK_BYTES, data)


def joined(pieces: list[Piece]) -> bytes:
    return b"".join(piece.data for piece in pieces)


@given(streams())
def test_any_cuts_give_what_masking_the_whole_gives(case: tuple[Secrets, bytes, list[bytes]]) -> None:
    secrets, data, chunks = case
    masker = Masker(secrets)
    pieces = [piece for chunk in chunks for piece in masker.feed(chunk)]
    pieces += masker.end()
    assert joined(pieces) == whole(secrets, data)
    assert sum(piece.taken for piece in pieces) == len(data)
    assert masker.held == 0


@given(streams(), st.data())
def test_no_value_is_whole_in_what_is_shown_where_held_bytes_are_released(
    case: tuple[Secrets, bytes, list[bytes]], data: st.DataObject
) -> None:
    secrets, stream, chunks = case
    masker = Masker(secrets)
    pieces: list[Piece] = []
    for chunk in chunks:
        pieces += masker.feed(chunk)
        if data.draw(st.booleans()):
            pieces += masker.release()
            assert masker.held == 0
    pieces += masker.end()
    assert sum(piece.taken for piece in pieces) == len(stream)
    assert not any(value in joined(pieces) for value in secrets.values)


@given(streams())
def test_only_the_beginning_of_a_value_is_held_back(case: tuple[Secrets, bytes, list[bytes]]) -> None:
    secrets, _, chunks = case
    masker, fed, taken = Masker(secrets), b"", 0
    for chunk in chunks:
        fed += chunk
        taken += sum(piece.taken for piece in masker.feed(chunk))
        held = fed[taken:]
        assert masker.held == len(held) < secrets.longest
        assert not held or any(value.startswith(held) for value in secrets.values)


@given(streams(), st.integers(0, 400))
def test_a_client_that_resumes_masks_a_value_that_began_before(
    case: tuple[Secrets, bytes, list[bytes]], cut: int
) -> None:
    secrets, data, _ = case
    first = Masker(secrets)
    shown = [*first.feed(data[:cut]), *first.release()]
    place = sum(piece.taken for piece in shown)
    second = Masker(secrets, joined(shown)[-secrets.longest :])
    shown += [*second.feed(data[place:]), *second.end()]
    assert not any(value in joined(shown) for value in secrets.values)
    assert sum(piece.taken for piece in shown) == len(data)


def test_a_thousand_random_cuts_of_a_value_of_forty_characters() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    value = "".join(dice.choices("abcdefghijklmnopqrstuvwxyz0123456789_-", k=40))
    secrets = Secrets([value])
    data = b"".join(dice.randbytes(dice.randrange(20)) + value.encode() for _ in range(200))
    cuts = sorted(dice.sample(range(len(data)), 1000))
    masker = Masker(secrets)
    pieces: list[Piece] = []
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        pieces += masker.feed(data[begin:end])
    pieces += masker.end()
    assert joined(pieces) == data.replace(value.encode(), MASK_BYTES)


def test_lines_of_a_value_are_values_and_short_ones_are_not() -> None:
    secrets = Secrets(["first line of key\nend\n", "short"])
    assert secrets.text("first line of key: end, short") == "***: end, short"


def test_texts_of_events_are_masked_and_addresses_are_not() -> None:
    secrets = Secrets(["10.20.30.40"])
    lost = secrets.event(Lost(time=0, node=0, reason="no answer of 10.20.30.40"))
    assert lost.reason == "no answer of ***"
    gone = Gone(time=0, node=0, left=("1234 curl 10.20.30.40",))
    assert secrets.event(gone).left == ("1234 curl ***",)
    connected = Connected(time=0, node=0, address="10.20.30.40", machine="m")
    assert secrets.event(connected) == connected


def test_texts_in_json_are_masked_at_any_depth() -> None:
    secrets = Secrets(["swordfish"])
    assert secrets.json({"a": ["x swordfish", {"b": "swordfish"}], "n": 1}) == {"a": ["x ***", {"b": "***"}], "n": 1}


def test_a_value_that_a_message_quotes_is_masked() -> None:
    value = 'it\'s a \\ "key"'
    secrets = Secrets([value])
    for text in (shlex.join(["echo", value]), f"cannot run {value!r}", json.dumps({"word": value})):
        assert "key" not in secrets.text(text)
        assert MASK in secrets.text(text)
