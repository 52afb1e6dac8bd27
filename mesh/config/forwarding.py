"""Reader of the ports that ``mesh forward`` and ``--forward`` take."""

from __future__ import annotations

from mesh.core.errors import UsageError
from mesh.core.forwarding import PORT_MAX, Forwarded


def read_forwarded(place: str, text: str) -> Forwarded:
    """Read ``[LOCAL:]REMOTE``. Raises UsageError that names its place.

    >>> read_forwarded("--forward", "8080:80"), read_forwarded("--forward", "6006").local
    (Forwarded(local=8080, remote=80), 6006)
    """
    local, _, remote = text.rpartition(":")
    if not _is_port(remote) or int(remote) == 0 or (":" in text and not _is_port(local)):
        expected = f"[LOCAL:]REMOTE, two ports from 1 to {PORT_MAX}, or 0 as LOCAL for any that is free"
        raise UsageError(f"{place}: expected {expected}, found {text!r}", hint="mesh forward pod 8080:80")
    return Forwarded(local=int(local or remote), remote=int(remote))


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= len(str(PORT_MAX)) and int(text) <= PORT_MAX
