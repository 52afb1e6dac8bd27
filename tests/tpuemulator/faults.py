"""Faults of the emulated API: calls that fail, whose answers are lost, that hang, or that have holes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tests.tpuemulator.cloud import Refused

EVERY = "*"
# Statuses of calls that fail at random: before the work, and after it.
BEFORE = ("UNAVAILABLE", "INTERNAL", "UNAVAILABLE")
AFTER = ("DEADLINE_EXCEEDED", "UNAVAILABLE", "INTERNAL")
T = TypeVar("T")


class Faults:
    """Faults by verb and count. Each is a mapping:

    verb: as "CreateNode"; "*": every call
    status: the name of a gRPC status
    times: how many calls it hits; missing: all
    lost: the work is done, and the answer is lost
    hang: seconds before it
    share: the part of calls that it hits, by `seed`
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[dict[str, Any]] = []
        self._random = random.Random(0)
        self.counts: dict[str, int] = {}  # calls so far, by verb

    def set(self, faults: list[dict[str, Any]]) -> None:
        """Have these faults from now on."""
        with self._lock:
            self._faults = faults
            self._random = random.Random(next((one["seed"] for one in faults if "seed" in one), 0))
            self.counts = {}

    def around(self, verb: str, work: Callable[[], T]) -> T:
        """Do the work of a call, with a fault where one is due. Raises Refused."""
        fault = self._due(verb)
        if fault is None:
            return work()
        time.sleep(fault.get("hang", 0.0))
        status, lost = fault.get("status", ""), fault.get("lost", False)
        if status == "random":
            with self._lock:
                lost = self._random.random() < 0.5
                status = self._random.choice(AFTER if lost else BEFORE)
        if lost or not status:
            answer = work()
            if not status:
                return answer
        raise Refused(status, f"the emulator was asked to fail: {status}")

    def _due(self, verb: str) -> Mapping[str, Any] | None:
        with self._lock:
            self.counts[verb] = self.counts.get(verb, 0) + 1
            for one in self._faults:
                if one["verb"] not in (verb, EVERY) or one.get("times", 1) <= 0:
                    continue
                if self._random.random() >= one.get("share", 1.0):
                    continue
                if "times" in one:
                    one["times"] -= 1
                return dict(one)
        return None
