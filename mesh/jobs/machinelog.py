"""The log ``tpu.log`` or ``machines.log`` of a job, from its events: requests for machines and what became of them."""

from __future__ import annotations

from mesh.jobs import events, orders


class MachineLog:
    """The texts about machines among the events of one job, which are given in their order."""

    def __init__(self) -> None:
        self._ops: dict[int, int] = {}  # generations by the number of an order that asks the maker for something

    def text(self, event: events.AnyEvent) -> str:
        """Return the text for an event; "" for one that is not about machines."""
        match event:
            case events.Intended(op=op, order=orders.Make(generation=number, name=name)):
                self._ops[op] = number
                return f"generation {number}: request {name}"
            case events.Intended(op=op, order=orders.Delete(generation=number, name=name)):
                self._ops[op] = number
                return f"generation {number}: delete {name}"
            case events.Made(generation=number):
                return f"generation {number}: the request is accepted"
            case events.MachinesPending(generation=number, state=state):
                return f"generation {number}: {state}"
            case events.MachinesReady(generation=number, hosts=hosts):
                return f"generation {number}: ready ({', '.join(hosts)})"
            case events.MachinesLost(generation=number, evidence=evidence):
                return f"generation {number}: lost ({evidence})"
            case events.MachinesAbsent(generation=number, evidence=evidence):
                return f"generation {number}: gone ({evidence})"
            case events.Refused(op=op, why=why) if op in self._ops:
                return f"generation {self._ops[op]}: refused ({why})"
            case events.NotAsked(of_maker=True, what=what, why=why):
                return f"no answer from {what} ({why})"
        return ""
