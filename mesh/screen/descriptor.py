"""Writing all bytes to standard output and error, whether a terminal, a pipe or a file."""

from __future__ import annotations

import codecs
import errno
import io
import os
import select
import stat
import sys
import threading
from typing import TextIO

from mesh.core.errors import OutputClosed
from mesh.core.look import Paint

COLUMNS, ROWS = 80, 24  # for a terminal that does not report its size


class Descriptor:
    """Standard output or error. A paused terminal blocks the writer; a closed pipe raises OutputClosed."""

    def __init__(self, number: int, *, required: bool, beside: Descriptor | None = None) -> None:
        """required: if False, the end of its reader is ignored.

        beside: another descriptor, which may lead to the same file; each write to either stays in one piece
        """
        self._number, self._required = number, required
        self.problem = ""  # why nothing more could be written: a full disk
        self.paint = Paint(False)  # for labels and mesh's own lines there
        self._gone = False
        mode, self._place, self.device = 0, (-1, -1), -1
        try:
            status = os.fstat(number)
            mode, self._place, self.device = status.st_mode, (status.st_dev, status.st_ino), status.st_rdev
        except OSError:  # closed before mesh started (mesh >&-)
            self._gone = True
        self._writing = threading.Lock()
        if beside and beside._place == self._place:
            self._writing = beside._writing
        self.is_pipe = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
        self.is_terminal = not self._gone and os.isatty(number)

    def write(self, data: bytes) -> None:
        """Write all of data, unless the reader is gone. Raises OutputClosed."""
        view = memoryview(data)
        with self._writing:
            while view and not self._gone:
                try:
                    view = view[os.write(self._number, view) :]
                except BlockingIOError:  # its owner set it non-blocking
                    poll = select.poll()
                    poll.register(self._number, select.POLLOUT)
                    poll.poll(1000)
                except OSError as error:
                    self._failed(error)

    def size(self) -> tuple[int, int]:
        """Return columns and rows of the terminal, as they are now."""
        try:
            size = os.get_terminal_size(self._number)
        except OSError:
            return COLUMNS, ROWS
        return size.columns or COLUMNS, size.lines or ROWS

    def is_background(self) -> bool:
        """Return True if it is a terminal where another job of the shell runs in the foreground."""
        try:
            return os.tcgetpgrp(self._number) != os.getpgrp()
        except OSError:  # no terminal, or not our controlling terminal
            return False

    def check(self) -> None:
        """Raise OutputClosed if the reader is gone."""
        if self.is_pipe and self._required and not self._gone:
            poll = select.poll()
            poll.register(self._number, 0)
            if any(what & select.POLLERR for _, what in poll.poll(0)):
                self._gone = True
                raise OutputClosed("nobody reads our output")

    def _failed(self, error: OSError) -> None:
        if error.errno == errno.EIO or not self._required:  # EIO: the terminal is gone, and a SIGHUP follows
            self._gone = True
        elif error.errno in (errno.EPIPE, errno.ECONNRESET):
            self._gone = True
            raise OutputClosed("nobody reads our output") from error
        else:  # the run goes on without it: every byte is in the run directory
            self._gone = True
            self.problem = error.strerror or str(error)


class ReplacedStream(Descriptor):
    """A stream that a program has put in the place of sys.stdout or sys.stderr: a notebook's, or pytest's capsys."""

    def __init__(self, stream: TextIO, *, required: bool) -> None:
        """required: as Descriptor has it"""
        super().__init__(-1, required=required)
        self._gone = False
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: bytes) -> None:
        with self._writing:
            if self._gone:
                return
            try:
                if isinstance(self._stream, io.TextIOWrapper):
                    self._stream.flush()
                    self._stream.buffer.write(data)
                else:
                    self._stream.write(self._decoder.decode(data))
                self._stream.flush()
            except OSError as error:
                self._failed(error)
            except ValueError as error:  # the program has closed it
                self._gone, self.problem = True, str(error)


def replaced(number: int) -> TextIO | None:
    """Return the stream that a program has put in the place of sys.stdout (1) or sys.stderr (2), or None."""
    stream, own = (sys.stdout, sys.__stdout__) if number == 1 else (sys.stderr, sys.__stderr__)
    if stream is None or stream is own:
        return None
    try:
        is_own = isinstance(stream, io.TextIOWrapper) and stream.fileno() == number  # for example with another encoding
    except (OSError, ValueError):
        is_own = False
    return None if is_own else stream


def standard(number: int, *, required: bool, beside: Descriptor | None = None) -> Descriptor:
    """Return our standard output (1) or error (2), or the stream that the program has put in its place.
    required, beside: as in Descriptor
    """
    stream = replaced(number)
    if stream is not None:
        return ReplacedStream(stream, required=required)
    return Descriptor(number, required=required, beside=beside)
