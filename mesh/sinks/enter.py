"""Whether the user has pressed Enter, by which he asks how things are."""

from __future__ import annotations

import os
import select
import signal

from mesh.sinks.foreground import is_in_front


class EnterKey:
    """Looks at a terminal, and leaves its mode as it is: nothing is to be put back, however we end."""

    def __init__(self, number: int) -> None:
        """number: a descriptor; where it is no terminal, nothing is ever pressed."""
        self._number = number
        try:
            self._is_open = os.isatty(number)
        except OSError:
            self._is_open = False

    def pressed(self) -> bool:
        """True if a line was typed since the last look. Never waits."""
        if not self._is_open:
            return False
        # Read in the background, a terminal would stop us; and it may become the background's while we look.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTIN])
        try:
            if not is_in_front(self._number) or not select.select([self._number], [], [], 0)[0]:
                return False
            self._is_open = bool(os.read(self._number, 4096))  # Ctrl-D ends it
            return self._is_open
        except OSError:  # the terminal is gone, or not ours now
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
