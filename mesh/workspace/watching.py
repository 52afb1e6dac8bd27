"""Watching a workspace for changes of the files that belong to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from mesh.core.errors import MeshError
from mesh.core.installing import install_line
from mesh.workspace.ignore import FILES, Rules
from mesh.workspace.listing import list_workspace
from mesh.workspace.tracked import TrackedFiles

if TYPE_CHECKING:
    from watchfiles._rust_notify import RustNotify

QUIET_MS = 100  # without a change, after which the changes so far are reported
REPORT_LIMIT_MS = 2000  # from the first change to its report at the latest
POLL_MS = 300  # between two looks where the system reports no changes (WATCHFILES_FORCE_POLLING)
ADDED, MODIFIED, DELETED = 1, 2, 3  # watchfiles.Change


class Survey(Struct, frozen=True):
    """The watched parts of a workspace, in their state of one moment."""

    root: bytes
    directories: frozenset[bytes]  # to watch, absolute: those that belong, and those that hold rule files
    count: int  # files and links that belong
    _paths: frozenset[bytes]  # that belong, relative
    _rules: dict[bytes, Rules]  # by directory, relative
    _inside: bytes  # as Listing.inside
    _rule_files: frozenset[bytes]  # absolute; outside the workspace
    _indexes: dict[bytes, TrackedFiles]  # git's tracked files, by the absolute path of the index that it writes

    def concerns(self, change: int, path: bytes) -> bool:
        """Return True if a change of an absolute path may change the files that are sent."""
        if path in self._rule_files or path == self.root:
            return True
        if path in self._indexes:  # git writes it often, also when it tracks the same files
            return self._indexes[path].again().paths != self._indexes[path].paths
        if not path.startswith(self.root + b"/"):
            return False
        inside = path[len(self.root) + 1 :]
        parent, _, name = inside.rpartition(b"/")
        if inside in self._paths or name in FILES:
            return parent in self._rules
        if parent not in self._rules:
            return False
        rules, asked = self._rules[parent], self._inside + inside
        if change == DELETED:  # the kind of a deleted path is unknown
            return not (rules.excludes(asked, False) or rules.excludes(asked, True))
        return not rules.excludes(asked, os.path.isdir(path) and not os.path.islink(path))


def survey(workspace: Path, ignore: Sequence[str], settings: Iterable[Path], *, include_git: bool) -> Survey:
    """List what to watch; settings: other files that decide. Raises MeshError like list_workspace."""
    listing = list_workspace(workspace, ignore, include_git=include_git)
    top = next(iter(listing.rules.values())).top
    above = [listing.root]
    while above[-1] != top:
        above.append(os.path.dirname(above[-1]))
    rule_files = {os.fsencode(path) for path in settings}
    rule_files |= {os.path.join(directory, name) for directory in above[1:] for name in FILES}
    rule_files.add(os.path.join(top, b".git/info/exclude"))
    directories = {os.path.join(listing.root, path) if path else listing.root for path in listing.rules}
    known = {rules.tracked for rules in listing.rules.values() if rules.tracked is not None}
    indexes = {tracked.index_file(): tracked for tracked in known if tracked.has_answered and tracked.index_file()}
    directories |= {directory for path in (*rule_files, *indexes) if os.path.isdir(directory := os.path.dirname(path))}
    paths = frozenset(entry.path for entry in listing.entries)
    count = len(listing.entries) - len(listing.rules) + 1
    return Survey(
        listing.root,
        frozenset(directories),
        count,
        paths,
        dict(listing.rules),
        listing.inside,
        frozenset(rule_files),
        indexes,
    )


class Watch:
    """Collects changes from its beginning on, also between two calls of ``wait``."""

    def __init__(self, survey: Survey) -> None:
        """Raises MeshError where watching is not possible; FileNotFoundError if a directory is gone by now."""
        try:
            from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError
        except ImportError as error:
            raise MeshError(f"--watch needs watchfiles: {error}", hint=install_line("watchfiles")) from error
        self._internal_error: type[Exception] = WatchfilesRustInternalError
        self.survey = survey  # whose directories are watched
        self.is_broken = False  # it sees no more changes
        # Watch directories one by one, because ignored ones and targets of links may be huge. macOS watches only whole
        # trees.
        whole = sys.platform == "darwin"
        paths = [
            path.decode()
            for path in ([survey.root] if whole else sorted(survey.directories))
            if path == path.decode("utf-8", "ignore").encode()  # watchfiles takes no other names
        ]
        polling = bool(os.environ.get("WATCHFILES_FORCE_POLLING"))
        try:
            self._notify: RustNotify = RustNotify(paths, False, polling, POLL_MS, whole, False)
        except FileNotFoundError:
            raise
        except (OSError, WatchfilesRustInternalError) as error:
            reason = str(error).partition(" about ")[0]
            raise MeshError(
                f"cannot watch {len(paths)} directories: {reason}",
                hint="raise fs.inotify.max_user_watches and fs.inotify.max_user_instances (sysctl), or ignore more",
            ) from error

    def wait(self, survey: Survey) -> None:
        """Return when a change concerns the workspace, in its state of the last survey.

        Raises KeyboardInterrupt.
        """
        while True:
            try:
                changes = self._notify.watch(REPORT_LIMIT_MS, QUIET_MS, 0, None)
            except self._internal_error:  # a name that is not UTF-8 ends it
                self.is_broken = True
                return
            if changes == "signal":
                raise KeyboardInterrupt
            if not isinstance(changes, str) and any(survey.concerns(what, os.fsencode(path)) for what, path in changes):
                return

    def close(self) -> None:
        self._notify.close()
