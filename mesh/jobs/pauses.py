"""Pauses that grow from failure to failure."""

from __future__ import annotations

import hashlib

JITTER_PART = 0.25  # each pause is this part of it longer or shorter at most


def growing(limits: tuple[float, float], number: int, seed: str) -> float:
    """Return the pause before the try of this number, in seconds: doubled from the first limit to the last.

    seed: the jitter is a function of it, so that a replay gives the same times

    >>> growing((0.0, 0.0), 3, "a"), 7.5 <= growing((10.0, 40.0), 1, "a") <= 12.5, growing((10.0, 40.0), 99, "a") <= 50
    (0.0, True, True)
    """
    first, last = limits
    delay = min(first * 2.0 ** min(number - 1, 60), last)
    digest = hashlib.blake2b(seed.encode(), digest_size=4).digest()
    part = int.from_bytes(digest, "big") / 0xFFFFFFFF
    return delay * (1.0 + JITTER_PART * (2.0 * part - 1.0))
