"""The settings of a host in ssh_config(5) files."""

from __future__ import annotations

import io
import os
from pathlib import Path

import fabric
import paramiko

from mesh.backends.ssh.files import FILES, lines_of


class _Parsed(paramiko.SSHConfig):
    """A parser that leaves the tokens of ProxyCommand to us, as we choose the port and user."""

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
        if key in (
            "_root",
            "_keypath",
        ):  # only parts of settings have these, and invoke's message would list every setting
            raise AttributeError(key)
        return super().__getattr__(key)


def load_ssh_config() -> SshConfig:
    """Read all files that OpenSSH reads.

    Raises OSError and paramiko.ConfigParseError.
    """
    parsed = _Parsed()
    for path in FILES:
        parsed.parse(io.StringIO("".join(lines_of(Path(os.path.expanduser(path))))))
    return SshConfig(ssh_config=parsed)
