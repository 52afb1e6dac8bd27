"""Commands to the log of a GitHub Actions job: groups of lines that fold away, and annotations."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

from mesh.core.escapes import plain
from mesh.core.events import Event, Finished, Started

END = "::endgroup::"


def is_job(environ: Mapping[str, str]) -> bool:
    """Return True if our output goes into the log of a job."""
    return environ.get("GITHUB_ACTIONS") == "true"


def group(title: str) -> str:
    """Return the line that begins a group.

    >>> group("50%\\nof it")
    '::group::50%25%0Aof it'
    """
    return f"::group::{_escaped(title)}"


def error(text: str) -> str:
    """Return the line that annotates an error of several lines.

    >>> error("rank 1 failed: 50%\\r\\nof it")
    '::error title=mesh::rank 1 failed: 50%25%0Aof it'
    """
    return f"::error title=mesh::{_escaped(text)}"


def _escaped(text: str) -> str:
    """Escape a text for the runner, whose commands are one line each."""
    text = plain(text)  # removes carriage returns
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


class Literal:
    """Two lines around the output of hosts, between which the runner takes no line for a command."""

    def __init__(self) -> None:
        token = secrets.token_hex(16)  # no host can guess it
        self.begin, self.end = f"::stop-commands::{token}", f"::{token}::"


class Groups:
    """Puts the lines before the start of the ranks into one group, and their output into another."""

    def __init__(self, title: str, literal: Literal, write: Callable[[str], None]) -> None:
        """title: the command of the ranks; write: writes a line, after all earlier output"""
        self._title, self._literal, self._write = title, literal, write
        self._has_begun = self._has_started = False

    def handle(self, event: Event) -> None:
        """Write the lines around an event. Call it before the event is shown; for Finished, afterwards."""
        if not self._has_begun:
            self._has_begun = True
            self._open("mesh: getting the hosts ready")
        if isinstance(event, Started) and not self._has_started:
            self._has_started = True
            self._close()
            self._open(self._title)
        elif isinstance(event, Finished):
            self._close()

    def _open(self, title: str) -> None:
        self._write(group(title))
        self._write(self._literal.begin)

    def _close(self) -> None:
        self._write(self._literal.end)
        self._write(END)
