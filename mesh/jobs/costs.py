"""Use of machines that were made for jobs, and its estimated cost. Pure."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from mesh.core.tpu import accelerator_of
from mesh.jobs.values import HOUR_S, Generation, Job, PricedUse

PriceOf = Callable[[str, str, str], float | None]  # of kind, zone and pricing: of an hour of one chip; None: unknown


def no_price(kind: str, zone: str, pricing: str) -> float | None:
    """Return None: without a price list every price is unknown."""
    return None


class Use(Struct, frozen=True, kw_only=True):
    """A generation of machines from its first node to its proved end. Times are in seconds since the epoch."""

    job: int
    job_name: str
    user: str
    name: str  # of the generation
    accelerator: str
    zone: str
    pricing: str
    chips: int
    begin: float
    end: float = 0.0  # 0: its machines are there

    def chip_hours(self, now: float) -> float:
        """Return the hours of chips up to a time."""
        return self.chips * max(0.0, (self.end or now) - self.begin) / HOUR_S


class Cost(Struct, frozen=True, kw_only=True):
    """The estimated cost of a job, user, zone or day."""

    key: str
    chip_hours: float
    amount: float  # of those parts that have a price
    unknown: float = 0.0  # hours of chips without a price
    uses: int = 1  # generations


def zone_of_generation(job: Job, generation: Generation) -> str:
    """Return the zone of a generation; all that it may be in, if that was not written down."""
    tpu = job.spec.machines.tpu
    return generation.zone or ("+".join(tpu.zones) if tpu is not None else "")


def uses_of(job: Job) -> list[Use]:
    """Return the use of machines of one job, oldest first."""
    tpu = job.spec.machines.tpu
    if tpu is None:
        return []
    return [
        Use(
            job=job.id,
            job_name=job.spec.name,
            user=job.spec.user,
            name=one.name,
            accelerator=tpu.accelerator,
            zone=zone_of_generation(job, one),
            pricing=tpu.pricing.value,
            chips=tpu.chips,
            begin=one.billed,
            end=one.unbilled,
        )
        for one in job.generations
        if one.billed
    ]


def spent(uses: Iterable[PricedUse], now: float, price_of: PriceOf) -> tuple[float, float]:
    """Return what machines with a price have cost, and the hours of chips without one."""
    amount = unknown = 0.0
    for use in uses:
        hours, price = use.hours(now), price_of(use.kind, use.zone, use.pricing)
        amount += hours * (price or 0.0)
        unknown += hours if price is None else 0.0
    return amount, unknown


def costs_by(key: str, uses: Sequence[Use], now: float, price_of: PriceOf) -> list[Cost]:
    """Return the costs by "job", "user", "zone" or "day", in the order of their first use."""
    found: dict[str, Cost] = {}
    for one in uses:
        for name, part in _parts(key, one, now):
            hours = part.chip_hours(now)
            price = price_of(accelerator_of(one.accelerator).kind, one.zone, one.pricing)
            before = found.get(name, Cost(key=name, chip_hours=0.0, amount=0.0, uses=0))
            found[name] = Cost(
                key=name,
                chip_hours=before.chip_hours + hours,
                amount=before.amount + hours * (price or 0.0),
                unknown=before.unknown + (hours if price is None else 0.0),
                uses=before.uses + 1,
            )
    return sorted(found.values(), key=lambda cost: cost.key) if key == "day" else list(found.values())


def _parts(key: str, use: Use, now: float) -> Iterator[tuple[str, Use]]:
    """Yield the parts of a use with the group that each counts for."""
    if key != "day":
        yield {"job": f"{use.job} {use.job_name}", "user": use.user, "zone": use.zone}[key], use
        return
    begin, end = use.begin, use.end or now
    while begin < end:
        day = clock.strftime("%Y-%m-%d", clock.localtime(begin))
        after = min(end, _next_day(begin))
        yield day, Use(**{**{name: getattr(use, name) for name in use.__struct_fields__}, "begin": begin, "end": after})
        begin = after


def _next_day(moment: float) -> float:
    """Return the beginning of the next local day."""
    day = clock.localtime(moment)
    return clock.mktime((day.tm_year, day.tm_mon, day.tm_mday + 1, 0, 0, 0, 0, 0, -1))


def total(costs: Iterable[Cost]) -> Cost:
    """Return the sum of costs."""
    listed = list(costs)
    return Cost(
        key="total",
        chip_hours=sum(one.chip_hours for one in listed),
        amount=sum(one.amount for one in listed),
        unknown=sum(one.unknown for one in listed),
        uses=sum(one.uses for one in listed),
    )
