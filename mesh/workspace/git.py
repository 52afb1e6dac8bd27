"""Which commit a workspace is, for the ranks to note."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

LIMIT = 2.0  # seconds: a huge repository must not keep a run from starting


def git_variables(workspace: Path) -> dict[str, str]:
    """MESH_GIT_COMMIT, and MESH_GIT_DIRTY: "1" if a file of the workspace differs from it or is new, else "0".

    Empty where git does not tell: there is no git, no repository, no commit, one of somebody else (safe.directory), or
    it takes too long.
    """
    options = ["--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(workspace)]
    argv = ["git", *options, "status", "--porcelain=v2", "--branch", "--untracked-files=normal", "--", "."]
    with tempfile.TemporaryFile() as out:  # not a pipe, which a child of git's could hold open
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL, timeout=LIMIT, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return {}
        out.seek(0)
        lines = out.read().splitlines() if done.returncode == 0 else []
    about = dict(line[2:].split(b" ", 1) for line in lines if line.startswith(b"# "))
    commit = about.get(b"branch.oid", b"").decode()
    if not commit.isalnum():  # "(initial)": there is none yet
        return {}
    return {"MESH_GIT_COMMIT": commit, "MESH_GIT_DIRTY": "1" if len(lines) > len(about) else "0"}
