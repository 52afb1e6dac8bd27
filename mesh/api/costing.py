"""Estimates of what machines cost, by the user's prices: of a request, of a job as lists show it, and of its limit."""

from __future__ import annotations

import os
from collections.abc import Iterator

from mesh.config.prices import Prices, prices_path, read_prices
from mesh.core.errors import UsageError
from mesh.core.job import JobSpec
from mesh.core.tpu import TpuSpec
from mesh.jobs.costs import spent
from mesh.jobs.values import Row


def prices_here() -> Prices:
    """Return the user's prices. Raises UsageError."""
    return read_prices(prices_path(os.environ))


def prices_for_lists() -> Prices:
    """Return the user's prices; none from a file with mistakes, which `mesh job cost` shows."""
    try:
        return prices_here()
    except UsageError:
        return Prices()


def cost_of(row: Row, prices: Prices, now: float) -> tuple[float, float] | None:
    """Return what the machines of a job with a price have cost, and the hours of chips without one.

    None for a job on hosts that are there: they have no price.
    """
    return spent(row.uses, now, prices.of) if row.is_made else None


def unpriced(tpu: TpuSpec, prices: Prices) -> list[str]:
    """Return the missing prices of a request, as prices.yaml would name them."""
    zones = [zone for zone in tpu.zones if prices.of(tpu.kind, zone, tpu.pricing.value) is None]
    return list(dict.fromkeys(f"{tpu.kind}/{zone.rpartition('-')[0]}/{tpu.pricing.value}" for zone in zones))


def rate_of(tpu: TpuSpec, prices: Prices) -> str:
    """Return what a request costs for an hour, for people."""
    found = [price for zone in tpu.zones if (price := prices.of(tpu.kind, zone, tpu.pricing.value)) is not None]
    unknown = f"unknown for {', '.join(unpriced(tpu, prices))}"
    if not found:
        return f"{unknown}: write its price into ~/.config/mesh/prices.yaml"
    least, most = min(found) * tpu.chips, max(found) * tpu.chips
    amount = f"{least:.2f}" if least == most else f"{least:.2f} to {most:.2f}"
    more = f"; {unknown}" if unpriced(tpu, prices) else ""
    return f"{f'{amount} {prices.currency}'.rstrip()} an hour, an estimate{more}"


def limit_notices(spec: JobSpec) -> tuple[str, ...]:
    """Return a notice if a price is missing, so that the cost limit of a job does not hold. Raises UsageError."""
    tpu = spec.machines.tpu
    if not spec.cost_limit or tpu is None:
        return ()
    missing = unpriced(tpu, prices_here())
    if not missing:
        return ()
    path = prices_path(os.environ)
    return (f"cost.limit: machines of {', '.join(missing)} are not counted, because {path} has no price for them",)


def limit_lines(spec: JobSpec) -> Iterator[str]:
    """Yield the price and the cost limit of a job for its plan. Raises UsageError."""
    tpu = spec.machines.tpu
    if tpu is None:
        return
    prices = prices_here()
    yield f"price      {rate_of(tpu, prices)}"
    if spec.cost_limit:
        limit = f"{spec.cost_limit:g} {prices.currency}".rstrip()
        yield f"limit      {limit}: at this cost the job is held, and its machines are deleted"
        yield from (f"notice     {notice}" for notice in limit_notices(spec))
