"""What ssh_config(5) files say of a host."""

from __future__ import annotations

import io
import os
from pathlib import Path

import fabric
import paramiko

from mesh.backends.ssh.files import FILES, lines_of


class _Parsed(paramiko.SSHConfig):
    """Leaves the tokens of ProxyCommand to us, who know the port and user that are really used."""

    def _allowed_tokens(self, key: str) -> list[str]:
        return [] if key == "proxycommand" else list(super()._allowed_tokens(key))  # type: ignore[misc]


class SshConfig(fabric.Config):  # type: ignore[misc]
    """Fabric's settings from ssh_config alone: fabric.yaml, FABRIC_* and INVOKE_* are for other programs."""

    def load_system(self, merge: bool = True) -> None: ...

    def load_user(self, merge: bool = True) -> None: ...

    def load_project(self, merge: bool = True) -> None: ...

    def load_runtime(self, merge: bool = True) -> None: ...

    def load_shell_env(self) -> None: ...

    def __getattr__(self, key: str) -> object:
        if key in ("_root", "_keypath"):  # which parts of settings have: to say so, invoke would list all there is
            raise AttributeError(key)
        return super().__getattr__(key)


def load_ssh_config() -> SshConfig:
    """What all files say.

    Raises OSError and paramiko.ConfigParseError.
    """
    parsed = _Parsed()
    for path in FILES:
        parsed.parse(io.StringIO("".join(lines_of(Path(os.path.expanduser(path))))))
    return SshConfig(ssh_config=parsed)
