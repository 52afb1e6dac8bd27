"""The workspace as it arrives: received here, put in place by a process of its own."""

from __future__ import annotations

import fcntl
import os
import time

from .state import State
from .workspace import put_in_place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Sync:
    """One sync: the pieces of the pack, and then ``unpack``."""

    def __init__(self, state: State, run: str) -> None:
        """Raises OSError if the pack cannot be written here."""
        self._state, self._run = state, run
        self._began = time.monotonic()
        self._path = state.pack()
        self._pack = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def add(self, data: bytes) -> None:
        """Add a piece. Raises OSError, above all when the disk is full."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._pack, view) :]

    def unpack(self) -> dict[str, Any]:
        """All has come: put it in place; return "files" and "seconds". Takes long.

        Only once where several hosts of a run share the workspace's file system.
        """
        with open(self._state.beside("sync"), "a+b") as mark:
            fcntl.flock(mark, fcntl.LOCK_EX)
            mark.seek(0)
            done = mark.read().split()
            if len(done) == 2 and done[0] == self._run.encode():
                files = int(done[1])
            else:
                mark.truncate(0)
                files = put_in_place(self._path, self._state.workspace, self._state.beside("files"))["files"]
                mark.write(b"%s %d" % (self._run.encode(), files))
        return {"files": files, "seconds": round(time.monotonic() - self._began, 4)}

    def drop(self) -> None:
        """Leave nothing of the pack behind."""
        os.close(self._pack)
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            pass
