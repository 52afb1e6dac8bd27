"""The stacks that one host has taken, as the messages of its agent have them (protocol/replies.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class CallShape(Protocol):
    """A call of a stack."""

    @property
    def function(self) -> str: ...
    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...


class ProcessShape(Protocol):
    """A process of a rank."""

    @property
    def rank(self) -> int: ...
    @property
    def pid(self) -> int: ...


class RankShape(Protocol):
    """A rank, and whether it has ended."""

    @property
    def rank(self) -> int: ...
    @property
    def ended(self) -> bool: ...


class NoteShape(Protocol):
    """The reason why some stacks are short."""

    @property
    def text(self) -> str: ...
    @property
    def hint(self) -> str: ...


class StackShape(Protocol):
    """A stack, and the processes that have it."""

    @property
    def role(self) -> str: ...
    @property
    def how(self) -> str: ...
    @property
    def thread(self) -> str: ...
    @property
    def program(self) -> str: ...
    @property
    def words(self) -> str: ...
    @property
    def main(self) -> bool: ...
    @property
    def frames(self) -> Sequence[CallShape]: ...
    @property
    def of(self) -> Sequence[ProcessShape]: ...


class HostStacks(Protocol):
    """All stacks of a host's ranks."""

    @property
    def ranks(self) -> Sequence[RankShape]: ...
    @property
    def stacks(self) -> Sequence[StackShape]: ...
    @property
    def notes(self) -> Sequence[NoteShape]: ...
