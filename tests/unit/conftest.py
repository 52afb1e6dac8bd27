"""Fixtures of unit tests."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest

from tests.conftest import PATIENCE


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """Fail a test that leaves a thread."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + PATIENCE
    while left := set(threading.enumerate()) - before:
        assert time.monotonic() < deadline, left
        with contextlib.suppress(RuntimeError):  # of a thread that is about to begin
            next(iter(left)).join(0.1)
