"""``mesh job storage``: the sizes of buckets."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from mesh.cli import jobmanoptions as m
from mesh.cli import joboptions as j
from mesh.cli.command import Takes, command
from mesh.cli.jobs import GROUP
from mesh.cli.options import Given
from mesh.cli.reports import aligned
from mesh.cli.speech import say, show
from mesh.core.amounts import told_bytes

if TYPE_CHECKING:
    from mesh.api.storage import BucketSize


@command(
    "job storage",
    GROUP,
    "[gs://BUCKET ...]",
    takes=Takes.PATHS,
    examples=(
        ("mesh job storage", "the buckets that jobs mount"),
        ("mesh job storage gs://my-bucket", "one of them"),
        ("mesh job storage --all", "all of the project"),
    ),
)
def storage(given: Given) -> int:
    """Show how many objects and bytes buckets have."""
    from msgspec import json

    from mesh.api.storage import storage as sizes

    found = []
    for one in sizes(given.words, every=bool(given[m.STORAGE_ALL]), progress=_progress):
        found.append(one)
        if given[j.JSON_JOBS]:
            show([json.encode(one).decode()])
    if not given[j.JSON_JOBS]:
        rows = [[one.bucket, one.place or "-", *_told(one)] for one in found]
        show(aligned([["bucket", "place", "objects", "size"], *rows]))
        for warning in (warning for one in found for warning in one.far):
            say(warning)
    return 1 if any(one.problem for one in found) else 0


def _told(one: BucketSize) -> tuple[str, str]:
    """Return the counts of a bucket, or why there are none."""
    return (one.problem, "") if one.problem else (str(one.objects), told_bytes(one.bytes))


def _progress(bucket: str, count: int) -> None:
    """Show on a terminal how far a bucket is counted."""
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(f"\r{bucket}: {count} objects ...\x1b[K\r")
        sys.stderr.flush()
