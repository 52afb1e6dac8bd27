"""A workspace as data: the manifest, its hash, and the changes from one to the next (docs/sync.md)."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from binascii import unhexlify
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

HASH_BYTES = 20
FEW_CONTENTS = 16  # contents up to this number are looked up one by one
_CONTENT = re.compile(rb'"([0-9a-f]{40})"\]')  # the end of a file's entry


class Entry(NamedTuple):
    """A path. A tuple, as there may be 100,000 of them, and equal to its form in JSON."""

    path: str  # relative, with slashes; bytes as latin-1
    kind: str  # as in a listing: "f", "d" or "l"
    mode: int  # permission bits
    mtime_ns: int  # 0 of links
    size: int  # bytes of a file, 0 of all others
    content: str  # a file's hash, a link's target as latin-1, "" of a directory


class Manifest:
    """A tree. Its entries, which may be 100,000, are made at their first use."""

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
        """The entries of the tree."""
        return tuple(self._entries())

    def to_json(self) -> bytes:
        """Return the entries in the form that the tree hash is made of."""
        return self._data or _to_json(self.entries)


def manifest_of(entries: Iterable[Entry]) -> Manifest:
    """Return the manifest of these entries, in any order."""
    listed = sorted(entries)
    data = _to_json(listed)
    return Manifest(hash_of(data), lambda: listed, data)


def read_manifest(data: bytes) -> Manifest:
    """Return the manifest that wrote this to_json."""
    return Manifest(hash_of(data), lambda: map(Entry._make, json.loads(data)), data)


class Changes(NamedTuple):
    """The changes from one tree to another."""

    base: str  # tree hash of the old one; "": there is none
    put: list[Entry]  # entries that are new, or differ
    drop: list[str]  # paths
    tree: str
    leave: tuple[str, ...] = ()  # names: what lies below them and is in no manifest any more is not deleted

    def to_bytes(self) -> bytes:
        """Return the changes in the form that hosts read."""
        fields = {name: value for name, value in self._asdict().items() if name != "leave" or value}
        return zlib.compress(json.dumps(fields, separators=(",", ":")).encode())


def changes(base: Manifest | None, new: Manifest) -> Changes:
    """Return the changes from base to new; base None: for a host without any tree."""
    if base is None:
        return Changes("", list(new.entries), [], new.tree)
    if base == new:
        return Changes(base.tree, [], [], new.tree)
    old, now = _rows(base.to_json()), _rows(new.to_json())
    try:
        put, gone = sorted(map(_read_row, now - old)), list(map(_read_row, old - now))
    except (ValueError, TypeError):  # a path contains the bytes that separate two rows
        put, gone = sorted(set(new.entries) - set(base.entries)), sorted(set(base.entries) - set(new.entries))
    return Changes(base.tree, put, sorted({row.path for row in gone} - {row.path for row in put}), new.tree)


def _rows(data: bytes) -> set[bytes]:
    """Split a manifest into the texts of its entries: most are the same in two manifests, and need not be parsed."""
    return set(data[2:-2].split(b"],[")) - {b""}


def _read_row(text: bytes) -> Entry:
    """Parse one entry. Raises ValueError and TypeError for a part of one, from a path with a quote in it."""
    return Entry._make(json.loads(b"[%s]" % text))


def contents_in(data: bytes) -> bytes:
    """Return the hashes of all files of a manifest, one after the other. data: as JSON"""
    return unhexlify(b"".join(_CONTENT.findall(data)))


def not_in(known: bytes, contents: Iterable[str]) -> set[str]:
    """Return the contents that ``contents_in`` has not found; it may miss one, once in many years."""
    wanted = {unhexlify(content): content for content in contents}
    if len(wanted) <= FEW_CONTENTS:
        return {content for digest, content in wanted.items() if digest not in known}
    left = wanted.keys() - {known[place : place + HASH_BYTES] for place in range(0, len(known), HASH_BYTES)}
    return {wanted[digest] for digest in left}


def hash_of(data: bytes) -> str:
    """Return the name of a content.

    >>> hash_of(b"")
    '3345524abf6bbe1809449224b5972c41790b6cf2'
    """
    return hashlib.blake2b(data, digest_size=HASH_BYTES).hexdigest()


def new_hash() -> hashlib.blake2b:
    """Return a hash object, for a content that comes in pieces."""
    return hashlib.blake2b(digest_size=HASH_BYTES)


def _to_json(entries: Sequence[Entry]) -> bytes:
    return json.dumps(entries, separators=(",", ":")).encode()
