"""The verdict on a run: which rank or host failed first, how, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from mesh.core.cluster import Placement
from mesh.core.events import Exited, Lost, PrepareFailed
from mesh.core.outcome import Outcome
from mesh.core.ranks import told_ranks
from mesh.verdict.words import Raised, raised

if TYPE_CHECKING:
    from mesh.verdict.facts import Fact

LAST_LINES = 10  # of the first failure's output
SAME_MOMENT_S = 5.0  # within which a client notices that an agent was killed: it may have to connect again
NO_CLIENT = "no client"  # the fact of a run that its agents ended because its client was away
KILLERS = "Likely cause: the command or prerun runs pkill, killall, kill -1 or reboot."

Tail = Callable[[int], Sequence[str]]


class Failure(Struct, frozen=True, kw_only=True):
    """The end of one rank."""

    event: Exited
    host: str
    role: str  # its name in its group, as "actor/1"; "": the run has no roles
    after: float  # seconds from the start of the ranks
    said: tuple[str, ...]  # its last lines, or the end of its Python traceback; at most LAST_LINES
    exception: Raised | None
    fact: Fact | None  # if its cause is one that has a name

    @property
    def who(self) -> str:
        """The rank for people: "rank 3 (actor/1) on tpu-2"."""
        return f"rank {self.event.rank}{f' ({self.role})' if self.role else ''} on {self.host}"

    def to_json(self) -> dict[str, Any]:
        """Return the fields of run.json."""
        how = {"signal": self.event.signal} if self.event.signal else {"code": self.event.code}
        return {
            "rank": self.event.rank,
            "host": self.host,
            **({"label": self.role.partition("/")[0]} if self.role else {}),
            **how,
            "after": round(self.after, 3),
            "said": list(self.said),
            "exception": self.exception.error if self.exception else "",
            "where": self.exception.where if self.exception else "",
            "fact": self.fact.name if self.fact else "",
            "advice": self.fact.advice if self.fact else "",
        }


class Verdict(Struct, frozen=True, kw_only=True):
    """Why the ranks of a run ended before their time."""

    first: Failure | Lost  # the failure that decided
    alike: tuple[int, ...] = ()  # as in Outcome
    root: Failure | None = None  # another rank that caused it, if the first one's last lines report another's end
    others: tuple[Exited, ...] = ()  # ranks that failed by themselves afterwards, by time
    lost: tuple[Lost, ...] = ()  # hosts that were lost afterwards
    stopped: tuple[int, ...] = ()  # ranks that mesh has stopped

    @property
    def not_returned(self) -> tuple[Lost, ...]:
        """The hosts whose agents ended their ranks because the client was away, if that decided; else none."""
        if not isinstance(self.first, Lost) or not self.first.return_within:
            return ()
        return (self.first, *(lost for lost in self.lost if lost.return_within))

    @property
    def span(self) -> float:
        """Seconds from the first failure to the last one that followed by itself."""
        return max(0.0, max((other.time for other in self.others), default=0.0) - _time(self.first))

    def to_json(self, placement: Placement) -> dict[str, Any]:
        """Return the fields of run.json."""
        if isinstance(self.first, Lost):
            host = placement.hosts[self.first.node].name
            first: dict[str, Any] = {"host": host, "ranks": list(placement.ranks(self.first.node))}
            first |= {"lost": self.first.reason, "fact": "host lost"}
            if nodes := [lost.node for lost in self.not_returned]:
                ranks = sorted(rank for node in nodes for rank in placement.ranks(node))
                first |= {"ranks": ranks, "fact": NO_CLIENT, "return_within": self.first.return_within}
                first["hosts"] = [placement.hosts[node].name for node in nodes]
        else:
            first = self.first.to_json()
        return {
            "first": first,
            "alike": list(self.alike),
            "root": self.root.to_json() if self.root else None,
            "others": [other.rank for other in self.others],
            "span": round(self.span, 3),
            "lost": [placement.hosts[lost.node].name for lost in self.lost if lost not in self.not_returned],
            "stopped": list(self.stopped),
        }


def make_verdict(outcome: Outcome, placement: Placement, tail: Tail) -> Verdict | None:
    """Return the verdict on a run that a rank or a lost host has decided; None for all others.

    tail: the last lines of a rank, without escape sequences
    """
    if outcome.first is None:
        return None
    stopped = set(outcome.stopped)
    failed = sorted((e for e in outcome.exits if e.status and e.rank not in stopped), key=lambda e: e.time)
    others = tuple(event for event in failed if event is not outcome.first)
    lost = tuple(lost for lost in outcome.lost if lost is not outcome.first)
    examine = partial(_examine, placement, outcome.started, tail)
    if isinstance(outcome.first, Lost):
        return Verdict(first=outcome.first, others=others, lost=lost, stopped=outcome.stopped)
    from mesh.verdict.facts import points_elsewhere

    root = None
    if points_elsewhere(tail(outcome.first.rank)):
        # A rank that printed a traceback may take longer to end than those that miss it.
        rest = sorted((e for e in outcome.exits if e.rank in stopped), key=lambda e: e.time)
        own = (event for event in [*others, *rest] if not points_elsewhere(tail(event.rank)))
        suspects = (failure for failure in map(examine, own) if failure.exception or failure.event.rank not in stopped)
        root = next(suspects, None)
    return Verdict(
        first=examine(outcome.first),
        alike=outcome.alike,
        root=root,
        others=others,
        lost=lost,
        stopped=outcome.stopped,
    )


def told_return(hosts: Sequence[str], ranks: Sequence[int], within: float, reason: str) -> list[str]:
    """Return for people that a client was away for longer than the agents of hosts wait for it.

    >>> told_return(["a"], [0, 1], 30.0, "no route")[0]
    'the client could not come back to a (ranks 0-1) within 30 s: no route'
    """
    where, agents = (hosts[0], "its agent ends") if len(hosts) == 1 else (f"{len(hosts)} hosts", "their agents end")
    who = told_ranks(ranks)
    return [
        f"the client could not come back to {where} ({who}) within {within:g} s: {reason}",
        f"{agents} {who} then, as the rule is; `mesh run -d` starts ranks that need no client",
    ]


def agents_killed_together(outcome: Outcome, placement: Placement) -> str:
    """Return a sentence if a signal has ended the agents of all hosts at the same moment, else ""."""
    told: tuple[Lost | PrepareFailed, ...] = (*outcome.lost, *outcome.failures)
    ends = [event for event in told if event.killed_by]
    times = [event.time for event in ends]
    if {event.node for event in ends} != set(range(len(placement.hosts))) or max(times) - min(times) > SAME_MOMENT_S:
        return ""
    signals = {event.killed_by for event in ends}
    by = f" by {signals.pop()}" if len(signals) == 1 else ""
    who = "every agent was" if len(ends) > 1 else "the agent was"
    within = f" within {max(0.1, max(times) - min(times)):.1f} s" if len(ends) > 1 else ""
    return f"{who} killed{by}{within}. {KILLERS}"


def _examine(placement: Placement, started: float, tail: Tail, event: Exited) -> Failure:
    from mesh.verdict.facts import fact_of

    lines = tail(event.rank)
    exception = raised(lines)
    shown = exception.lines if exception else lines
    return Failure(
        event=event,
        host=placement.hosts[event.node].name,
        role=placement.role(event.rank),
        after=max(0.0, event.time - started),
        said=tuple(shown[-LAST_LINES:]),
        exception=exception,
        fact=fact_of(event, shown),
    )


def _time(first: Failure | Lost) -> float:
    return first.event.time if isinstance(first, Failure) else first.time
