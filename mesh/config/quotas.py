"""Reader of quotas.yaml: how many chips of a kind, in a zone and at a price, a user may have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from mesh.config import yamlfile
from mesh.core.tpu import Pricing

FILE = "quotas.yaml"
EXPECTED = "KIND/ZONE/PRICING, as v6e/us-east1-d/spot"
_POOL = re.compile(r"([a-z][a-z0-9]*)/([a-z]+-[a-z]+[0-9]+-[a-z])/([a-z-]+)")


def read_quotas(path: Path) -> Mapping[str, float]:
    """Return the chips of each quota. A quota that is not listed has no limit; without a file none has.

    Raises UsageError with all problems.
    """
    if not path.exists():
        return {}
    node, problems = yamlfile.load(path)
    found: dict[str, float] = {}
    keys = yamlfile.mapping(node, "", problems, f"quotas: {EXPECTED}: CHIPS") if node is not None else {}
    for name, (key, value) in keys.items():
        match = _POOL.fullmatch(name)
        if not match or match.group(3) not in [one.value for one in Pricing]:
            problems.unexpected(key, name, EXPECTED)
        chips = yamlfile.number(value, name, problems, "a number of chips")
        if chips is not None and (chips < 0 or chips != int(chips)):
            problems.unexpected(value, name, "a number of chips")
        found[name] = chips or 0.0
    problems.check()
    return found
