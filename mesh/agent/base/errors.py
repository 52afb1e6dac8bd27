"""Failures of the operating system, in words for users."""

from __future__ import annotations

import errno
import os


class LinkRefused(OSError):
    """A symbolic link in a place that mesh does not write or delete behind."""

    def __init__(self, reason: str, path: str | bytes, hint: str) -> None:
        OSError.__init__(self, errno.ELOOP, reason, path)
        self.hint = hint


def why(error: OSError) -> str:
    """Return an OSError in words, with the path."""
    text = error.strerror or str(error)
    if not isinstance(error.filename, (str, bytes)):
        return text
    return text + ": " + os.fsencode(error.filename).decode("utf-8", "replace")


def hint(error: OSError) -> str:
    """Return the next step for a user on whose host mesh cannot write."""
    if isinstance(error, LinkRefused):
        return error.hint
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space on the host, or leave more out with ignore: in mesh.yaml"
    return "remote_dir: in cluster.yaml names another place for what mesh keeps on the host"
