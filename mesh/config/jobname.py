"""``job:ID`` in place of a cluster: the hosts that a job has, or had last."""

from __future__ import annotations

from mesh.core.cluster import Source
from mesh.core.errors import UsageError

WORD = "job"
BUILT_IN = f"{WORD}:"


class JobId(Source, frozen=True, kw_only=True):
    """A job whose hosts are meant."""

    job: int


def built_in(name: str) -> JobId:
    """Return the job of a name. Raises UsageError.

    >>> built_in("job:42").job
    42
    """
    number = name.removeprefix(BUILT_IN)
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise UsageError(f"{name!r}: expected {BUILT_IN}ID, with the number of a job", hint="mesh job list")
    return JobId(job=int(number))
