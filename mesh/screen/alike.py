"""Lines that count as alike: equal lines, or lines that differ only in numbers that a range can show.

``step 120 loss 2.31`` and ``step 120 loss 2.35`` are alike, and shown as ``step 120 loss 2.31..2.35``. Not alike are

* two lines with different numbers of a step, epoch, iteration, batch or the like, because a rank that is behind must be
  seen;
* a line of a single word, or without a word of three letters: it is a value, and a range would hide whose;
* lines that differ in more than ``VARIED_NUMBERS`` numbers. Times, hexadecimal addresses and a rank's own number do not
  count.

Addresses such as 10.0.0.3, versions and hashes are words.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence

from msgspec import Struct

from mesh.core.steps import WORDS

VARIED_NUMBERS = 4  # that may differ in lines that are alike
LINE_BYTES = 1 << 14  # longest line or traceback in which numbers are looked for
TOLD_PARTS = 64  # numbers of a line; a line with more is a table or a dump, and only equal ones are alike

_NUMBER = re.compile(
    rb"""([0-9](?:                                                # which begins it: the search for digits is fast
      [0-9]{3}-\d\d-\d\d[T\ ]\d\d:\d\d:\d\d(?:[.,]\d+)?         # a date and time
    | (?<![\d:.]\d)\d{0,2}:\d\d(?::\d\d)?(?:[.,]\d+)?(?![\d:])  # a time
    | (?<=0)x[0-9a-fA-F]+                                         # an address
    | (?<!\d\d)(?<!\d\.\d)(?<!\d[A-Za-z_]\d)                     # not within 10.0.0.3 or 3f9c2a
      \d*(?:\.\d+)?(?:[eE][-+]?\d+)?
      (?!\d|\.\d|[A-Za-z_]\w{0,20}\d)
    ))""",
    re.VERBOSE,
)
_ESCAPE = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|" + _NUMBER.pattern, re.VERBOSE)
_COUNTER = re.compile(rb"(?:" + WORDS + rb")s?[^\w\n]{0,4}\Z", re.IGNORECASE)
_GLYPHS = re.compile("[\u2500-\u259f#=>. -]+")  # bars are drawn with these, and padded
_MINUS = re.compile(rb"(?<![\w)\]-])-\Z")  # between two words it is no minus
_WORD = re.compile(rb"[A-Za-z\x80-\xff]{3}")
_SEPARATORS = b" T:.,-"


class Shape(Struct, frozen=True):
    """The part of a line that all lines alike to it share."""

    key: bytes
    parts: tuple[bytes, ...] = ()  # the text around its numbers, one more than numbers; () if it has none that may vary
    numbers: tuple[bytes, ...] = ()


def shape(line: bytes, *, bar: bool = False) -> Shape:
    r"""Return the shape of a line; bar: it was overprinted by ``\r``, and its length stands for a number.

    >>> shape(b"rank 3: loss 2.31").parts, shape(b"rank 3: loss 2.31").numbers
    ((b'rank ', b': loss ', b''), (b'3', b'2.31'))
    >>> shape(b"step 4 loss 2.31").numbers, shape(b"tpu-3").numbers, shape(b"from 10.0.0.3").numbers
    ((b'2.31',), (), ())
    """
    if len(line) > LINE_BYTES:
        return Shape(line)
    pieces = _split_coloured(line) if b"\x1b" in line else _NUMBER.split(line)
    if not 1 < len(pieces) < 2 * TOLD_PARTS:
        return Shape(line)
    parts: list[bytes] = [pieces[0]]
    numbers: list[bytes] = []
    for number, text in zip(pieces[1::2], pieces[2::2], strict=True):
        if _counts(parts[-1][-20:]):
            parts[-1] += number + text
        else:
            if parts[-1].endswith(b"-") and _MINUS.search(parts[-1][-2:]) and not (numbers and parts[-1] == b"-"):
                parts[-1], number = parts[-1][:-1], b"-" + number
            numbers.append(number)
            parts.append(text)
    common = b"\0".join(parts)
    if bar:
        common = _GLYPHS.sub(" ", common.decode("utf-8", "replace")).strip().encode()
    elif b" " not in common or not _WORD.search(common):
        return Shape(line)
    return Shape(common, tuple(parts), tuple(numbers)) if numbers else Shape(line)


def _split_coloured(line: bytes) -> list[bytes]:
    """Split like ``_NUMBER.split``, but leave numbers in escape sequences alone."""
    pieces, at = [b""], 0
    for match in _ESCAPE.finditer(line):
        pieces[-1] += line[at : match.start()]
        at = match.end()
        if match.group(1) is None:
            pieces[-1] += match.group()
        else:
            pieces += [match.group(1), b""]
    pieces[-1] += line[at:]
    return pieces


@functools.lru_cache(4096)
def _counts(text: bytes) -> bool:
    """Return True if the number after this text counts the progress of a rank."""
    return _COUNTER.search(text) is not None


class Ranges:
    """The ranges of the numbers in lines that are alike.

    >>> ranges = Ranges(shape(b"rank 0 of 2: 7 s"), 0b1)
    >>> ranges.take(shape(b"rank 1 of 2: 9.5 s").numbers, 1), ranges.text()
    (True, b'rank 0..1 of 2: 7..9.5 s')
    >>> ranges.text(with_means=True)
    b'rank 0..1 of 2: 8.2\xc2\xb11.2 s'
    """

    def __init__(self, first: Shape, ranks: int) -> None:
        """ranks: bits of those that have written the line so far, all with the same numbers"""
        self._parts = first.parts
        self._low, self._high = list(first.numbers), list(first.numbers)
        count = ranks.bit_count()
        self._is_own = [count == 1 and _is_own(number, ranks.bit_length() - 1) for number in first.numbers]
        self._taken: list[tuple[Sequence[bytes], int]] = [(first.numbers, count)]  # numbers, and how many have these

    def take(self, numbers: Sequence[bytes], rank: int, *, most: int = VARIED_NUMBERS) -> bool:
        """Add the line of another rank; False, and nothing is changed, if more than ``most`` numbers would differ."""
        is_own = [own and _is_own(number, rank) for own, number in zip(self._is_own, numbers, strict=True)]
        varied = 0
        for number, low, high, own in zip(numbers, self._low, self._high, is_own, strict=True):
            if number != low or low != high:
                kind = _kind(number)
                if kind != _kind(low):
                    return False
                varied += kind == "number" and not own
        if varied > most:
            return False
        self._is_own = is_own
        self._taken.append((numbers, 1))
        for place, number in enumerate(numbers):
            if number != self._low[place] and _value(number) < _value(self._low[place]):
                self._low[place] = number
            elif number != self._high[place] and _value(number) > _value(self._high[place]):
                self._high[place] = number
        return True

    def text(self, *, with_means: bool = False) -> bytes:
        """Return the line, with a range in the place of each number that differs.

        with_means: with mean and standard deviation instead; a rank's own number, a time or an address has a range
        """
        told = [self._parts[0]]
        for place, (low, high) in enumerate(zip(self._low, self._high, strict=True)):
            if with_means and low != high and _kind(low) == "number" and not self._is_own[place]:
                told += [_mean([(numbers[place], count) for numbers, count in self._taken])]
            else:
                told += [_range(low, high)]
            told += [self._parts[place + 1]]
        return b"".join(told)


def _range(low: bytes, high: bytes) -> bytes:
    """
    >>> _range(b"7", b"7"), _range(b"0x7f01", b"0x7f02"), _range(b"12:59:01", b"12:59:03")
    (b'7', b'0x..', b'12:59:01..03')
    """
    if low == high:
        return low
    kind = _kind(low)
    if kind == "address":
        return b"0x.."
    same = 0
    if kind == "time" and len(low) == len(high):
        for place, (one, other) in enumerate(zip(low, high, strict=True)):
            if one != other:
                break
            same = place + 1 if one in _SEPARATORS else same
    return low + b".." + high[same:]


def _mean(numbers: Sequence[tuple[bytes, int]]) -> bytes:
    """Return mean and standard deviation, with the decimals of the numbers.

    numbers: each with how often it came

    >>> _mean([(b"2.51", 1), (b"2.49", 1)]).decode(), _mean([(b"12020", 3), (b"12264", 1)]).decode()
    ('2.50±0.01', '12081±106')
    """
    count = sum(times for _, times in numbers)
    values = [(float(number), times) for number, times in numbers]
    mean = sum(value * times for value, times in values) / count
    deviation = math.sqrt(sum((value - mean) ** 2 * times for value, times in values) / count)
    if any(b"e" in number.lower() for number, _ in numbers):
        return f"{mean:.2e}±{deviation:.0e}".encode()
    decimals = max(len(number.partition(b".")[2]) for number, _ in numbers) or int(abs(mean) < 100)
    return f"{mean:.{decimals}f}±{deviation:.{decimals}f}".encode()


def _kind(number: bytes) -> str:
    if b":" in number:
        return "time"
    return "address" if number.startswith(b"0x") else "number"


def _value(number: bytes) -> tuple[float, bytes]:
    """Return a key by which two numbers of one kind are compared."""
    if number.startswith(b"0x"):
        return 0.0, number
    if b":" not in number:
        return float(number), b""
    if b"-" in number:  # a date sorts as it is written
        return 0.0, number
    seconds = 0.0
    for part in number.replace(b",", b".").split(b":"):
        seconds = seconds * 60 + float(part)
    return seconds, b""


def _is_own(number: bytes, rank: int) -> bool:
    return len(number) < 8 and number.isdigit() and int(number) == rank


def first_value(like: Shape) -> float:
    """Return the first number of a line: how far a bar is."""
    return _value(like.numbers[0])[0] if like.numbers else 0.0
