"""The end of a main program, as long as threads can be started."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType

Ended = Callable[[BaseException | None], object]  # called with the exception that ended the main program, if one did
TOOL_IDS = range(6)  # of sys.monitoring
TOOL = "mesh: end of the main program"


def at_end(ended: Ended) -> None:
    """Call a function once the main program has ended, and before the interpreter closes threads and pools.

    Python 3.12 starts no thread at its exit (seen with 3.12.1), so there the call comes when the outermost frame of the
    main thread ends. At Python's own prompt that would be each statement; there the call comes at the exit.
    """
    if (3, 12) <= sys.version_info < (3, 13) and not hasattr(sys, "ps1") and _at_end_of_main(ended):
        return
    threading._register_atexit(lambda: ended(_last_error()))  # type: ignore[attr-defined]


def _last_error() -> BaseException | None:
    """Return the exception whose traceback Python has printed last. The second name is there since Python 3.12."""
    last = getattr(sys, "last_value", None) or getattr(sys, "last_exc", None)
    return last if isinstance(last, BaseException) else None


def _outermost() -> CodeType:
    """Return the code of the outermost frame of the main thread."""
    frame: FrameType = sys._current_frames()[threading.main_thread().ident or 0]
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code


def _at_end_of_main(ended: Ended) -> bool:
    """Call a function when the outermost frame returns or raises; return False if that cannot be watched."""
    watch = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    tool = next((number for number in TOOL_IDS if watch.get_tool(number) is None), None)
    if tool is None:
        return False
    main = _outermost()

    def end(code: CodeType, error: BaseException | None) -> None:
        if code is not main:
            return
        watch.set_events(tool, 0)
        watch.set_local_events(tool, main, 0)
        watch.free_tool_id(tool)
        if error is not None and not isinstance(error, SystemExit):
            sys.excepthook(type(error), error, error.__traceback__)  # now, as other versions do, and not once more
            sys.excepthook = _print_nothing
        ended(error)

    watch.use_tool_id(tool, TOOL)
    watch.register_callback(tool, watch.events.PY_RETURN, lambda code, offset, value: end(code, None))
    watch.register_callback(tool, watch.events.PY_UNWIND, lambda code, offset, error: end(code, error))
    watch.set_local_events(tool, main, watch.events.PY_RETURN)
    watch.set_events(tool, watch.events.PY_UNWIND)  # it cannot be asked of one frame's code alone
    return True


def _print_nothing(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Stand in for the hook that has printed the traceback already."""
