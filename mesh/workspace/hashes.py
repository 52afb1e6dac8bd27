"""A cache of what earlier runs found in a workspace: the hashes of its files, and the manifests that were sent.

Damaged parts of it count as missing, and a cache that cannot be written is no error.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import re
import shutil
import sys
import tempfile
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mesh.workspace.listing import Entry
from mesh.workspace.manifest import Manifest, contents_in, hash_of, not_in, read_manifest

MANIFESTS_KEPT = 8  # of one workspace
WORKSPACES_KEPT = 64
CONTENTS = ".contents"  # beside a manifest: the hashes in it, without compression
HASHES = f"hashes-{sys.implementation.cache_tag}"  # marshal reads 100,000 entries in a fifth of json's time
SAID = "said"  # names that notices had
HEADER = b"mesh hashes 2 "  # then the hash of the rest of the file, because marshal must not read damaged data

Row = tuple[Any, ...]  # an entry of a listing, in a form for marshal
# Rows; each file's hash, "" for other entries; the tree hash, if they are all of a workspace.
Known = tuple[tuple[Row, ...], tuple[str, ...], str]
NOTHING: Known = (), (), ""


class HashCache:
    """The cache of one workspace. Another client may write it at the same time; the last one wins."""

    def __init__(self, workspace: Path, directory: Path) -> None:
        """directory: see cache_directory."""
        path = os.fsencode(workspace.resolve())
        self._directory = directory / "workspaces" / hash_of(path)
        self._known = self._load()
        # A pack that is not wanted any more may find a changed file while all files are listed again.
        self._lock = threading.Lock()

    def whole(self, entries: tuple[Entry, ...]) -> tuple[str, Sequence[str]]:
        """Return the tree hash and contents of a listing that equals the kept one; else "", ()."""
        rows, contents, tree = self._known
        return (tree, contents) if entries == rows else ("", ())

    def contents(self, entries: Sequence[Entry]) -> list[str]:
        """Return each entry's hash; "" if it is unknown, or the file has changed."""
        rows, contents, _ = self._known
        known = {row[0]: number for number, row in enumerate(rows)}
        numbers = [known.get(entry.path, -1) for entry in entries]
        return [
            contents[number] if number >= 0 and rows[number] == entry else ""
            for number, entry in zip(numbers, entries, strict=True)
        ]

    def keep(self, known: Sequence[tuple[Entry, str]], tree: str) -> None:
        """Remember these entries with their contents, and no others.

        The caller must leave out files that were changed just now (see prepare.py).

        tree: the hash of all of them, if they are all of a workspace; else ""
        """
        with self._lock:
            self._keep((tuple(tuple(entry) for entry, _ in known), tuple(content for _, content in known), tree))

    def forget(self, path: bytes) -> None:
        """Forget a file's hash."""
        with self._lock:
            rows, contents, _ = self._known
            numbers = [number for number, row in enumerate(rows) if row[0] != path]
            self._keep((tuple(rows[number] for number in numbers), tuple(contents[number] for number in numbers), ""))

    def known_manifest(self, tree: str) -> Manifest | None:
        """Return a remembered manifest, by its tree hash."""
        if not re.fullmatch("[0-9a-f]{40}", tree):
            return None
        data = self._read(tree)
        # Its name is the hash of its contents, so that damage shows.
        return read_manifest(data) if data and hash_of(data) == tree else None

    def remember(self, manifest: Manifest) -> None:
        """Keep a manifest that was sent, and remove the oldest."""
        with contextlib.suppress(OSError):
            os.utime(self._directory / manifest.tree)
            return
        data = manifest.to_json()
        self._write(manifest.tree + CONTENTS, contents_in(data))
        self._write(manifest.tree, zlib.compress(data, 1))
        for old in self._manifests()[MANIFESTS_KEPT:]:
            with contextlib.suppress(OSError):
                old.with_suffix(CONTENTS).unlink(missing_ok=True)
                old.unlink()

    def path_of(self, tree: str) -> Path:
        """Return the file of a manifest that was kept."""
        return self._directory / tree

    def not_said(self, names: Sequence[str]) -> list[str]:
        """Return the names for which this is the first call, and remember them."""
        said = self._read(SAID).decode("utf-8", "replace").split("\n")
        new = [name for name in names if name not in said]
        if new:
            self._write(SAID, zlib.compress("\n".join([*said, *new]).encode()))
        return new

    def never_sent(self, contents: set[str]) -> set[str]:
        """Return the contents that are in no remembered manifest."""
        left = contents
        for path in self._manifests() if left else ():
            with contextlib.suppress(OSError):
                left = not_in(path.with_suffix(CONTENTS).read_bytes(), left)
        return left

    def _manifests(self) -> list[Path]:
        """Return the files of remembered manifests, the last one first."""
        with contextlib.suppress(OSError):
            found = [path for path in self._directory.iterdir() if re.fullmatch("[0-9a-f]{40}", path.name)]
            return sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)
        return []

    def _read(self, name: str) -> bytes:
        try:
            return zlib.decompress((self._directory / name).read_bytes())
        except (OSError, zlib.error):
            return b""

    def _keep(self, known: Known) -> None:
        if known != self._known:
            self._known = known
            data = marshal.dumps(known)
            self._write(HASHES, HEADER + hash_of(data).encode() + b"\n" + data)

    def _load(self) -> Known:
        try:
            header, _, data = (self._directory / HASHES).read_bytes().partition(b"\n")
        except OSError:
            return NOTHING
        if header != HEADER + hash_of(data).encode():
            return NOTHING
        known: Known = marshal.loads(data)
        return known

    def _write(self, name: str, data: bytes) -> None:
        with contextlib.suppress(OSError):
            if not self._directory.exists():
                self._directory.mkdir(mode=0o700, parents=True)
                self._directory.parent.parent.chmod(0o700)
                self._drop_old()
            descriptor, temporary = tempfile.mkstemp(dir=self._directory, prefix="new-")  # mode 0600
            try:
                with open(descriptor, "wb") as file:
                    file.write(data)
                os.replace(temporary, self._directory / name)
            except OSError:
                os.unlink(temporary)

    def _drop_old(self) -> None:
        """Remove the workspaces that were not used for longest, because a test suite may make one for each test."""
        found = sorted(self._directory.parent.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for old in found[WORKSPACES_KEPT:]:
            shutil.rmtree(old, ignore_errors=True)
