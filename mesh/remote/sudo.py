"""The rule for passwords: a host may have one while a command with ``sudo: true`` runs there, once for each."""

from __future__ import annotations

from collections.abc import Sequence

from mesh.protocol.frames import FrameError


class SudoSteps:
    """The commands of a setup, or the steps of modules, that a host was sent, and which of them it runs.

    The host itself reports each command that it begins. So the client accepts every command once and in order, and
    gives the password at most once for each command that it sent with ``sudo: true``.
    """

    def __init__(self, sudo: Sequence[bool] = ()) -> None:
        """sudo: true for each command, in order, that may ask for the password; (): the host runs none"""
        self._sudo = sudo
        self.step = -1  # the command that runs; -1: none has begun
        self._unasked = False  # the command that runs may still ask
        self._unanswered = False  # it has asked, and was sent nothing yet

    def begin(self, number: int) -> None:
        """Note that the host begins a command. Raises FrameError unless it is the next one."""
        if number != self.step + 1 or number >= len(self._sudo):
            raise FrameError(f"step: command {number} is not the next one of {len(self._sudo)}")
        self.step = self.step + 1
        self._unasked, self._unanswered = self._sudo[self.step], False

    def expect_question(self) -> None:
        """Note that a later command will ask. Raises FrameError unless one of them has ``sudo: true``."""
        if not any(self._sudo[self.step + 1 :]):
            raise FrameError("wants-password: no later command of a setup there has sudo: true")

    def ask(self) -> int:
        """Return the number of the command that asks. Raises FrameError unless it may."""
        if not self._unasked:
            raise FrameError("asks-password: no command with sudo: true runs there, or it has asked before")
        self._unasked, self._unanswered = False, True
        return self.step

    def may_have(self, step: int) -> bool:
        """Return True if this command has asked, still runs, and was not answered; for one answer."""
        may, self._unanswered = self._unanswered and step == self.step, False
        return may

    def end(self) -> None:
        """Note that the setup has ended there."""
        self._unasked = self._unanswered = False
        self.step = len(self._sudo)
