"""Parts of a program that are described on the client and made on their hosts."""

from __future__ import annotations

from typing import Callable, Dict, Tuple

DEPTH_LIMIT = 20


class Deferred:
    """An argument that is made on the node's host: ``Deferred(open_environment, "pong")`` calls it there."""

    def __init__(self, make: "Callable[..., object]", *args: object, **kwargs: object) -> None:
        self.make, self.args, self.kwargs = make, args, kwargs


class Command:
    """A plain process as a node: ``Command("python3", "train.py")``. Its exit status is the node's."""

    def __init__(self, *words: str) -> None:
        """words: for execve; no shell reads them. Raises ValueError if there are none."""
        if not words:
            raise ValueError("a command needs words")
        self.words: Tuple[str, ...] = words


def made(value: object, depth: int = 0) -> object:
    """Return a value with its deferred parts made, also in lists, tuples and dictionaries."""
    if isinstance(value, Deferred):
        found: Dict[str, object] = {name: made(one) for name, one in value.kwargs.items()}
        return value.make(*[made(one) for one in value.args], **found)
    if depth < DEPTH_LIMIT:
        if type(value) is list:
            return [made(one, depth + 1) for one in value]
        if type(value) is tuple:
            return tuple(made(one, depth + 1) for one in value)
        if type(value) is dict:
            return {name: made(one, depth + 1) for name, one in value.items()}
    return value
