"""Lines that the user types on the terminal while a run is on, by which he asks how things are."""

from __future__ import annotations

import os
import select
import signal
import termios

LOCAL_FLAGS = 3  # index of c_lflag in what termios.tcgetattr returns
LINE_BYTES = 4096  # a terminal in its usual mode has room for one line of this length (linux/tty.h: N_TTY_BUF_SIZE)


class EnterKey:
    """Reads a terminal, and leaves its mode as it is: nothing is to be put back, however we end."""

    def __init__(self, number: int) -> None:
        """number: a descriptor; where it is no terminal, nothing is ever pressed."""
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
        # Read in the background, a terminal would stop us; and it may become the background's while we look.
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
        """True if a line was typed that nobody has read yet."""
        return self._is_open and bool(select.select([self._number], [], [], 0)[0])

    def echoes_on(self, device: int) -> bool:
        """True if the terminal with this device number shows what is typed."""
        try:
            is_same = os.fstat(self._number).st_rdev == device
            return is_same and bool(termios.tcgetattr(self._number)[LOCAL_FLAGS] & termios.ECHO)
        except (OSError, termios.error):
            return False
