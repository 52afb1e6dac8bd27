"""The processes that hand a pack on to other hosts."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from mesh.engine.courier import make_credentials
from mesh.remote.agent.state import State
from mesh.remote.agent.sync import Sync
from tests.conftest import own_children
from tests.lab import eventually


@pytest.mark.parametrize("is_told", [True, False])
def test_one_that_was_killed_does_no_harm_to_its_agent(tmp_path: Path, is_told: bool) -> None:
    """As where a run is ended: somebody else has killed it, and waited for it. Its number may be another's by now."""
    state = State(str(tmp_path), "project")
    state.make()
    sync = Sync(state, "run", fresh=False)
    before = own_children()
    assert sync.serve(10, make_credentials()) > 0
    (server,) = (int(pid) for pid in own_children() - before)
    os.kill(server, signal.SIGKILL)
    os.waitpid(server, 0)
    if is_told:
        sync.has_ended(server)
        assert not sync.is_serving
    sync.drop()
    assert not sync.is_serving
    assert eventually(lambda: not [path for path in tmp_path.rglob("*pack*") if path.is_file()])
