"""The decisions about ranks that hosts make in place of the client's supervisor, with the reports of their peers."""

from __future__ import annotations

from mesh.agent.detached.rules import NEVER, UnattendedRules
from mesh.agent.run.facts import PeerNews
from mesh.agent.run.orders import AnnounceEnd, Order, ReportDone, SendNews


class Unattended:
    """The state of the ranks of one host, and the first report that counts in the whole run.

    It exists from the first fact on, as ranks that end before the client leaves count as well.
    """

    def __init__(self) -> None:
        """Start without ranks and without peers."""
        self._rules: UnattendedRules | None = None  # from the start of ranks on
        self._node = -1  # the number of this host, once there are peers
        self._news: PeerNews | None = None  # the first, from here or elsewhere

    @property
    def has_rules(self) -> bool:
        """True once ranks were to start."""
        return self._rules is not None

    @property
    def is_over(self) -> bool:
        """True once all ranks of this host have ended."""
        return self._rules is not None and self._rules.is_over

    def start(self, rules: UnattendedRules) -> None:
        """Follow these rules from now on."""
        self._rules = rules

    def printed(self, now: float) -> None:
        """Note that a rank has printed something."""
        if self._rules is not None:
            self._rules.printed(now)

    def rank_ended(self, is_failure: bool, now: float) -> list[Order]:
        """Note the end of a rank, and report it."""
        if self._rules is None:
            return []
        self._rules.rank_ended(is_failure, now)
        return self._report_ranks(self._rules)

    def meet(self, node: int) -> list[Order]:
        """Report to peers from now on, as host ``node``, also what has happened before."""
        self._node = node
        return self._report_ranks(self._rules) if self._rules is not None else []

    def take(self, news: PeerNews, now: float) -> bool:
        """Treat the first report of another host like an event on this one.

        True for a signal that the ranks are to be sent, and for a program that a node has ended.
        """
        rules = self._rules
        if self._news is not None or rules is None:
            return False
        self._news = news
        if news.cause in ("signal", "program") and not rules.is_stopped:
            return True
        rules.fail(news.cause, now)
        return False

    def lose(self, reason: str) -> list[Order]:
        """Report that this host is lost."""
        return self._spread(PeerNews("lost", lost=self._node, reason=reason))

    def announce_end(self, cause: str, number: int, more: dict[str, object]) -> list[Order]:
        """Record the first cause for which the ranks of a detached run end."""
        if self._rules is None or self._rules.is_stopped:
            return []
        self._rules.is_stopped = True
        spread: list[Order] = []
        if cause == "signal":
            spread = self._spread(PeerNews("signal", number))
        elif cause == "program":
            spread = self._spread(PeerNews("program", reason=str(more["reason"]), code=int(str(more["code"]))))
        return [AnnounceEnd(cause, number, more), *spread]

    def report_done(self) -> list[Order]:
        """Report to peers that no rank is left here, or that it was named."""
        return [ReportDone()] if self._node >= 0 else []

    def due_at(self) -> float:
        """Return the time at which ``due`` may have another answer."""
        return self._rules.due_at() if self._rules is not None else NEVER

    def due(self, now: float) -> tuple[str, dict[str, object]]:
        """Return why the ranks are to be ended now, or "", and which host was lost if that is the cause."""
        cause = self._rules.due(now) if self._rules is not None else ""
        if cause == "lost" and self._news is not None:
            return cause, {"lost": self._news.lost, "reason": self._news.reason}
        return cause, {}

    def _report_ranks(self, rules: UnattendedRules) -> list[Order]:
        failure = self._spread(PeerNews("rank")) if rules.has_failed else []
        return [*failure, *(self.report_done() if rules.is_over else [])]

    def _spread(self, news: PeerNews) -> list[Order]:
        """Send the first report of all to the other hosts; it ends the run everywhere."""
        if self._node < 0 or self._news is not None:
            return []
        self._news = news
        return [SendNews(news)]
