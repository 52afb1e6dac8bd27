"""The collectives of one process: calls that come from other members, and what the own calls wait for."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Callable, Deque, Dict, Hashable, List, Mapping, Sequence, Tuple

from mesh.program.runtime.futures import CLOCK
from mesh.program.runtime.rounds import DONE, Entry, Members, Order, Outcome, Rounds
from mesh.program.runtime.spreading import Part

NEWS_TIMEOUT_S = 0.5  # for the news that explains the end of a link
ENTER, WATCH, FINISH, PIECE = "enter", "watch", "finish", "piece"
Answer = Callable[[object], None]
Piece = Tuple[str, str, Tuple[List[int], int], List[Part]]  # tag, sender, sizes of segments and branches, parts


class Exchange:
    """The part of one node in all collectives."""

    def __init__(self, rounds: Rounds, loss_of: "Callable[[str], str]") -> None:
        self._rounds, self._loss_of = rounds, loss_of
        self._lock = threading.Lock()
        self._answers: Dict[Hashable, Answer] = {}  # of calls that wait
        self._callers: Dict[Hashable, Tuple[str, str]] = {}  # of each: its round, and the label of its member
        self._alarms: Dict[str, List[int]] = {}  # of the deadlines of each round
        self.changed = threading.Condition()
        self._pieces: "Dict[str, Deque[Piece]]" = {}  # by round
        self._groups: Dict[str, Members] = {}  # of each round that has pieces
        self._turns: Dict[Members, threading.Lock] = {}

    # ---- calls of other members, on the threads that read their links

    def take(self, key: Hashable, args: "Sequence[object]", answer: Answer) -> None:
        """Take a call of a member. key: of the call; answer: sends its result, now or later"""
        kind, *rest = args
        if kind == PIECE:
            number, members, tag, sender, head, parts = rest
            self._keep(str(number), _members(members), (str(tag), str(sender), head, parts))  # type: ignore[arg-type]
            answer((DONE,))
            return
        with self._lock:
            self._answers[key] = answer
            if kind == ENTER:
                orders = self._enter(key, rest)
            elif kind == WATCH:
                self._callers[key] = str(rest[0]), str(rest[1])
                orders = self._rounds.watch(*self._callers[key], key)
            else:
                outcome = None if rest[2] is None else outcome_of(rest[2])
                self._callers[key] = str(rest[0]), str(rest[1])
                orders = self._rounds.finish(*self._callers[key], outcome, key)
        self._carry_out(orders)

    def _enter(self, key: Hashable, rest: "Sequence[object]") -> "List[Order]":
        members, label, what, has_data, seconds = rest
        entry = Entry(_members(members), str(label), str(what), key, bool(has_data))
        number, orders = self._rounds.enter(entry)
        self._callers[key] = number, str(label)
        if isinstance(seconds, (int, float)) and number:
            limit = float(seconds)
            alarm = CLOCK.at(time.monotonic() + limit, lambda: self._expire(number, limit))
            self._alarms.setdefault(number, []).append(alarm)
        return orders

    def _expire(self, number: str, seconds: float) -> None:
        with self._lock:
            orders = self._rounds.expire(number, seconds)
        _in_thread(lambda: self._carry_out(orders))

    @property
    def waiting(self) -> int:
        """The number of calls that wait for their answers."""
        return len(self._answers)

    def drop(self, key: Hashable, is_gone: bool) -> None:
        """Note the end of a call that waits. is_gone: its process has ended; else it has given up"""
        with self._lock:
            number, label = self._callers.pop(key, ("", ""))
            answer = self._answers.pop(key, None)
        if answer is None:
            return
        if not is_gone:
            answer((DONE,))
            self._leave(number, label, "")
            return
        leave = lambda: self._leave(number, label, "its process has ended")  # noqa: E731
        CLOCK.at(time.monotonic() + NEWS_TIMEOUT_S, lambda: _in_thread(leave))

    def _leave(self, number: str, label: str, why: str) -> None:
        with self._lock:
            orders = self._rounds.leave(number, label, why and (self._loss_of(label) or why))
        self._carry_out(orders)

    def lose(self, label: str, why: str) -> None:
        """Fail the collectives of a node that takes no calls any more."""
        with self._lock:
            orders = self._rounds.lose(label, why)
        self._carry_out(orders)

    def restart(self, label: str, why: str) -> None:
        """Fail the collectives that a node has come to before it was started again."""
        with self._lock:
            orders = self._rounds.restart(label, why)
        self._carry_out(orders)

    def _carry_out(self, orders: "Sequence[Order]") -> None:
        with self._lock:
            over = [number for number in self._alarms if not self._rounds.is_open(number)]
            alarms = [alarm for number in over for alarm in self._alarms.pop(number)]
        for alarm in alarms:
            CLOCK.forget(alarm)
        for key, outcome in orders:
            with self._lock:
                answer = self._answers.pop(key, None)
                self._callers.pop(key, None)
            if answer is not None:
                answer(outcome)

    # ---- the own calls

    def turn(self, members: Members) -> threading.Lock:
        """Return the lock of a group: a process is in one collective of it at a time."""
        with self._lock:
            return self._turns.setdefault(members, threading.Lock())

    def _keep(self, number: str, members: Members, piece: Piece) -> None:
        with self.changed:
            self._pieces.setdefault(number, deque()).append(piece)
            self._groups[number] = members
            self.changed.notify_all()

    def begin(self, number: str, members: Members) -> None:
        """Drop the pieces of earlier rounds of a group, which have failed."""
        with self.changed:
            for old in [one for one, group in self._groups.items() if group == members and one != number]:
                del self._groups[old]
                self._pieces.pop(old, None)

    def piece(self, number: str, tag: str) -> "Piece | None":
        """Take the next piece with a tag, if one is there. Called with ``changed``."""
        waiting = self._pieces.get(number, ())
        for place, piece in enumerate(waiting):
            if piece[0] == tag:
                del waiting[place]  # type: ignore[union-attr]
                return piece
        return None

    def end(self, number: str) -> None:
        """Drop what is left of a round."""
        with self.changed:
            self._pieces.pop(number, None)
            self._groups.pop(number, None)

    def wake(self, *_: object) -> None:
        """Have waiting calls look again."""
        with self.changed:
            self.changed.notify_all()


def _in_thread(work: "Callable[[], None]") -> None:
    """Run a function in a thread: a member that reads nothing must not hold up the clock."""
    threading.Thread(target=work, name="mesh-round", daemon=True).start()


def _members(value: object) -> Members:
    return tuple(str(one) for one in value) if isinstance(value, (tuple, list)) else ()


def exchange_of(place: "Tuple[str, int]", hosts: "Mapping[str, str]", loss_of: "Callable[[str], str]") -> Exchange:
    """Return the collectives of a node. place: its label and attempt"""
    return Exchange(Rounds(place[0], place[1], hosts, loss_of), loss_of)


def outcome_of(value: object) -> Outcome:
    """Return an answer as an outcome."""
    return tuple(value) if isinstance(value, (tuple, list)) and value else (DONE,)
