"""Passwords and passphrases: from a variable or from the terminal, asked for once, kept in memory only."""

from __future__ import annotations

import contextlib
import getpass
import sys
import termios
import threading
from collections.abc import Callable, Mapping
from typing import Any


class Passwords:
    """Passwords of users on the hosts, for logins and for sudo. Any thread may ask."""

    def __init__(
        self,
        variable: str,
        environ: Mapping[str, str],
        ask: Callable[[str], str] | None = None,
        alone: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """variable: password_env of the cluster; ask: shows a prompt and returns what was typed.

        By default it is asked for on the terminal, if there is one.
        alone: a question is open within what it returns
        """
        self._alone = alone
        self._variable, self._environ = variable, environ
        self._ask = ask or (getpass.getpass if sys.stdin is not None and sys.stdin.isatty() else None)
        self._lock = threading.RLock()  # one question at a time
        self._known: dict[str, str] = {}
        self._terminal: list[Any] | None = None  # how it was, while a question is open

    def ask(self, prompt: str) -> str:
        """Return what the user types at a prompt; "" where mesh cannot ask."""
        if self._ask is None:
            return ""
        with self._lock:
            if sys.stdin is not None and sys.stdin.isatty():
                self._terminal = termios.tcgetattr(sys.stdin)
            try:
                with self._alone():
                    return self._ask(prompt)
            except EOFError:
                return ""
            finally:
                self._terminal = None

    def of(self, user: str) -> str:
        """The password of a user on the hosts: from the variable, or asked for once; "" if there is none."""
        if self._variable:
            return self._environ.get(self._variable, "")
        with self._lock:
            if user not in self._known:
                self._known[user] = self.ask(f"Password for {user} (used for all hosts): ")
            return self._known[user]

    def close(self) -> None:
        """Abandon an open question: put the terminal back as it was, with its echo."""
        if self._terminal is not None:
            termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, self._terminal)
