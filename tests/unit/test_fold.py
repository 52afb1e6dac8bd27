"""Folding: which lines become one, in which order, and that none is lost, doubled or late."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.core.escapes import clean_lines
from mesh.core.ranks import members, told
from mesh.screen import fold as folding
from mesh.screen.fold import HOLD_S, Fold, Folded

TICK = 0.05  # seconds between two looks at the clock
LATEST = 0.5  # seconds that a line may wait


def shown(found: Iterable[Folded]) -> list[str]:
    return [f"[{told(members(one.ranks))}] {one.text.decode()}" for one in found]


def fold_all(*written: tuple[int, str], ranks: int = 2, exact: bool = False) -> list[str]:
    """What is shown of chunks that come at the same moment, and of nothing more."""
    fold = Fold(range(ranks), "exact" if exact else "numbers")
    found = [one for rank, text in written for one in fold.feed(rank, text.encode(), 0.0)]
    return shown([*found, *fold.tick(HOLD_S)])


def test_numbers_as_mean_and_deviation_but_a_ranks_own_number_as_a_range() -> None:
    fold = Fold(range(4), "mean")
    found = []
    for rank in range(4):
        line = f"rank {rank}: step 3 loss 2.{50 + rank} tokens {12000 + 100 * rank} at 12:00:0{rank}\n"
        found += fold.feed(rank, line.encode(), 0.0)
    assert shown(found) == ["[0-3] rank 0..3: step 3 loss 2.51±0.01 tokens 12150±112 at 12:00:00..03"]
    assert [one.is_mixed for one in found] == [True]


# ---- which lines become one

CASES = {
    "equal lines": ([(0, "a\n"), (1, "a\n")], ["[0-1] a"]),
    "different lines": ([(0, "a\n"), (1, "b\n")], ["[0] a", "[1] b"]),
    "a line in between that only one has": ([(0, "a\nx\nb\n"), (1, "a\nb\n")], ["[0-1] a", "[0] x", "[0-1] b"]),
    "each has its own first": ([(0, "h0\na\nb\n"), (1, "h1\na\nb\n")], ["[0] h0", "[1] h1", "[0-1] a", "[0-1] b"]),
    "the other way round": ([(0, "a\nb\n"), (1, "b\na\n")], ["[0] a", "[0-1] b", "[1] a"]),
    "the same twice": ([(0, "a\na\n"), (1, "a\na\na\n")], ["[0-1] a", "[0-1] a", "[1] a"]),
    "chunks that end anywhere": ([(0, "he"), (1, "hello\n"), (0, "llo\n")], ["[0-1] hello"]),
    "empty lines": ([(0, "\n\n"), (1, "\n\n")], ["[0-1] ", "[0-1] "]),
    "a range": (
        [(0, "step 120 loss 2.31\n"), (1, "step 120 loss 2.35\n")],
        ["[0-1] step 120 loss 2.31..2.35"],
    ),
    "another step": (
        [(0, "step 120 loss 2\n"), (1, "step 119 loss 2\n")],
        ["[0] step 120 loss 2", "[1] step 119 loss 2"],
    ),
    "a rank's own number": ([(0, "rank 0 of 2\n"), (1, "rank 1 of 2\n")], ["[0-1] rank 0..1 of 2"]),
    "a nan stands out": (
        [(0, "the loss is 2.5\n"), (1, "the loss is nan\n")],
        ["[0] the loss is 2.5", "[1] the loss is nan"],
    ),
    "an address": ([(0, "<Foo object at 0x7f01>\n"), (1, "<Foo object at 0x7e02>\n")], ["[0-1] <Foo object at 0x..>"]),
    "a time": (
        [(0, "2026-11-21 13:59:59,998 INFO up\n"), (1, "2026-11-21 14:00:00,001 INFO up\n")],
        ["[0-1] 2026-11-21 13:59:59,998..14:00:00,001 INFO up"],
    ),
    "too many numbers": (
        [(0, "the row: 1 2 3 4 5\n"), (1, "the row: 6 7 8 9 10\n")],
        ["[0] the row: 1 2 3 4 5", "[1] the row: 6 7 8 9 10"],
    ),
    "values": ([(0, "tpu-0\n17\n"), (1, "tpu-1\n18\n")], ["[0] tpu-0", "[0] 17", "[1] tpu-1", "[1] 18"]),
    "addresses are words": (
        [(0, "listening on 10.0.0.1\n"), (1, "listening on 10.0.0.2\n")],
        ["[0] listening on 10.0.0.1", "[1] listening on 10.0.0.2"],
    ),
    "numbers in colours": (
        [(0, "\x1b[31mloss is 2.31\x1b[0m\n"), (1, "\x1b[31mloss is 2.35\x1b[0m\n")],
        ["[0-1] \x1b[31mloss is 2.31..2.35\x1b[0m"],
    ),
    "rather an equal one": (
        [(0, "item 5 is in\nitem 6 is in\n"), (1, "item 6 is in\n")],
        ["[0] item 5 is in", "[0-1] item 6 is in"],
    ),
    "no sign between words": ([(0, "took 3-4 of them\n"), (1, "took 3-5 of them\n")], ["[0-1] took 3-4..5 of them"]),
    "a sign": ([(0, "the reward is -2\n"), (1, "the reward is -10\n")], ["[0-1] the reward is -10..-2"]),
    "a time and a number": ([(0, "it took 3\n"), (1, "it took 0:03\n")], ["[0] it took 3", "[1] it took 0:03"]),
    "a zero byte and a number": ([(0, "ab\0c d 3\n"), (1, "ab1c d 3\n")], ["[0] ab\0c d 3", "[1] ab1c d 3"]),
    "the last state of a bar": (
        [(0, "\r 10%|#   | 1/9\r100%|####| 9/9\n"), (1, "\r 99%|### | 8/9\r100%|####| 9/9\n")],
        ["[0-1] 100%|####| 9/9"],
    ),
    "line ends of Windows": ([(0, "a\r\nb\r\n"), (1, "a\nb\n")], ["[0-1] a", "[0-1] b"]),
}


@pytest.mark.parametrize(("written", "expected"), CASES.values(), ids=CASES)
def test_which_lines_become_one(written: Sequence[tuple[int, str]], expected: Sequence[str]) -> None:
    assert fold_all(*written) == expected


@pytest.mark.parametrize(
    "piece", ["x", "1", "1a", "\r", "x\r", "\x1b[31m", "\x1b[31m\x1b[0m", "\x1b]", "1.", "- ", "0x1 "]
)
def test_lines_that_are_made_to_take_long(piece: str) -> None:
    text = piece * (900_000 // len(piece))
    assert len(fold_all((0, text + "y" * 50_000 + "\nend\n"), (1, "end\n"))) == 2
    assert clean_lines(text).count("y") == 0


def test_exactly_equal_lines_only() -> None:
    lines = [(0, "rank 0 of 2\na\n"), (1, "rank 1 of 2\na\n")]
    assert fold_all(*lines, exact=True) == ["[0] rank 0 of 2", "[1] rank 1 of 2", "[0-1] a"]


TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main({0})

ValueError: {0} is {1}
"""


def test_a_traceback_is_one_thing() -> None:
    text = TRACEBACK.format("x", "bad")
    other = TRACEBACK.format("y", "bad")
    lines = text.splitlines(keepends=True)
    mixed = [(rank, line) for line in lines for rank in (0, 1)]
    third = [(2, line) for line in other.splitlines(keepends=True)]
    together = [one for pair in zip(mixed[::2], mixed[1::2], third, strict=True) for one in pair]
    assert fold_all(*together, ranks=3) == ["[0-1] " + text[:-1], "[2] " + other[:-1]]


def test_tracebacks_that_differ_in_an_address_or_in_what_leads_their_lines() -> None:
    texts = [
        "".join(f"[rank{rank}]: {line}\n" for line in TRACEBACK.format("x", f"at 0x7f0{rank}").splitlines())
        for rank in range(2)
    ]
    [found] = fold_all(*enumerate(texts))
    assert found.count("[rank0..1]: ") == 5
    assert found.endswith("x is at 0x..")


def test_a_traceback_that_stops_in_the_middle() -> None:
    fold = Fold(range(2))
    assert not fold.feed(0, b"Traceback (most recent call last):\n  File 1\n", 0.0)
    assert shown(fold.tick(HOLD_S)) == ["[0] Traceback (most recent call last):\n  File 1"]
    assert not fold.feed(0, b"  File 2\n", 1.0)
    assert shown(fold.end(0, 1.1)) == []
    assert shown(fold.end(1, 1.2)) == ["[0]   File 2"]


# ---- when


def test_what_all_have_is_shown_at_once_and_a_rank_that_has_ended_is_not_waited_for() -> None:
    fold = Fold(range(3))
    assert fold.feed(0, b"a\n", 0.0) + fold.feed(1, b"a\n", 0.0) == []
    assert shown(fold.feed(2, b"a\n", 0.0)) == ["[0-2] a"]
    assert fold.feed(0, b"b\n", 0.0) + fold.feed(1, b"b\n", 0.0) == []
    assert shown(fold.end(2, 0.1)) == ["[0-1] b"]
    assert shown(fold.feed(0, b"c\n", 0.1) + fold.feed(1, b"c\n", 0.1)) == ["[0-1] c"]


def test_a_slow_rank_is_not_waited_for_longer_than_it_may_take() -> None:
    fold = Fold(range(3))
    assert fold.feed(0, b"step 1\n", 0.0) + fold.feed(1, b"step 1\n", 0.1) == []
    assert fold.tick(HOLD_S - 0.01) == []
    assert shown(fold.tick(HOLD_S)) == ["[0-1] step 1"]
    assert fold.feed(2, b"step 1\n", 0.6) == []
    assert fold.feed(0, b"step 2\n", 0.7) == []
    assert shown(fold.tick(2.0)) == ["[2] step 1", "[0] step 2"]


def test_a_long_line_is_shown_as_it_is_in_its_place() -> None:
    fold = Fold(range(2))
    assert fold.feed(0, b"first\n", 0.0) == []
    for _ in range(40):
        assert fold.feed(0, b"x" * 65536, 0.0) == []
    before, long = fold.feed(0, b"y\nnext\n", 0.0)
    assert before.text == b"first"
    assert long.head is not None
    with long.head as file:
        file.seek(0)
        assert file.read() + long.text == b"x" * 65536 * 40 + b"y\nnext"


def test_more_than_can_be_compared_is_shown_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "BURST_COST", 1000)
    fold = Fold(range(2))
    assert fold.feed(0, b"a\n", 0.0) == []
    flood = b"x\n" * 1000
    assert fold.feed(0, flood, 0.1) == []
    assert len(found := fold.feed(0, flood, 0.2)) == 1002
    assert found[-1] == Folded(1, flood[:-1])
    assert fold.feed(0, b"b\n", 10.0) == []
    assert shown(fold.tick(11.0)) == ["[0] b"]


def test_bars_are_one_and_the_slowest_stands_for_all() -> None:
    fold = Fold(range(4))
    for rank, bar in enumerate((b"50%|#####     | 5/10", b"40%|####      | 4/10", b"60%|######    | 6/10")):
        assert fold.feed(rank, b"\r 0%|          | 0/10\r " + bar, 0.0) == []
    fold.feed(3, b"no bar", 0.0)
    assert shown(fold.bars()) == ["[0-2]  40..60%|####      | 4..6/10"]
    for rank in range(3):
        fold.feed(rank, b"\r100%|##########| 10/10\n", 0.1)
    assert fold.bars() == []
    assert shown(fold.tick(1.0)) == ["[0-2] 100%|##########| 10/10"]


# ---- what holds for all that ranks can write

LINES = st.sampled_from(
    (
        *("a", "b", "c", "", "step 1", "loss is 1.5", "loss is 2.5", "rank 0 is up", "rank 1 is up"),
        *("Traceback (most recent call last):", "  File x", "ValueError: 0x7f"),
    )
)
WRITES = st.tuples(
    st.integers(0, 3),
    st.lists(LINES, max_size=4),
    st.sampled_from(["\n", "\n", "\n", ""]),
    st.sampled_from([0.0, 0.01, 0.2]),
)
ENDS = st.tuples(st.integers(0, 3), st.just(None), st.just(""), st.just(0.0))
HISTORIES = st.lists(st.one_of(WRITES, WRITES, WRITES, WRITES, ENDS), max_size=40)


class Screen:
    """Feeds a fold, with a clock that ticks, and keeps what it shows."""

    def __init__(self, *, exact: bool) -> None:
        self.fold = Fold(range(4), "exact" if exact else "numbers")
        self.now = 0.0
        self.written = [""] * 4
        self.ended: set[int] = set()
        self.units: list[Folded] = []
        self.came: list[list[float]] = [[] for _ in range(4)]  # when each line of a rank was whole
        self.shown: list[list[str]] = [[] for _ in range(4)]

    def write(self, rank: int, text: str) -> None:
        self.written[rank] += text
        self.came[rank] += [self.now] * text.count("\n")
        self.take(self.fold.feed(rank, text.encode(), self.now))

    def end(self, rank: int) -> None:
        self.ended.add(rank)
        if self.written[rank] and not self.written[rank].endswith("\n"):
            self.came[rank].append(self.now)
        self.take(self.fold.end(rank, self.now))

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += min(TICK, until - self.now)
            self.take(self.fold.tick(self.now))

    def take(self, found: list[Folded]) -> None:
        self.units += found
        for one in found:
            for rank in members(one.ranks):
                for line in one.text.decode().split("\n"):
                    place = len(self.shown[rank])
                    assert self.now - self.came[rank][place] <= LATEST
                    self.shown[rank].append(line)


def play(history: list[tuple[int, list[str] | None, str, float]], *, exact: bool) -> Screen:
    screen = Screen(exact=exact)
    for rank, lines, end, wait in history:
        if rank in screen.ended:
            continue
        if lines is None:
            screen.end(rank)
        elif lines:
            screen.write(rank, "\n".join(lines) + end)
        screen.wait(wait)
    for rank in set(range(4)) - screen.ended:
        screen.end(rank)
    return screen


@given(HISTORIES)
def test_every_rank_is_shown_what_it_wrote_in_its_order_and_in_time(
    history: list[tuple[int, list[str] | None, str, float]],
) -> None:
    screen = play(history, exact=True)
    for rank in range(4):
        text = screen.written[rank]
        assert screen.shown[rank] == (text.removesuffix("\n").split("\n") if text else [])


@given(HISTORIES)
def test_with_ranges_as_well(history: list[tuple[int, list[str] | None, str, float]]) -> None:
    screen = play(history, exact=False)
    for rank in range(4):
        text = screen.written[rank]
        lines = text.removesuffix("\n").split("\n") if text else []
        assert len(screen.shown[rank]) == len(lines)
        for line, told_as in zip(lines, screen.shown[rank], strict=True):
            numbers = re.findall(r"[\d.]+\d|\d", line)
            ranges = [one.split("..") for one in re.findall(r"\d[\d.]*", told_as)]
            assert re.sub(r"[\d.]+", "#", line) == re.sub(r"[\d.]+", "#", told_as)
            assert all(
                float(r[0]) <= float(n) <= float(r[-1])
                for n, r in zip(numbers, ranges, strict=True)
                if "0x" not in line
            )
