"""TLaunch's ``lp_k8s`` over ``mesh.program``: pods that mesh makes for a program, one for each node."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mesh.launchpad.launching import Launched as Launched
    from mesh.launchpad.nodes import CourierNode as CourierNode
    from mesh.launchpad.nodes import ReverbNode as ReverbNode
    from mesh.launchpad.podlaunch import launch as launch
    from mesh.launchpad.runtime.pods import Config as Config
    from mesh.launchpad.runtime.pods import Container as Container
    from mesh.launchpad.runtime.pods import GitSource as GitSource
    from mesh.launchpad.runtime.pods import Resource as Resource
    from mesh.launchpad.runtime.pods import ResourceRange as ResourceRange
    from mesh.launchpad.runtime.pods import Source as Source
    from mesh.launchpad.runtime.stopping import stop as stop

_PLACES = {
    "Launched": "..launching",
    "launch": "..podlaunch",
    "CourierNode": "..nodes",
    "ReverbNode": "..nodes",
    "Config": "..runtime.pods",
    "Container": "..runtime.pods",
    "GitSource": "..runtime.pods",
    "Resource": "..runtime.pods",
    "ResourceRange": "..runtime.pods",
    "Source": "..runtime.pods",
    "stop": "..runtime.stopping",
}

__all__ = sorted(_PLACES)


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object
    try:
        value = getattr(import_module(_PLACES[name], __package__), name)
    except ImportError:
        if _PLACES[name].startswith("..runtime"):
            raise
        value = import_module("..runtime.absent", __package__).stand_in(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
