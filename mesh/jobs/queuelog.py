"""The log ``queue.log`` of a worker: the tasks that it took and what became of them, from the job's events."""

from __future__ import annotations

from mesh.core.outcome import Cause
from mesh.jobs import events

STEP = "prefix"  # in place of a task: the steps that prepare machines


class QueueLog:
    """The texts about tasks among the events of one worker, which are given in their order.

    A lost machine ends a task without an event of its own. Steps are run on new machines alone, before the next task.
    """

    def __init__(self) -> None:
        self._task = ""  # the last one on the present machines; "": none yet
        self._is_on = False  # taken, and without an end so far
        self._runs: dict[str, str] = {}  # of tasks and steps, by run
        self._ended: set[str] = set()  # runs: a look and the answer to a stop may both report an end

    def text(self, event: events.AnyEvent) -> str:
        """Return the text for an event; "" for one that is not about tasks."""
        match event:
            case events.Granted() | events.MachinesGiven():
                name, self._task = self._task if self._is_on else "", ""
                self._is_on = False
                return f"{name}: interrupted" if name else ""
            case events.TaskGiven(turn=turn):
                self._task, self._is_on = f"task {turn.task.id}", True
                return f"{self._task}: taken"
            case events.TaskReturnAsked(by=by):
                return f"{self._task}: given back{f' for {by}' if by else ''}" if self._task else ""
            case events.RunStarted(run=run):
                self._runs[run] = self._task or STEP
                return f"{self._runs[run]}: run {run} has started"
            case events.RunEnded(run=run, cause=cause, exit_code=code, reason=reason):
                if run in self._ended:
                    return ""
                self._ended.add(run)
                name, self._is_on = self._runs.pop(run, self._task or STEP), False
                return f"{name}: {'done' if cause == Cause.COMPLETED.value else reason or f'exit {code}'}"
            case events.TasksSeen(problem=problem) if problem:
                return f"the task file has a problem: {problem}"
            case events.TasksSeen(is_over=True):
                return "no task is left"
        return ""
