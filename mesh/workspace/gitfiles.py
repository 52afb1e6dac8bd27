"""Files of a git repository as they were: those of a commit, with the changes that were made to it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from mesh.workspace.gitdiff import GIT_OPTIONS
from mesh.workspace.manifest import Entry
from mesh.workspace.rebuilding import Source

GIT_LIMIT_S = 60.0  # for each command of git


@contextlib.contextmanager
def of_commit(workspace: Path, commit: str, diff: Path) -> Iterator[Source]:
    """Yield the source of a commit's files with changes; without the commit or git it has no file.

    The repository stays as it is. diff: the file with changes, as ``DiffWriter`` makes it; it may be missing
    """
    with tempfile.TemporaryDirectory(prefix="mesh-git-") as scratch, contextlib.ExitStack() as stack:
        files = _Files(workspace, Path(scratch))
        if not commit or not files.begin(commit, diff):
            yield lambda entry: None
            return
        stack.callback(files.close)
        yield files.read


class _Files:
    """An index of git in a directory of its own, and a process that reads files by it."""

    def __init__(self, workspace: Path, scratch: Path) -> None:
        self._workspace, self._scratch = workspace, scratch
        self._environ = {**os.environ, "GIT_INDEX_FILE": str(scratch / "index")}
        self._prefix = b""
        self._reader: subprocess.Popen[bytes] | None = None

    def begin(self, commit: str, diff: Path) -> bool:
        """Fill the index; return False if git cannot do that."""
        objects, prefix = self._git("rev-parse", "--git-path", "objects"), self._git("rev-parse", "--show-prefix")
        if objects is None or prefix is None:
            return False
        self._prefix = prefix.removesuffix(b"\n")
        (self._scratch / "objects").mkdir()
        # Objects that the changes make go into the scratch directory, and not into the user's repository.
        theirs = os.path.join(self._workspace, os.fsdecode(objects.removesuffix(b"\n")))
        self._environ |= {
            "GIT_OBJECT_DIRECTORY": str(self._scratch / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": theirs,
        }
        if self._git("read-tree", commit) is None:
            return False
        if diff.is_file():
            self._git("apply", "--cached", "--whitespace=nowarn", str(diff.absolute()))
        argv = ["git", *GIT_OPTIONS, "-C", str(self._workspace), "cat-file", "--batch"]
        self._reader = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=self._environ
        )
        return True

    def read(self, entry: Entry) -> Iterable[bytes] | None:
        """Return the content of a path; None if the index has none of this size."""
        path, reader = entry.path.encode("latin-1"), self._reader
        if b"\n" in path or reader is None or reader.stdin is None or reader.stdout is None:
            return None
        try:
            reader.stdin.write(b":0:%b%b\n" % (self._prefix, path))
            reader.stdin.flush()
        except OSError:
            return None
        words = reader.stdout.readline().split()
        # A path that is not there comes back with "missing" behind it, and may have spaces itself.
        if len(words) != 3 or words[1] != b"blob" or not words[2].isdigit():
            return None
        data = reader.stdout.read(int(words[2]) + 1)[:-1]
        return [data] if len(data) == entry.size else None

    def close(self) -> None:
        """End the process."""
        if self._reader is not None:
            self._reader.kill()
            with self._reader:
                pass

    def _git(self, *words: str) -> bytes | None:
        argv = ["git", *GIT_OPTIONS, "-C", str(self._workspace), *words]
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self._environ,
                timeout=GIT_LIMIT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None
