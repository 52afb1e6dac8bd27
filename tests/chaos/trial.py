"""One cell of the matrix: a run, what happens to it, and what is true afterwards."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tests.chaos.faults import ALL, BEGINNING, BEHAVIOURS, COUNTED, FAULTS, Fault, hang_limit
from tests.chaos.stage import LEAVE, SLACK, Log, Stage
from tests.lab import Lab, eventually


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What dies, and what ranks do."""

    fault: str
    ranks: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was found."""

    survivors: int  # processes on all hosts when the contract's time was over
    status: int | None  # of the client; None: it hung
    output: str  # ALL, BEGINNING, COUNTED, or "wrong"
    seconds: float  # from the strike until nothing was left; 0 where the run goes on
    problems: tuple[str, ...]  # in words; none: all is as promised


def attempt(lab: Lab, cell: Cell, storm: int = 200) -> Result:
    """Carry out one cell. storm: the processes of a storm on each host"""
    fault = FAULTS[cell.fault]
    with Stage(lab, BEHAVIOURS[cell.ranks], *fault.options, on_terminal=fault.on_terminal, storm=storm) as stage:
        fault.prepare(stage)
        stage.start()
        struck = time.monotonic()
        fault.strike(stage)
        if fault.goes_on:
            stage.finish()
        return judge(stage, fault, struck)


def judge(stage: Stage, fault: Fault, struck: float) -> Result:
    problems = []
    status = stage.end(hang_limit(fault))
    if status is None:
        problems.append(f"the client hangs: {stage.verdict()}")
    elif status >= 0 and (left := stage.survivors(with_agents=False, reachable=True)):
        problems.append(f"left when mesh said that it had ended: {left[:3]}")
    # An agent that is done leaves in LEAVE seconds; where its client is gone, the contract counts from the strike.
    orderly = LEAVE + SLACK if status is not None and status >= 0 else 0.0
    remaining = max(orderly, struck + fault.allowed - time.monotonic())
    eventually(lambda: not stage.survivors(), remaining)
    seconds = time.monotonic() - struck
    survivors = stage.survivors()
    if survivors:
        problems.append(f"{len(survivors)} survivors: {survivors[:3]}")
    if not stage.devices_are_free():
        problems.append("a device is still held")
    if status is not None and status != fault.status:
        problems.append(f"status {status} instead of {fault.status}: {stage.verdict()}")
    logs = stage.logs()
    output = judge_output(logs)
    if output not in {ALL: (ALL,), COUNTED: (ALL, COUNTED), BEGINNING: (ALL, BEGINNING)}[fault.output]:
        problems.append(f"output: {output}: {logs}")
    return Result(
        survivors=len(survivors),
        status=status,
        output=output,
        seconds=0.0 if fault.goes_on else seconds,
        problems=tuple(problems),
    )


def judge_output(logs: list[Log]) -> str:
    """What the client has of all that was printed."""
    if not all(log.is_right for log in logs):
        return "wrong"
    if any(log.left_out for log in logs):
        return COUNTED if all(log.size + log.left_out == log.printed for log in logs) else "wrong"
    return ALL if all(log.is_whole for log in logs) else BEGINNING
