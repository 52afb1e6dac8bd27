"""A question to every host of a cluster: no lock, no workspace, no rank. As pure as the Supervisor."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Mapping
from typing import Any

from mesh.core.cluster import Placement
from mesh.core.events import (
    CONNECTING,
    Answered,
    Connected,
    Event,
    Gone,
    Interrupted,
    Lost,
    NotPulled,
    PrepareFailed,
    Tick,
)
from mesh.core.outcome import EXIT_LOST, EXIT_PREPARE, Cause, Outcome
from mesh.engine.orders import Ask, Finish, Order

PATIENCE = 20.0  # seconds for an answer; beyond it the host is as good as lost
SLOW = 50e3  # bytes per second that what comes with a question may take


class Inquiry:
    """Asks every host one question, and keeps what came of it, by node."""

    def __init__(
        self,
        placement: Placement,
        question: Mapping[str, Any],
        patience: float = PATIENCE,
        *,
        each_machine: bool = False,
        wanted: Callable[[str], bytes] = lambda name: b"",
    ) -> None:
        """patience: seconds for an answer; math.inf: it lasts, and a connection that ends meanwhile is made again

        each_machine: ask once where several hosts are one machine, reached alike: the others give no answer
        wanted: what a host is to have that answers "wants"; it is asked once more then
        """
        self._question, self._patience = question, patience
        self._placement, self._wanted = placement, wanted
        self._asked: set[object] | None = set() if each_machine else None  # machines
        self._waiting: dict[int, float] = dict.fromkeys(range(len(placement.hosts)), float("inf"))  # until when
        self._now = 0.0  # seconds, monotonic
        self._interrupted = 0
        self._lasting = math.isinf(patience)
        self._incomplete = False  # a host does not bring all that it was asked for
        self._has_lost = False  # a host, while its answer was coming
        self.connected: dict[int, Connected] = {}
        self.answers: dict[int, Answered] = {}
        self.failures: dict[int, PrepareFailed] = {}

    @property
    def done(self) -> bool:
        return not self._waiting

    def handle(self, event: Event) -> list[Order]:
        match event:
            case Tick(monotonic=now):
                self._now = now
                for node in [node for node, until in self._waiting.items() if now > until]:
                    self._fail(node, event.time, "agent", "did not answer in time")
            case Connected(node=node):
                self.connected[node] = event
                self._waiting[node] = self._now + self._patience
                if self._asked is not None:
                    host = self._placement.hosts[node]
                    # Containers of one machine may have its name, but they are reached by other ports.
                    machine = event.machine, host.user, host.address, host.port
                    if machine in self._asked:
                        return [Finish(node=node, number=signal.SIGTERM, grace=0.0)]
                    self._asked.add(machine)
                return [Ask(node=node, question=self._question, lasting=self._lasting)]
            case Answered(node=node, answer={"wants": str(name)}):
                enclosed = self._wanted(name)
                self._waiting[node] = self._now + self._patience + len(enclosed) / SLOW
                return [Ask(node=node, question=self._question, enclosed=enclosed)]
            case Answered(node=node):
                self.answers[node] = event
                return [Finish(node=node, number=signal.SIGTERM, grace=0.0)]
            case PrepareFailed(node=node):
                self.failures[node] = event
                if event.step in CONNECTING:
                    self._waiting.pop(node, None)
                    return []
                return [Finish(node=node, number=signal.SIGTERM, grace=0.0)]
            case NotPulled(fails=fails):
                self._incomplete = self._incomplete or fails
            case Lost(node=node, reason=reason):
                if node in self.answers:
                    self._waiting.pop(node, None)
                elif node in self._waiting:
                    self._has_lost = self._lasting
                    self._fail(node, event.time, "agent", reason)
            case Gone(node=node):
                self._waiting.pop(node, None)
            case Interrupted(signal=number):
                self._interrupted = number
                self._waiting.clear()
        return []

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
        self.failures.setdefault(node, PrepareFailed(time=time, node=node, step=step, message=message))
