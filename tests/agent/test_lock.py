"""What the lock of a host tells those who find it taken."""

from __future__ import annotations

import pytest

from mesh.core.events import Busy, Connected, Locked

from .conftest import Open


@pytest.mark.parametrize("watch", [True, False])
def test_only_a_sync_that_is_repeated_is_called_brief(opener: Open, any_python: str, watch: bool) -> None:
    first = opener(any_python, run="one", owner={"run": "one", "user": "me", "watch": watch})
    first.lock()
    second = opener(any_python, run="two", owner={"run": "two"})
    second.until(Connected)
    second.session.lock()
    found = second.until(Busy, Locked)
    assert isinstance(found, Busy)
    assert found.is_brief is watch
    assert "me" in found.owner
    for run in (first, second):
        assert run.finish().left == ()
