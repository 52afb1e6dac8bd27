"""The last decisions of one run on one host: end every process, clean up, pass on the last output, leave."""

from __future__ import annotations

from mesh.agent.run import facts, orders
from mesh.agent.run.orders import Order


class Leaving:
    """The steps from the order to end everything until the agent has reported that all is gone."""

    def __init__(self, grace: float, device_patience: float) -> None:
        """Start before the end; grace: seconds for containers; device_patience: seconds for devices"""
        self._grace, self._device_patience = grace, device_patience
        self.is_ending = False  # everything of the run is to end, and the agent is to leave
        self.is_clear = False  # every process of the run is gone or named
        self.is_set_up = False  # a setup has ended
        self._is_cleaning = False
        self._busy: tuple[str, ...] = ()  # devices that the clean-up waits for
        self._left: tuple[str, ...] = ()  # processes that could not be ended
        self._last: orders.Leave | None = None  # the order to give once the last output is passed on

    def finish(self, number: int, grace: float, is_signalled: bool) -> list[Order]:
        """Return the orders that end everything left of the run.

        is_signalled: a client has ordered a signal for the ranks
        """
        if self.is_set_up and not is_signalled:
            return self._leave_setup()
        if self.is_ending:
            return []
        self.is_ending = True
        # The prerun session is released after the signal, which is not for what its EXIT trap runs.
        end = orders.BeginEnd(number, grace)
        return [orders.ClearRequests(), orders.StopSync(), end, orders.ReleasePrerun()]

    def _leave_setup(self) -> list[Order]:
        """Leave at once: what a setup that ended by itself has left in the background is there on purpose."""
        if self.is_clear or self._is_leaving:
            return []
        self.is_ending = True
        return [orders.RemoveScripts(), *self._relay_rest(orders.Leave(stays=True))]

    def all_gone(self, fact: facts.AllGone) -> list[Order]:
        """Clean up what takes long in the background, or leave at once if there is none of that."""
        if not self.is_ending or self._is_leaving:
            return []
        self._left, self._busy = fact.left, fact.busy
        if not (fact.busy or fact.uses_containers or fact.has_copy):
            return [orders.RemoveScripts(), *self._relay_rest(orders.Leave(fact.left))]
        self._is_cleaning = True
        grace, patience = 0.0 if fact.was_killed else self._grace, self._device_patience
        names = [*fact.busy, *["containers"] * fact.uses_containers]
        report = orders.ReportWait(f"waiting for {', '.join(names)}", patience + grace)
        return [*[report] * bool(names), orders.CleanUp(fact.busy, grace, patience)]

    def cleaned_up(self, left: tuple[str, ...]) -> list[Order]:
        """Leave after the clean-up. left: what is still there and why"""
        if not self._is_cleaning:
            return []
        self._is_cleaning = False
        return self._relay_rest(orders.Leave(self._left + left))

    def clean_up_failed(self, reason: str) -> list[Order]:
        """Leave without a clean-up, and name what was to be looked at."""
        return self.cleaned_up((f"no process to look at {', '.join(self._busy)}: {reason}",))

    def relayed(self) -> orders.Leave | None:
        """Return the last order once, after the last output was passed on."""
        if self._last is None or self.is_clear:
            return None
        self.is_clear = True
        return self._last

    @property
    def is_past_signals(self) -> bool:
        """True once no process is signalled any more: each is gone, named, or stays on purpose."""
        return self._last is not None

    @property
    def _is_leaving(self) -> bool:
        return self._is_cleaning or self._last is not None

    def _relay_rest(self, last: orders.Leave) -> list[Order]:
        """Have the last output passed on first: it may bring ends of ranks, which peers get before Leave."""
        self._last = last
        return [orders.CollectChildren(), orders.DropSync(), orders.RelayRest()]
