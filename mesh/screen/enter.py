"""Lines that the user types on the terminal during a run, to ask for its status."""

from __future__ import annotations

import os
import select
import signal
import termios

LOCAL_FLAGS = 3  # index of c_lflag in what termios.tcgetattr returns
LINE_BYTES = 4096  # a terminal in its usual mode has room for one line of this length (linux/tty.h: N_TTY_BUF_SIZE)


class EnterKey:
    """Reads typed lines and leaves the terminal's mode alone, so that no end of mesh has to restore it."""

    def __init__(self, number: int) -> None:
        """number: a descriptor; if it is no terminal, no line ever comes."""
        self._number = number
        try:
            self._is_open = os.isatty(number)
        except OSError:
            self._is_open = False

    def typed(self) -> list[bytes]:
        """Return the lines that were typed since the last call. Never waits."""
        lines: list[bytes] = []
        if not self.is_waiting():
            return lines
        # Reading in the background would stop mesh, and the terminal may go to another job at any time.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTIN])
        try:
            while os.tcgetpgrp(self._number) == os.getpgrp() and self.is_waiting():
                line = os.read(self._number, LINE_BYTES)
                self._is_open = bool(line)  # Ctrl-D ends it
                if line:
                    lines.append(line)
        except OSError:  # the terminal is gone, or not ours now
            pass
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return lines

    def is_waiting(self) -> bool:
        """Return True if a typed line waits to be read."""
        return self._is_open and bool(select.select([self._number], [], [], 0)[0])

    def echoes_on(self, device: int) -> bool:
        """Return True if the terminal with this device number shows typed characters."""
        try:
            is_same = os.fstat(self._number).st_rdev == device
            return is_same and bool(termios.tcgetattr(self._number)[LOCAL_FLAGS] & termios.ECHO)
        except (OSError, termios.error):
            return False
