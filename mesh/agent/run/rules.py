"""The limits within which the ranks of one host may go on and end."""

from __future__ import annotations


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
