"""The ``mesh`` command, and ``python -m mesh``."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import NoReturn

CANNOT_FLUSH = 120  # the exit status of Python itself then


def main() -> None:
    """Run the console script."""
    # Importing takes a moment in which a Ctrl-C is no reason for a traceback.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number in range(3):  # a file that we open must not be taken for a stream that was closed before the start
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    # The default looks after every 700 new objects: a quarter of the time that listing 20,000 files takes.
    gc.set_threshold(50_000, 20, 50)
    from mesh.cli.program import run

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code: object
    try:
        code = run(sys.argv)
    except SystemExit as end:
        code = end.code
    _leave(_final_status(code))


def _final_status(code: object) -> int:
    """Flush the standard streams, and return the status that Python exits with. code: of a SystemExit"""
    status = code if isinstance(code, int) else int(code is not None)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            status = CANNOT_FLUSH
    return status & 0xFF


def _leave(status: int) -> NoReturn:
    """End this process as it is, because taking everything apart before takes Python as long as a login.

    It ends as usual where another program runs it, as debuggers and profilers do, or where warnings are asked for,
    which name what was left open.
    """
    if _is_the_program() and not (sys.gettrace() or sys.getprofile() or sys.warnoptions):
        os._exit(status)
    gc.freeze()  # nor is there garbage worth looking for
    sys.exit(status)


def _is_the_program() -> bool:
    """Return True if this process was started as ``mesh ...`` or ``python -m mesh ...``, and no tool monitors it."""
    words = sys.orig_argv[1:3]
    monitors = getattr(sys, "monitoring", None)  # since Python 3.12; a tool has one of six numbers
    if monitors and any(map(monitors.get_tool, range(6))):
        return False
    return words == ["-m", "mesh"] or os.path.basename(words[0] if words else "") == "mesh"


if __name__ == "__main__":
    main()
