"""Programs: Python objects and functions on named hosts that call each other through handles.

On a host only the names of ``mesh.program.runtime`` are there; ``Program`` belongs to the machine that launches.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mesh.program.connecting import Connected as Connected
    from mesh.program.connecting import connect as connect
    from mesh.program.graph import has as has
    from mesh.program.ledger import State as State
    from mesh.program.mapping import ItemFailed as ItemFailed
    from mesh.program.mapping import executor as executor
    from mesh.program.mapping import map as map  # noqa: A004
    from mesh.program.program import Program as Program
    from mesh.program.running import NodeState as NodeState
    from mesh.program.running import ProgramResult as ProgramResult
    from mesh.program.running import Running as Running
    from mesh.program.runtime.batching import batched as batched
    from mesh.program.runtime.collectives import all_gather as all_gather
    from mesh.program.runtime.collectives import all_reduce as all_reduce
    from mesh.program.runtime.collectives import barrier as barrier
    from mesh.program.runtime.collectives import broadcast as broadcast
    from mesh.program.runtime.collectives import gather as gather
    from mesh.program.runtime.collectives import reduce as reduce
    from mesh.program.runtime.collectives import scatter as scatter
    from mesh.program.runtime.deferred import Command as Command
    from mesh.program.runtime.deferred import Deferred as Deferred
    from mesh.program.runtime.errors import Backlogged as Backlogged
    from mesh.program.runtime.errors import CallTimeout as CallTimeout
    from mesh.program.runtime.errors import CannotTravel as CannotTravel
    from mesh.program.runtime.errors import GroupError as GroupError
    from mesh.program.runtime.errors import NodeLost as NodeLost
    from mesh.program.runtime.errors import NotLaunched as NotLaunched
    from mesh.program.runtime.errors import NotServed as NotServed
    from mesh.program.runtime.errors import Opaque as Opaque
    from mesh.program.runtime.errors import RemoteError as RemoteError
    from mesh.program.runtime.futures import Future as Future
    from mesh.program.runtime.handles import Group as Group
    from mesh.program.runtime.handles import Handle as Handle
    from mesh.program.runtime.here import Here as Here
    from mesh.program.runtime.mailbox import MailboxHandle as MailboxHandle
    from mesh.program.runtime.stopping import cancelled as cancelled
    from mesh.program.runtime.stopping import here as here
    from mesh.program.runtime.stopping import me as me
    from mesh.program.runtime.stopping import on_stop as on_stop
    from mesh.program.runtime.stopping import peers as peers
    from mesh.program.runtime.stopping import stop as stop
    from mesh.program.runtime.stopping import stop_event as stop_event
    from mesh.program.runtime.stopping import stop_reason as stop_reason
    from mesh.program.runtime.stopping import wait_for_stop as wait_for_stop
    from mesh.program.settings import Options as Options

_AT_THE_CLIENT = {
    "connecting": ("Connected", "connect"),
    "graph": ("has",),
    "ledger": ("State",),
    "mapping": ("ItemFailed", "executor", "map"),
    "program": ("Program",),
    "running": ("NodeState", "ProgramResult", "Running"),
    "settings": ("Options",),
}
_EVERYWHERE = {
    "batching": ("batched",),
    "collectives": ("all_gather", "all_reduce", "barrier", "broadcast", "gather", "reduce", "scatter"),
    "deferred": ("Command", "Deferred"),
    "errors": (
        "Backlogged",
        "CallTimeout",
        "CannotTravel",
        "GroupError",
        "NodeLost",
        "NotLaunched",
        "NotServed",
        "Opaque",
        "RemoteError",
    ),
    "futures": ("Future",),
    "handles": ("Group", "Handle"),
    "here": ("Here",),
    "mailbox": ("MailboxHandle",),
    "stopping": (
        "cancelled",
        "here",
        "me",
        "on_stop",
        "peers",
        "stop",
        "stop_event",
        "stop_reason",
        "wait_for_stop",
    ),
}
_PLACES = {name: f".{module}" for module, names in _AT_THE_CLIENT.items() for name in names}
_PLACES.update((name, f".runtime.{module}") for module, names in _EVERYWHERE.items() for name in names)

__all__ = sorted(_PLACES)


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(_PLACES[name], __name__)
    except ImportError as error:
        if name not in ("ItemFailed", "Options", "Program", "connect", "executor", "has", "map"):
            raise
        module = import_module(".runtime.absent", __name__)
        del error
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
