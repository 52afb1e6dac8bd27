"""ssh_config(5) files, as OpenSSH reads them; paramiko alone knows no Include."""

from __future__ import annotations

import glob
import io
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import fabric
import paramiko

USER_FILE, SYSTEM_FILE = "~/.ssh/config", "/etc/ssh/ssh_config"
MAX_DEPTH = 16  # of files that include files: ssh_config.c, READCONF_MAX_DEPTH
_KEYWORD = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.*?)\s*$")


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


def load_ssh_config() -> SshConfig:
    """The user's file, and then the system's: the first value found holds.

    Raises OSError and paramiko.ConfigParseError.
    """
    parsed = _Parsed()
    for path in (USER_FILE, SYSTEM_FILE):
        parsed.parse(io.StringIO("".join(_lines(Path(os.path.expanduser(path)), 0))))
    return SshConfig(ssh_config=parsed)


def _lines(path: Path, depth: int) -> Iterator[str]:
    """The lines of a file with what it includes; one that is not there has none."""
    if depth > MAX_DEPTH:
        raise paramiko.ConfigParseError(f"{path}: files that include each other")
    try:
        text = path.read_text("utf-8", "surrogateescape")
    except FileNotFoundError:
        return
    block = "Host *"  # that the next line belongs to
    for line in text.splitlines():
        found = _KEYWORD.match(line)
        keyword = found.group(1).lower() if found else ""
        if keyword in ("host", "match"):
            block = line
        if found is None or keyword != "include":
            yield line + "\n"
            continue
        for pattern in shlex.split(found.group(2)):
            # The files of one directory refer to each other by name: ~/.ssh or /etc/ssh.
            whole = os.path.join(path.parent, os.path.expanduser(pattern))
            for included in sorted(glob.glob(whole)):
                yield from _lines(Path(included), depth + 1)
                yield f"{block}\n"
