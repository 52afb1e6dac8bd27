"""What logs keep when there is more than they may have, on a disk with room and on one without."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.rundir.layout import marker, read_tail_name
from mesh.rundir.logfile import SMALL_BYTES, LogFile, Shelf
from mesh.rundir.replay import LogFiles
from tests.full import times

EFFORT = settings(max_examples=times(25, full=50), deadline=None)
# Sizes of chunks, and what is done after each.
STEPS = st.lists(st.tuples(st.integers(0, 40_000), st.booleans(), st.booleans()), max_size=40)


def stream(size: int) -> bytes:
    """Bytes of which every 8 tell their place."""
    return b"".join(b"%07x\n" % number for number in range(size // 8 + 1))[:size]


@contextmanager
def shelf_of(limit: int, shares: int = 1) -> Iterator[tuple[Path, Shelf, list[OSError], list[bool]]]:
    """A shelf, what has failed, and whether the disk is short (the last item)."""
    failed: list[OSError] = []
    short = [False]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "logs").mkdir()
        shelf = Shelf(limit, shares, failed.append, lambda path: short[-1])
        try:
            yield directory, shelf, failed, short
        finally:
            shelf.close_all()


def read_all(directory: Path, name: str) -> bytes:
    files = LogFiles(directory)
    files.look()
    found, place = b"", 0
    try:
        while True:
            data, after = files.read(name, place, 1 << 60)
            if after == place:
                return found
            found, place = found + data, after
    finally:
        files.close()


@EFFORT
@given(STEPS, st.integers(0, 2_000_000))
def test_head_and_tail_are_exact_and_so_is_the_count(steps: list[tuple[int, bool, bool]], limit: int) -> None:
    total = stream(sum(size for size, *_ in steps))
    with shelf_of(limit) as (directory, shelf, failed, short):
        log, place = LogFile(directory / "logs/x", shelf), 0
        for size, flush, is_short in steps:
            short.append(is_short)
            log.add(total[place : place + size])
            place += size
            if flush:
                log.flush()
        log.finish()
        apart = read_all(directory, "x")
        gaps = log.join()
        log.drop_tail()
        assert os.listdir(directory / "logs") == (["x"] if total else [])
        found = (directory / "logs/x").read_bytes() if total else b""
    assert not failed
    assert found == apart
    assert log.size == len(total)
    assert sum(gap.count for gap in gaps) == log.left_out() == len(total) - len(found) + sum(g.marker for g in gaps)
    if not gaps:
        assert found == total
        return
    (gap,) = gaps
    head, tail = found[: gap.at], found[gap.at + gap.marker :]
    assert total.startswith(head)
    assert total.endswith(tail)
    assert len(head) >= SMALL_BYTES <= len(tail)
    assert found[gap.at : gap.at + gap.marker] == marker(gap.count)
    assert len(head) + len(tail) <= max(limit, 3 * SMALL_BYTES)


@EFFORT
@given(STEPS)
def test_units_are_never_torn(steps: list[tuple[int, bool, bool]]) -> None:
    unit = 20
    with shelf_of(0) as (directory, shelf, _, _):
        log, count = LogFile(directory / "logs/x", shelf, unit=unit), 0
        for size, *_ in steps:
            for _ in range(size // unit):
                log.add(b"%019d\n" % count)
                count += 1
            log.flush()
        log.finish()
        for name in os.listdir(directory / "logs"):
            told = read_tail_name(name)
            data = (directory / "logs" / name).read_bytes()
            first = told[2] // unit if told else 0
            assert data == b"".join(b"%019d\n" % number for number in range(first, first + len(data) // unit))


def test_who_speaks_late_has_a_head_as_well() -> None:
    with shelf_of(10_000_000, shares=10) as (directory, shelf, _, _):
        loud, late = LogFile(directory / "logs/a", shelf), LogFile(directory / "logs/b", shelf)
        for _ in range(300):
            loud.add(b"x" * 50_000)
            loud.flush()
        late.add(stream(500_000))
        late.finish()
        gaps = late.join()
        assert sum(path.stat().st_size for path in (directory / "logs").iterdir()) < 10_000_000
    assert gaps[0].at == 10_000_000 // 80


def test_what_a_crash_leaves_while_parts_are_joined_is_read_once() -> None:
    with shelf_of(0) as (directory, shelf, _, _):
        log = LogFile(directory / "logs/x", shelf)
        for at in range(0, 200_000, 10_000):
            log.add(stream(200_000)[at : at + 10_000])
            log.flush()
        log.finish()
        before = read_all(directory, "x")
        log.join()  # nobody drops the tail
        assert read_all(directory, "x") == before
        assert before.startswith(stream(SMALL_BYTES) + b"\n[mesh: ")
        assert before.endswith(stream(200_000)[-SMALL_BYTES:])


@pytest.mark.root
def test_a_full_disk_keeps_the_newest_and_the_head(tiny_disk: Path) -> None:
    """Somebody else fills the disk while a log is written, and never gives room back."""
    total = stream(400_000)
    failed: list[OSError] = []
    (tiny_disk / "logs").mkdir()
    shelf = Shelf(10**9, 1, failed.append, lambda path: False)
    log = LogFile(tiny_disk / "logs/x", shelf)
    log.add(total[:200_000])
    log.flush()
    fill(tiny_disk)
    for at in range(200_000, 400_000, 1000):
        log.add(total[at : at + 1000])
        log.flush()
    assert failed
    log.finish()
    gaps = log.join()
    log.drop_tail()
    shelf.close_all()
    found = (tiny_disk / "logs/x").read_bytes()
    (gap,) = gaps
    assert total.startswith(found[: gap.at])
    assert total.endswith(found[gap.at + gap.marker :])
    assert gap.at >= 150_000
    assert len(found) - gap.at - gap.marker == SMALL_BYTES
    assert gap.count == len(total) - len(found) + gap.marker


@pytest.mark.root
def test_an_index_on_a_full_disk_ends_with_a_whole_unit(tiny_disk: Path) -> None:
    failed: list[OSError] = []
    (tiny_disk / "logs").mkdir()
    shelf = Shelf(10**9, 1, failed.append, lambda path: False)
    log = LogFile(tiny_disk / "logs/x", shelf, unit=20)
    fill(tiny_disk, but=8192)
    for number in range(2000):
        log.add(b"%019d\n" % number)
        log.flush()
    log.finish()
    shelf.close_all()
    assert failed
    sizes = [path.stat().st_size for path in (tiny_disk / "logs").iterdir()]
    assert sum(sizes) > 8000
    assert not any(size % 20 for size in sizes)


def fill(directory: Path, but: int = 0) -> None:
    """Use all of a disk, less some bytes."""
    with (directory / "fill").open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            file.truncate(file.tell() - but)
