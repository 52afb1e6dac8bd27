"""The limits within which the ranks of one host may go on and end."""

from __future__ import annotations

REPORT_S = 2.0  # for the last messages, before the scheduler of the host ends the agent


class Rules:
    """Limits within which the ranks of one host may go on and end."""

    def __init__(
        self,
        *,
        grace: float,
        drain: float,
        timeout: float,
        keep_going: bool,
        device_patience: float,
        has_nodes: bool = False,
    ) -> None:
        """Make the rules; times are in seconds.

        grace: from SIGTERM to SIGKILL
        drain: for the last output of the other ranks after a failure, in a detached run
        timeout: for the ranks of a detached run; 0 for any time
        keep_going: let the other ranks run after a failure
        device_patience: for devices to become free after the end of their processes
        has_nodes: ranks are nodes of a program, which get the reason of its end
        """
        self.grace, self.drain, self.timeout, self.keep_going = grace, drain, timeout, keep_going
        self.device_patience, self.has_nodes = device_patience, has_nodes
        self.term_limit = 0.0  # from a SIGTERM of the host's scheduler to its SIGKILL; 0 if that is unknown

    @property
    def outer_grace(self) -> float:
        """The grace of ranks when this agent itself is being ended; it has the rest to report that."""
        return min(self.grace, max(0.0, self.term_limit - REPORT_S)) if self.term_limit else self.grace
