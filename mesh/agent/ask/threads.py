"""A thread of a process, as py-spy and faulthandler describe it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Tuple

    Frame = Tuple[str, str, int]  # function, file and line


class Thread:
    """A thread and its frames, innermost first."""

    def __init__(self, name: str, is_main: bool, frames: Sequence[Frame] = ()) -> None:
        self.name, self.is_main, self.frames = name, is_main, list(frames)
