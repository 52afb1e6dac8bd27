"""The name under which this process is listed."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

# Fields of /proc/self/stat by their numbers in proc(5); the first one behind the name is 3.
STATE_FIELD, ARG_START_FIELD, ARG_END_FIELD = 3, 48, 49


def set_title(title: str) -> None:
    """Replace the words in /proc/PID/cmdline, so that ``ps`` shows a title. Without effect where that cannot be.

    title: its words are separated by spaces; it must not be longer than the command line
    """
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, ValueError, IndexError):
        import ctypes

        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = (int(fields[field - STATE_FIELD]) for field in (ARG_START_FIELD, ARG_END_FIELD))
        data = title.encode().replace(b" ", b"\0")
        if 0 < len(data) < end - start:
            ctypes.memmove(start, data + bytes(end - start - len(data)), end - start)
