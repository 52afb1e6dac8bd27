"""Launchpad's API over ``mesh.program``: programs of Launchpad and TLaunch run with another import line.

Each name is imported when it is first used. On a host only the names of ``mesh.launchpad.runtime`` are there.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mesh.launchpad.launching import Launched as Launched
    from mesh.launchpad.launching import launch as launch
    from mesh.launchpad.nodes import CourierNode as CourierNode
    from mesh.launchpad.nodes import MultiProcessingColocation as MultiProcessingColocation
    from mesh.launchpad.nodes import MultiThreadingColocation as MultiThreadingColocation
    from mesh.launchpad.nodes import PyClassNode as PyClassNode
    from mesh.launchpad.nodes import PyNode as PyNode
    from mesh.launchpad.nodes import PythonProcess as PythonProcess
    from mesh.launchpad.nodes import ReverbNode as ReverbNode
    from mesh.launchpad.nodes import Where as Where
    from mesh.launchpad.program import Program as Program
    from mesh.launchpad.program import make_program as make_program
    from mesh.launchpad.runtime.address import AbstractAddressBuilder as AbstractAddressBuilder
    from mesh.launchpad.runtime.address import Address as Address
    from mesh.launchpad.runtime.address import SimpleLocalAddressBuilder as SimpleLocalAddressBuilder
    from mesh.launchpad.runtime.address import get_port_from_address as get_port_from_address
    from mesh.launchpad.runtime.batching import batched_handler as batched_handler
    from mesh.launchpad.runtime.clients import CourierClient as CourierClient
    from mesh.launchpad.runtime.clients import CourierHandle as CourierHandle
    from mesh.launchpad.runtime.clients import Deferred as Deferred
    from mesh.launchpad.runtime.clients import Dereferenceable as Dereferenceable
    from mesh.launchpad.runtime.clients import Handle as Handle
    from mesh.launchpad.runtime.clients import list_methods as list_methods
    from mesh.launchpad.runtime.clients import maybe_dereference as maybe_dereference
    from mesh.launchpad.runtime.flags import FLAGS as FLAGS
    from mesh.launchpad.runtime.flags import LAUNCH_TYPE as LAUNCH_TYPE
    from mesh.launchpad.runtime.flags import LaunchType as LaunchType
    from mesh.launchpad.runtime.flags import is_local_launch as is_local_launch
    from mesh.launchpad.runtime.flags import is_local_launch_or_test as is_local_launch_or_test
    from mesh.launchpad.runtime.stopping import make_program_stopper as make_program_stopper
    from mesh.launchpad.runtime.stopping import register_stop_handler as register_stop_handler
    from mesh.launchpad.runtime.stopping import stop as stop
    from mesh.launchpad.runtime.stopping import stop_event as stop_event
    from mesh.launchpad.runtime.stopping import unregister_stop_handler as unregister_stop_handler
    from mesh.launchpad.runtime.stopping import wait_for_stop as wait_for_stop

_AT_THE_CLIENT = {
    "launching": ("Launched", "launch"),
    "nodes": (
        "CourierNode",
        "MultiProcessingColocation",
        "MultiThreadingColocation",
        "PyClassNode",
        "PyNode",
        "PythonProcess",
        "ReverbNode",
        "Where",
    ),
    "program": ("Program", "make_program"),
}
_EVERYWHERE = {
    "address": ("AbstractAddressBuilder", "Address", "SimpleLocalAddressBuilder", "get_port_from_address"),
    "batching": ("batched_handler",),
    "clients": (
        "CourierClient",
        "CourierHandle",
        "Deferred",
        "Dereferenceable",
        "Handle",
        "list_methods",
        "maybe_dereference",
    ),
    "flags": ("FLAGS", "LAUNCH_TYPE", "LaunchType", "is_local_launch", "is_local_launch_or_test"),
    "stopping": (
        "make_program_stopper",
        "register_stop_handler",
        "stop",
        "stop_event",
        "unregister_stop_handler",
        "wait_for_stop",
    ),
}
_PLACES = {name: f".{module}" for module, names in _AT_THE_CLIENT.items() for name in names}
_PLACES.update((name, f".runtime.{module}") for module, names in _EVERYWHERE.items() for name in names)

__all__ = sorted(_PLACES)

import_module(".runtime.flags", __name__).define()  # before the program parses its command line


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object
    try:
        value = getattr(import_module(_PLACES[name], __name__), name)
    except ImportError:
        if _PLACES[name].startswith(".runtime"):
            raise
        value = import_module(".runtime.absent", __name__).stand_in(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
