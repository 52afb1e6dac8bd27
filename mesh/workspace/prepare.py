"""From a directory to its manifest: listed, hashed where the cache does not know, read again where a file changes."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mesh.workspace import listing as listed
from mesh.workspace import pack
from mesh.workspace.counting import Counter, Tell, untold
from mesh.workspace.hashes import HashCache, Row, Stamp
from mesh.workspace.listing import Listing, list_workspace, told, unreadable
from mesh.workspace.manifest import Entry, Manifest, manifest_of, new_hash

TRIES = 3  # for a file that changes while it is read
RECENT_NS = 2_000_000_000  # a file that was changed so shortly before may change again and show the same times
PIECE = 1 << 18  # bytes read at a time
LARGE = 1 << 20  # bytes; hashing such a file lets other threads work, with small ones they only wait for each other


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A workspace that can be sent: what it was at one moment."""

    root: bytes
    manifest: Manifest
    skipped: tuple[str, ...]  # what cannot be sent (sockets, FIFOs, devices), each with the reason
    notices: tuple[str, ...]  # what else the user should know
    cache: HashCache

    def pack(
        self,
        wanted: Sequence[pack.Want],
        into: IO[bytes],
        *,
        compress: bool = True,
        step: Callable[[bytes], None] = lambda path: None,
        tell: Tell = untold,
    ) -> pack.Packed:
        """Write the contents that hosts lack (see pack.make).

        Raises Changed if a file is not what the manifest says any more: prepare the workspace again, at most three
        times, and let the last error be the user's.
        """
        try:
            return pack.make(self.root, self.manifest, wanted, into, compress=compress, step=step, tell=tell)
        except pack.Changed as error:
            for path in error.paths:
                self.cache.forget(path)
            raise


def prepare(
    workspace: Path, ignore: Sequence[str], cache: HashCache, *, include_git: bool = False, tell: Tell = untold
) -> Prepared:
    """List a workspace and hash what is not known; tell: hears how far that is.

    Raises MeshError naming what cannot be read, or changes faster than it is read.
    """
    listing = list_workspace(workspace, ignore, include_git=include_git, tell=tell)
    manifest = make_manifest(listing, cache, tell=tell)
    return Prepared(
        root=listing.root, manifest=manifest, skipped=listing.skipped, notices=_hard_links(listing), cache=cache
    )


def make_manifest(
    listing: Listing, cache: HashCache, step: Callable[[bytes], None] = lambda path: None, tell: Tell = untold
) -> Manifest:
    """The manifest of what was listed; a file that is gone by now is left out.

    step: called with each file's path while it is read, for tests
    Raises MeshError naming files that change faster than they are read, or cannot be read.
    """
    entries: list[Entry] = []
    rows: dict[str, Row] = {}
    unknown: list[listed.Entry] = []
    safe = listing.started_ns - RECENT_NS
    for found in listing.entries:
        path = found.path.decode("latin-1")
        if found.kind is listed.Kind.FILE:
            stamp = (found.device, found.inode, found.size, found.mtime_ns, found.ctime_ns)
            content = cache.get(path, stamp)
            if content:
                rows[path] = stamp, content
                entries.append(Entry(path, "f", found.mode, found.mtime_ns, found.size, content))
            else:
                unknown.append(found)
        elif found.kind is listed.Kind.DIRECTORY:
            entries.append(Entry(path, "d", found.mode, found.mtime_ns, 0, ""))
        else:
            entries.append(Entry(path, "l", found.mode, 0, 0, found.target.decode("latin-1")))
    troubles: list[str] = []
    changing: list[str] = []
    counter = Counter(tell, "hashing", sum(found.size for found in unknown))
    for found, hashed in _hash_all(listing.root, unknown, step, counter):
        if isinstance(hashed, FileNotFoundError):  # deleted meanwhile: it does not belong any more
            continue
        if isinstance(hashed, OSError):
            troubles.append(f"{told(found.path)}: {hashed.strerror}")
        elif hashed is None:
            changing.append(told(found.path))
        else:
            entry, stamp = hashed
            entries.append(entry)
            if max(stamp[3:]) < safe:
                rows[entry.path] = stamp, entry.content
    cache.keep(rows)
    if troubles:
        raise unreadable(troubles)
    if changing:
        raise pack.changes_while_it_is_read(changing)
    return manifest_of(entries)


Hashed = tuple[Entry, Stamp] | OSError | None  # None: it changed each time that it was read


def _hash_all(
    root: bytes, files: Sequence[listed.Entry], step: Callable[[bytes], None], counter: Counter
) -> list[tuple[listed.Entry, Hashed]]:
    small = [found for found in files if found.size < LARGE]
    large = [found for found in files if found.size >= LARGE]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        later = [(found, pool.submit(_hash, root, found, step, counter)) for found in large]
        now = [(found, _hash(root, found, step, counter)) for found in small]
        return now + [(found, one.result()) for found, one in later]


def _hash(root: bytes, found: listed.Entry, step: Callable[[bytes], None], counter: Counter) -> Hashed:
    """A file as it is at one moment."""
    try:
        for _ in range(TRIES):
            # Not a link and not a FIFO, even if it has become one since it was listed.
            descriptor = os.open(os.path.join(root, found.path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb", buffering=0) as file:
                before = os.fstat(descriptor)
                if not stat.S_ISREG(before.st_mode):
                    return None
                step(found.path)
                digest = new_hash()
                while data := file.read(min(PIECE, before.st_size + 1)):
                    digest.update(data)
                    counter.add(len(data))
                stamp = _stamp(os.fstat(descriptor))
            if _stamp(before) == stamp:
                path, mode = found.path.decode("latin-1"), stat.S_IMODE(before.st_mode)
                return Entry(path, "f", mode, before.st_mtime_ns, before.st_size, digest.hexdigest()), stamp
    except OSError as error:
        return error
    return None


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _hard_links(listing: Listing) -> tuple[str, ...]:
    """Tell of files with several names in the workspace: hosts get a file of its own for each."""
    names: defaultdict[tuple[int, int], list[bytes]] = defaultdict(list)
    for entry in listing.entries:
        if entry.names > 1 and entry.kind is listed.Kind.FILE:
            names[entry.device, entry.inode].append(entry.path)
    several = [paths for paths in names.values() if len(paths) > 1]
    if not several:
        return ()
    first = ", ".join(" = ".join(told(path) for path in paths[:2]) for paths in several[:3])
    more = ", ..." if len(several) > 3 else ""
    return (f"hard links are sent as separate files: {sum(map(len, several))} names of {len(several)} ({first}{more})",)
