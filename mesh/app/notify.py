"""Notifications at the end of a run: the terminal's bell, the desktop, a command, a webhook."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import asdict

from mesh.core.errors import OutputClosed
from mesh.core.escapes import plain
from mesh.core.notify import Notification, Short
from mesh.screen.descriptor import standard

NOTIFY_LIMIT_S = 10.0  # for all notifications together
WORDS_CHARACTERS_MAX = 200  # of a command or verdict in a notification


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
    tasks = [_Task(one, ending, environ) for one in due]
    deadline = time.monotonic() + limit
    with contextlib.suppress(KeyboardInterrupt):
        for task in tasks:
            task.thread.join(max(0.0, deadline - time.monotonic()))
    return [f"notify: {task.label}: {problem}" for task in tasks if (problem := task.stop(limit))]


class _Task:
    """A notification that is being sent, in a thread of its own."""

    def __init__(self, notification: Notification, ending: Ending, environ: Mapping[str, str]) -> None:
        self._notification, self._ending, self._environ = notification, ending, environ
        self._process: subprocess.Popen[bytes] | None = None
        self._problem = ""
        self.label = notification.short.value or notification.url_env or notification.command[0]
        self.thread = threading.Thread(target=self._work, name="mesh-notify", daemon=True)
        self.thread.start()

    def stop(self, limit: float) -> str:
        """End what still goes on after the limit; return why the notification failed, "" if it did not."""
        if self.thread.is_alive():
            if self._process is not None:
                self._process.kill()
                self.thread.join(1.0)
            return f"timed out after {limit:g} s"
        return self._problem

    def _work(self) -> None:
        try:
            if self._notification.short is Short.BELL:
                _to_terminal("\a")
            elif self._notification.short is Short.DESKTOP:
                self._desktop()
            elif self._notification.url_env:
                self._problem = post(self._environ.get(self._notification.url_env, ""), self._ending.text)
            else:
                fields = asdict(self._ending)
                self._run([word.format_map(fields) for word in self._notification.command])
        except (OSError, ValueError) as error:
            self._problem = error.strerror or str(error) if isinstance(error, OSError) else str(error)

    def _desktop(self) -> None:
        text = " ".join(plain(self._ending.text).split())
        if sys.platform == "darwin" and shutil.which("osascript"):
            self._run(["osascript", "-e", f'display notification {json.dumps(text)} with title "mesh"'])
        elif (self._environ.get("DISPLAY") or self._environ.get("WAYLAND_DISPLAY")) and shutil.which("notify-send"):
            self._run(["notify-send", "mesh", text])
        elif self._environ.get("VTE_VERSION"):  # GNOME Terminal and its relatives take this sequence alone
            _to_terminal(f"\x1b]777;notify;mesh;{text.replace(';', ',')}\x1b\\")
        else:
            _to_terminal(f"\x1b]9;{text}\x1b\\")

    def _run(self, words: list[str]) -> None:
        """Run a command to its end. Raises OSError if there is none."""
        self._process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        _, said = self._process.communicate()
        if self._process.returncode:
            last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
            status = self._process.returncode
            how = f"exit {status}" if status > 0 else f"killed by signal {-status}"
            self._problem = f"{how}{f' ({one_line(last)})' if last else ''}"


def post(url: str, text: str) -> str:
    """Send a text to a webhook, as Slack, Mattermost and others read it; return why that failed, else "".

    The address is a secret, so that no message has it.
    """
    if not url:
        return "the variable is not set"
    if not url.startswith(("https://", "http://")):
        return "its value is not an address that begins with https://"
    import urllib.error
    import urllib.request

    request = urllib.request.Request(url, json.dumps({"text": text}).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=NOTIFY_LIMIT_S):
            return ""
    except urllib.error.HTTPError as error:
        error.close()
        return f"the server answered with status {error.code}"
    except urllib.error.URLError as error:
        return f"cannot be reached ({error.reason})"
    except ValueError:
        return "its value is not an address"


def one_line(text: str) -> str:
    """Return a text in one short line without escape sequences."""
    return " ".join(plain(text).split())[:WORDS_CHARACTERS_MAX]


def _to_terminal(sequence: str) -> None:
    """Write to the user's terminal; without one there is nothing to ring."""
    screen = standard(2, required=False)
    if screen.is_terminal:
        with contextlib.suppress(OutputClosed):
            screen.write(sequence.encode())
