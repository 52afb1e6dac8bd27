"""What a workspace is, as data: the manifest, its hash, and the changes from one to the next (docs/sync.md)."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

HASH_BYTES = 20


class Entry(NamedTuple):
    """One path. A tuple, as there may be 100,000 of them, and it is its own form in JSON."""

    path: str  # relative, with slashes; bytes as latin-1
    kind: str  # "f", "d" or "l": a value of listing.Kind
    mode: int  # permission bits
    mtime_ns: int  # 0 of links
    size: int  # bytes of a file, 0 of all others
    content: str  # a file's hash, a link's target as latin-1, "" of a directory


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A tree; made by ``manifest_of``."""

    entries: tuple[Entry, ...]  # sorted by path
    tree: str  # the hash of the entries
    files: int
    size: int  # bytes of all files

    def to_json(self) -> bytes:
        """The entries, as the tree hash has them."""
        return _to_json(self.entries)

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """Read what to_json wrote. Raises ValueError for anything else."""
        try:
            return manifest_of(Entry(*row) for row in json.loads(data))
        except (TypeError, IndexError, RecursionError) as error:
            raise ValueError("is no manifest") from error


def manifest_of(entries: Iterable[Entry]) -> Manifest:
    """The manifest of these entries, in any order."""
    listed = tuple(sorted(entries))
    sizes = [entry.size for entry in listed if entry.kind == "f"]
    return Manifest(entries=listed, tree=hash_of(_to_json(listed)), files=len(sizes), size=sum(sizes))


def changes(base: Manifest | None, new: Manifest) -> bytes:
    """What turns base into new, as a host reads it; base None: what a host without any tree needs."""
    had = {entry.path: entry for entry in base.entries} if base else {}
    has = {entry.path for entry in new.entries}
    put = [entry for entry in new.entries if had.get(entry.path) != entry]
    drop = [path for path in had if path not in has]
    told = {"base": base.tree if base else "", "put": put, "drop": drop, "tree": new.tree}
    return zlib.compress(json.dumps(told, separators=(",", ":")).encode())


def hash_of(data: bytes) -> str:
    """The name of a content.

    >>> hash_of(b"")
    '3345524abf6bbe1809449224b5972c41790b6cf2'
    """
    return hashlib.blake2b(data, digest_size=HASH_BYTES).hexdigest()


def new_hash() -> hashlib.blake2b:
    """The same, for a content that comes in pieces."""
    return hashlib.blake2b(digest_size=HASH_BYTES)


def _to_json(entries: tuple[Entry, ...]) -> bytes:
    return json.dumps(entries, separators=(",", ":")).encode()
