"""``%sync``: the files of the workspace that have changed since the ranks have them, for each host."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from mesh.core.errors import MeshError
from mesh.core.run import RunSpec
from mesh.program.runtime.futures import Future
from mesh.program.runtime.handles import Handle
from mesh.program.runtime.shell import Shell
from mesh.program.runtime.workspace import DIRECTORY, FILE, FIRST, GONE, LAST, LINK, PIECE, Change
from mesh.workspace import listing

PIECE_BYTES = 1 << 20  # of a file in one change
TOGETHER_BYTES = 4 << 20  # in one call, and a little more
SEND_TIMEOUT_S = 600.0  # for one call
# A cell, so that an error in a module is shown as that of any cell.
RELOAD = "__import__('mesh.program.runtime.workspace', fromlist=['reload']).reload_of_shell({paths!r})"


class Synced(Struct, frozen=True):
    """The changes that the hosts have got."""

    files: int  # written
    removed: int
    paths: tuple[str, ...]  # of files that were written


class Workspace:
    """The local workspace, and the state of it that the hosts have."""

    def __init__(self, spec: RunSpec) -> None:
        """Look at the workspace. To be made before the run is, which sends what is there later. Raises MeshError."""
        self._spec = spec
        self._known = self._look()

    def _look(self) -> dict[bytes, listing.Entry]:
        spec = self._spec
        found = listing.list_workspace(
            Path(spec.workspace), spec.ignore, include_git=spec.include_git, as_is=spec.as_is
        )
        return {entry.path: entry for entry in found.entries}

    def sync(self, handles: Sequence[Handle[Shell]]) -> Synced:
        """Send what has changed to some ranks, one of each host. Raises MeshError, and NodeLost."""
        now = self._look()
        changed = [entry for path, entry in now.items() if _sign(self._known.get(path)) != _sign(entry)]
        gone, replaced = self._removed(now), [path for path, entry in now.items() if self._is_other_kind(path, entry)]
        for changes in _together(self._changes(changed, [*gone, *replaced])):
            _send(handles, changes)
        self._known = now
        files = [os.fsdecode(entry.path) for entry in changed if entry.kind == listing.FILE]
        return Synced(len(files), len(gone), tuple(files))

    def _removed(self, now: Mapping[bytes, listing.Entry]) -> list[bytes]:
        """Return the paths that are not here any more. One that is only ignored by now stays on the hosts."""
        place = os.fsencode(self._spec.workspace)
        return [path for path in self._known if path not in now and not os.path.lexists(os.path.join(place, path))]

    def _is_other_kind(self, path: bytes, entry: listing.Entry) -> bool:
        """Return True for a directory in the place of a file, and the like."""
        return path in self._known and self._known[path].kind != entry.kind

    def _changes(self, changed: Sequence[listing.Entry], gone: Sequence[bytes]) -> Iterator[Change]:
        """Yield removals first, the deepest ones first, then directories before what is in them."""
        for path in sorted(gone, reverse=True):
            yield GONE, path, 0, b""
        for entry in sorted(changed):
            if entry.kind == listing.DIRECTORY:
                yield DIRECTORY, entry.path, entry.mode, b""
            elif entry.kind == listing.LINK:
                yield LINK, entry.path, 0, entry.target
            else:
                yield from self._pieces(entry)

    def _pieces(self, entry: listing.Entry) -> Iterator[Change]:
        path = Path(self._spec.workspace) / os.fsdecode(entry.path)
        try:
            with path.open("rb") as file:
                piece, is_first = file.read(PIECE_BYTES), True
                while len(piece) == PIECE_BYTES:
                    yield FIRST if is_first else PIECE, entry.path, 0, piece
                    piece, is_first = file.read(PIECE_BYTES), False
        except OSError as error:
            raise MeshError(f"{path}: cannot be read: {error.strerror}", hint="%sync") from error
        yield FILE if is_first else LAST, entry.path, entry.mode, piece


def _sign(entry: listing.Entry | None) -> tuple[object, ...]:
    """Return what changes with an entry; () for a path that was not there."""
    if entry is None:
        return ()
    if entry.kind == listing.FILE:
        return (entry.kind, entry.mode, entry.size, entry.mtime_ns, entry.ctime_ns, entry.inode)
    return (entry.kind, entry.mode if entry.kind == listing.DIRECTORY else 0, entry.target)


def _together(changes: Iterator[Change]) -> Iterator[list[Change]]:
    """Yield changes in groups of a limited size."""
    group: list[Change] = []
    size = 0
    for change in changes:
        group.append(change)
        size += len(change[1]) + len(change[3])
        if size >= TOGETHER_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _send(handles: Sequence[Handle[Shell]], changes: list[Change]) -> None:
    """Send changes to all hosts at once, and wait for them."""
    for future in [handle.futures.bring(changes) for handle in handles]:
        assert isinstance(future, Future)
        future.result(SEND_TIMEOUT_S)
