"""JOBMAN's rules for machines as a model, beside which tests put ours: version 3, as its code reads."""

from __future__ import annotations

from mesh.hosts.tpu.machines import Seen

INTERVAL_S = 30.0  # between two questions
MADE = ("READY", "CREATING")


def state_of(answer: Seen) -> str:
    """Return the state that JOBMAN takes from a call: one that failed means NOT FOUND, as does a list without it."""
    states = [one.state for one in answer.machines if not one.is_request] if answer.complete else []
    return states[0] if states else "NOT FOUND"


def deletes(answer: Seen) -> bool:
    """Return True if JOBMAN deletes its TPU after an answer, "as a precaution", and asks for another one."""
    return state_of(answer) not in MADE
