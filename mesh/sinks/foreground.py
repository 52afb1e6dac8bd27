"""Who stands at the terminal."""

from __future__ import annotations

import os

_stands_for_us = 0  # the process of the shell's job, if it is another one than this


def stood_for_by(process: int) -> None:
    """From now on another process is at the terminal for this one, which has none (cli/forkserver.py)."""
    global _stands_for_us
    _stands_for_us = process


def is_in_front(number: int) -> bool:
    """Whether the shell's job at a terminal is ours. Raises OSError if it is none, or not the one that controls us.

    number: its descriptor
    """
    if not _stands_for_us:
        return os.tcgetpgrp(number) == os.getpgrp()
    with open(f"/proc/{_stands_for_us}/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    group, front = fields[2], fields[5]  # pgrp and tpgid of proc(5)
    return os.isatty(number) and group == front
