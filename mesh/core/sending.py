"""The sending of one notification: by a command that gets it, or to a webhook. Runs and jobs share it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from mesh.core.escapes import plain

WORDS_CHARACTERS_MAX = 200  # of the last line of a command that failed


class Sending:
    """A notification on its way. Its methods return why it failed, "" if it did not."""

    def __init__(self) -> None:
        """Start with nothing on its way."""
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, words: Sequence[str], body: bytes | None, limit: float) -> str:
        """Run a command to its end. body: its standard input; limit: seconds after which it is killed"""
        try:
            self._process = subprocess.Popen(
                list(words),
                stdin=subprocess.DEVNULL if body is None else subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return str(getattr(error, "strerror", "") or error)
        with self._process as process:
            try:
                _, said = process.communicate(body, limit)
            except subprocess.TimeoutExpired:
                process.kill()
                return timed_out(limit)
            except BaseException:
                process.kill()
                raise
        last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
        status = process.returncode
        how = f"exit {status}" if status > 0 else f"killed by signal {-status}"
        return f"{how}{f' ({one_line(last)})' if last else ''}" if status else ""

    def kill(self) -> None:
        """Kill the command that runs. May be called from any thread."""
        if self._process is not None:
            self._process.kill()


def post(url: str, body: bytes, limit: float) -> str:
    """Send JSON to a webhook; return why that failed, else "". limit: seconds for each wait

    The address is a secret, so that no message has it.
    """
    if not url.startswith(("https://", "http://")):
        return "its value is not an address that begins with https://"
    import urllib.error
    import urllib.request

    try:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=limit):
            return ""
    except urllib.error.HTTPError as error:
        error.close()
        return f"the server answered with status {error.code}"
    except OSError as error:
        return f"cannot be reached ({getattr(error, 'reason', error)})"
    except ValueError:
        return "its value is not an address"


def timed_out(limit: float) -> str:
    """Return the failure of a notification that took too long.

    >>> timed_out(10.0)
    'timed out after 10 s'
    """
    return f"timed out after {limit:g} s"


def one_line(text: str) -> str:
    """Return a text in one short line without escape sequences."""
    return " ".join(plain(text).split())[:WORDS_CHARACTERS_MAX]
