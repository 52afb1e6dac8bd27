"""A run that begins with a check of its hosts, over the connections that it uses anyway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mesh.core.cluster import Placement
from mesh.core.events import (
    CONNECTING,
    Answered,
    Event,
    Gone,
    Interrupted,
    Lost,
    PrepareFailed,
    StdoutClosed,
    Stopped,
    Tick,
    WorkspaceFailed,
)
from mesh.core.findings import Finding, Verdict
from mesh.core.outcome import Outcome
from mesh.engine.inquiry import Inquiry, Questions
from mesh.engine.orders import Order, Tell
from mesh.engine.question import Question
from mesh.engine.supervisor import Supervisor
from mesh.protocol import questions

STEP = "check"


class Examination(Protocol):
    """Questions to the hosts, and the meaning of the answers: a Checkup, or Numbers."""

    def question(self) -> questions.Question[object]:
        """Return the first question."""

    def then(self, inquiry: Inquiry) -> Questions:
        """Return the next questions after the answers so far; {}: none."""

    def findings(self, inquiry: Inquiry) -> Sequence[Sequence[Finding]]:
        """Return the findings of each host, in their order."""


class Vetted:
    """Keeps events from the supervisor until every host has answered, so that it locks none before the check is over.

    A finding that is in the way of the run is a failure of its host like any other. Any other trouble ends the check,
    and the supervisor decides at once.
    """

    def __init__(self, supervisor: Supervisor, checkup: Examination, placement: Placement) -> None:
        self._supervisor, self._checkup = supervisor, checkup
        self._inquiry = Inquiry(placement, Question(message=checkup.question()), then=self._then)
        self._kept: list[Event] = []  # events that the supervisor has not seen
        self._tick = Tick(time=0.0, monotonic=0.0)
        self._is_asking, self._is_answered = True, False

    @property
    def done(self) -> bool:
        return not self._is_asking and self._supervisor.done

    def locks_at_once(self, node: int) -> bool:
        return False

    @property
    def prepares_at_once(self) -> bool:
        return False

    def handle(self, event: Event) -> list[Order]:
        if not self._is_asking:
            return self._supervisor.handle(event)
        if isinstance(event, Tick):
            self._tick = event
        elif not isinstance(event, Answered):
            self._kept.append(event)
        if _is_trouble(event):
            return self._hand_over()
        orders = self._inquiry.handle(event)
        if self._is_answered or self._inquiry.done:
            return self._hand_over()  # the agents stay, unlike after a question
        return orders

    def outcome(self, ended: float) -> Outcome:
        return self._supervisor.outcome(ended)

    def _then(self, inquiry: Inquiry) -> Questions:
        questions = self._checkup.then(inquiry)
        self._is_answered = not questions
        return questions

    def _hand_over(self) -> list[Order]:
        self._is_asking = False
        orders: list[Order] = self._supervisor.handle(self._tick)
        for failure in self._failures() if self._is_answered else ():
            orders += [Tell(event=failure), *self._supervisor.handle(failure)]
        for event in self._kept:
            orders += self._supervisor.handle(event)
        return orders

    def _failures(self) -> list[PrepareFailed]:
        failed = self._inquiry.failures
        return [
            PrepareFailed(time=self._tick.time, node=node, step=STEP, message=f"{one.name}: {one.told}", hint=one.hint)
            for node, findings in enumerate(self._checkup.findings(self._inquiry))
            for one in findings
            if one.verdict is Verdict.FAILED and not (node in failed and failed[node].step in CONNECTING)
        ]


def _is_trouble(event: Event) -> bool:
    if isinstance(event, PrepareFailed):
        return event.step not in CONNECTING
    return isinstance(event, Lost | Gone | WorkspaceFailed | Interrupted | StdoutClosed | Stopped)
