"""Errors of calls between nodes. Each class exists because a caller treats it differently."""

from __future__ import annotations

from typing import Mapping, Sequence

CLIENT = "client"  # in place of the host of a node that is a thread of the process that launches
ENDED = "it has ended"  # the reason for the loss of a node that has ended well


class RemoteError(Exception):
    """An exception that a node has raised, raised again at the caller.

    Where the exception's own class is built in or imported here already, the error is an instance of that as well.
    """

    label = ""  # of the node that raised it
    host = ""
    type_name = ""  # of the exception, as "builtins.KeyError"
    traceback = ""  # as the node would have printed it
    text = ""  # of the exception

    def __str__(self) -> str:
        return str(vars(self).get("text", ""))


class RemoteTraceback(Exception):
    """The traceback of a remote exception, at the root of its causes, so that Python prints it first."""

    def __str__(self) -> str:
        return "\n" + self.args[0] if self.args else ""


class NodeLost(ConnectionError):
    """The node of a call has ended, or its host is gone; the call may have been carried out."""

    def __init__(self, label: str = "", host: str = "", reason: str = "") -> None:
        super().__init__(label, host, reason)
        self.label, self.host, self.reason = label, host, reason

    def __str__(self) -> str:
        place = f"{self.label} on {self.host}" if self.host else self.label
        return f"{place}: {self.reason or 'its process has ended'}"


class CallTimeout(TimeoutError):
    """A call has not been answered within its timeout."""


class Backlogged(CallTimeout):
    """A call was not sent within its timeout, because too many calls wait at its node already."""


class NotServed(AttributeError):
    """The node has no public method of this name."""


class CannotTravel(TypeError):
    """A value cannot be sent to another process."""


class NotLaunched(RuntimeError):
    """A handle was called before its program was launched, or after its end."""


class LinkRefused(ConnectionError):
    """The other end of a link has broken the protocol, or is not the one that was expected."""


class GroupError(Exception):
    """Some calls of a group have failed.

    results: of each handle in order, the value or the exception; errors: the exceptions by index
    """

    def __init__(self, message: str, results: Sequence[object] = (), errors: Mapping[int, BaseException] = {}) -> None:
        super().__init__(message)
        self.results, self.errors = list(results), dict(errors)


class Opaque:
    """A value of a class that this process does not take from others. It can be sent back to a node, which reads it."""

    __slots__ = ("_data", "text", "type_name")

    def __init__(self, type_name: str, text: str, data: bytes = b"") -> None:
        """type_name: of the value's class; text: its repr; data: its pickle, which only nodes read"""
        self.type_name, self.text, self._data = type_name, text, data

    def __repr__(self) -> str:
        return f"Opaque({self.type_name}: {self.text})"

    @property
    def data(self) -> bytes:
        """The pickled value."""
        return self._data
