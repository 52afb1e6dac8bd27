"""Reader of quotas.yaml: how many chips of a kind, in a zone and at a price, a user may have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from mesh.config import yamlfile
from mesh.core.tpu import Pricing

FILE = "quotas.yaml"
EXPECTED = "KIND/ZONE/PRICING, as v6e/us-east1-d/spot"
_POOL = re.compile(r"([a-z][a-z0-9]*)/([a-z]+-[a-z]+[0-9]+-[a-z])/([a-z-]+)")


def quota_pool(kind: str, zone: str, pricing: str) -> str:
    """Return the name of a quota.

    >>> quota_pool("v6e", "us-east1-d", "spot")
    'v6e/us-east1-d/spot'
    """
    return f"{kind}/{zone}/{pricing}"


class Limits(Mapping[str, float]):
    """Chips that may be used of each quota. A quota that is not listed is unlimited, and has no entry here.

    A quota of several zones, as v6e/us-east1-d+us-east5-b/spot, has the sum of theirs.

    >>> limits = Limits({"v6e/a/spot": 8.0, "v6e/b/spot": 16.0})
    >>> limits["v6e/a+b/spot"], limits.get("v6e/a+c/spot")
    (24.0, None)
    """

    def __init__(self, chips: Mapping[str, float]) -> None:
        self._chips = dict(chips)

    def __getitem__(self, pool: str) -> float:
        if pool in self._chips:
            return self._chips[pool]
        kind, zones, pricing = (*pool.split("/"), "", "", "")[:3]
        return sum(self._chips[quota_pool(kind, zone, pricing)] for zone in zones.split("+"))

    def __iter__(self) -> Iterator[str]:
        return iter(self._chips)

    def __len__(self) -> int:
        return len(self._chips)


def read_quotas(path: Path) -> Limits:
    """Return the limits of a file; none if it is not there. Raises UsageError with all problems."""
    if not path.exists():
        return Limits({})
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
    return Limits(found)
