"""Where the nodes of a program go: names, ranges, handles and facts, against the hosts that there are. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from mesh.core.errors import UsageError
from mesh.program.runtime.errors import CLIENT


class Has(Struct, frozen=True, kw_only=True):
    """A wish for hosts by what they have."""

    gpus: int = 0  # at least so many
    memory: int = 0  # bytes, at least
    label: str = ""  # part of the host's name


class Wish(Struct, frozen=True, kw_only=True):
    """The place that a label asks for."""

    label: str
    hosts: tuple[str, ...] = ()  # names; (): all hosts
    has: Has | None = None
    like: str = ""  # the label of another one, on whose host this one goes
    count: int = 1
    per_host: int = 0  # nodes on each of the hosts; 0: count decides
    gpus: int = 0  # of its host, for each node alone


class Facts(Struct, frozen=True, kw_only=True):
    """The GPUs and the memory of a host. -1: not asked"""

    gpus: int = -1
    memory: int = -1  # bytes


class Place(Struct, frozen=True, kw_only=True):
    """The place of one node."""

    label: str  # "actor/3"; without a number for a node that is alone
    group: str  # "actor"
    index: int
    count: int  # nodes of the group
    host: str
    gpus: tuple[int, ...] = field(default_factory=tuple)  # numbers on its host


def place(wishes: Sequence[Wish], hosts: Sequence[str], facts: Mapping[str, Facts]) -> tuple[Place, ...]:
    """Return the place of every node, in the order of the wishes. Raises UsageError with a line for each host.

    >>> wishes = [Wish(label="actor", hosts=("a", "b"), per_host=2), Wish(label="learner", like="actor")]
    >>> [(one.label, one.host) for one in place(wishes, ["a", "b"], {})]
    [('actor/0', 'a'), ('actor/1', 'a'), ('actor/2', 'b'), ('actor/3', 'b'), ('learner', 'a')]
    """
    found: list[Place] = []
    used: dict[str, int] = {}  # GPUs of each host that have a node
    for wish in wishes:
        fitting = _fitting(wish, hosts, facts, found)
        names = [host for host in fitting for _ in range(wish.per_host)] if wish.per_host else _dealt(fitting, wish)
        names.sort(key=[*hosts, CLIENT].index)  # nodes of a group are numbered host after host, as ranks are
        is_group = len(names) > 1 or wish.per_host > 0
        for index, host in enumerate(names):
            first = used.get(host, 0)
            used[host] = first + wish.gpus
            label = f"{wish.label}/{index}" if is_group else wish.label
            numbers = tuple(range(first, first + wish.gpus))
            found.append(Place(label=label, group=wish.label, index=index, count=len(names), host=host, gpus=numbers))
    _check_gpus(used, facts)
    return tuple(found)


def ranks_of(places: Sequence[Place], hosts: Sequence[str]) -> dict[str, int]:
    """Return the rank of each node, host after host, by its label; 0 for nodes on the client, which are no ranks."""
    order = sorted((one for one in places if one.host != CLIENT), key=lambda one: hosts.index(one.host))
    return {**{one.label: 0 for one in places}, **{one.label: rank for rank, one in enumerate(order)}}


def _dealt(hosts: Sequence[str], wish: Wish) -> list[str]:
    """Deal the nodes of a label round robin over hosts."""
    return [hosts[number % len(hosts)] for number in range(wish.count)]


def _fitting(wish: Wish, hosts: Sequence[str], facts: Mapping[str, Facts], found: Sequence[Place]) -> list[str]:
    if wish.like:
        there = [one.host for one in found if wish.like in (one.group, one.label)]
        if not there:
            raise UsageError(f"{wish.label}: {wish.like} has no place yet", hint=f"add {wish.like} before {wish.label}")
        return there[:1]
    busy = {host: sum(one.host == host for one in found) for host in hosts}
    named = list(wish.hosts) or sorted(hosts, key=busy.__getitem__)  # those with the fewest nodes first
    if wish.has is None:
        return named
    lacks = {host: _lack(wish.has, host, facts.get(host, Facts())) for host in named}
    fitting = [host for host, lack in lacks.items() if not lack]
    if not fitting:
        lines = "".join(f"\n  {host}: {lack}" for host, lack in lacks.items())
        hint = _largest(wish.has, named, facts)
        raise UsageError(f"{wish.label}: no host has what it asks for:{lines}", hint=hint)
    return fitting


def _largest(has: Has, hosts: Sequence[str], facts: Mapping[str, Facts]) -> str:
    """Return a hint with the largest host, where a wish for memory is not fulfilled."""
    known = {host: facts[host].memory for host in hosts if host in facts and facts[host].memory >= 0}
    if not known or max(known.values()) >= has.memory:
        return "mesh check CLUSTER shows GPUs and memory of each host"
    host = max(known, key=known.__getitem__)
    return f"the largest is {host} with {known[host] / 1e9:.1f} GB"


def _lack(has: Has, host: str, facts: Facts) -> str:
    """Return what a host lacks, "" if it fits."""
    if has.label and has.label not in host:
        return f"its name does not have {has.label!r}"
    if has.gpus > max(0, facts.gpus):
        return f"it has {max(0, facts.gpus)} GPUs, and {has.gpus} are asked for"
    if has.memory > max(0, facts.memory):
        known = f"{facts.memory / 1e9:.1f} GB" if facts.memory >= 0 else "an unknown amount"
        return f"it has {known} of memory, and {has.memory / 1e9:.1f} GB are asked for"
    return ""


def _check_gpus(used: Mapping[str, int], facts: Mapping[str, Facts]) -> None:
    """Raise UsageError if nodes of a host ask for more GPUs than it has."""
    lines = [
        f"\n  {host}: its nodes ask for {count} GPUs, and it has {facts[host].gpus}"
        for host, count in used.items()
        if host in facts and count and facts[host].gpus < count
    ]
    if lines:
        raise UsageError("too few GPUs:" + "".join(lines), hint="mesh check CLUSTER shows the GPUs of each host")
