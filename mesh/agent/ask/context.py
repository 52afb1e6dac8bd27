"""The circumstances of a question."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class Context:
    """The directory, bytes and runs that functions of the table of questions get beside the question."""

    def __init__(self, remote_dir: str, enclosed: bytes, over: Sequence[str]) -> None:
        """enclosed: the bytes that came with the question; over: runs whose clients are over"""
        self.remote_dir, self.enclosed, self.over = remote_dir, enclosed, over
