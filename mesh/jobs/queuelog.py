"""The log ``queue.log`` of a worker: the tasks that it took and what became of them, from the job's events."""

from __future__ import annotations

from mesh.core.outcome import Cause
from mesh.jobs import events

STEP = "prefix"  # in place of a task: the steps that prepare machines


class QueueLog:
    """The texts about tasks among the events of one worker, which are given in their order."""

    def __init__(self) -> None:
        self._task = ""  # that the worker has; "": none
        self._runs: dict[str, str] = {}  # of tasks and steps, by run

    def text(self, event: events.AnyEvent) -> str:
        """Return the text for an event; "" for one that is not about tasks."""
        match event:
            case events.TaskGiven(turn=turn):
                self._task = f"task {turn.task.id}"
                return f"{self._task}: taken"
            case events.TaskReturnAsked(by=by):
                return f"{self._task}: given back{f' for {by}' if by else ''}" if self._task else ""
            case events.RunStarted(run=run):
                self._runs[run] = self._task or STEP
                return f"{self._runs[run]}: run {run} has started"
            case events.RunEnded(run=run, cause=cause, exit_code=code, reason=reason):
                name, self._task = self._runs.pop(run, self._task or STEP), ""
                return f"{name}: {'done' if cause == Cause.COMPLETED.value else reason or f'exit {code}'}"
            case events.TasksSeen(problem=problem) if problem:
                return f"the task file has a problem: {problem}"
            case events.TasksSeen(is_over=True):
                return "no task is left"
        return ""
