"""The events of the progress of a sync or a pull."""

from __future__ import annotations

from mesh.core.events import Event


class Progress(Event, frozen=True, kw_only=True):
    """The progress of a sync or a pull. A few come in a second; a busy sink misses some."""


class Preparing(Progress, frozen=True, kw_only=True):
    """Progress of our own part of the sync."""

    what: str  # "listing", "hashing" or "packing"
    done: int  # files when listing, else bytes
    of: int  # the same; 0: unknown


class Sending(Progress, frozen=True, kw_only=True):
    """Progress of sending the workspace."""

    sent: int  # bytes that have left for all hosts
    of: int  # bytes that are to leave, as counted so far
