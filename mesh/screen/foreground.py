"""Whether the shell's job at a terminal is ours."""

from __future__ import annotations

import errno
import os

_is_behind = False


def stand_behind() -> None:
    """From now on another process is in front at the terminal for this one, which has none (cli/forkserver.py)."""
    global _is_behind
    _is_behind = True


def is_in_front(number: int) -> bool:
    """Whether our job may use a terminal now. Raises OSError if it is none, or not the one that controls us.

    number: its descriptor
    """
    if _is_behind and not os.isatty(number):
        raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))
    return _is_behind or os.tcgetpgrp(number) == os.getpgrp()
