"""What agents need of Python's library, without what its modules bring along: every host pays for a start in every run.

json, signal, socket, functools and ctypes take longer to import than Python itself to start, for regular expressions,
enumerations and named tuples that nobody here wants. What works in them are modules in C, used here directly; an
interpreter that has none of those has the library's own.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from bisect import bisect_left
    from collections import deque
    from functools import partial
    from operator import attrgetter
    from typing import Any
else:
    try:
        import _signal as signal
        import _socket as socket
        from _bisect import bisect_left
        from _collections import deque
        from _functools import partial
        from _operator import attrgetter
    except ImportError:
        import signal
        import socket
        from bisect import bisect_left
        from collections import deque
        from functools import partial
        from operator import attrgetter

SMALL = 1 << 14  # bytes

__all__ = [
    "Socket",
    "attrgetter",
    "bisect_left",
    "call",
    "contents",
    "deque",
    "dumps",
    "loads",
    "partial",
    "pointer",
    "prctl",
    "quote",
    "signal",
    "socket",
    "socketpair",
]


class Socket(socket.socket):
    """As ``socket.socket``, as far as agents need it."""

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *why: object) -> None:
        self.close()

    def accept(self) -> tuple[Socket, Any]:
        descriptor, address = self._accept()  # type: ignore[attr-defined]
        return Socket(fileno=descriptor), address


def socketpair(kind: int = socket.SOCK_STREAM) -> tuple[Socket, Socket]:
    """Two connected ones."""
    one, other = socket.socketpair(socket.AF_UNIX, kind)
    return Socket(fileno=one.detach()), Socket(fileno=other.detach())


class _Rules:
    """How JSON is read, as json.JSONDecoder has it."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float


def _refuse(value: object) -> str:
    raise TypeError(f"JSON has no {type(value).__name__}")


def _coders() -> tuple[Any, Any]:
    """What reads a value from a place of a text, and what makes pieces of a text from a value."""
    try:
        import _json

        make_scanner, make_encoder, quote = _json.make_scanner, _json.make_encoder, _json.encode_basestring_ascii
        rules: Any = _Rules()
        scan = make_scanner(rules)
        encode = make_encoder(None, _refuse, quote, None, ":", ",", False, False, True)
        if "".join(encode(scan('{"a":[1.5,null]}', 0)[0], 0)) == '{"a":[1.5,null]}':
            return scan, encode
    except (ImportError, AttributeError, TypeError):  # they are Python's own affair, and may change
        pass
    import json

    decoder: Any = json.JSONDecoder()
    return decoder.scan_once, lambda value, level: (json.dumps(value, separators=(",", ":")),)


_scan, _encode = _coders()


def loads(text: str | bytes) -> Any:
    """What a text of JSON says that has no white space around it. Raises ValueError."""
    text = text if isinstance(text, str) else text.decode()
    try:
        value, end = _scan(text, 0)
    except (StopIteration, SystemError, RecursionError):  # the second one for want of json's own kind of error
        raise ValueError("no JSON") from None
    if end != len(text):
        raise ValueError("more than one value of JSON")
    return value


def dumps(value: object) -> str:
    """A value as JSON, without white space, in ASCII. Raises TypeError."""
    return "".join(_encode(value, 0))


def quote(word: str) -> str:
    """A word as a shell reads it, as shlex.quote."""
    return "'" + word.replace("'", "'\"'\"'") + "'"


def contents(path: str) -> str:
    """The text of a small file, as of /proc: three system calls, of which open() takes nine. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces: list[bytes] = []
        while True:
            piece = os.read(file, SMALL)
            if not piece:
                return b"".join(pieces).decode("utf-8", "surrogateescape")
            pieces.append(piece)
    finally:
        os.close(file)


def pointer(value: int) -> Any:
    """An address or a size for ``call``: an int of C is too small for it."""
    try:
        import _ctypes

        kind: Any = type("Pointer", (_ctypes._SimpleCData,), {"_type_": "P"})
    except (ImportError, AttributeError, TypeError):
        import ctypes

        kind = ctypes.c_void_p
    return kind(value)


def prctl(option: int, value: int) -> None:
    """Call prctl(2). Raises OSError."""
    if call("prctl", option, value, 0, 0, 0):
        raise OSError(f"prctl({option}) failed")


def call(name: str, *arguments: Any) -> int:
    """Call a function of the C library, and return what it does: an int.

    arguments: each an int, bytes, which are passed by their address, or a ``pointer``
    """
    try:
        import _ctypes

        library: Any = _ctypes
        done: int = library.call_function(library.dlsym(library.dlopen(None, 0), name), arguments)
    except (ImportError, AttributeError, TypeError):
        import ctypes

        done = getattr(ctypes.CDLL(None), name)(*arguments)
    return done
