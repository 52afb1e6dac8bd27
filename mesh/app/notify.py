"""Notifications at the end of a run: the terminal's bell, the desktop, a command, a webhook."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import asdict

from mesh.core.errors import OutputClosed
from mesh.core.escapes import plain
from mesh.core.notify import Notification, Short
from mesh.core.sending import Sending, post, timed_out
from mesh.screen.descriptor import standard

NOTIFY_LIMIT_S = 10.0  # for all notifications together


class Ending(Struct, frozen=True, kw_only=True):
    """The end of a run, in the fields that a command of ``notify:`` may have in braces."""

    job: str  # the run's name, or its id
    run: str
    name: str  # "": it has none
    cluster: str
    command: str
    state: str  # "done" or "failed"
    exit_code: int
    duration: str
    verdict: str  # "": it did not fail

    @property
    def text(self) -> str:
        """The end in one line.

        >>> Ending(job="r", run="r", name="", cluster="pod", command="true", state="done", exit_code=0,
        ...     duration="1:02:03", verdict="").text
        'mesh: true on pod: done after 1:02:03'
        """
        more = f": {self.verdict}" if self.verdict else ""
        job = f"{self.name}: " if self.name else ""
        return f"mesh: {job}{self.command} on {self.cluster}: {self.state} after {self.duration}{more}"


def told_duration(seconds: float) -> str:
    """Return a duration as a clock has it.

    >>> told_duration(62.4), told_duration(3723), told_duration(-1)
    ('1:02', '1:02:03', '0:00')
    """
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def notify(
    notifications: Sequence[Notification], ending: Ending, environ: Mapping[str, str], limit: float = NOTIFY_LIMIT_S
) -> list[str]:
    """Send the notifications that are due, all at once; return a line for each that failed.

    limit: seconds that all of it may take. Ctrl-C ends the wait.
    """
    due = [one for one in notifications if one.is_due(ending.exit_code)]
    tasks = [_Task(one, ending, environ, limit) for one in due]
    deadline = time.monotonic() + limit
    with contextlib.suppress(KeyboardInterrupt):
        for task in tasks:
            task.thread.join(max(0.0, deadline - time.monotonic()))
    return [f"notify: {task.label}: {problem}" for task in tasks if (problem := task.stop())]


class _Task:
    """A notification that is being sent, in a thread of its own."""

    def __init__(self, notification: Notification, ending: Ending, environ: Mapping[str, str], limit: float) -> None:
        self._notification, self._ending, self._environ, self._limit = notification, ending, environ, limit
        self._sending = Sending()
        self._problem = ""
        self.label = notification.short.value or notification.url_env or notification.command[0]
        self.thread = threading.Thread(target=self._work, name="mesh-notify", daemon=True)
        self.thread.start()

    def stop(self) -> str:
        """End what still goes on after the limit; return why the notification failed, "" if it did not."""
        if self.thread.is_alive():
            self._sending.kill()
            self.thread.join(1.0)
            return timed_out(self._limit)
        return self._problem

    def _work(self) -> None:
        try:
            if self._notification.short is Short.BELL:
                _to_terminal("\a")
            elif self._notification.short is Short.DESKTOP:
                self._problem = self._desktop()
            elif self._notification.url_env:
                self._problem = post_text(self._environ.get(self._notification.url_env, ""), self._ending.text)
            else:
                fields = asdict(self._ending)
                self._problem = self._run([word.format_map(fields) for word in self._notification.command])
        except (OSError, ValueError) as error:
            self._problem = error.strerror or str(error) if isinstance(error, OSError) else str(error)

    def _desktop(self) -> str:
        text = " ".join(plain(self._ending.text).split())
        if sys.platform == "darwin" and shutil.which("osascript"):
            return self._run(["osascript", "-e", f'display notification {json.dumps(text)} with title "mesh"'])
        if (self._environ.get("DISPLAY") or self._environ.get("WAYLAND_DISPLAY")) and shutil.which("notify-send"):
            return self._run(["notify-send", "mesh", text])
        if self._environ.get("VTE_VERSION"):  # GNOME Terminal and its relatives take this sequence alone
            _to_terminal(f"\x1b]777;notify;mesh;{text.replace(';', ',')}\x1b\\")
        else:
            _to_terminal(f"\x1b]9;{text}\x1b\\")
        return ""

    def _run(self, words: list[str]) -> str:
        return self._sending.run(words, None, self._limit)


def post_text(url: str, text: str) -> str:
    """Send a text to a webhook, as Slack, Mattermost and others read it; return why that failed, else ""."""
    return post(url, json.dumps({"text": text}).encode(), NOTIFY_LIMIT_S) if url else "the variable is not set"


def _to_terminal(sequence: str) -> None:
    """Write to the user's terminal; without one there is nothing to ring."""
    screen = standard(2, required=False)
    if screen.is_terminal:
        with contextlib.suppress(OutputClosed):
            screen.write(sequence.encode())
