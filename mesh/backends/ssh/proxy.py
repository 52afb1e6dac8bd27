"""The pipes of a ProxyCommand, in place of a TCP socket."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from typing import Any


class ProxySocket:
    """A ProxyCommand's pipes as a socket. It has a session of its own: a Ctrl-C of the terminal is not for it."""

    def __init__(self, command: str) -> None:
        ours, theirs = socket.socketpair()
        self._socket = ours
        import tempfile  # few have a ProxyCommand

        # A file, as nobody reads a pipe for it.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        with theirs:
            # By the shell, as ssh_config has it; exec, so that there is one process to end.
            argv = ["/bin/sh", "-c", f"exec {command}"]
            self._process = subprocess.Popen(
                argv, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=self._stderr, start_new_session=True
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def complaint(self) -> str:
        """Return why it ended, with the last line of its standard error; "" if it has not."""
        try:
            status = self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            return ""
        if status < 0:  # by us
            return ""
        self._stderr.seek(0)
        lines = self._stderr.read(1 << 16).decode("utf-8", "replace").split("\n")
        said = [line.strip() for line in lines if line.strip()][-1:]
        return f"its ProxyCommand ended (exit {status})" + "".join(f": {line[:300]}" for line in said)

    def drop(self) -> None:
        """Close it, and its standard error."""
        self.close()
        self._stderr.close()

    def close(self) -> None:
        """End it. paramiko's thread may come first, so that what it printed is kept until ``drop``."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(2.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def proxy_command(command: str, host: str, port: int, user: str) -> str:
    for token, value in (("%h", host), ("%p", str(port)), ("%r", user), ("%%", "%")):
        command = command.replace(token, value)
    return command
