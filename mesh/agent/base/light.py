"""Parts of Python's library without what their modules import: every host pays for an agent's start in every run.

On Python 3.11, ``signal`` takes 4.5 ms to import, ``socket`` 8, ``functools`` 3, ``ctypes`` 3.5, ``shlex`` 7 and
``collections`` 2, for regular expressions, enumerations and named tuples. Agents use the modules in C below them; an
interpreter without those has the library's own. ``bisect`` and ``operator`` take 0.4 ms and are imported as usual.
"""

from __future__ import annotations

from mesh.protocol import coding
from mesh.protocol.coding import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from collections import deque
    from collections.abc import Callable
    from functools import partial
    from typing import Any
else:
    try:
        import _signal as signal
        import _socket as socket
        from _collections import deque
        from _functools import partial
    except ImportError:
        import signal
        import socket
        from collections import deque
        from functools import partial

loads: Callable[[str | bytes], Any] = coding.loads

__all__ = [
    "Socket",
    "call",
    "contents",
    "deque",
    "dumps",
    "loads",
    "partial",
    "prctl",
    "quote",
    "signal",
    "socket",
    "socketpair",
]


class Socket(socket.socket):
    """A socket with the part of ``socket.socket`` that agents need."""

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *why: object) -> None:
        self.close()

    def accept(self) -> tuple[Socket, object]:
        descriptor, address = self._accept()  # type: ignore[attr-defined]
        return Socket(fileno=descriptor), address


def socketpair(kind: int = socket.SOCK_STREAM) -> tuple[Socket, Socket]:
    """Return two connected sockets."""
    one, other = socket.socketpair(socket.AF_UNIX, kind)
    return Socket(fileno=one.detach()), Socket(fileno=other.detach())


def quote(word: str) -> str:
    """Return a word as a shell reads it, as shlex.quote does."""
    return "'" + word.replace("'", "'\"'\"'") + "'"


def contents(path: str) -> str:
    """Return the text of a small file, as in /proc. Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        return file.readall().decode("utf-8", "surrogateescape")


def prctl(option: int, value: int) -> None:
    """Call prctl(2). Raises OSError."""
    if call("prctl", option, value, 0, 0, 0):
        raise OSError(f"prctl({option}) failed")


def call(name: str, *arguments: int | bytes) -> int:
    """Call a function of the C library and return its int. Bytes are passed by their address."""
    try:
        import _ctypes

        library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
        found: int = _ctypes.call_function(_ctypes.dlsym(library, name), arguments)
    except (ImportError, AttributeError, TypeError):
        import ctypes

        found = ctypes.CDLL(None)[name](*arguments)
    return found
