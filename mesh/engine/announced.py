"""Ends that come from outside. The scheduler of the hosts has the reason; ranks and agents receive only a signal."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from typing import Protocol

from msgspec.structs import replace

from mesh.core.events import Event, Exited, PrepareFailed

AGENT = "agent"  # the step of an agent that is ended itself
BY_SIGTERM = f"signal {int(signal.SIGTERM)}"
SHELL_STATUS = 128 + signal.SIGTERM  # of a shell whose command was ended by it


class Ending(Protocol):
    """A function that returns why the scheduler is ending a host, see ``Announces``; "" if it is not."""

    def __call__(self, *, is_clear: bool) -> str: ...


def with_reasons(found: Iterable[Event], ending: Ending) -> Iterator[Event]:
    """Yield the events of a host, with the reason of its scheduler before the first end that it has caused."""
    is_announced = False
    for event in found:
        match event:
            case PrepareFailed(step=step, killed_by=by) if (
                step == AGENT and by == BY_SIGTERM and (why := ending(is_clear=True))
            ):
                yield replace(event, message=why, killed_by="")
                is_announced = True
                continue
            case Exited() if not is_announced and (why := ending(is_clear=event.status == SHELL_STATUS)):
                yield PrepareFailed(time=event.time, node=event.node, step=AGENT, message=why)
                is_announced = True
        yield event
