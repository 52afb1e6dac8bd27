"""Steps of modules: check, apply, undo. Each is a bash in a session of its own, in a child process of the agent."""

from __future__ import annotations

import os
import select
import signal
import time

from mesh.agent.base.light import dumps
from mesh.agent.process.spawning import spawn
from mesh.protocol.frames import to_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh.agent.run.worker import Worker
    from mesh.protocol.requests import Step

FACT_DESCRIPTOR = 3  # a check writes there what its step reports
FACT_BYTES = 65536
TAIL_BYTES = 4096  # of the output of a text, for the reason of its failure
READ_BYTES = 1 << 16
TURN_BYTES = 1 << 20  # read from one pipe before the next look at the clock; a pipe holds less
KILL_LIMIT_S = 5.0  # for a text that has run out of time to be gone; one that runs as root may stay


class Done:
    """The end of one text."""

    def __init__(self, status: int, tail: bytes, fact: bytes, is_late: bool) -> None:
        """status: from waitpid; tail: the last bytes that it printed; is_late: it was killed after its time"""
        self.status, self.fact, self.is_late = status, fact, is_late
        lines = [line.strip() for line in tail.decode("utf-8", "replace").splitlines()]
        self.last_line = next((line for line in reversed(lines) if line), "")


class StepRunner:
    """Carries out steps in order, up to the first that fails."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._wake, wake_end = os.pipe()
        for descriptor in (self._wake, wake_end):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)

    def run(self, steps: Sequence[Step], undo: bool, force: bool) -> bool:
        """Apply the steps that their checks find missing, or undo all; return True if one failed.

        force: apply also the others
        """
        for number, step in enumerate(steps):
            self._worker.ask(f"step {number}")
            failed = self._undo(number, step) if undo else self._apply(number, step, force)
            if failed:
                return True
        return False

    def _undo(self, number: int, step: Step) -> bool:
        if not step.undo:
            return False
        self._worker.ask(f"apply {number}")
        return self._failed(number, step, self._text(step, step.undo, as_root=step.sudo))

    def _apply(self, number: int, step: Step, force: bool) -> bool:
        found = self._text(step, step.check) if step.check else None
        if found is None or found.status or force:
            self._worker.ask(f"apply {number}")  # the answer comes once the files of the step are there
            if self._failed(number, step, self._text(step, step.apply, as_root=step.sudo)):
                return True
            found = self._text(step, step.check) if step.check else None
            if found is not None and found.status:
                last = found.last_line or f"its check ends with {_told(found.status)}"
                return self._fail(number, f"still not in place after it was applied: {last}")
        fact = found.fact.decode("utf-8", "replace") if found is not None else ""
        self._worker.send(f"fact {number} {dumps(fact)}")
        return False

    def _failed(self, number: int, step: Step, done: Done) -> bool:
        if done.is_late:
            return self._fail(number, f"not done after {step.timeout:g} s: {done.last_line}")
        if done.status:
            return self._fail(number, done.last_line or _told(done.status))
        return False

    def _fail(self, number: int, reason: str) -> bool:
        self._worker.send(f"failed {number} {dumps(reason)}")
        return True

    def _text(self, step: Step, text: str, as_root: bool = False) -> Done:
        """Run a text to its end, and pass on what it prints."""
        ended: list[Done] = []

        def call(argv: list[str], stdin: int = 0) -> int:
            ended.append(self._call(argv, stdin, step.timeout))
            return ended[-1].status

        argv, by_sudo = ["bash", "-c", text], as_root and not self._worker.is_root
        if by_sudo:
            self._worker.look_for_password(announce=False)
        status = self._worker.sudo(argv, call) if by_sudo else call(argv)
        return ended[-1] if ended else Done(status, b"sudo: a password is required", b"", False)

    def _call(self, argv: list[str], stdin: int, timeout: float) -> Done:
        out, out_end = os.pipe()
        fact, fact_end = os.pipe()
        for descriptor in (out, fact):
            os.set_blocking(descriptor, False)
        try:
            pid = spawn(
                [to_bytes(word) for word in argv],
                self._worker.setting,
                stdin,
                out_end,
                out_end,
                {FACT_DESCRIPTOR: fact_end},
            )
        finally:
            os.close(out_end)
            os.close(fact_end)
        try:
            return self._wait(pid, out, fact, time.monotonic() + timeout)
        finally:
            os.close(out)
            os.close(fact)

    def _wait(self, pid: int, out: int, fact: int, deadline: float) -> Done:
        """Read both pipes until the process ends. Processes that it leaves may keep them open."""
        gathered = {out: b"", fact: b""}
        limits = {out: TAIL_BYTES, fact: FACT_BYTES}
        poll, is_late = select.poll(), False
        for descriptor in (out, fact, self._wake):
            poll.register(descriptor, select.POLLIN)
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            for descriptor in (out, fact):
                data = self._read(descriptor, poll)
                if descriptor == out:
                    self._pass_on(data)
                gathered[descriptor] = (gathered[descriptor] + data)[-limits[descriptor] :]
            if ended:
                return Done(status, gathered[out], gathered[fact], is_late)
            left = deadline - time.monotonic()
            if left <= 0:
                if is_late:  # it runs as root, and could not be killed
                    return Done(signal.SIGKILL, gathered[out], b"", True)
                is_late, deadline = True, time.monotonic() + KILL_LIMIT_S
                self._kill(pid)
                continue
            poll.poll(left * 1000)
            self._read(self._wake, poll)

    def _read(self, descriptor: int, poll: select.poll) -> bytes:
        """Return what a pipe holds now, even if a process writes without end."""
        data = b""
        while len(data) < TURN_BYTES:
            try:
                piece = os.read(descriptor, READ_BYTES)
            except BlockingIOError:
                return data
            if not piece:
                try:
                    poll.unregister(descriptor)
                except KeyError:
                    pass
                return data
            data += piece
        return data

    def _pass_on(self, data: bytes) -> None:
        while data:
            data = data[os.write(1, data) :]

    def _kill(self, pid: int) -> None:
        try:
            os.killpg(pid, signal.SIGKILL)
        except OSError:
            pass


def _told(status: int) -> str:
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
