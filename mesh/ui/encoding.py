"""JSON for browsers, which refuse NaN and infinite numbers: run.json and events of a run may hold them."""

from __future__ import annotations

import json
import math

SEPARATORS = (",", ":")


def as_json(content: object) -> str:
    """Return JSON in ASCII, with null for numbers that are not finite.

    A path or an argument that is not UTF-8 has halves of surrogate pairs, which only escapes hold.
    >>> as_json({"a": [1.5, float("nan")], "b": "\\udcff"})
    '{"a":[1.5,null],"b":"\\\\udcff"}'
    """
    try:
        return json.dumps(content, allow_nan=False, separators=SEPARATORS)
    except ValueError:  # a check of each value beforehand would cost more than the encoding
        return json.dumps(_finite(content), allow_nan=False, separators=SEPARATORS)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value
