"""The end of an allocation, asked of Slurm beside the work of the switchboard: an answer may take half a minute."""

from __future__ import annotations

import os
import subprocess
import time

from mesh.agent.switchboard.hold import LOOK_INTERVAL_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

ANSWER_LIMIT_S = 20.0  # then the question is given up, until the next one
ANSWER_BYTES = 1 << 20


class EndTime:
    """Asks a command for the end again and again. No call waits for its answer."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        """argv: prints fields, with EndTime among them, in the time format "standard" of Slurm"""
        self._argv, self._environ = argv, environ
        self._process: subprocess.Popen[bytes] | None = None
        self._answer = -1  # descriptor of its standard output
        self._asked_at = -LOOK_INTERVAL_S
        self._end = 0.0

    def look(self, now: float) -> float:
        """Return the end by the last answer, in seconds since the epoch; 0: never, or there was no answer yet.

        now: monotonic
        """
        if self._process is not None:
            self._read(self._process, now)
        elif now >= self._asked_at + LOOK_INTERVAL_S:
            self._ask(now)
        return self._end

    def close(self) -> None:
        """End a question without an answer."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def _ask(self, now: float) -> None:
        self._asked_at, self._answer = now, os.memfd_create("answer")
        try:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=self._answer,
                stderr=subprocess.DEVNULL,
                env=self._environ,
            )
        except OSError:
            self._forget()

    def _read(self, process: subprocess.Popen[bytes], now: float) -> None:
        if process.poll() is None:
            if now > self._asked_at + ANSWER_LIMIT_S:
                self.close()
            return
        text = os.pread(self._answer, ANSWER_BYTES, 0).decode("utf-8", "replace")
        fields = dict(word.split("=", 1) for word in text.split() if "=" in word)
        if not process.returncode and "EndTime" in fields:  # else the answer of before holds
            self._end = time_of(fields["EndTime"])
        self._forget()

    def _forget(self) -> None:
        os.close(self._answer)
        self._process, self._answer = None, -1


def time_of(text: str) -> float:
    """Return a time of Slurm in seconds since the epoch; 0 for none."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return 0.0
