"""Questions that a client asks of a host without a run of its own."""

from __future__ import annotations

import time

from . import doors
from .checks import facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOOK = 0.05  # seconds between two looks whether stopped runs are gone


def answer(question: dict[str, Any], remote_dir: str) -> dict[str, Any]:
    """By "question": "check", "runs", or "stop" with "run" ("" for all) and "patience". May block. Raises OSError."""
    if question["question"] == "check":
        return facts(remote_dir)
    if question["question"] == "runs":
        return {"runs": doors.runs()}
    return _stop(question["run"], question["patience"])


def _stop(run: str, patience: float) -> dict[str, Any]:
    """End runs, and wait until their agents have left, at most patience seconds."""
    stopped = doors.stop_runs(run)
    deadline = time.monotonic() + patience
    wanted = {(told["run"], told["node"]) for told in stopped}
    left = wanted
    while left and time.monotonic() < deadline:
        time.sleep(LOOK)
        left = wanted & {(told["run"], told["node"]) for told in doors.runs()}
    return {"stopped": stopped, "left": sorted({run for run, _ in left})}
