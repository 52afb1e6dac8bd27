"""The name of this user, by which pods are labelled."""

from __future__ import annotations

import getpass
import os


def user_here() -> str:
    """Return the name of this user; a number where the machine has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
