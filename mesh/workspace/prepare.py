"""The way from a directory to its manifest: list it, hash files that the cache lacks, read changing files again."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import IO

from msgspec import Struct

from mesh.workspace import listing as listed
from mesh.workspace import pack
from mesh.workspace.counting import Counter, Progress, no_progress
from mesh.workspace.hashes import HashCache
from mesh.workspace.listing import Listing, entry_of, list_workspace, told, unreadable
from mesh.workspace.manifest import Entry, Manifest, manifest_of, new_hash

READ_TRIES = 3  # for a file that changes while it is read
RECENT_NS = 2_000_000_000  # a file that was changed so shortly before may change again and keep its times
MTIME_LIMIT_NS = (1 << 63) - 1  # in 2262; ext4 has times until 2446, and hosts take eight bytes
PIECE_BYTES = 1 << 18  # read at a time
# Hashing a file of this size lets other threads work; with smaller ones they only wait for each other.
LARGE_FILE_BYTES = 1 << 20
FEW_FILES, FEW_BYTES = 16, 1 << 20  # a workspace with at most these is read quickly


class Prepared(Struct, frozen=True, kw_only=True):
    """A workspace that can be sent: its state at one moment."""

    root: bytes
    manifest: Manifest
    skipped: tuple[str, ...]  # paths that cannot be sent (sockets, FIFOs, devices), each with the reason
    notices: tuple[str, ...]  # other lines for the user
    cache: HashCache

    def pack(
        self,
        wanted: Sequence[pack.Want],
        into: IO[bytes],
        *,
        compress: bool = True,
        step: Callable[[bytes], None] = lambda path: None,
        progress: Progress = no_progress,
    ) -> pack.Packed:
        """Write the contents that hosts lack (see pack.make).

        Raises Changed if a file differs from the manifest. Then prepare the workspace again, at most three times, and
        raise the last error to the user.
        """
        contents = pack.find(self.manifest, wanted)
        try:
            return pack.make(self.root, contents, into, compress=compress, step=step, progress=progress)
        except pack.Changed as error:
            for path in error.paths:
                self.cache.forget(path.encode("latin-1"))
            raise


def prepare(
    workspace: Path,
    ignore: Sequence[str],
    cache: HashCache,
    *,
    include_git: bool = False,
    as_is: bool = False,
    progress: Progress = no_progress,
) -> Prepared:
    """List a workspace and hash its files as far as the cache lacks them; progress: called with the progress.

    as_is: all of it belongs, without a look at ignore files

    Raises MeshError naming files that cannot be read, or change faster than they are read.
    """
    listing = list_workspace(workspace, ignore, include_git=include_git, as_is=as_is, progress=progress)
    manifest = make_manifest(listing, cache, progress=progress)
    notices = (*_git_problem(listing), *_by_default(cache.not_said(listing.by_default)))
    if not as_is:  # equal files of a snapshot are hard links
        notices = (*notices, *_hard_links(listing))
    return Prepared(root=listing.root, manifest=manifest, skipped=listing.skipped, notices=notices, cache=cache)


def make_manifest(
    listing: Listing,
    cache: HashCache,
    step: Callable[[bytes], None] = lambda path: None,
    progress: Progress = no_progress,
) -> Manifest:
    """Return the manifest of a listing; files that were deleted since are left out.

    step: called with each file's path while it is read, for tests
    Raises MeshError naming files that change faster than they are read, or cannot be read.
    """
    tree, contents = cache.whole(listing.entries)
    if tree:
        return Manifest(tree, partial(map, _entry, listing.entries, contents))
    contents = cache.contents(listing.entries)
    pairs = zip(listing.entries, contents, strict=True)
    unknown = [found for found, content in pairs if found.kind == listed.FILE and not content]
    counter = Counter(progress, "hashing", sum(found.size for found in unknown))
    hashed = _hash_all(listing.root, unknown, step, counter)
    now = [hashed.get(found.path, (found, content)) for found, content in zip(listing.entries, contents, strict=True)]
    good = [one for one in now if isinstance(one, tuple)]
    safe = listing.started_ns - RECENT_NS
    settled = [one for one in good if one[0].path not in hashed or max(one[0].mtime_ns, one[0].ctime_ns) < safe]
    manifest = manifest_of(starmap(_entry, good))
    learned = [one for one, _ in settled if one.path in hashed]
    is_whole = len(settled) == len(now)
    # After an edit or two few hashes are new: reading those files again is faster than writing the whole cache.
    if is_whole or len(learned) > FEW_FILES or sum(one.size for one in learned) > FEW_BYTES:
        cache.keep(settled, manifest.tree if is_whole else "")
    # A file that was deleted meanwhile does not belong any more.
    errors = {path: one for path, one in hashed.items() if isinstance(one, OSError)}
    troubles = [
        f"{told(path)}: {one.strerror}" for path, one in errors.items() if not isinstance(one, FileNotFoundError)
    ]
    if troubles:
        raise unreadable(troubles)
    changing = [told(path) for path, one in hashed.items() if one is None]
    if changing:
        raise pack.changes_while_it_is_read(changing)
    return manifest


def _entry(found: listed.Entry, content: str) -> Entry:
    """Return the manifest's entry for a path. content: a file's hash"""
    path, kind, mode, size, mtime_ns, _, _, _, _, target = found
    if kind == listed.LINK:
        return Entry(path.decode("latin-1"), kind, mode, 0, 0, target.decode("latin-1"))
    return Entry(path.decode("latin-1"), kind, mode, max(-MTIME_LIMIT_NS, min(mtime_ns, MTIME_LIMIT_NS)), size, content)


Hashed = tuple[listed.Entry, str] | OSError | None  # None: the file changed each time that it was read


def _hash_all(
    root: bytes, files: Sequence[listed.Entry], step: Callable[[bytes], None], counter: Counter
) -> dict[bytes, Hashed]:
    """Hash files in several threads; return the result of each by its path."""
    small = [found for found in files if found.size < LARGE_FILE_BYTES]
    large = [found for found in files if found.size >= LARGE_FILE_BYTES]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        later = {found.path: pool.submit(_hash, root, found, step, counter) for found in large}
        hashed = {found.path: _hash(root, found, step, counter) for found in small}
        return hashed | {path: one.result() for path, one in later.items()}


def _hash(root: bytes, found: listed.Entry, step: Callable[[bytes], None], counter: Counter) -> Hashed:
    """Hash a file in its state of one moment."""
    try:
        for _ in range(READ_TRIES):
            # Take no link and no FIFO, even if the file has become one since it was listed.
            descriptor = os.open(os.path.join(root, found.path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb", buffering=0) as file:
                before = os.fstat(descriptor)
                if not stat.S_ISREG(before.st_mode):
                    return None
                step(found.path)
                digest = new_hash()
                while data := file.read(min(PIECE_BYTES, before.st_size + 1)):
                    digest.update(data)
                    counter.add(len(data))
                now = entry_of(found.path, found.kind, os.fstat(descriptor))
            if now == entry_of(found.path, found.kind, before):
                return now, digest.hexdigest()
    except OSError as error:
        return error
    return None


def _by_default(names: Sequence[str]) -> tuple[str, ...]:
    """Return a notice about names that are left out by default and were in no notice before."""
    if not names:
        return ()
    again = ", ".join(f"'!{name}'" for name in names)
    return (f"left out by default: {', '.join(names)}; `ignore: [{again}]` in mesh.yaml sends it",)


def _git_problem(listing: Listing) -> tuple[str, ...]:
    """Return a notice if git did not list the ignored files that it tracks, which would be sent."""
    if not listing.git_problem:
        return ()
    return (f"workspace: no file that .gitignore names is sent, tracked or not ({listing.git_problem})",)


def _hard_links(listing: Listing) -> tuple[str, ...]:
    """Return a notice about files with several names in the workspace: hosts get a separate file for each."""
    names: defaultdict[tuple[int, int], list[bytes]] = defaultdict(list)
    for entry in listing.entries:
        if entry.names > 1 and entry.kind == listed.FILE:
            names[entry.device, entry.inode].append(entry.path)
    several = [paths for paths in names.values() if len(paths) > 1]
    if not several:
        return ()
    first = ", ".join(" = ".join(told(path) for path in paths[:2]) for paths in several[:3])
    more = ", ..." if len(several) > 3 else ""
    return (f"hard links are sent as separate files: {sum(map(len, several))} names of {len(several)} ({first}{more})",)
