"""The layout of a run directory: names of files, and records of the index (docs/run-directory.md)."""

from __future__ import annotations

import re
import struct

from mesh.core.cluster import Placement
from mesh.core.events import Stream

FORMAT_VERSION = 2  # of run.json and all that lies beside it
MANIFEST, DIFF, WORKSPACE = "manifest", "changes.diff", "workspace"  # what the run brought to its hosts
RUN, EVENTS, LOGS, INDEX, MASKED = "run.json", "events.jsonl", "logs", "index", "masked"

# A record of logs/index: seconds since the epoch, the log's number, and how far the log goes by then.
RECORD = struct.Struct("<dIQ")
# A record of logs/masked, for each mask: where it ends in the log, the log's number, and how many bytes of the host's
# stream up to there are not in the log, as masks are shorter.
MASK_RECORD = struct.Struct("<QIq")
STREAMS = (Stream.STDOUT, Stream.STDERR, Stream.PRERUN, Stream.SETUP)
SUFFIX = {Stream.STDOUT: "out", Stream.STDERR: "err"}

_TAIL = re.compile(r"(.+)\.([0-9]{15})-([0-9]{15})")


def log_number(rank: int, stream: Stream) -> int:
    """The number of a log in the index; that of a host's prerun or setup goes by the host's first rank."""
    return rank * len(STREAMS) + STREAMS.index(stream)


def rank_and_stream(number: int) -> tuple[int, Stream]:
    """
    >>> rank_and_stream(log_number(7, Stream.STDERR))
    (7, <Stream.STDERR: 'stderr'>)
    """
    rank, stream = divmod(number, len(STREAMS))
    return rank, STREAMS[stream]


def log_name(placement: Placement, rank: int, stream: Stream) -> str:
    """The name of a log below ``logs``."""
    if stream in SUFFIX:
        return f"rank-{rank:04d}.{SUFFIX[stream]}"
    return f"{stream.value}-{placement.hosts[placement.node(rank)].name.replace('/', '_')}.log"


def link_names(placement: Placement, rank: int) -> list[str]:
    """Return the other names of a rank's log of stdout: by its label, and as MaxText's multihost_runner has it.

    >>> from mesh.core.cluster import Host, place_ranks
    >>> link_names(place_ranks([Host(name="a", address="a")], (2,), labels=("actor",), slices=(1,)), 1)
    ['actor-1.out', 'output_slice_0000_worker_0001.txt']
    """
    names = []
    label = placement.label(rank)
    if label and label != "rank":  # its names would be those of other logs
        names.append(f"{label}-{placement.table[rank].index}.{SUFFIX[Stream.STDOUT]}")
    if placement.slices:
        number, worker = placement.worker(rank)
        names.append(f"output_slice_{number:04d}_worker_{worker:04d}.txt")
    return names


def tail_name(name: str, head: int, start: int) -> str:
    """The name of a file with a part of a log's tail. Such names sort as the parts follow each other.

    head: how many bytes the log's own file has; start: the place of the part's first byte in the stream
    """
    return f"{name}.{head:015d}-{start:015d}"


def read_tail_name(found: str) -> tuple[str, int, int] | None:
    """The name, head and start of which a tail's name was made; None if it is none.

    >>> read_tail_name(tail_name("rank-0000.out", 10, 200))
    ('rank-0000.out', 10, 200)
    """
    match = _TAIL.fullmatch(found)
    return (match.group(1), int(match.group(2)), int(match.group(3))) if match else None


def marker(count: int) -> bytes:
    """Return the line that stands in a log where bytes were left out."""
    return b"\n[mesh: %d bytes left out here]\n" % count
