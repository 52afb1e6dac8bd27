"""The time until which a run may go on without a sign of its client, and why it may not any longer."""

from __future__ import annotations

SILENCE_LIMIT_S = 15.0  # a client without a beat for this long counts as silent, even if its channel is open
MEETING_LIMIT_S = 7.0  # for the agents of a run that is being detached to meet: more than peers.JOIN_LIMIT_S
NEVER = float("inf")


class Lease:
    """The permission of one client to keep processes alive. Every time is monotonic."""

    def __init__(self, lease: float, reconnect_limit: float, now: float, agents_meet: bool = False) -> None:
        """Start with an open channel.

        lease: seconds that the run may go on without a beat
        reconnect_limit: seconds in which a client may reconnect whose channel ended while beats arrived
        agents_meet: the client has the agents of several hosts meet before it leaves a detached run
        """
        self._lease, self._reconnect_limit, self._agents_meet = lease, reconnect_limit, agents_meet
        self._received_at = now
        self._lost_at: float | None = None  # when its channel ended; None while it has one
        self._refused_until: float | None = None  # until then a refused client may read how its run ended
        self.has_left = False  # it has sent its good-bye, or is over
        self.is_detached = False  # the run goes on without it
        self._is_unsettled = False  # if the client was killed, other hosts may not have detached

    @property
    def has_channel(self) -> bool:
        """True if the client has an open channel."""
        return self._lost_at is None

    @property
    def silent_at(self) -> float:
        """The time at which the client counts as silent unless it sends something."""
        return self._received_at + SILENCE_LIMIT_S

    def receive(self, now: float) -> None:
        """Renew the lease; a refused client cannot."""
        if self._refused_until is None:
            self._received_at = now

    def lose_channel(self, now: float) -> None:
        """Note that the channel has ended."""
        if self._lost_at is None:
            self._lost_at = now

    def take_channel(self, now: float) -> None:
        """Renew the lease of a client that has reconnected."""
        self._lost_at, self._received_at = None, now

    def refuse(self, now: float) -> None:
        """Give a client that broke the protocol a short time to read how its run ended."""
        self._refused_until = now + self._reconnect_limit

    def leave(self) -> None:
        """End the lease: the client does not come back."""
        self.has_left = True

    def detach(self, *, is_at_start: bool) -> None:
        """Let the run go on without its client. is_at_start: the client has all hosts detach by itself"""
        self.is_detached, self._is_unsettled = True, is_at_start and self._agents_meet

    def settle(self) -> None:
        """Note that all hosts have detached: the client has left, or the agents have met."""
        self._is_unsettled = False

    def ends_at(self) -> float:
        """Return the time after which the run is to be ended.

        A client whose channel ended while beats were arriving was probably killed: it gets the reconnect limit.
        Any other client gets its lease, from the last beat: a laptop may sleep, and a network may be cut.
        """
        if self.is_detached:
            is_abandoned = self._lost_at is not None and self._is_unsettled and self.was_killed()
            limit = max(self._reconnect_limit, MEETING_LIMIT_S)
            return self._lost_at + limit if is_abandoned and self._lost_at is not None else NEVER
        if self.has_left or (self._refused_until is not None and self._lost_at is not None):
            return 0.0
        if self._refused_until is not None:
            return self._refused_until
        if self._lost_at is not None and self.was_killed():
            return self._lost_at + self._reconnect_limit
        return self._received_at + self._lease

    def is_silent(self, now: float) -> bool:
        """True if the client receives nothing now: it has no channel, or sends nothing."""
        return self._lost_at is not None or now > self.silent_at

    def was_killed(self) -> bool:
        """True if the channel ended while beats were arriving."""
        return self._lost_at is not None and self._lost_at - self._received_at < SILENCE_LIMIT_S

    def loss_reason(self) -> str:
        """Return why the run is ended after ``ends_at``, for people."""
        if self.was_killed():
            return f"the client's connection ended, and it was not back within {self._reconnect_limit:g} s"
        return f"no sign of the client for {self._lease:g} s"
