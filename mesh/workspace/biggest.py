"""The paths that make a workspace large, and the ``ignore:`` lines for them."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mesh.workspace.listing import told

DOMINANT_RATIO = 0.9  # of a directory's bytes: a path with this share is named in its place
_PLAIN = re.compile(r"/[\w./+@-]*(?: [\w./+@-]+)*", re.ASCII)  # YAML takes such a path without quotes
_SPECIAL = re.compile(r"([\\*?\[]|\s\Z)")


class Big(NamedTuple):
    """A file, or a directory with all that is below it."""

    size: int  # bytes
    path: bytes  # relative, with a slash at its end if it is a directory


def biggest(files: Iterable[tuple[bytes, int]], count: int) -> list[Big]:
    """Return the paths that hold the most bytes, the biggest first; none is in another one.

    files: paths and sizes

    >>> [big.path for big in biggest([(b"data/train/1", 50), (b"data/train/2", 49), (b"data/x", 1), (b"a", 9)], 5)]
    [b'data/train/', b'a']
    """
    sizes: defaultdict[bytes, int] = defaultdict(int)
    below: defaultdict[bytes, set[bytes]] = defaultdict(set)
    for path, size in files:
        place = b""
        for part in path.split(b"/")[:-1]:
            directory = place + part + b"/"
            below[place].add(directory)
            sizes[directory] += size
            place = directory
        below[place].add(path)
        sizes[path] += size
    return sorted((_named(path, sizes, below) for path in below[b""]), key=lambda big: (-big.size, big.path))[:count]


def _named(path: bytes, sizes: dict[bytes, int], below: dict[bytes, set[bytes]]) -> Big:
    """Find the path that stands for all that is below this one."""
    while path in below:
        child = max(below[path], key=lambda one: (sizes[one], one))
        if sizes[child] < DOMINANT_RATIO * sizes[path]:
            break
        path = child
    return Big(sizes[path], path)


def ignore_lines(paths: Sequence[Big], told_size: Sequence[str]) -> list[str]:
    """Return lines of mesh.yaml that leave these paths out; told_size: the size of each, for people.

    >>> for line in ignore_lines([Big(9, b"data/"), Big(5, b"a [1]: x")], ["9 B", "5 B"]): print(line)
    ignore:
      - /data/                # 9 B
      - "/a \\\\[1]: x"         # 5 B
    """
    items = [_quoted(_SPECIAL.sub(r"\\\1", "/" + told(big.path))) for big in paths]
    width = max(20, *map(len, items)) if items else 0
    return ["ignore:", *(f"  - {item:<{width}}  # {size}" for item, size in zip(items, told_size, strict=True))]


def _quoted(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
