"""Standard input that no rank gets."""

from __future__ import annotations

import array
import fcntl
import os
import stat
import termios


class UnsentInput:
    """Checks if a pipe or a file has data to read, without reading any of it.

    Terminals are left out, because mesh reads lines there itself, and so are devices such as /dev/null.
    """

    def __init__(self, number: int) -> None:
        """number: a descriptor, or -1"""
        self._number = number
        try:
            self._mode = os.fstat(number).st_mode
        except OSError:
            self._mode = 0

    def has_data(self) -> bool:
        """Return False at the end of a file, and for a pipe that is empty, whether or not it has a writer."""
        try:
            if stat.S_ISREG(self._mode):
                return os.lseek(self._number, 0, os.SEEK_CUR) < os.fstat(self._number).st_size
            if stat.S_ISFIFO(self._mode) or stat.S_ISSOCK(self._mode):
                count = array.array("i", [0])
                fcntl.ioctl(self._number, termios.FIONREAD, count)
                return count[0] > 0
        except OSError:  # a socket that listens
            self._mode = 0
        return False
