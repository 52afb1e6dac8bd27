"""Fields of rendered objects that the API server of the tests, version 1.20, does not know, and a look for others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

# The field of an object, and the first version whose server keeps it. docs/kubernetes.md has the same table.
NEWER = {"Job spec.completionMode": "1.22", "Job spec.ttlSecondsAfterFinished": "1.21"}


def lacking(sent: object, got: object, place: str = "") -> Iterator[str]:
    """Yield the path of each field that was sent and is not in an answer, or has another value there.

    >>> list(lacking({"a": [{"b": 1, "c": 2}]}, {"a": [{"b": 1, "d": 3}], "e": 4}))
    ['a.0.c']
    """
    if isinstance(sent, Mapping):
        for key, value in sent.items():
            path = f"{place}.{key}" if place else str(key)
            if not isinstance(got, Mapping) or key not in got:
                yield path
            else:
                yield from lacking(value, got[key], path)
    elif isinstance(sent, Sequence) and not isinstance(sent, str | bytes):
        if not isinstance(got, Sequence) or len(got) < len(sent):
            yield place
        else:
            for number, (one, other) in enumerate(zip(sent, got, strict=False)):
                yield from lacking(one, other, f"{place}.{number}")
    elif sent != got:
        yield place
