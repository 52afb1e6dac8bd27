"""A terminal in a pod, for ``mesh ssh``: ``python -m mesh.backends.pods.terminal PLACE POD [WORD ...]``."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import struct
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Sequence

import msgspec

from mesh.backends.pods.api import Api
from mesh.backends.pods.channel import RESIZE, ExecChannel
from mesh.core.cluster import PodPlace
from mesh.core.errors import ChannelClosed, MeshError

SHELL = ("sh", "-c", "exec $(command -v bash || command -v sh)")
READ_BYTES = 32 << 10
LOST_STATUS = 255  # the exit status of ssh for a connection that ended


def terminal_argv(place: PodPlace, pod: str, words: Sequence[str]) -> list[str]:
    """Return the command line of a shell in a pod, or of a command there."""
    own = [word for place_, word in enumerate(words) if place_ or word != "--"]
    return [sys.executable, "-m", __name__, msgspec.json.encode(place).decode(), pod, *own]


def run(place: PodPlace, pod: str, words: Sequence[str]) -> int:
    """Connect this terminal with a program in a pod; return its exit status. Raises MeshError."""
    is_terminal = os.isatty(0) and os.isatty(1)
    channel = Api(place).exec(pod, words or SHELL, tty=is_terminal)
    with _raw() if is_terminal else contextlib.nullcontext():
        if is_terminal:
            _resize(channel)
            signal.signal(signal.SIGWINCH, lambda number, frame: _resize(channel))
        is_seen = False

        def show(data: bytes) -> None:
            nonlocal is_seen
            is_seen = True
            _show(data)

        channel.on_stderr = show
        threading.Thread(target=_feed, args=(channel,), daemon=True).start()
        while data := channel.receive():
            view = memoryview(data)
            while view:
                view = view[os.write(1, view) :]
        farewell = channel.farewell()
        if not is_seen:  # the words of a cluster that has not started the program
            _show(farewell.stderr)
    channel.close()
    channel.dispose()
    return LOST_STATUS if farewell.status is None else farewell.status


def _feed(channel: ExecChannel) -> None:
    """Send what is typed, and the end of it, which a server cannot pass on before v5."""
    with contextlib.suppress(ChannelClosed, OSError):
        while data := os.read(0, READ_BYTES):
            channel.send(data)
        channel.end_input()


def _show(data: bytes) -> None:
    """Write to standard error."""
    view = memoryview(data)
    with contextlib.suppress(OSError):
        while view:
            view = view[os.write(2, view) :]


def _resize(channel: ExecChannel) -> None:
    size = shutil.get_terminal_size()
    with contextlib.suppress(OSError):
        rows, columns = struct.unpack("HHHH", fcntl.ioctl(1, termios.TIOCGWINSZ, b"\0" * 8))[:2]
        size = os.terminal_size((columns or size.columns, rows or size.lines))
    with contextlib.suppress(ChannelClosed):
        channel.send_to(RESIZE, json.dumps({"Width": size.columns, "Height": size.lines}).encode())


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Pass every key on, and restore the terminal's modes afterwards."""
    modes = termios.tcgetattr(0)
    try:
        tty.setraw(0)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, modes)


def main(words: Sequence[str]) -> int:
    """Run the module; return its exit status."""
    try:
        return run(msgspec.json.decode(words[0], type=PodPlace), words[1], words[2:])
    except MeshError as error:
        os.write(2, f"mesh: {error}\n{f'  {error.hint}{chr(10)}' if error.hint else ''}".encode())
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
