"""What we know of a workspace from before: the hashes of its files, and the manifests that were sent.

It is a cache: whatever is damaged in it counts as not there, and one that cannot be written is no error.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from mesh.workspace.manifest import Manifest, hash_of

MOST_MANIFESTS = 8  # of one workspace
MOST_WORKSPACES = 64
HASHES = "hashes"
HEADER = b"mesh hashes 1 "  # and the hash of the rest of the file
_CONTENT = re.compile(rb'"([0-9a-f]{40})"\]')  # the end of a file's entry in a manifest

Stamp = tuple[int, int, int, int, int]  # device, inode, size, mtime_ns, ctime_ns
Row = tuple[Stamp, str]  # a file as it was when its hash was taken, and the hash


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Where mesh keeps what it can do without."""
    base = environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "mesh"


class HashCache:
    """The cache of one workspace. Another mesh may write it at the same time; the last one wins."""

    def __init__(self, workspace: Path, directory: Path) -> None:
        """directory: see cache_directory."""
        path = os.fsencode(workspace.resolve())
        self._directory = directory / "workspaces" / hash_of(path)
        self._rows = self._load()

    def get(self, path: str, stamp: Stamp) -> str:
        """The hash of a file, "" if it is not known or the file is another one now."""
        row = self._rows.get(path)
        return row[1] if row and row[0] == stamp else ""

    def keep(self, rows: dict[str, Row]) -> None:
        """Know these files, and no others. A caller must leave out what was changed just now (see prepare.py)."""
        if rows != self._rows:
            self._rows = rows
            text = json.dumps([(path, *stamp, content) for path, (stamp, content) in rows.items()]).encode()
            self._write(HASHES, HEADER + hash_of(text).encode() + b"\n" + text)

    def forget(self, path: str) -> None:
        """Do not believe a file's hash any more."""
        self.keep({known: row for known, row in self._rows.items() if known != path})

    def known_manifest(self, tree: str) -> Manifest | None:
        """A manifest that was remembered, by its tree hash."""
        if not re.fullmatch("[0-9a-f]{40}", tree):
            return None
        data = self._read(tree)
        # Its name is the hash of what stands in it, so that damage shows.
        return Manifest.from_json(data) if data and hash_of(data) == tree else None

    def remember(self, manifest: Manifest) -> None:
        """Keep a manifest that was sent, and forget the oldest."""
        with contextlib.suppress(OSError):
            os.utime(self._directory / manifest.tree)
            return
        self._write(manifest.tree, zlib.compress(manifest.to_json(), 1))
        for old in self._manifests()[MOST_MANIFESTS:]:
            with contextlib.suppress(OSError):
                old.unlink()

    def known_hashes(self) -> set[str]:
        """The contents of all files of the manifests that are remembered."""
        found: set[bytes] = set()
        for path in self._manifests():
            found.update(_CONTENT.findall(self._read(path.name)))
        return {content.decode() for content in found}

    def _manifests(self) -> list[Path]:
        """The files of remembered manifests, the last one first."""
        with contextlib.suppress(OSError):
            found = [path for path in self._directory.iterdir() if re.fullmatch("[0-9a-f]{40}", path.name)]
            return sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)
        return []

    def _read(self, name: str) -> bytes:
        try:
            return zlib.decompress((self._directory / name).read_bytes())
        except (OSError, zlib.error):
            return b""

    def _load(self) -> dict[str, Row]:
        try:
            header, _, text = (self._directory / HASHES).read_bytes().partition(b"\n")
        except OSError:
            return {}
        if header != HEADER + hash_of(text).encode():
            return {}
        return {row[0]: ((row[1], row[2], row[3], row[4], row[5]), row[6]) for row in json.loads(text)}

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
        """Forget the workspaces that were not used for longest; a test suite may make one for each test."""
        found = sorted(self._directory.parent.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for old in found[MOST_WORKSPACES:]:
            shutil.rmtree(old, ignore_errors=True)
