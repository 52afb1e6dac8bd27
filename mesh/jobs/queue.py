"""The queue: which jobs start next, and on which hosts. Pure, and the only scheduler.

The order is priority, then fair share, then submission. A job gets all that it asks for, or nothing. The first job
that does not fit heads its pool: a later job starts before it only if that leaves the head's earliest start as it is.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from mesh.core.job import MachinesSpec
from mesh.jobs.generations import pools_of
from mesh.jobs.keeping import kept_kind, usable_kinds
from mesh.jobs.values import Job, Stage, State

USAGE_HALF_LIFE_S = 7 * 86400.0
STARVATION_LIMIT_S = 24 * 3600.0  # a job that heads its pool for this long stops backfill there
REASONS_COUNT = 100  # waiting jobs that get a reason; those behind them wait for the same
RELEASE_S = 30.0  # from the end of the ranks until hosts are free


class Demand(Struct, frozen=True, kw_only=True):
    """The machines that a job needs, all at once."""

    kind: str  # equal for equal demands
    cluster: str
    keys: tuple[str, ...] = ()  # of the machines behind the candidates, in cluster order
    names: tuple[str, ...] = ()  # of the candidates
    count: int = 0  # of hosts
    pools: tuple[
        str, ...
    ] = ()  # of a maker: quotas of which it needs one, the preferred one first; (): hosts are there
    units: int = 0


class Ask(Struct, frozen=True, kw_only=True):
    """A job that waits for nothing but its turn. Times are in seconds since the epoch."""

    job: int
    user: str
    priority: int
    submitted: float
    ready_at: float
    limit: float  # seconds that it may take; infinity without a limit
    demand: Demand
    last: tuple[str, ...] = ()  # machines that it had before
    avoided: tuple[str, ...] = ()  # machines that its attempts could not use, the latest last: the last to be tried
    array: int = 0  # the id of the array's first member; 0: none
    array_limit: int = 0  # members that may have machines at a time; 0: any number
    kinds: tuple[str, ...] = ()  # of kept machines that it can use, the preferred one first


class Hold(Struct, frozen=True, kw_only=True):
    """Machines that a job has."""

    job: int
    keys: tuple[str, ...] = ()
    pool: str = ""
    units: int = 0
    until: float = math.inf  # when they are free at the latest
    array: int = 0
    kind: str = ""  # of machines that it keeps for the next job; "": it uses them


class Pools(Struct, frozen=True, kw_only=True):
    """Limits and the users' shares."""

    limits: Mapping[str, float] = {}  # units of each maker's pool; a missing one is unlimited
    usage: Mapping[str, float] = {}  # seconds of hosts that each user has used, aged by the half-life
    shares: Mapping[str, float] = {}  # of each user; a missing one is 1


NO_LIMITS = Pools()


class Grant(Struct, frozen=True, kw_only=True):
    """A job that starts now."""

    job: int
    hosts: tuple[str, ...] = ()  # names, in cluster order
    keys: tuple[str, ...] = ()
    pool: str = ""  # of a maker
    keeper: int = 0  # the job that keeps the machines that it gets; 0: none


class Turns(Struct, frozen=True, kw_only=True):
    """The decision of the queue at one moment."""

    grants: tuple[Grant, ...] = ()
    waits: Mapping[int, str] = {}  # reasons, by job


class _Head(Struct, kw_only=True):
    """A job that does not fit, and what later jobs must leave for it."""

    keys: frozenset[str] = frozenset()
    pool: str = ""
    start: float  # the earliest one; infinity if it depends on jobs without a limit
    slack: float  # hosts or units that may be taken for longer than until its start
    is_starved: bool = False


def demand_of(machines: MachinesSpec, pools: tuple[str, ...] = ()) -> Demand:
    """Return what a job asks the queue for. pools: of a maker, in the order in which they are tried"""
    keys = tuple(one.key for one in machines.candidates)
    parts = [str(machines.units), *pools] if machines.maker else [str(machines.count), *keys]
    kind = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
    if machines.maker:
        return Demand(kind=kind, cluster=machines.cluster, pools=pools, units=machines.units)
    names = tuple(one.name for one in machines.candidates)
    return Demand(kind=kind, cluster=machines.cluster, keys=keys, names=names, count=machines.count)


def ask_of(job: Job) -> Ask | None:
    """Return the request of a queued job; None while it waits for other jobs, or does not wait."""
    if job.state is not State.QUEUED or job.depends_on or (job.work is not None and not job.work.has_tasks):
        return None
    array = job.spec.array
    return Ask(
        job=job.id,
        user=job.spec.user,
        priority=job.priority,
        submitted=job.submitted,
        ready_at=job.not_before,
        limit=job.spec.time_limit + RELEASE_S,
        demand=demand_of(job.spec.machines, pools_of(job)),
        last=job.last_hosts,
        avoided=job.avoided,
        array=array.first if array else 0,
        array_limit=array.limit if array else 0,
        kinds=usable_kinds(job),
    )


def hold_of(job: Job) -> Hold | None:
    """Return the machines that a job has; None without any."""
    generation = job.generation
    if generation is None:
        return None
    attempt = job.current
    started = attempt.started if attempt is not None and attempt.stage is Stage.LIVE else 0.0
    until = started + job.spec.time_limit + RELEASE_S if started and job.state is State.RUNNING else math.inf
    kind = kept_kind(job)
    return Hold(
        job=job.id,
        keys=() if generation.maker else generation.keys,
        pool=(generation.pool or generation.maker) if generation.maker else "",
        units=generation.units,
        until=job.kept_until + RELEASE_S if kind else until,
        array=job.spec.array.first if job.spec.array else 0,
        kind=kind,
    )


def aged(seconds: float, age: float) -> float:
    """Return the weight of a usage of some age.

    >>> aged(100.0, USAGE_HALF_LIFE_S)
    50.0
    """
    return float(seconds * 0.5 ** (max(0.0, age) / USAGE_HALF_LIFE_S))


def next_jobs(now: float, asks: Iterable[Ask], holds: Iterable[Hold], pools: Pools = NO_LIMITS) -> Turns:
    """Return the jobs that start now, and why others wait."""
    used = {user: seconds / pools.shares.get(user, 1.0) for user, seconds in pools.usage.items()}
    ready = [
        (-ask.priority, used.get(ask.user, 0.0) if used else 0.0, ask.submitted, ask.job, ask)
        for ask in asks
        if ask.ready_at <= now
    ]
    ready.sort()
    machines = _Machines(now, list(holds), pools)
    grants: list[Grant] = []
    waits: dict[int, str] = {}
    blocked: set[tuple[str, float]] = set()  # demands that do not fit: an equal one is not tried again
    for _, _, _, job, ask in ready:
        sort = ask.demand.kind, ask.limit
        is_full = bool(ask.array_limit) and machines.members[ask.array] >= ask.array_limit
        if not is_full and (keeper := machines.keeper_for(ask)) is not None:
            grants.append(machines.take_kept(ask, keeper))
            continue
        if not is_full and sort not in blocked:
            picked = machines.pick(ask)
            if picked is not None:
                grants.append(machines.take(ask, picked))
                continue
            machines.block(ask)
            blocked.add(sort)
        if len(waits) < REASONS_COUNT:
            waits[job] = f"{ask.array_limit} members run" if is_full else machines.reason(ask, len(waits))
    return Turns(grants=tuple(grants), waits=waits)


class _Machines:
    """The machines and units of all pools during one pass over the queue."""

    def __init__(self, now: float, holds: Sequence[Hold], pools: Pools) -> None:
        self._now, self._limits = now, pools.limits
        self._until: dict[str, float] = {}  # of machines in use, by key
        self._units: dict[str, list[tuple[float, float]]] = defaultdict(list)  # by pool: until when how many are in use
        self._heads: list[_Head] = []
        self.members: Counter[int] = Counter()  # of arrays, that have machines
        self._kept = [hold for hold in holds if hold.kind]
        for hold in holds:
            # A job that is past its limit is not gone before it is seen to be: it may be free at any moment from now.
            self._occupy(hold.keys, hold.pool, hold.units, max(hold.until, now))
            self.members[hold.array] += 1

    def _occupy(self, keys: Iterable[str], pool: str, units: float, until: float) -> None:
        for key in keys:
            self._until[key] = until
        if pool:
            self._units[pool].append((until, units))

    def pick(self, ask: Ask) -> tuple[str, ...] | None:
        """Return the keys of the machines that a job gets now, in cluster order, or its quota; None if it waits."""
        demand, end = ask.demand, self._now + ask.limit
        heads = [head for head in self._heads if head.is_starved or not end <= head.start or math.isinf(head.start)]
        for pool in demand.pools:
            fits = demand.units <= self._free_units(pool)
            if fits and all(head.pool != pool or demand.units <= head.slack for head in heads):
                return (pool,)
        if demand.pools:
            return None
        last, avoided = set(ask.last), {key: place for place, key in enumerate(ask.avoided, 1)}
        free = [key for key in demand.keys if key not in self._until]
        if len(free) < demand.count or not demand.count:
            return None
        heads = [head for head in heads if not head.keys.isdisjoint(free)]
        slack = [head.slack for head in heads]
        picked: set[str] = set()
        for key in sorted(free, key=lambda one: (avoided.get(one, 0), one not in last)):
            touched = [index for index, head in enumerate(heads) if key in head.keys]
            if all(slack[index] >= 1 for index in touched):
                for index in touched:
                    slack[index] -= 1
                picked.add(key)
                if len(picked) == demand.count:
                    return tuple(one for one in demand.keys if one in picked)
        return None

    def take(self, ask: Ask, picked: tuple[str, ...]) -> Grant:
        """Give a job its machines, or its part of a quota."""
        end, demand = self._now + ask.limit, ask.demand
        keys, pool = ((), picked[0]) if demand.pools else (picked, "")
        for head in self._heads:
            if not end <= head.start or math.isinf(head.start):
                head.slack -= demand.units if pool and pool == head.pool else 0
                head.slack -= sum(key in head.keys for key in keys)
        self._occupy(keys, pool, demand.units, end)
        self.members[ask.array] += 1
        names = dict(zip(demand.keys, demand.names, strict=True))
        return Grant(job=ask.job, hosts=tuple(names[key] for key in keys), keys=keys, pool=pool)

    def keeper_for(self, ask: Ask) -> Hold | None:
        """Return the kept machines that a job gets; None without any, or if an earlier job waits for their quota."""
        heads = {head.pool for head in self._heads}
        fit = [hold for hold in self._kept if hold.kind in ask.kinds and hold.pool not in heads]
        return min(fit, key=lambda hold: (ask.kinds.index(hold.kind), hold.until, hold.job), default=None)

    def take_kept(self, ask: Ask, keeper: Hold) -> Grant:
        """Give a job the machines that another one keeps. They go on using their part of the quota."""
        self._kept.remove(keeper)
        self._units[keeper.pool].remove((max(keeper.until, self._now), keeper.units))
        self._occupy((), keeper.pool, keeper.units, self._now + ask.limit)
        self.members[ask.array] += 1
        return Grant(job=ask.job, pool=keeper.pool, keeper=keeper.job)

    def block(self, ask: Ask) -> None:
        """Note a job that does not fit: the first one of a pool becomes its head. It may head several quotas."""
        demand = ask.demand
        starved = self._now - max(ask.submitted, ask.ready_at) >= STARVATION_LIMIT_S
        for pool in demand.pools:
            if all(head.pool != pool for head in self._heads):
                start, slack = self._units_start(pool, demand.units)
                self._heads.append(_Head(pool=pool, start=start, slack=0 if starved else slack, is_starved=starved))
        if demand.pools:
            return
        keys = frozenset(demand.keys)
        if any(not head.keys.isdisjoint(keys) for head in self._heads) or not 0 < demand.count <= len(keys):
            return
        ends = sorted(self._until.get(key, self._now) for key in keys)
        start = ends[demand.count - 1]
        slack = 0 if starved or math.isinf(start) else sum(end <= start for end in ends) - demand.count
        self._heads.append(_Head(keys=keys, start=start, slack=slack, is_starved=starved))

    def reason(self, ask: Ask, before: int) -> str:
        """Return why a job waits. before: jobs that wait before it"""
        place = "first in the queue" if not before else f"{before} before it in the queue"
        demand = ask.demand
        if demand.pools:
            free = ", ".join(f"{pool}: {self._free_units(pool):g}" for pool in demand.pools)
            return f"{free} free of {demand.units} that it needs; {place}"
        if not 0 < demand.count <= len(demand.keys):
            return f"{demand.cluster}: has {len(demand.keys)} hosts, and the job needs {demand.count}"
        busy = sum(key in self._until for key in demand.keys)
        return f"{demand.cluster}: {busy} of {len(demand.keys)} hosts busy; {place}"

    def _free_units(self, pool: str) -> float:
        return self._limits.get(pool, math.inf) - sum(units for _, units in self._units[pool])

    def _units_start(self, pool: str, wanted: int) -> tuple[float, float]:
        """Return when so many units of a pool become free, and how many more there are then."""
        free = self._free_units(pool)
        ends = sorted(self._units[pool])
        for until, units in ends:
            free += units
            if free >= wanted:
                later = sum(more for end, more in ends if end == until) - units if math.isfinite(until) else 0
                return until, (free - wanted + max(0.0, later)) if math.isfinite(until) else 0
        return math.inf, 0
