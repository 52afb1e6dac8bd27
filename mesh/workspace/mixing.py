"""Trees between two trees: the files of one, with some of those of the other."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator

from mesh.workspace import listing as listed
from mesh.workspace.manifest import Entry, Manifest, manifest_of

DIRECTORY_MODE = 0o755  # of a directory that neither tree has


def differing(one: Manifest, other: Manifest) -> list[str]:
    """Return the paths of files and links that differ between two trees, in more than their times."""
    before, after = _contents(one), _contents(other)
    paths = sorted({*before, *after})
    return [path for path in paths if _state(before.get(path)) != _state(after.get(path))]


def mixed(one: Manifest, other: Manifest, paths: Collection[str]) -> Manifest:
    """Return a tree with some paths of another one, and its own files otherwise. paths: of files and links"""
    mine, theirs = _contents(one), _contents(other)
    coming = {path: theirs[path] for path in paths if path in theirs}
    # A file may stand where the other tree has a directory, and the other way round.
    above = {parent for path in coming for parent in _parents(path)}
    stays = {
        path: entry
        for path, entry in mine.items()
        if path not in paths and path not in above and not any(parent in coming for parent in _parents(path))
    }
    kept = {**stays, **coming}
    both = (*other.entries, *one.entries)
    directories = {entry.path: entry for entry in both if entry.kind == listed.DIRECTORY}
    own = {entry.path for entry in one.entries if entry.kind == listed.DIRECTORY}
    wanted = {parent for path in kept for parent in _parents(path)}
    wanted |= {path for path in own if not any(name in kept for name in (path, *_parents(path)))}
    found = [directories.get(path) or Entry(path, listed.DIRECTORY, DIRECTORY_MODE, 0, 0, "") for path in wanted]
    return manifest_of([*kept.values(), *found])


def _contents(tree: Manifest) -> dict[str, Entry]:
    return {entry.path: entry for entry in tree.entries if entry.kind != listed.DIRECTORY}


def _state(entry: Entry | None) -> tuple[str, int, str] | None:
    return None if entry is None else (entry.kind, entry.mode, entry.content)


def _parents(path: str) -> Iterator[str]:
    """Yield the directories above a path."""
    while path := posixpath.dirname(path):
        yield path
