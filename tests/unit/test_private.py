"""The socket of a keeper is for its own user."""

from __future__ import annotations

from pathlib import Path

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
