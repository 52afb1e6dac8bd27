"""Our terminal as that of rank 0: bytes pass as they are while its process runs."""

from __future__ import annotations

import contextlib
import os
import termios
import tty
from collections.abc import Callable

from mesh.core.events import Event, Exited, Finished, Lost, Output, Started
from mesh.core.interfaces import Sink

RESET = b"\x1b[?25h\x1b[0m\x1b[?2004l\x1b[?1000l"  # cursor, colours, no marks of pasted text and the mouse
OTHER_SCREEN, MAIN_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"  # xterm's; a program that was killed leaves the other one
READER, WRITER = 0, 1  # descriptors of our terminal


class RawTerminal:
    """Hands all events to a sink, but those that come while rank 0 has the terminal only afterwards.

    The output of other ranks is in the logs alone then.
    """

    def __init__(self, sink: Sink, hidden: Callable[[], contextlib.AbstractContextManager[None]], node: int) -> None:
        """hidden: within what it returns, the sink has no live line on the terminal; node: the host of rank 0"""
        self._sink, self._hidden, self._node = sink, contextlib.ExitStack(), node
        self._hide = hidden
        self._before: list[int | list[bytes | int]] | None = None  # the modes of our terminal; None: it is ours
        self._later: list[Event] = []
        self._is_main = True  # the main screen is shown

    def handle(self, event: Event) -> None:
        if self._before is None:
            self._sink.handle(event)
            if isinstance(event, Started) and event.rank == 0:
                self._begin()
            return
        if isinstance(event, Output):
            if event.rank == 0:
                _write(event.data)
                other, main = event.data.rfind(OTHER_SCREEN), event.data.rfind(MAIN_SCREEN)
                self._is_main = main > other if max(main, other) >= 0 else self._is_main
            return
        self._later.append(event)
        is_lost = isinstance(event, Lost) and event.node == self._node
        if is_lost or isinstance(event, Finished) or (isinstance(event, Exited) and event.rank == 0):
            self._end()

    def idle(self) -> None:
        if self._before is None:
            self._sink.idle()

    def close(self) -> None:
        self._end()
        self._sink.close()

    def _begin(self) -> None:
        self._hidden.enter_context(self._hide())
        self._before = termios.tcgetattr(READER)
        tty.setraw(READER, termios.TCSADRAIN)

    def _end(self) -> None:
        if self._before is None:
            return
        before, self._before = self._before, None
        _write(RESET if self._is_main else RESET + MAIN_SCREEN)
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(READER, termios.TCSADRAIN, before)
        self._hidden.close()
        later, self._later = self._later, []
        for event in later:
            self._sink.handle(event)


def _write(data: bytes) -> None:
    """Write all; leave it where the terminal is gone, as a signal follows."""
    view = memoryview(data)
    with contextlib.suppress(OSError):
        while view:
            view = view[os.write(WRITER, view) :]
