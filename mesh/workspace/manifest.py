"""What a workspace is, as data: the manifest, its hash, and the changes from one to the next (docs/sync.md)."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

HASH_BYTES = 20


class Entry(NamedTuple):
    """One path. A tuple, as there may be 100,000 of them, and it is its own form in JSON."""

    path: str  # relative, with slashes; bytes as latin-1
    kind: str  # as in a listing: "f", "d" or "l"
    mode: int  # permission bits
    mtime_ns: int  # 0 of links
    size: int  # bytes of a file, 0 of all others
    content: str  # a file's hash, a link's target as latin-1, "" of a directory


class Manifest:
    """A tree. There may be 100,000 entries: they are worked out when somebody asks for them."""

    def __init__(self, tree: str, entries: Callable[[], Iterable[Entry]], data: bytes = b"") -> None:
        """tree: the hash of the entries; entries: called once at most; in the order of their paths; data: as JSON"""
        self.tree = tree
        self._entries, self._data = entries, data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Manifest) and self.tree == other.tree

    def __hash__(self) -> int:
        return hash(self.tree)

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """What is in it."""
        return tuple(self._entries())

    def to_json(self) -> bytes:
        """The entries, as the tree hash has them."""
        return self._data or _to_json(self.entries)


def manifest_of(entries: Iterable[Entry]) -> Manifest:
    """The manifest of these entries, in any order."""
    listed = sorted(entries)
    data = _to_json(listed)
    return Manifest(hash_of(data), lambda: listed, data)


def read_manifest(data: bytes) -> Manifest:
    """Read what to_json wrote. Raises ValueError for anything else."""
    try:
        entries = [Entry._make(row) for row in json.loads(data)]
    except (TypeError, RecursionError) as error:
        raise ValueError("is no manifest") from error
    return Manifest(hash_of(data), lambda: entries)


def changes(base: Manifest | None, new: Manifest) -> bytes:
    """What turns base into new, as a host reads it; base None: what a host without any tree needs."""
    put: list[Entry] = []
    drop: list[str] = []
    if base != new:
        had = {entry.path: entry for entry in base.entries} if base else {}
        put = [entry for entry in new.entries if had.pop(entry.path, None) != entry]
        drop = list(had)
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


def _to_json(entries: Sequence[Entry]) -> bytes:
    return json.dumps(entries, separators=(",", ":")).encode()
