"""The text of ssh_config(5) files with all that they include, as OpenSSH reads it; paramiko supports no Include."""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

FILES = ("~/.ssh/config", "/etc/ssh/ssh_config")  # the user's, and then the system's: the first value found holds
MAX_DEPTH = 16  # of files that include files: ssh_config.c, READCONF_MAX_DEPTH
_KEYWORD = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.*?)\s*$")


def lines_of(path: Path, depth: int = 0) -> Iterator[str]:
    """The lines of a file with what it includes; one that is not there has none. Raises OSError."""
    if depth > MAX_DEPTH:
        raise OSError(f"{path}: files that include each other")
    try:
        text = path.read_text("utf-8", "surrogateescape")
    except FileNotFoundError:
        return
    block = "Host *"  # that the next line belongs to
    for line in text.splitlines():
        keyword, value = keyword_of(line)
        if keyword in ("host", "match"):
            block = line
        if keyword != "include":
            yield line + "\n"
            continue
        for pattern in shlex.split(value):
            # The files of one directory refer to each other by name: ~/.ssh or /etc/ssh.
            whole = os.path.join(path.parent, os.path.expanduser(pattern))
            for included in sorted(glob.glob(whole)):
                yield from lines_of(Path(included), depth + 1)
                yield f"{block}\n"


def keyword_of(line: str) -> tuple[str, str]:
    """Return the keyword of a line in small letters, and its value; "" and "" for a line without."""
    found = _KEYWORD.match(line)
    return (found.group(1).lower(), found.group(2)) if found else ("", "")
