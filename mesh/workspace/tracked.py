"""The ignored files that git tracks, which belong to the workspace although a .gitignore names them."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterable
from typing import IO

from mesh.core.errors import MeshError

LS_FILES_LIMIT_S = 60.0
DEFAULT_NAMES = (".venv", "__pycache__", "node_modules")  # left out at any depth, unless git tracks them
GITLINK = b"160000"  # the mode of a submodule in git's index
NO_REPOSITORY = b"not a git repository"
# Variables that point git at another repository than the workspace's; a git hook sets them.
ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")


class TrackedFiles:
    """The ignored files that one repository tracks. git is asked at the first use, or ahead of it by ``start``."""

    def __init__(self, top: bytes, repository: bytes = b"", parent: TrackedFiles | None = None) -> None:
        """Take a work tree.

        top: the directory that all paths are relative to
        repository: path of the work tree's root; b"" for top itself
        parent: the files of the repository around it, if there is one
        """
        self._top, self._repository, self._parent = top, repository, parent
        self._root = os.path.join(top, repository) if repository else top
        self._prefix = repository + b"/" if repository else b""
        self._process: subprocess.Popen[bytes] | None = None
        self._out: IO[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._paths: frozenset[bytes] | None = None  # files, links and submodules; None until git has answered
        self._submodules: frozenset[bytes] = frozenset()
        self._directories: frozenset[bytes] = frozenset()
        self._problem = ""
        self.is_refused = False  # git was found, and its answer was an error

    def start(self) -> None:
        """Start git, unless that is done; it works while the caller goes on."""
        if self._process is not None or self._paths is not None:
            return
        environ = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
        environ |= {"LC_ALL": "C", "GIT_CEILING_DIRECTORIES": os.fsdecode(os.path.dirname(self._root))}
        self._out, self._errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                self._command(), env=environ, stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._errors
            )
        except OSError as error:
            self._close()
            self._learn([], f"git: {error.strerror}")

    def stop(self) -> None:
        """Stop a git whose answer is not needed any more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._close()

    def holds(self, path: bytes, is_directory: bool) -> bool:
        """Return True for a tracked file, or a directory with tracked files. Raises MeshError if git does not end."""
        paths = self.paths
        found = path in self._submodules or path in self._directories if is_directory else path in paths
        return found or (self._parent is not None and self._parent.holds(path, is_directory))

    def is_submodule(self, path: bytes) -> bool:
        """Return True for a path that is a repository of its own, with files that it tracks itself."""
        return path in self.paths and path in self._submodules

    @property
    def paths(self) -> frozenset[bytes]:
        """The tracked files, links and submodules, relative to top. Raises MeshError if git does not end."""
        if self._paths is None:
            self.start()
            if self._process is not None:
                self._wait(self._process)
        assert self._paths is not None
        return self._paths

    @property
    def has_answered(self) -> bool:
        """True once git's answer was needed and has come."""
        return self._paths is not None and not self._problem

    @property
    def problem(self) -> str:
        """The reason why git could not be asked, "" if there is none. Raises MeshError if git does not end."""
        return self._problem if self.paths is not None else ""

    def index_file(self) -> bytes:
        """Return the full path of git's index, b"" without a repository. git writes it when it tracks another file."""
        place = os.path.join(self._root, b".git")
        try:
            if not os.path.isdir(place):  # a submodule or a second work tree has a file that names the directory
                with open(place, "rb") as file:
                    place = os.path.join(self._root, file.read().removeprefix(b"gitdir:").strip())
        except OSError:
            return b""
        place = os.path.realpath(place)
        return os.path.join(place, b"index") if os.path.exists(os.path.join(place, b"HEAD")) else b""

    def again(self) -> TrackedFiles:
        """Return a copy that asks git again."""
        return TrackedFiles(self._top, self._repository, self._parent)

    def _command(self) -> list[str]:
        # Only ignored files are asked for, as there are few; names that mesh leaves out by default count as ignored.
        # The repository around a submodule may have rules that the submodule's git lacks, so all files of a submodule
        # are asked for.
        ours = [f"--exclude={name}" for name in DEFAULT_NAMES]
        ignored = ["--ignored", "--exclude-standard", *ours] if not self._prefix else []
        options = ["--no-optional-locks", "-c", "core.fsmonitor=false", "-C", os.fsdecode(self._root)]
        return ["git", *options, "ls-files", "-z", "--stage", "--cached", *ignored]

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + LS_FILES_LIMIT_S
        try:
            status = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.stop()
            raise MeshError(
                f"{os.fsdecode(self._root)}: git did not list its files within {LS_FILES_LIMIT_S:g} s",
                hint=shlex.join(self._command()),
            ) from None
        assert self._out is not None
        assert self._errors is not None
        self._out.seek(0)
        self._errors.seek(0)
        rows, complaint = self._out.read().split(b"\0")[:-1], self._errors.read()
        self._close()
        if status == 0:
            self._learn(rows, "")
        elif NO_REPOSITORY in complaint:
            self._learn([], "")
        else:
            first = next(iter(complaint.decode("utf-8", "replace").splitlines()), f"status {status}")
            self._learn([], f"git: {first}")
            self.is_refused = True

    def _learn(self, rows: Iterable[bytes], problem: str) -> None:
        """rows: mode, content, stage, a tab and the path, as ``git ls-files --stage`` writes them"""
        pairs = [(row.split(b" ", 1)[0], self._prefix + row.split(b"\t", 1)[1]) for row in rows]
        self._submodules = frozenset(path for mode, path in pairs if mode == GITLINK)
        self._directories = frozenset(above for _, path in pairs for above in _above(path))
        self._problem = problem
        self._paths = frozenset(path for _, path in pairs)

    def _close(self) -> None:
        for file in (self._out, self._errors):
            if file is not None:
                file.close()
        self._process = self._out = self._errors = None


def _above(path: bytes) -> list[bytes]:
    """
    >>> _above(b"a/b/c")
    [b'a', b'a/b']
    """
    parts = path.split(b"/")
    return [b"/".join(parts[:depth]) for depth in range(1, len(parts))]
