"""A question to every host of a cluster: no lock, no workspace, no rank. As pure as the Supervisor."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Mapping
from typing import TypeVar

from mesh.core.cluster import Placement
from mesh.core.events import CONNECTING, Answered, Connected, Event, Gone, Interrupted, Lost, PrepareFailed, Tick
from mesh.core.outcome import EXIT_LOST, EXIT_PREPARE, Cause, Outcome
from mesh.core.pull import NotPulled
from mesh.engine.orders import Ask, Finish, Order
from mesh.engine.question import Question
from mesh.protocol import questions
from mesh.protocol.records import Record
from mesh.protocol.replies import WantsTool

Questions = Mapping[int, questions.Question[object]]  # by node
R = TypeVar("R", bound=Record)
ENCLOSED_BYTES_PER_S = 50e3  # bytes per second that an enclosure of a question may take


class Inquiry:
    """Asks every host one question, or several that build on each other, and keeps answers and failures by node."""

    def __init__(
        self,
        placement: Placement,
        question: Question,
        then: Callable[[Inquiry], Questions] | None = None,
        *,
        limit: float = math.inf,
        is_paused: Callable[[], bool] = lambda: False,
    ) -> None:
        """question: the first one; its rules hold for those that follow

        then: called whenever all hosts have answered, or have failed: the next questions, {} to end; hosts stay
        until then. None: each leaves when it has answered
        limit: seconds after which hosts that have not answered have failed, also those that are not reached yet
        is_paused: True while the user is asked for a password, which does not count
        """
        self._placement, self._question, self._then = placement, question, then
        self._machines: set[object] | None = set() if question.each_machine else None  # that have been asked
        self._asked: dict[int, questions.Question[object]] = {}  # the last question to each
        self._leaving: set[int] = set()  # hosts whose agents were ordered to leave
        # By node: when its answer is overdue, monotonic.
        self._waiting: dict[int, float] = dict.fromkeys(range(len(placement.hosts)), float("inf"))
        self._owing = set(self._waiting)  # hosts that have not answered the last question
        self._now = 0.0  # seconds, monotonic
        self._limit, self._is_paused = limit, is_paused
        self._time_left = limit  # seconds
        self._interrupted = 0
        self._lasting = math.isinf(question.answer_s)
        self._incomplete = False  # a host does not bring all that it was asked for
        self._has_lost = False  # a host, while its answer was coming
        self.connected: dict[int, Connected] = {}
        self.rounds: list[dict[int, Answered]] = [{}]  # the answers to each question
        self.failures: dict[int, PrepareFailed] = {}

    @property
    def answers(self) -> dict[int, Answered]:
        """Return the answers to the first question, by node."""
        return self.rounds[0]

    def replies(self, kind: type[R], number: int = 0) -> dict[int, R]:
        """Return the records that answered a question, by node. number: of the question, from 0; -1: the last"""
        answers = self.rounds[number] if number < len(self.rounds) else {}
        return {node: one.answer for node, one in sorted(answers.items()) if isinstance(one.answer, kind)}

    def forget(self) -> None:
        """Drop the answers to all questions but the last, for questions without an end."""
        self.rounds = self.rounds[-1:]

    @property
    def done(self) -> bool:
        return not self._waiting

    def locks_at_once(self, node: int) -> bool:
        return False

    @property
    def prepares_at_once(self) -> bool:
        return False

    def handle(self, event: Event) -> list[Order]:
        return [*self._heed(event), *self._ask_more()]

    def _heed(self, event: Event) -> list[Order]:
        match event:
            case Tick(monotonic=now):
                self._time_left -= now - self._now if self._now and not self._is_paused() else 0.0
                self._now = now
                for node in [node for node, until in self._waiting.items() if now > until]:
                    self._fail(node, event.time, "agent", "did not answer in time")
                for node in list(self._waiting) if self._time_left < 0 else ():
                    if node in self._owing:
                        self._fail(node, event.time, "reach", f"no answer within {self._limit:g} s")
                    else:  # it has answered, and leaves by itself
                        self._waiting.pop(node)
            case Connected(node=node):
                self.connected[node] = event
                if self._is_asked(event):
                    self._owing.discard(node)
                    return [self._let_go(node)]
                return [self._ask(node, self._question.message)]
            case Answered(node=node, answer=WantsTool(wants=name)):
                return [self._ask(node, self._asked[node], self._question.wanted(name))]
            case Answered(node=node):
                self.rounds[-1][node] = event
                self._owing.discard(node)
                if self._then is None:
                    return [self._let_go(node)]
                self._waiting[node] = float("inf")
            case PrepareFailed(node=node):
                self.failures[node] = event
                self._owing.discard(node)
                if event.step not in CONNECTING:
                    return [self._let_go(node)]
                self._waiting.pop(node, None)
            case NotPulled(fails=fails):
                self._incomplete = self._incomplete or fails
            case Lost(node=node, reason=reason):
                if self._then is None and node in self.rounds[-1]:
                    self._waiting.pop(node, None)
                elif node in self._waiting:
                    self._has_lost = self._lasting
                    self._fail(node, event.time, "agent", reason)
            case Gone(node=node):
                self._waiting.pop(node, None)
                self._owing.discard(node)
            case Interrupted(signal=number):
                self._interrupted = number
                self._waiting.clear()
        return []

    def _ask_more(self) -> list[Order]:
        """Once all have answered: what comes next, or the end."""
        if self._then is None or self._owing or not self._waiting:
            return []
        following = {node: question for node, question in self._then(self).items() if self._may_ask(node)}
        if following:
            self.rounds.append({})
            self._owing = set(following)
            return [self._ask(node, question) for node, question in following.items()]
        self._then = None
        staying = [node for node in self._waiting if node not in self._leaving]
        self._waiting.update(dict.fromkeys(staying, self._now + self._question.answer_s))
        return [self._let_go(node) for node in staying]

    def _may_ask(self, node: int) -> bool:
        return node not in self.failures and node not in self._leaving

    def _is_asked(self, connected: Connected) -> bool:
        """Return True if this host's machine is asked already and must not be asked twice."""
        if self._machines is None:
            return False
        host = self._placement.hosts[connected.node]
        # Containers of one machine may have its name, but they are reached by other ports.
        machine = connected.machine, host.user, host.address, host.port
        known = machine in self._machines
        self._machines.add(machine)
        return known

    def _ask(self, node: int, question: questions.Question[object], enclosed: bytes = b"") -> Order:
        self._asked[node] = question
        self._waiting[node] = self._now + self._question.answer_s + len(enclosed) / ENCLOSED_BYTES_PER_S
        return Ask(node=node, question=question, lasting=self._lasting, enclosed=enclosed)

    def _let_go(self, node: int) -> Order:
        self._leaving.add(node)
        return Finish(node=node, number=signal.SIGTERM, grace=0.0)

    def outcome(self, ended: float) -> Outcome:
        """Valid once ``done``. It is COMPLETED if every host has answered."""
        failures = tuple(self.failures[node] for node in sorted(self.failures))
        if self._interrupted:
            cause, code = Cause.SIGNAL, 128 + self._interrupted
        elif self._has_lost:
            cause, code = Cause.LOST, EXIT_LOST
        elif failures or self._incomplete:
            cause, code = Cause.PREPARE, EXIT_PREPARE
        else:
            cause, code = Cause.COMPLETED, 0
        return Outcome(run="", exit_code=code, cause=cause, started=0.0, ended=ended, failures=failures)

    def _fail(self, node: int, time: float, step: str, message: str) -> None:
        self._waiting.pop(node, None)
        self._owing.discard(node)
        self.failures.setdefault(node, PrepareFailed(time=time, node=node, step=step, message=message))
