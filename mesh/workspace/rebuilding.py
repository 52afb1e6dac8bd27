"""Trees that are built again from their manifests, out of whatever still has the contents of their files.

A content counts only if its hash fits, so that it does not matter where it comes from.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from mesh.core.errors import MeshError
from mesh.workspace import listing as listed
from mesh.workspace.hashes import HashCache
from mesh.workspace.listing import told, told_failure
from mesh.workspace.manifest import Entry, Manifest, new_hash
from mesh.workspace.prepare import prepare
from mesh.workspace.snapshot import CONTENTS, NEW, PIECE_BYTES, Changed, content_name, created, keep_tree

# Returns the pieces of a file that may be the one of an entry; None: it has none.
Source = Callable[[Entry], Iterable[bytes] | None]


def rebuild(manifest: Manifest, place: Path, sources: Sequence[Source], cache: Path) -> tuple[Path, list[str]]:
    """Build a tree in a store of trees; return its directory and the paths whose contents no source has.

    The directory is there only if nothing is missing. Its tree hash is then that of the manifest.
    place: of the store, as for snapshots; sources: asked in this order; cache: of hashes
    Raises MeshError if the tree cannot be written, or is another one.
    """
    contents, missing = os.fsencode(place / CONTENTS), list[str]()
    try:
        for entry in manifest.entries:
            if entry.kind == listed.FILE and not _has(contents, entry, sources):
                missing.append(told(entry.path.encode("latin-1")))
        if missing:
            return place, missing
        directory = keep_tree(b"", manifest.entries, manifest.tree, place)
    except Changed as error:  # it was removed meanwhile
        return place, [told(str(error).encode("latin-1"))]
    except OSError as error:
        raise MeshError(f"tree {manifest.tree}: cannot be built ({told_failure(error)})") from error
    found = prepare(directory, (), HashCache(directory, cache), as_is=True).manifest.tree
    if found != manifest.tree:
        hint = f"rm -r {directory}"
        raise MeshError(f"tree {manifest.tree}: what was built has the hash {found}", hint=hint)
    return directory, []


def of_directory(root: Path) -> Source:
    """Return the source that reads files of a directory."""

    def read(entry: Entry) -> Iterable[bytes] | None:
        path = os.path.join(os.fsencode(root), entry.path.encode("latin-1"))
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != entry.size:
            os.close(descriptor)
            return None
        return _pieces(descriptor)

    return read


def _pieces(descriptor: int) -> Iterator[bytes]:
    with open(descriptor, "rb", buffering=0) as file:
        while data := file.read(PIECE_BYTES):
            yield data


def _has(contents: bytes, entry: Entry, sources: Sequence[Source]) -> bool:
    """Return True if the store has the content of a file, put there from the first source that has it."""
    content = content_name(contents, entry)
    if os.path.lexists(content):
        return True
    for source in sources:
        pieces = source(entry)
        if pieces is not None and _put(content, entry, pieces):
            return True
    return False


def _put(content: bytes, entry: Entry, pieces: Iterable[bytes]) -> bool:
    """Put a content into the store; return False if it is another one. Raises OSError if it cannot be written."""
    shelf, digest = os.path.dirname(content), new_hash()
    new = b"%b/%b%b" % (shelf, NEW.encode(), secrets.token_hex(8).encode())
    target = created(new, shelf)
    try:
        with open(target, "wb") as file:
            for piece in pieces:
                digest.update(piece)
                file.write(piece)
            file.flush()
            fits = digest.hexdigest() == entry.content
            if fits:
                os.fchmod(target, entry.mode)
                os.utime(target, ns=(entry.mtime_ns, entry.mtime_ns))
                os.rename(new, content)
        return fits
    finally:
        if os.path.lexists(new):
            os.unlink(new)
