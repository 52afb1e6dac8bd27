"""Times at which a job may start, as people write them."""

from __future__ import annotations

import datetime
import re

_TIME_OF_DAY = re.compile(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?")


def read_after(text: str, now: float) -> float:
    """Return seconds since the epoch for a time of day, a date, or a date and time (ISO 8601, local).

    A time of day that has passed means tomorrow. Raises ValueError.

    >>> noon = datetime.datetime(2026, 11, 24, 12, 0).timestamp()
    >>> [(read_after(text, noon) - noon) / 3600 for text in ("22:00", "9:30", "2026-11-25", "2026-11-24T13:00")]
    [10.0, 21.5, 12.0, 1.0]
    """
    text = text.strip()
    if not _TIME_OF_DAY.fullmatch(text):
        return datetime.datetime.fromisoformat(text).timestamp()
    time = datetime.time.fromisoformat(text.zfill(5) if text.count(":") == 1 else text.zfill(8))
    today = datetime.datetime.fromtimestamp(now)
    due = datetime.datetime.combine(today.date(), time)
    if due.timestamp() <= now:
        due += datetime.timedelta(days=1)
    return due.timestamp()
