"""Notifications at the end of a run: their kinds, and when they are due."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Moment(Enum):
    """The event that a notification is for. Those after FAILED are for jobs only."""

    END = "end"  # any end
    DONE = "done"  # with status 0
    FAILED = "failed"  # any other status
    HELD = "held"
    PREEMPTED = "preempted"
    STUCK = "stuck"  # its machines are not gone long after their deletion
    COST = "cost"  # most of its cost limit is spent
    LEFT = "left"  # a machine that was made for it has no owner any more


class Short(Enum):
    """A notification that is one word in mesh.yaml."""

    NONE = ""
    BELL = "bell"  # of the terminal
    DESKTOP = "desktop"  # on the screen of the user's machine


class Notification(Struct, frozen=True, kw_only=True):
    """An entry of ``notify:`` in mesh.yaml. Exactly one of short, command and url_env is given."""

    on: tuple[Moment, ...] = (Moment.END,)
    short: Short = Short.NONE
    command: tuple[str, ...] = ()  # the words for execve, with {state} and the like in them
    url_env: str = ""  # the variable that holds the address of a webhook

    def is_due(self, exit_code: int) -> bool:
        """Return True if it is for a run that ends with this status.

        >>> Notification(on=(Moment.FAILED,), short=Short.BELL).is_due(0)
        False
        """
        return Moment.END in self.on or (Moment.FAILED if exit_code else Moment.DONE) in self.on
