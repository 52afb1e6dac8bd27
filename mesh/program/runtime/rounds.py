"""The rounds of collectives, kept by the first node of their group: who has come, who is missing, who has failed.

No threads, sockets or clocks: each method returns the answers to send. An answer is a tuple of plain values.
"""

from __future__ import annotations

from typing import Callable, Dict, Hashable, List, Mapping, Sequence, Set, Tuple

NAMES_LIMIT = 8  # in one message
Outcome = Tuple[object, ...]  # its kind, and what belongs to it
GO, DONE, LOST, LATE, WRONG, FAILED = "go", "done", "lost", "late", "wrong", "failed"
Members = Tuple[str, ...]
Order = Tuple[Hashable, Outcome]  # a call that waits, and its answer


class Entry:
    """The call by which a member comes to a round."""

    __slots__ = ("call", "has_data", "label", "members", "what")

    def __init__(self, members: Members, label: str, what: str, call: Hashable, has_data: bool) -> None:
        """members: labels, "" for the client; what: the collective and its root, the same for all members

        call: the caller's call, which is answered once all have come; has_data: values travel then
        """
        self.members, self.label, self.what, self.call, self.has_data = members, label, what, call, has_data


class Round:
    """A collective in progress."""

    def __init__(self, number: str, entry: Entry) -> None:
        self.number, self.members, self.what, self.has_data = number, entry.members, entry.what, entry.has_data
        self.entered: Dict[str, Hashable] = {}
        self.begun = False
        self.failure: "Outcome | None" = None
        self.open: Set[str] = set()  # members that have come, and have neither finished nor been answered a failure
        self.watching: Dict[str, Hashable] = {}
        self.last: List[Hashable] = []  # calls that are answered at the end of the round

    @property
    def missing(self) -> "List[str]":
        """The members that a deadline names: those that have not come, or have not finished."""
        return [one for one in self.members if (one in self.open if self.begun else one not in self.entered)]


class Rounds:
    """The rounds of all groups whose first member is this node."""

    def __init__(self, label: str, attempt: int, hosts: "Mapping[str, str]", loss_of: "Callable[[str], str]") -> None:
        """label, attempt: of this node; loss_of: returns why a node takes no calls any more, "" if it does"""
        self._label, self._attempt, self._hosts, self._loss_of = label, attempt, hosts, loss_of
        self._count = 0
        self._gathering: Dict[Members, Round] = {}
        self._begun: Dict[str, Round] = {}
        self._owed: Dict[Tuple[Members, str], Outcome] = {}  # failures of rounds that a member has not come to

    def enter(self, entry: Entry) -> "Tuple[str, List[Order]]":
        """Take a member's call; return the number of its round, "" if it has none, and answers."""
        owed = self._owed.pop((entry.members, entry.label), None)
        if owed is not None:
            return "", [(entry.call, owed)]
        if entry.members not in self._gathering:
            self._count += 1
            self._gathering[entry.members] = Round(f"{self._label}.{self._attempt}.{self._count}", entry)
        found = self._gathering[entry.members]
        found.entered[entry.label] = entry.call
        if entry.what != found.what:
            other = next(label for label in found.entered if label != entry.label)
            text = f"{self._named([entry.label])} calls {entry.what}, and {self._named([other])} {found.what}"
            return found.number, self._fail(found, (WRONG, text))
        lost = next((one for one in found.members if self._loss_of(one)), None)
        if lost is not None:
            return found.number, self._fail(found, self._lost(lost, self._loss_of(lost)))
        if len(found.entered) < len(found.members):
            return found.number, []
        return found.number, self._begin(found)

    def _begin(self, found: Round) -> "List[Order]":
        del self._gathering[found.members]
        found.begun = True
        if found.has_data:
            found.open = set(found.members)
            self._begun[found.number] = found
        return [(call, (GO, found.number)) for _, call in self._own_last(found.entered)]

    def _own_last(self, calls: "Mapping[str, Hashable]") -> "List[Tuple[str, Hashable]]":
        """Return labels and calls, those of this node last: its process may end right after its answer."""
        return sorted(calls.items(), key=lambda item: item[0] == self._label)

    def watch(self, number: str, label: str, call: Hashable) -> "List[Order]":
        """Keep a member's call that is answered with a failure of the round, or once the member has finished."""
        found = self._begun.get(number)
        if found is None:
            return [(call, (WRONG, "this round is over"))]
        if found.failure is not None:
            return [(call, found.failure), *self._close(found, label)]
        found.watching[label] = call
        return []

    def finish(self, number: str, label: str, failure: "Outcome | None", call: Hashable) -> "List[Order]":
        """Note that a member has finished. failure: None if it went well

        This node's own answer waits until all have finished, because its process may end right after it. The client's
        waits as well.
        """
        found = self._begun.get(number)
        if found is None:
            return [(call, (DONE,))]
        watching = found.watching.pop(label, None)
        orders: List[Order] = [] if watching is None else [(watching, (DONE,))]
        if label in (self._label, "") and failure is None and found.failure is None:
            found.last.append(call)
        else:
            orders.append((call, (DONE,)))
        if failure is not None and found.failure is None:
            orders += self._fail(found, failure)
        return orders + self._close(found, label)

    def _close(self, found: Round, label: str) -> "List[Order]":
        """Note that a member needs nothing more of a round."""
        found.open.discard(label)
        if found.open:
            return []
        self._begun.pop(found.number, None)
        last, found.last = found.last, []
        return [(call, (DONE,)) for call in last]

    def _fail(self, found: Round, failure: Outcome) -> "List[Order]":
        """Fail a round for all members: now, or when they come."""
        found.failure = failure
        orders: List[Order] = []
        if not found.begun:
            self._gathering.pop(found.members, None)
            for label in found.members:
                if label not in found.entered and not self._loss_of(label):
                    self._owed[found.members, label] = failure
            return [(call, failure) for _, call in self._own_last(found.entered)]
        watching, last = found.watching, found.last
        found.watching, found.last = {}, []
        for label, call in self._own_last(watching):
            orders += [(call, failure), *self._close(found, label)]
        return orders + [(call, failure) for call in last]

    def expire(self, number: str, seconds: float) -> "List[Order]":
        """Fail a round whose deadline has passed, and name the members that are missing."""
        found = self._round(number)
        if found is None or found.failure is not None:
            return []
        did = "has not finished" if found.begun else "did not come"
        names = self._named(found.missing)
        return self._fail(found, (LATE, f"{found.what}: {names} {did} within {seconds:g} s"))

    def leave(self, number: str, label: str, why: str) -> "List[Order]":
        """Fail the round of a member that gives up its call."""
        found = self._round(number)
        if found is None or found.failure is not None or (found.begun and label not in found.open):
            return []
        found.watching.pop(label, None)
        failure = self._lost(label, why) if why else (WRONG, f"{found.what}: {self._named([label])} has given up")
        if not found.begun:
            found.entered.pop(label, None)
            return self._fail(found, failure)
        return self._fail(found, failure) + self._close(found, label)

    def lose(self, label: str, why: str) -> "List[Order]":
        """Fail the rounds of a node that has ended, or is lost."""
        return self._fail_with(label, why, [one for one in self._all() if label in one.members])

    def restart(self, label: str, why: str) -> "List[Order]":
        """Fail the rounds that a node has come to before it was started again; others wait for it."""
        return self._fail_with(label, why, [one for one in self._all() if label in one.entered])

    def _fail_with(self, label: str, why: str, rounds: "Sequence[Round]") -> "List[Order]":
        """Fail rounds because of one member, which owes nothing from now on."""
        for key in [key for key in self._owed if key[1] == label]:
            del self._owed[key]
        orders: List[Order] = []
        for found in rounds:
            if found.begun and label not in found.open:
                continue
            found.watching.pop(label, None)
            if found.failure is None:
                orders += self._fail(found, self._lost(label, why))
            orders += self._close(found, label) if found.begun else []
        return orders

    def _all(self) -> "List[Round]":
        return [*self._gathering.values(), *self._begun.values()]

    def is_open(self, number: str) -> bool:
        """Return True for a round that has neither ended nor failed."""
        found = self._round(number)
        return found is not None and found.failure is None

    def _round(self, number: str) -> "Round | None":
        gathering = next((one for one in self._gathering.values() if one.number == number), None)
        return gathering or self._begun.get(number)

    def _lost(self, label: str, why: str) -> Outcome:
        return (LOST, label, self._hosts.get(label, ""), why)

    def _named(self, labels: "Sequence[str]") -> str:
        """Return nodes with their hosts, as a message shows them."""
        names = [f"{one} on {self._hosts.get(one, '')}" if one else "the client" for one in labels[:NAMES_LIMIT]]
        rest = len(labels) - NAMES_LIMIT
        return ", ".join(names) + (f" and {rest} more" if rest > 0 else "")
