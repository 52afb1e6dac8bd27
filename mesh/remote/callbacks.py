"""The functions by which a session reaches the rest of the client."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from mesh.core.errors import HostUnreachable
from mesh.core.events import Event
from mesh.core.interfaces import Channel, NoAgent
from mesh.protocol.answers import Owner
from mesh.protocol.messages import Message
from mesh.remote import ending


class Callbacks(Struct, frozen=True, kw_only=True):
    """The functions that a session calls, in the thread of ``Session.events``; each has a default that does nothing."""

    taken: Callable[[int, int], None] = lambda rank, count: None  # a rank's stdin has taken bytes
    # Makes another channel to the host. Blocks; None: none is to be tried any longer. Raises a HostUnreachable
    # that is final.
    reopen: Callable[[], Channel | None] = lambda: None
    is_dead: Callable[[Owner], bool] = lambda owner: False  # the owner of a lock, or a run by id, has ended
    # Takes a piece of the answer to a lasting question; returns the events of it.
    receive: Callable[[bytes], Iterable[Event]] = lambda data: ()
    relay: Callable[[Message, bytes], None] = lambda message, data: None  # takes what a relayed connection brings
    explain: Callable[[NoAgent], HostUnreachable] = ending.plain  # as Backend.explain
    why: Callable[[], str] = lambda: ""  # as Backend.why
