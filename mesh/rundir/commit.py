"""The git commit of a workspace, read from the files of its repository: no process of git is started."""

from __future__ import annotations

import re
from pathlib import Path

_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_BRANCH = "refs/heads/"
PACKED_BYTES_MAX = 1 << 24  # of packed-refs


def commit_of(workspace: Path) -> dict[str, str]:
    """Return ``commit`` and ``branch`` of the repository that holds a directory; {} if there is none.

    A detached HEAD has the branch "". Files that differ from the commit are not looked for: the tree hash has them.
    """
    try:
        for place in (workspace, *workspace.parents):
            if (place / ".git").exists():
                return _commit(_directory(place / ".git"))
    except (OSError, ValueError):
        pass
    return {}


def _directory(place: Path) -> Path:
    """Return the directory of a repository; of a worktree, .git is a file with its path."""
    if place.is_dir():
        return place
    name = place.read_text().strip().removeprefix("gitdir:").strip()
    return place.parent / name


def _commit(directory: Path) -> dict[str, str]:
    head = (directory / "HEAD").read_text().strip()
    if not head.startswith("ref: "):
        return {"commit": head, "branch": ""} if _HASH.fullmatch(head) else {}
    name = head.removeprefix("ref: ").strip()
    if not name.startswith("refs/") or ".." in name:
        return {}
    common = directory
    if (directory / "commondir").is_file():
        common = directory / (directory / "commondir").read_text().strip()
    found = _loose(common / name) or _packed(common / "packed-refs", name)
    return {"commit": found, "branch": name.removeprefix(_BRANCH)} if found else {}


def _loose(path: Path) -> str:
    try:
        text = path.read_text().strip()
    except OSError:
        return ""
    return text if _HASH.fullmatch(text) else ""


def _packed(path: Path, name: str) -> str:
    try:
        if path.stat().st_size > PACKED_BYTES_MAX:
            return ""
        text = path.read_text()
    except OSError:
        return ""
    for line in text.splitlines():
        commit, _, ref = line.partition(" ")
        if ref == name and _HASH.fullmatch(commit):
            return commit
    return ""
