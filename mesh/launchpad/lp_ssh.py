"""TLaunch's ``lp_ssh`` over ``mesh.program``: nodes that name their hosts with ``to_host``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mesh.launchpad.launching import Launched as Launched
    from mesh.launchpad.launching import launch_ssh as launch  # noqa: F401
    from mesh.launchpad.nodes import CourierNode as CourierNode
    from mesh.launchpad.nodes import PyClassNode as PyClassNode
    from mesh.launchpad.nodes import PyNode as PyNode
    from mesh.launchpad.nodes import RLTransmitNode as RLTransmitNode
    from mesh.launchpad.nodes import SSHNode as SSHNode
    from mesh.launchpad.nodes import TransmitNode as TransmitNode
    from mesh.launchpad.program import SSHProgram as Program  # noqa: F401
    from mesh.launchpad.program import make_program as make_program
    from mesh.launchpad.runtime import flags as flags
    from mesh.launchpad.runtime.stopping import register_stop_handler as register_stop_handler
    from mesh.launchpad.runtime.stopping import stop as stop
    from mesh.launchpad.runtime.stopping import stop_event as stop_event
    from mesh.launchpad.runtime.stopping import unregister_stop_handler as unregister_stop_handler
    from mesh.launchpad.runtime.stopping import wait_for_stop as wait_for_stop
    from mesh.launchpad.terminals import kill_tmux as kill_tmux

# Each name: its module, and what it is called there.
_PLACES = {
    "Launched": (".launching", "Launched"),
    "launch": (".launching", "launch_ssh"),
    "CourierNode": (".nodes", "CourierNode"),
    "PyClassNode": (".nodes", "PyClassNode"),
    "PyNode": (".nodes", "PyNode"),
    "RLTransmitNode": (".nodes", "RLTransmitNode"),
    "SSHNode": (".nodes", "SSHNode"),
    "TransmitNode": (".nodes", "TransmitNode"),
    "Program": (".program", "SSHProgram"),
    "make_program": (".program", "make_program"),
    "kill_tmux": (".terminals", "kill_tmux"),
    "flags": (".runtime.flags", ""),
    "register_stop_handler": (".runtime.stopping", "register_stop_handler"),
    "stop": (".runtime.stopping", "stop"),
    "stop_event": (".runtime.stopping", "stop_event"),
    "unregister_stop_handler": (".runtime.stopping", "unregister_stop_handler"),
    "wait_for_stop": (".runtime.stopping", "wait_for_stop"),
}

__all__ = sorted(_PLACES)


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place, called = _PLACES[name]
    value: object
    try:
        module = import_module(place, __package__)
        value = getattr(module, called) if called else module
    except ImportError:
        if place.startswith(".runtime"):
            raise
        value = import_module(".runtime.absent", __package__).stand_in(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
