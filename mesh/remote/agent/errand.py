"""What the loop does not wait for: in a process of its own what takes long, in a thread what is soon done."""

from __future__ import annotations

import errno
import gc
import os
import select
import time
from _thread import get_native_id, start_new_thread

from .lean import dumps, loads, partial, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


NO_ANSWER: dict[str, Any] = {
    "error": "a process of ours was killed there",
    "hint": "is there memory left on the host?",
}


class LinkRefused(OSError):
    """A symbolic link in a place that mesh does not write or delete behind."""

    def __init__(self, reason: str, path: str | bytes, hint: str) -> None:
        OSError.__init__(self, errno.ELOOP, reason, path)
        self.hint = hint


class Errand:
    """A child process that does one thing, and answers with a dict: what came of it, or "error" and "hint"."""

    is_done = False  # that shows when somebody waits for its pid

    def __init__(self, work: Callable[[], dict[str, Any]], then: Callable[[dict[str, Any]], None]) -> None:
        """work: called in the child; then: called with the answer by ``end``. Raises OSError if there is no fork."""
        self._then = then
        self._said = b""
        self.answer, answer_end = os.pipe()  # the descriptor that it answers on
        os.set_blocking(self.answer, False)
        self.pid = os.fork()
        if not self.pid:
            try:
                gc.disable()  # it soon ends; looking for cycles takes a fifth of reading a large record
                end_like_others()
                os.write(answer_end, dumps(_answer(work)).encode())
            finally:
                os._exit(0)
        os.close(answer_end)

    def listen(self) -> None:
        """Read what it answers."""
        try:
            self._said += os.read(self.answer, 65536)
        except BlockingIOError:
            pass

    def end(self) -> None:
        """The child has ended: hand on its answer."""
        self.listen()
        os.close(self.answer)
        try:
            answer: dict[str, Any] = loads(self._said)
        except ValueError:
            answer = NO_ANSWER
        self._then(answer)


def end_like_others() -> None:
    """In a child of ours that goes on as Python: have it end by what ends programs, which we ignore."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Chore:
    """The same in a thread, for what may wait for a disk but is little: a process is paid for at each page it touches.

    It cannot be killed: whoever wants its end tells the work itself, or leaves.
    """

    pid = 0  # it is no process
    thread = 0  # its number for the kernel, once it has begun

    def __init__(self, work: Callable[[], dict[str, Any]], then: Callable[[dict[str, Any]], None]) -> None:
        """As for an errand. Raises OSError."""
        self._then = then
        self._said = NO_ANSWER
        self.is_done = False
        self.answer, self._answer_end = os.pipe()  # the descriptor on which its end shows
        try:
            start_new_thread(self._run, (work,))
        except RuntimeError:
            os.close(self.answer)
            os.close(self._answer_end)
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None

    def _run(self, work: Callable[[], dict[str, Any]]) -> None:
        self.thread = get_native_id()
        try:
            self._said = _answer(work)
        finally:
            os.close(self._answer_end)

    def listen(self) -> None:
        """Note that it is done."""
        self.is_done = True

    def end(self) -> None:
        """It is done: hand on its answer."""
        os.close(self.answer)
        self._then(self._said)


def side_by_side(works: Mapping[str, Callable[[], dict[str, Any]]], seconds: float) -> dict[str, dict[str, Any]]:
    """What each of these answers, all at the same time, each in a process of its own: one that hangs costs no more.

    It blocks. Who has not answered in time is killed, and its answer is {"error": ..., "hint": "", "late": True}.
    """
    answers: dict[str, dict[str, Any]] = {}
    errands = {name: Errand(work, partial(answers.__setitem__, name)) for name, work in works.items()}
    poll, names = select.poll(), {errand.answer: name for name, errand in errands.items()}
    for descriptor in names:
        poll.register(descriptor, select.POLLIN)
    deadline = time.monotonic() + seconds
    while names and time.monotonic() < deadline:
        for descriptor, event in poll.poll(max(0.0, deadline - time.monotonic()) * 1000 + 0.5):
            errand = errands[names[descriptor]]
            errand.listen()
            if not event & select.POLLIN:  # it has closed its end
                poll.unregister(descriptor)
                del names[descriptor]
                errand.end()
    for descriptor, name in names.items():
        os.kill(errands[name].pid, signal.SIGKILL)
        os.close(descriptor)
        answers[name] = {"error": f"no answer within {seconds:g} s", "hint": "", "late": True}
    return answers


def _answer(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return work()
    except OSError as error:
        return {"error": why(error), "hint": hint(error)}
    except Exception as error:  # input that breaks the rules
        return {"error": f"{type(error).__name__}: {error}", "hint": ""}


def why(error: OSError) -> str:
    """An OSError in words, with the place."""
    text = error.strerror or str(error)
    if not isinstance(error.filename, (str, bytes)):
        return text
    return text + ": " + os.fsencode(error.filename).decode("utf-8", "replace")


def hint(error: OSError) -> str:
    """What to do when mesh cannot write on a host."""
    if isinstance(error, LinkRefused):
        return error.hint
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space on the host, or leave more out with ignore: in mesh.yaml"
    return "remote_dir: in cluster.yaml names another place for what mesh keeps on the host"
