"""The table of the questions that an agent answers, and the only door to it: ``answer``."""

from __future__ import annotations

from mesh.agent.ask import checks, clean, figures, gpus, reach, runs, stacks, tpu
from mesh.agent.ask.context import Context
from mesh.protocol import questions as protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from mesh.protocol.questions import Question
    from mesh.protocol.records import Record

    Q = TypeVar("Q", bound=Question[object])
    Function = Callable[[Question[object], Context], Record]


def answer(question: Question[object], remote_dir: str, enclosed: bytes, over: Sequence[str]) -> Record:
    """Answer a question. May block. Raises OSError.

    enclosed: the bytes that came with the question; over: runs whose clients are over
    """
    return QUESTIONS[type(question)](question, Context(remote_dir, enclosed, over))


def _row(kind: type[Q], function: Callable[[Q, Context], Record]) -> tuple[type[Question[object]], Function]:
    def checked(question: Question[object], context: Context) -> Record:
        if not isinstance(question, kind):
            raise TypeError(f"{kind.__name__} expected, found {type(question).__name__}")
        return function(question, context)

    return kind, checked


QUESTIONS = dict(
    (
        _row(protocol.Check, checks.facts),
        _row(protocol.Listen, reach.listen_for),
        _row(protocol.Try, reach.try_targets),
        _row(protocol.Hush, reach.hush),
        _row(protocol.AskWorker, tpu.worker),
        _row(protocol.AskGpus, gpus.gpus),
        _row(protocol.AskFigures, figures.figures),
        _row(protocol.AskRuns, runs.list_runs),
        _row(protocol.AskJournals, runs.list_journals),
        _row(protocol.Detach, runs.detach),
        _row(protocol.Pass, runs.pass_on),
        _row(protocol.Restart, runs.restart),
        _row(protocol.Stop, runs.stop),
        _row(protocol.AskLeftovers, clean.clean),
        _row(protocol.AskStacks, stacks.of_runs),
    )
)
STREAMED = {protocol.Pull}  # its messages go to a process of its own, see pull.py
if {*QUESTIONS, *STREAMED} != set(protocol.QUESTIONS):
    raise ImportError(f"questions without a function: {set(protocol.QUESTIONS) ^ {*QUESTIONS, *STREAMED}}")
