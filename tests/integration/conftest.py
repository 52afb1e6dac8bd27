"""Fixtures of the tests of jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Home
from tests.desk import Desk, desk_of


@pytest.fixture
def desk(home: Home) -> Iterator[Desk]:
    """A user without any job; nothing of the user's jobs is left afterwards."""
    with desk_of(home) as desk:
        yield desk


@pytest.fixture
def pod_desk(pod: Home) -> Iterator[Desk]:
    """The same with four hosts of their own."""
    with desk_of(pod) as desk:
        yield desk
