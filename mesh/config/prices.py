"""Reader of prices.yaml: the user's own list of what a chip costs for an hour."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from mesh.config import yamlfile
from mesh.config.billing import Billing, read_billing
from mesh.config.places import config_directory
from mesh.config.section import Section
from mesh.core.errors import UsageError
from mesh.core.tpu import Pricing

FILE = "prices.yaml"
KEYS = ("currency", "date", "chip_hour", "billing")
EXPECTED = "KIND/REGION/PRICING, as v6e/us-east1/spot"
EXAMPLE = """\
currency: USD
date: 2026-11-25   # on which you have looked them up: https://cloud.google.com/tpu/pricing
chip_hour:         # KIND/REGION/PRICING; these numbers are no prices of any day
  v6e/us-east1/spot: 0.01
  v6e/us-east1/ondemand: 0.02
"""
_KEY = re.compile(r"([a-z][a-z0-9]*)/([a-z]+-[a-z]+[0-9]+)/([a-z-]+)")


class Prices(Struct, frozen=True, kw_only=True):
    """Costs of a chip for an hour, by kind, region and pricing. A price that is not listed is unknown."""

    currency: str = ""
    date: str = ""  # as the user wrote it
    chip_hour: Mapping[str, float] = field(default_factory=dict)  # by KIND/REGION/PRICING
    billing: Billing | None = None  # where the real bill is

    def of(self, kind: str, zone: str, pricing: str) -> float | None:
        """Return the price of an hour of one chip; None if it is not listed.

        >>> prices = Prices(chip_hour={"v6e/us-east1/spot": 0.5})
        >>> prices.of("v6e", "us-east1-d", "spot"), prices.of("v4", "us-east1-d", "spot")
        (0.5, None)
        """
        return self.chip_hour.get(f"{kind}/{zone.rpartition('-')[0]}/{pricing}")


def prices_path(environ: Mapping[str, str]) -> Path:
    """Return the path of the user's prices."""
    return config_directory(environ) / FILE


def read_prices(path: Path) -> Prices:
    """Return the prices of a file; none if it is not there. Raises UsageError with all problems."""
    if not path.exists():
        return Prices()
    node, problems = yamlfile.load(path)
    keys = Section(node, "", KEYS, problems, "a mapping with chip_hour: or billing:")
    found: dict[str, float] = {}
    listed = keys.node("chip_hour") if "chip_hour" in keys else None
    lines = yamlfile.mapping(listed, "chip_hour", problems, f"{EXPECTED}: PRICE") if listed is not None else {}
    for name, (key, value) in lines.items():
        match = _KEY.fullmatch(name)
        if not match or match.group(3) not in [one.value for one in Pricing]:
            problems.unexpected(key, f"chip_hour.{name}", EXPECTED)
        price = yamlfile.number(value, f"chip_hour.{name}", problems, "a price")
        if price is not None and price < 0:
            problems.unexpected(value, f"chip_hour.{name}", "a price")
        found[name] = price or 0.0
    currency, date = keys.text("currency", "a currency, as USD"), keys.text("date", "the date of the prices")
    billing = read_billing(keys.node("billing"), problems) if "billing" in keys else None
    problems.check()
    return Prices(currency=currency, date=date, chip_hour=found, billing=billing)


class PricesFile:
    """The prices of a file, which is read again after each change. While it has mistakes there is none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._prices = Prices()
        self._stamp: tuple[int, int] | None = None

    def of(self, kind: str, zone: str, pricing: str) -> float | None:
        """Return the price of an hour of one chip now; None if it is unknown."""
        try:
            found = self._path.stat()
            stamp = found.st_mtime_ns, found.st_size
        except OSError:
            stamp = 0, 0
        if stamp != self._stamp:
            self._stamp, self._prices = stamp, Prices()
            try:
                self._prices = read_prices(self._path)
            except (UsageError, OSError) as error:
                logging.getLogger(__name__).warning("%s; without prices no cost limit holds", error)
        return self._prices.of(kind, zone, pricing)
