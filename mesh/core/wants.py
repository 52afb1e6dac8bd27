"""The contents that a host lacks for its workspace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict


class Content(TypedDict):
    """A content of a workspace."""

    hash: str
    size: int


class Want(Content, total=False):
    """A content that a host lacks, and another version of it there, as docs/sync.md has them."""

    base: str
    base_size: int
    head: Sequence[str]
    tail: Sequence[str]
