"""The threads of one run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Threads:
    """Starts threads and joins them."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        """failed: called in a thread with the error that ended it"""
        self._failed = failed
        self._threads: list[threading.Thread] = []

    def start(self, name: str, function: Callable[[], None]) -> threading.Thread:
        """Run a function in a thread of its own."""

        def work() -> None:
            try:
                function()
            except Exception as error:
                self._failed(error)

        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def join(self, timeout: float) -> None:
        """Wait until all of them have ended, at most timeout seconds."""
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
