"""The changes of a workspace to its git commit, written beside the run that brings it to hosts."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from pathlib import Path

DIFF_BYTES_MAX = 10 << 20  # of changes that a run keeps
END_LIMIT_S = 2.0  # for the changes to be written when a short run ends
# Neither hooks of the user nor settings change what git prints.
GIT_OPTIONS = ("--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.quotePath=true")
DIFF = (
    *("diff", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"),
    *("--no-relative", "--src-prefix=a/", "--dst-prefix=b/", "--ignore-submodules=all", "HEAD", "--", "."),
)


class DiffWriter:
    """Writes the changes of a workspace to its commit into a file, in a thread. Larger ones leave an empty file."""

    def __init__(self, workspace: Path, file: Path) -> None:
        """Begin at once."""
        self._workspace, self._file = workspace, file
        self._git: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._work, name="mesh-diff", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for the changes, but not for long."""
        self._thread.join(END_LIMIT_S)
        if self._git is not None:
            self._git.kill()
        self._thread.join(END_LIMIT_S)

    def _work(self) -> None:
        argv = ["git", *GIT_OPTIONS, "-C", str(self._workspace), *DIFF]
        new = self._file.with_name(f"{self._file.name}.new")
        with contextlib.suppress(OSError):
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with (
                open(descriptor, "wb") as file,
                subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                ) as git,
            ):
                self._git = git
                assert git.stdout is not None
                size = 0
                while size <= DIFF_BYTES_MAX and (data := git.stdout.read(1 << 16)):
                    size += len(data)
                    file.write(data)
                if size > DIFF_BYTES_MAX:
                    git.kill()
            if git.returncode or size > DIFF_BYTES_MAX:  # a part of them would be taken for all
                os.truncate(new, 0)
            new.replace(self._file)
