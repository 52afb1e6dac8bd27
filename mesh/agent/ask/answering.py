"""The answers of an agent to questions: of a process without a run, or about the ranks that it has."""

from __future__ import annotations

from mesh.agent.base.errors import hint, why
from mesh.agent.base.light import partial
from mesh.agent.control.requests import send_over
from mesh.agent.loop import Watches
from mesh.protocol.answers import Answer as AnswerMessage
from mesh.protocol.answers import Piece
from mesh.protocol.frames import FrameError
from mesh.protocol.kinds import as_it_is
from mesh.protocol.records import fields_of, plain
from mesh.protocol.requests import ENCLOSED_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh.agent.ask.pull import Pull
    from mesh.agent.base.background import Answer
    from mesh.agent.base.directories import Directories
    from mesh.agent.link.outbox import Outbox
    from mesh.agent.loop import Loop
    from mesh.agent.port import AskPort
    from mesh.protocol import questions
    from mesh.protocol.questions import Question


class Answering:
    """Answers questions in turn. A process without ranks may block meanwhile."""

    def __init__(self, port: AskPort, loop: Loop, out: Outbox, state: Directories, remote_dir: str) -> None:
        """Start without a question."""
        self._port, self._loop, self._out = port, loop, out
        self._state, self._remote_dir = state, remote_dir
        self._watches = Watches(loop)
        self._enclosed = b""  # bytes that the next question comes with
        self._over: Sequence[str] = ()  # other runs here whose clients are over
        self._pull: Pull | None = None

    @property
    def is_pulling(self) -> bool:
        """True once files were asked for."""
        return self._pull is not None

    def end_runs(self, runs: Sequence[str]) -> None:
        """Report to the agents of other runs on this machine that their clients are over."""
        self._over = runs
        send_over(runs)

    def enclose(self, data: bytes) -> None:
        """Add a piece of the bytes that the next question comes with."""
        if len(self._enclosed) + len(data) > ENCLOSED_BYTES:
            raise FrameError(f"enclosed: more than {ENCLOSED_BYTES} bytes")
        self._enclosed += data

    def answer(self, question: Question[object]) -> None:
        """Answer a question; a pull answers when all files were sent."""
        try:
            if self._port.has_ranks:
                self._port.background(partial(_stacks_of, self._port.describe(), self._remote_dir), self.send_stacks)
                return
            self._answer_without_ranks(question)
        except OSError as error:
            self._port.fail("home", why(error), hint(error))

    def _answer_without_ranks(self, question: Question[object]) -> None:
        from mesh.protocol.questions import Pull as PullQuestion

        if isinstance(question, PullQuestion):
            self._begin_pull(question)
            return
        from mesh.agent.ask.questions import answer

        self._port.suspend_guardian()  # an answer may take longer than the lease; there are no ranks
        found = answer(question, self._remote_dir, self._enclosed, self._over)
        self._port.send(AnswerMessage(answer=plain(found)))

    def send_stacks(self, found: Answer) -> None:
        """Send stacks, or why there are none: a signal for the ranks ends the process that looks at them too."""
        if "error" in found:
            notes = [[found["error"], found.get("hint", "")]]
            found = {"ranks": [], "silent": False, "stacks": [], "notes": notes}
        self._port.send(AnswerMessage(answer=found))

    # ---- files for the client

    def give_pull(self, data: bytes) -> None:
        """Pass frames of the client on to the reader of files."""
        if self._pull is not None:
            self._pull.give(data)

    def arm(self, has_room: bool) -> None:
        """Wait for the reader as long as the client takes what it sends. Called before each poll."""
        pull = self._pull
        if pull is not None:
            events = pull.events(has_room) if pull.channel >= 0 else 0
            self._watches.arm({pull.channel: events} if events else {})

    def serve(self) -> None:
        """Pass on frames of the reader. Called after each turn of the loop."""
        if self._pull is not None and self._watches.take():
            self._relay(self._pull)

    def _begin_pull(self, question: questions.Pull) -> None:
        from mesh.agent.ask.pull import Pull

        self._port.listen()
        pull = self._pull = Pull(list(question.paths), self._state.workspace)
        self._loop.on_child_end(pull.pid, partial(self._pull_ended, pull))

    def _relay(self, pull: Pull) -> None:
        """Pass on no faster than the client takes it: the spool is for output that cannot wait."""
        pull.write()
        while self._out.has_room:
            data = pull.read()
            if not data:
                break
            self._port.send(Piece(), data)
            self._port.flush()
        self._report_pull(pull)

    def _pull_ended(self, pull: Pull, status: int) -> None:
        pull.status = status
        self._report_pull(pull)

    def _report_pull(self, pull: Pull) -> None:
        if not pull.is_over or self._port.is_over:
            return
        if pull.status == 0:
            self._port.send(AnswerMessage(answer={}))
        else:
            self._port.fail(
                "pull", "the process that reads the files was killed", "`mesh check CLUSTER` shows the free memory"
            )
        self._port.flush()


def _stacks_of(about: dict[str, object], remote_dir: str) -> Answer:
    """Return the stacks of ranks. In a process of its own: an error in it ends no run."""
    from mesh.agent.ask import stacks
    from mesh.protocol.replies import Run

    return fields_of(stacks.gather([Run.take(about, as_it_is)], remote_dir, {}, b""))
