"""The workspace as it arrives: received here, put in place by a process of its own, so that the loop goes on."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import time

from .state import State
from .workspace import put_in_place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Sync:
    """One sync: pieces of the pack in, an answer out."""

    def __init__(self, state: State, run: str) -> None:
        """Raises OSError if the pack cannot be written here."""
        self._state, self._run = state, run
        self._began = time.monotonic()
        self._path = state.pack()
        self._pack = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._said = b""
        self.answer = -1  # the descriptor that the unpacking process answers on
        self.pid = 0  # of that process, 0 before it is there

    def add(self, data: bytes) -> None:
        """Add a piece. Raises OSError, above all when the disk is full."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._pack, view) :]

    def unpack(self) -> None:
        """All has come: put it in place."""
        os.close(self._pack)
        self._pack = -1
        self.answer, answer_end = os.pipe()
        os.set_blocking(self.answer, False)
        self.pid = os.fork()
        if not self.pid:
            try:
                os.write(answer_end, json.dumps(_unpack(self._path, self._state, self._run)).encode())
            finally:
                os._exit(0)
        os.close(answer_end)

    def listen(self) -> None:
        """Read what the unpacking process answers."""
        try:
            self._said += os.read(self.answer, 65536)
        except BlockingIOError:
            pass

    def end(self) -> dict[str, Any]:
        """The unpacking process has ended: its answer, with "files" and "seconds", or "error" and "hint"."""
        self.listen()
        self.drop()
        try:
            answer: dict[str, Any] = json.loads(self._said)
        except ValueError:
            answer = {"error": "the unpacking process was killed", "hint": "is there memory left on the host?"}
        answer["seconds"] = round(time.monotonic() - self._began, 4)
        return answer

    def drop(self) -> None:
        """Leave nothing of the pack behind."""
        for descriptor in (self._pack, self.answer):
            if descriptor >= 0:
                os.close(descriptor)
        self._pack = self.answer = -1
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            pass


def _unpack(pack: str, state: State, run: str) -> dict[str, Any]:
    """Put the pack in place; only once where several hosts of a run share the workspace's file system."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with open(state.beside("sync"), "a+b") as mark:
            fcntl.flock(mark, fcntl.LOCK_EX)
            mark.seek(0)
            done = mark.read().split()
            if len(done) == 2 and done[0] == run.encode():
                return {"files": int(done[1])}
            mark.truncate(0)
            files = put_in_place(pack, state.workspace, state.beside("files"))["files"]
            mark.write(b"%s %d" % (run.encode(), files))
            return {"files": files}
    except OSError as error:
        return {"error": why(error), "hint": hint(error)}
    except Exception as error:  # a pack that breaks the rules
        return {"error": f"{type(error).__name__}: {error}", "hint": ""}


def why(error: OSError) -> str:
    """An OSError in words, with the place."""
    text = error.strerror or str(error)
    if not isinstance(error.filename, (str, bytes)):
        return text
    return text + ": " + os.fsencode(error.filename).decode("utf-8", "replace")


def hint(error: OSError) -> str:
    """What to do when mesh cannot write on a host."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space on the host, or leave more out with ignore: in mesh.yaml"
    return "remote_dir: in cluster.yaml names another place for what mesh keeps on the host"
