"""Packs: the contents that hosts lack, as one zip (docs/sync.md), and the changes of large files block by block."""

from __future__ import annotations

import json
import os
import stat
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

from msgspec import Struct

from mesh.core.errors import MeshError
from mesh.workspace.counting import Counter, Progress, no_progress
from mesh.workspace.listing import PATHS_NAMED, told
from mesh.workspace.manifest import Entry, Manifest, hash_of, new_hash

INDEX = "index.json"
BLOCK_BYTES = 1 << 17  # of a block of a large file
PIECE_BYTES = 1 << 18  # read at a time
SMALL_FILE_BYTES = 1 << 18  # files up to this size share a member with others
BUNDLE_BYTES = 1 << 20  # of such a member
SAMPLES, SAMPLE_BYTES = 8, 1 << 13  # pieces of a file, and bytes of each, by which to decide if compressing pays
WORTHWHILE_RATIO = 0.9  # a pack is compressed if that leaves less than this share of its size
STAT_BLOCK_BYTES = 512  # stat(2): st_blocks
ZIP64_BYTES = 1 << 30  # a member of this size may need more than 32 bits
NEW = -1  # in place of an offset: the bytes come from the pack

Operation = tuple[int, int]  # offset in the base, or NEW; length


class Want(Struct, frozen=True):
    """A content that a host lacks, and its other version there; hosts with equal wants need the same pack."""

    hash: str
    size: int  # bytes
    base: str = ""  # another version's hash; "": the host has none
    base_size: int = 0  # bytes
    head: tuple[str, ...] = ()  # the hash of each block of the base from its start; the last one may be shorter
    tail: tuple[str, ...] = ()  # the same from its end; the last one is the start of the file


class Packed(Struct, frozen=True, kw_only=True):
    """The contents of a pack."""

    contents: int
    size: int  # bytes of the pack
    literal: int  # bytes of contents in it, before they were compressed


class Changed(MeshError):
    """Files that differ from the manifest; paths as in the manifest."""

    def __init__(self, paths: Sequence[str]) -> None:
        error = changes_while_it_is_read([told(path.encode("latin-1")) for path in paths])
        super().__init__(str(error), hint=error.hint)
        self.paths = tuple(paths)


def changes_while_it_is_read(names: Sequence[str]) -> MeshError:
    """Return the error for files that change again and again."""
    lines = [f"{name}: changes while it is read" for name in names[:PATHS_NAMED]]
    return MeshError(
        "cannot send:\n" + "\n".join(lines),
        hint="name what a running program writes under ignore: in mesh.yaml, or wait for it",
    )


def read_wants(rows: object) -> tuple[Want, ...]:
    """Read the contents that a host lacks, from JSON. Raises ValueError if it is malformed."""
    if not isinstance(rows, list):
        raise ValueError("expected a list of contents")
    return tuple(_read_want(row) for row in rows)


def _read_want(row: Any) -> Want:
    if not isinstance(row, Mapping):
        raise ValueError("expected a content")
    texts = [row.get("hash"), row.get("base", ""), *row.get("head", ()), *row.get("tail", ())]
    numbers = [row.get("size"), row.get("base_size", 0)]
    if not all(isinstance(text, str) for text in texts) or not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError("expected hashes and sizes")
    head, tail = tuple(row.get("head", ())), tuple(row.get("tail", ()))
    return Want(row["hash"], row["size"], row.get("base", ""), row.get("base_size", 0), head, tail)


def find(manifest: Manifest, wanted: Sequence[Want]) -> list[tuple[Want, list[Entry]]]:
    """Return the files that have each wanted content, in the manifest's order, where like stands beside like.

    Raises MeshError if a host wants a content that the manifest does not have.
    """
    wants = {want.hash: want for want in wanted}
    found: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in manifest.entries:
        if entry.kind == "f" and entry.content in wants:
            found[entry.content].append(entry)
    if len(found) < len(wants):
        raise MeshError("a host asks for a content that the workspace does not have")
    return [(wants[content], entries) for content, entries in found.items()]


def make(
    root: bytes,
    contents: Sequence[tuple[Want, Sequence[Entry]]],
    into: IO[bytes],
    *,
    compress: bool = True,
    step: Callable[[bytes], None] = lambda path: None,
    progress: Progress = no_progress,
) -> Packed:
    """Write a pack of the wanted contents to a file. Needs some MB of memory, whatever the size of files.

    compress: deflate where that makes it smaller; the caller decides if the link is slow enough for that
    step: called with each file's path while it is open, for tests; progress: called with the progress
    Raises Changed.
    """
    changed: list[str] = []
    with zipfile.ZipFile(into, "w", compresslevel=1) as pack:
        counter = Counter(progress, "packing", sum(entries[0].size for _, entries in contents))
        writer = _Writer(root, pack, compress, step, counter)
        for want, entries in contents:
            # Any file of the same content serves.
            if not any(writer.add(want, entry) for entry in entries):
                changed += [entry.path for entry in entries]
        writer.finish()
    if changed:
        raise Changed(changed)
    return Packed(contents=len(contents), size=into.tell(), literal=writer.literal)


class _Writer:
    """Adds contents. Parts of a file that has changed stay in the pack, without an entry in the index."""

    def __init__(
        self, root: bytes, pack: zipfile.ZipFile, compress: bool, step: Callable[[bytes], None], counter: Counter
    ) -> None:
        self._root, self._pack, self._compress, self._step = root, pack, compress, step
        self._counter = counter
        self._index: list[tuple[str, str, int, int, str, list[Operation]]] = []
        self._members = 1
        self._bundle, self._bundled = bytearray(), "1"  # small contents, and the member that they will be in
        self._is_used = False  # a member of empty contents alone counts as well
        self.literal = 0

    def add(self, want: Want, entry: Entry) -> bool:
        """Add a content from a file; return False if the file has another one."""
        path = entry.path.encode("latin-1")
        try:
            # Take no link and no FIFO, even if the file has become one since it was listed.
            descriptor = os.open(os.path.join(self._root, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb", buffering=0) as file:
                before = os.fstat(descriptor)
                if not stat.S_ISREG(before.st_mode) or before.st_size != entry.size:
                    return False
                self._step(path)
                operations = find_operations(file, entry.size, want)
                # Zeros take almost no room when deflated, and a sparse file may be larger than any disk.
                is_sparse = before.st_blocks * STAT_BLOCK_BYTES < before.st_size // 2
                place = self._copy(file, operations, want.hash, is_sparse)
                after = os.fstat(descriptor)
        except OSError:  # deleted or unreadable: the next listing reports that
            return False
        if not place or (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            return False
        whole = operations == [(NEW, entry.size)]
        self._index.append((want.hash, *place, "" if whole else want.base, [] if whole else operations))
        self.literal += place[2]
        return True

    def finish(self) -> None:
        """Write the last members, and the index."""
        self._flush()
        with self._open(INDEX, self._compress) as member:
            member.write(json.dumps(self._index, separators=(",", ":")).encode())

    def _copy(
        self, file: IO[bytes], operations: Sequence[Operation], content: str, is_sparse: bool
    ) -> tuple[str, int, int] | None:
        """Add the new bytes of a file; return their place, or None if the whole file has another hash."""
        length = sum(length for offset, length in operations if offset == NEW)
        digest = new_hash()

        def see(data: bytes) -> None:
            digest.update(data)
            self._counter.add(len(data))

        if length <= SMALL_FILE_BYTES:
            data = b"".join(_new(file, operations, see))
            if digest.hexdigest() != content:
                return None
            if len(self._bundle) + length > BUNDLE_BYTES:
                self._flush()
            place = self._bundled, len(self._bundle), length
            self._bundle += data
            self._is_used = True
            return place
        self._members += 1
        pays = is_sparse or (self._compress and _pays(_samples(file, operations)))
        with self._open(str(self._members), pays, length) as member:
            for piece in _new(file, operations, see):
                member.write(piece)
        return (str(self._members), 0, length) if digest.hexdigest() == content else None

    def _flush(self) -> None:
        if self._is_used:
            pays = self._compress and _pays(_spread(len(self._bundle), self._bundle.__getitem__))
            with self._open(self._bundled, pays) as member:
                member.write(self._bundle)
        self._members += 1
        self._bundle, self._bundled, self._is_used = bytearray(), str(self._members), False

    def _open(self, name: str, deflated: bool, size: int = 0) -> IO[bytes]:
        # Pass a name and not a ZipInfo, so that the pack's level holds.
        self._pack.compression = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
        return self._pack.open(name, "w", force_zip64=size > ZIP64_BYTES)


def _new(file: IO[bytes], operations: Sequence[Operation], see: Callable[[bytes], None]) -> Iterator[bytes]:
    """Yield the new bytes of a file, in pieces; see: gets all of its bytes."""
    file.seek(0)
    for offset, length in operations:
        while length and (data := file.read(min(PIECE_BYTES, length))):
            see(data)
            length -= len(data)
            if offset == NEW:
                yield data


def find_operations(file: IO[bytes], size: int, want: Want) -> list[Operation]:
    """Split a file into pieces of the base and new bytes; [(NEW, size)] if it shares none with the base.

    Only blocks at their old distance from the start or from the end are found. A change in place, an addition at the
    end, or one insertion or deletion anywhere then costs its own size and up to two blocks.
    """
    if not want.base:
        return [(NEW, size)]
    matches = list(_matches(file, _head_blocks(size), want.head, lambda number: number * BLOCK_BYTES))
    for start, end in _gaps(matches, size):
        blocks = _tail_blocks(size, start, end)
        for offset, length, source in _matches(
            file, blocks, want.tail, lambda number: max(0, want.base_size - (number + 1) * BLOCK_BYTES)
        ):
            cut = max(0, start - offset)
            matches.append((offset + cut, min(end, offset + length) - offset - cut, source + cut))
    operations: list[Operation] = []
    position = 0
    for offset, length, source in [*sorted(matches), (size, 0, 0)]:
        if offset > position:
            operations.append((NEW, offset - position))
        if operations and operations[-1][0] != NEW and sum(operations[-1]) == source:
            operations[-1] = (operations[-1][0], operations[-1][1] + length)
        elif length:
            operations.append((source, length))
        position = offset + length
    return operations or [(NEW, 0)]


_Blocks = Iterator[tuple[int, int, int]]  # number, offset, length
_Match = tuple[int, int, int]  # offset, length, offset in the base


def _head_blocks(size: int) -> _Blocks:
    for number, offset in enumerate(range(0, size, BLOCK_BYTES)):
        yield number, offset, min(BLOCK_BYTES, size - offset)


def _tail_blocks(size: int, start: int, end: int) -> _Blocks:
    """Yield blocks counted from the end of the file that overlap a range."""
    for number in range((size - end) // BLOCK_BYTES, -(-(size - start) // BLOCK_BYTES)):
        offset = size - (number + 1) * BLOCK_BYTES
        yield number, max(0, offset), min(BLOCK_BYTES, BLOCK_BYTES + offset)


def _matches(file: IO[bytes], blocks: _Blocks, hashes: Sequence[str], source: Callable[[int], int]) -> Iterator[_Match]:
    """Yield the blocks whose hashes the base has; source: returns the place of a block in the base, by its number."""
    known = {content: number for number, content in enumerate(hashes)}
    for number, offset, length in blocks if known else ():
        content = hash_of(os.pread(file.fileno(), length, offset))
        # Take the block at the same place among equal ones (for example of zeros), because adjacent pieces become one.
        same = number < len(hashes) and hashes[number] == content
        if same or content in known:
            yield offset, length, source(number if same else known[content])


def _gaps(matches: Sequence[_Match], size: int) -> list[tuple[int, int]]:
    """Return the ranges that no match covers; matches are in order."""
    ends = [0, *(offset + length for offset, length, _ in matches)]
    starts = [*(offset for offset, _, _ in matches), size]
    return [(end, start) for end, start in zip(ends, starts, strict=True) if end < start]


def _samples(file: IO[bytes], operations: Sequence[Operation]) -> Iterator[bytes | bytearray]:
    """Yield some of the new bytes of a file."""
    position, longest = 0, (0, 0)
    for offset, length in operations:
        if offset == NEW and length > longest[1]:
            longest = position, length
        position += length
    return _spread(longest[1], lambda part: os.pread(file.fileno(), part.stop - part.start, longest[0] + part.start))


def _spread(length: int, take: Callable[[slice], bytes | bytearray]) -> Iterator[bytes | bytearray]:
    """Yield pieces from all over some bytes."""
    for start in range(0, length, max(SAMPLE_BYTES, -(-length // SAMPLES))):
        yield take(slice(start, min(length, start + SAMPLE_BYTES)))


def _pays(samples: Iterable[bytes | bytearray]) -> bool:
    # Compress each sample for itself, because repetitions that are far apart do not shrink a file.
    sizes = [(len(zlib.compress(sample, 1)), len(sample)) for sample in samples]
    return sum(after for after, _ in sizes) < WORTHWHILE_RATIO * sum(before for _, before in sizes)
