"""A clean clone of this repository: the files that git tracks, as they are in the work tree."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.conftest import REPOSITORY

NOT_TRACKED = (".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info", "build", "shared")


def make_clone(directory: Path) -> Path:
    """Make a clean clone; where git does not know this directory, without what is usually ignored."""
    words = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listed = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if listed.returncode:
        shutil.copytree(REPOSITORY, directory, ignore=shutil.ignore_patterns(*NOT_TRACKED))
        return directory
    for name in filter(None, listed.stdout.split("\0")):
        if (REPOSITORY / name).exists():  # a file that was deleted and is not committed yet
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, directory / name, follow_symlinks=False)
    return directory
