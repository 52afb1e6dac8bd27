"""The git commit of a workspace, for the ranks to record."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO

from msgspec import Struct

GIT_LIMIT_S = 2.0  # git may need long in a huge repository, and must not keep a run from starting


class GitState(Struct, frozen=True, kw_only=True):
    """The state of a workspace, as git has it."""

    variables: dict[str, str] = {}  # for the ranks; {}: git gives no answer
    has_changes: bool = False  # a file that git tracks differs from its commit

    @property
    def is_dirty(self) -> bool:
        """True if a file differs from the commit, or is new."""
        return self.variables.get("MESH_GIT_DIRTY") == "1"


@contextlib.contextmanager
def asked_git(workspace: Path) -> Iterator[Callable[[], GitState]]:
    """Have git look up the commit meanwhile; the yielded function waits for git, and returns its answer.

    The variables are MESH_GIT_COMMIT, and MESH_GIT_DIRTY: "1" if a file of the workspace differs from it or is new,
    else "0". There are none if git gives no answer: there is no git, no repository, no commit, another user's
    repository (safe.directory), or it takes too long.
    """
    options = ["--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(workspace)]
    argv = ["git", *options, "status", "--porcelain=v2", "--branch", "--untracked-files=normal", "--", "."]
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(tempfile.TemporaryFile())  # not a pipe, which a child of git could hold open
        try:
            git = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)
        except OSError:
            yield GitState
            return
        stack.enter_context(git)
        stack.callback(git.kill)
        yield partial(_state, git, out, time.monotonic() + GIT_LIMIT_S)


def _state(git: subprocess.Popen[bytes], out: IO[bytes], until: float) -> GitState:
    try:
        status = git.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return GitState()
    out.seek(0)
    lines = out.read().splitlines() if status == 0 else []
    about = dict(line[2:].split(b" ", 1) for line in lines if line.startswith(b"# "))
    commit = about.get(b"branch.oid", b"").decode()
    if not commit.isalnum():  # "(initial)": there is no commit yet
        return GitState()
    variables = {"MESH_GIT_COMMIT": commit, "MESH_GIT_DIRTY": "1" if len(lines) > len(about) else "0"}
    return GitState(variables=variables, has_changes=any(line[:1] in (b"1", b"2", b"u") for line in lines))
