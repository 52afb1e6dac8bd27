"""The description of one node as it travels to its host."""

from __future__ import annotations

from typing import Callable, Dict, Sequence, Tuple

PY, CLASS, COURIER, THREADS = "py", "class", "courier", "threads"


class Part:
    """Description of one node: a function, or a constructor with its arguments; or the nodes of a colocation."""

    def __init__(
        self, kind: str, target: "Callable[..., object] | None", args: "Tuple[object, ...]", kwargs: "Dict[str, object]"
    ) -> None:
        """kind: PY for a function that is run; CLASS: its object's run(); COURIER: served as well; THREADS: children"""
        self.kind, self.target, self.args, self.kwargs = kind, target, args, kwargs
        self.should_run = True
        self.children: "Sequence[Part]" = ()
        self.ends_at_first = False  # of the children
        self.argv: "Sequence[str]" = ()  # more words for the command line of the node
        self.has_own_argv = False  # they are all of its words
