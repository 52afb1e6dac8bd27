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

GIT_LIMIT_S = 2.0  # git may need long in a huge repository, and must not keep a run from starting


@contextlib.contextmanager
def asked_git(workspace: Path) -> Iterator[Callable[[], dict[str, str]]]:
    """Have git look up the commit meanwhile; the yielded function waits for git, and returns variables.

    MESH_GIT_COMMIT, and MESH_GIT_DIRTY: "1" if a file of the workspace differs from it or is new, else "0". Neither if
    git gives no answer: there is no git, no repository, no commit, another user's repository (safe.directory), or it
    takes too long.
    """
    options = ["--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(workspace)]
    argv = ["git", *options, "status", "--porcelain=v2", "--branch", "--untracked-files=normal", "--", "."]
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(tempfile.TemporaryFile())  # not a pipe, which a child of git could hold open
        try:
            git = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)
        except OSError:
            yield dict
            return
        stack.enter_context(git)
        stack.callback(git.kill)
        yield partial(_variables, git, out, time.monotonic() + GIT_LIMIT_S)


def _variables(git: subprocess.Popen[bytes], out: IO[bytes], until: float) -> dict[str, str]:
    try:
        status = git.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return {}
    out.seek(0)
    lines = out.read().splitlines() if status == 0 else []
    about = dict(line[2:].split(b" ", 1) for line in lines if line.startswith(b"# "))
    commit = about.get(b"branch.oid", b"").decode()
    if not commit.isalnum():  # "(initial)": there is no commit yet
        return {}
    return {"MESH_GIT_COMMIT": commit, "MESH_GIT_DIRTY": "1" if len(lines) > len(about) else "0"}
