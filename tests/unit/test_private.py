"""The sockets of a keeper and of a steward are for their own user."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.jobs.place import StorePlace
from mesh.jobs.sockets import socket_path
from mesh.keeper.places import socket_of


def test_a_keeper_has_its_socket_only_where_no_other_user_may_enter(tmp_path: Path) -> None:
    place = tmp_path / "place"
    environ = {"XDG_RUNTIME_DIR": str(place), "HOME": str(tmp_path)}
    assert socket_of(environ) == ""
    place.mkdir(mode=0o700)
    assert Path(socket_of(environ)).parent == place
    for mode in (0o755, 0o770, 0o711):
        place.chmod(mode)
        assert socket_of(environ) == "", oct(mode)
    place.chmod(0o700)
    (tmp_path / "link").symlink_to(place)
    assert socket_of({**environ, "XDG_RUNTIME_DIR": str(tmp_path / "link")}) == ""


@pytest.fixture
def short() -> Iterator[Path]:
    """A private directory with a path that is short enough for a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


def test_a_steward_has_its_socket_only_where_no_other_user_may_enter(tmp_path: Path, short: Path) -> None:
    place, own = StorePlace(directory=tmp_path / "jobs"), short
    assert socket_path({"XDG_RUNTIME_DIR": str(own)}, place).startswith(f"{own}/.mesh-serve-")
    own.chmod(0o755)
    assert socket_path({"XDG_RUNTIME_DIR": str(own)}, place).startswith(f"/tmp/mesh-{os.geteuid()}/.mesh-serve-")
