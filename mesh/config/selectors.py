"""Selectors: the hosts that are meant by ``pod:0-3``, ``a:0,b:1`` or ``@host1,user@host2:2222``, and by --hosts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import fields, replace

from mesh.config.hosts import NoHost, expand, named_once, numbers, split
from mesh.config.roles import Role
from mesh.config.settings import Options
from mesh.config.yamlfile import did_you_mean
from mesh.core.cluster import Cluster, Host
from mesh.core.errors import UsageError
from mesh.core.run import SHELL, Group, Launch, RunSpec

HOST_LIST = "@"  # begins hosts that are in no file; all words after it belong to them
SHOWN_HOSTS = 8  # in one message
# A joined cluster has its own values of these; in all others its parts must agree.
OWN_FIELDS = ("name", "hosts", "slices", "spares", "source", "parts", "note", "keep", "workspace")
_COMMA = re.compile(r",(?![^\[]*\])")  # a comma inside brackets belongs to a range
_INDICES = re.compile(r"[0-9]+(-[0-9]+)?")


class Part(Struct, frozen=True, kw_only=True):
    """Hosts of one cluster, or hosts that are in no file."""

    cluster: str = ""  # "": the hosts are in no file
    picks: tuple[str, ...] = ()  # indices, ranges and names; (): all hosts of the cluster
    hosts: tuple[str, ...] = ()  # as they are written, without a cluster


def parse(text: str, is_cluster: Callable[[str], bool]) -> tuple[Part, ...]:
    """Read a selector. A cluster's own name wins over every other reading. Raises UsageError.

    >>> [(part.cluster, part.picks) for part in parse("a:0-3,5,b", lambda name: name in ("a", "b"))]
    [('a', ('0-3', '5')), ('b', ())]
    >>> parse("@me@h:22,[::1]", lambda name: False)[0].hosts
    ('me@h:22', '[::1]')
    """
    if is_cluster(text):
        return (Part(cluster=text),)
    words, parts = _COMMA.split(text), list[Part]()
    if "" in words:
        raise UsageError(f"{text!r}: expected a cluster or host on both sides of a comma")
    for place, word in enumerate(words):
        if word.startswith(HOST_LIST):
            listed = (word[len(HOST_LIST) :], *words[place + 1 :])
            return (*parts, Part(hosts=listed))
        if parts and _INDICES.fullmatch(word):
            # A part without picks has all hosts, so that this one is named twice, which `join` refuses.
            parts[-1] = replace(parts[-1], picks=(*(parts[-1].picks or ("*",)), word))
        else:
            parts.append(_part(word, is_cluster))
    return tuple(parts)


def _part(word: str, is_cluster: Callable[[str], bool]) -> Part:
    """Read a cluster, or a cluster and a host. The longest name that is a cluster counts."""
    pieces = word.split(":")
    for count in range(len(pieces), 0, -1):
        name = ":".join(pieces[:count])
        if is_cluster(name):
            rest = pieces[count:]
            return Part(cluster=name, picks=(":".join(rest),) if rest else ())
    return Part(cluster=word)


def pick(cluster: Cluster, part: Part, text: str) -> Cluster:
    """Return the cluster with the picked hosts alone, in the order of the picks. Raises UsageError.

    text: the whole selector, for messages
    """
    if not part.picks:
        return cluster
    nodes = list[int]()
    for one in part.picks:
        nodes += range(len(cluster.hosts)) if one == "*" else _nodes(cluster, text, one)
    hosts = tuple(cluster.hosts[node] for node in nodes)
    return replace(cluster, hosts=hosts, slices=_slices(cluster, nodes, text), spares=0)


def _slices(cluster: Cluster, nodes: Sequence[int], text: str) -> tuple[int, ...]:
    """Return how many of these hosts each slice has. Raises UsageError if the hosts of one are apart."""
    if not cluster.slices:
        return ()
    slice_of = [number for number, size in enumerate(cluster.slices) for _ in range(size)]
    runs = [(number, len(list(run))) for number, run in itertools.groupby(slice_of[node] for node in nodes)]
    if len({number for number, _ in runs}) < len(runs):
        raise UsageError(f"{text}: name the hosts of a slice of {cluster.name} side by side")
    return tuple(size for _, size in runs)


def listed(hosts: Sequence[str]) -> Cluster:
    """Return the cluster of hosts that are in no file. Raises UsageError."""
    found = []
    for written in hosts:
        try:
            for one in expand(written):
                user, address, port = split(one)
                found.append(Host(name=address, address=address, user=user, port=port))
        except NoHost as error:
            raise UsageError(f"{HOST_LIST}{','.join(hosts)}: {error}") from error
    return Cluster(name=f"{HOST_LIST}{','.join(hosts)}", hosts=tuple(found))


def join(text: str, parts: Sequence[Cluster]) -> Cluster:
    """Return one cluster of the hosts of all, called ``text``. Raises UsageError if it cannot be one."""
    first = parts[0]
    hosts, repeated = named_once([host for part in parts for host in part.hosts])
    if repeated:
        raise UsageError(f"{text}: host {hosts[repeated[0]].name} is named twice")
    if not parts[1:]:
        return replace(first, name=text, hosts=hosts)
    for other in parts[1:]:
        for difference in _differences(first, other):
            raise UsageError(f"{text}: {first.name} and {other.name} cannot be one cluster: {difference}")
    return replace(
        first,
        name=text,
        hosts=hosts,
        slices=tuple(size for part in parts for size in part.slices),
        spares=0,
        source=None,
        parts=tuple(parts),
        note="; ".join(part.note for part in parts if part.note),
        keep=min(part.keep for part in parts),
    )


def _differences(one: Cluster, other: Cluster) -> Iterator[str]:
    for name in (field.name for field in fields(Cluster) if field.name not in OWN_FIELDS):
        ours, theirs = getattr(one, name), getattr(other, name)
        if ours != theirs:
            yield f"{name} is {_shown(ours)} in {one.name} and {_shown(theirs)} in {other.name}"
    if bool(one.slices) != bool(other.slices):
        yield f"only {one.name if one.slices else other.name} has slices"


def _shown(value: object) -> str:
    return str(getattr(value, "value", value)) or "not set"


def select_hosts(cluster: Cluster, options: Options) -> Cluster:
    """Return the cluster without the hosts that options leave out, in its own order. Raises UsageError.

    ``--hosts`` and ``--exclude`` take names and ranges of names, or numbers of hosts; ``--ranks`` takes the numbers.
    """
    picked = set(range(len(cluster.hosts)))
    if options.hosts:
        picked &= set(_nodes(cluster, "--hosts", options.hosts))
    if options.ranks:
        picked &= set(_indices(cluster, "--ranks", options.ranks))
    if options.exclude:
        picked -= set(_nodes(cluster, "--exclude", options.exclude))
    if not picked:
        names = ", ".join(host.name for host in cluster.hosts[:SHOWN_HOSTS])
        raise UsageError(f"no host of {cluster.name} is left", hint=f"it has {names}")
    found = _with_nodes(cluster, picked)
    spare = picked & set(range(len(cluster.hosts) - cluster.spares, len(cluster.hosts)))
    is_named = bool(options.hosts or options.ranks)  # a host that is named is no spare one
    return replace(found, spares=0 if is_named else min(len(spare), len(picked) - 1))


def assign_roles(spec: RunSpec, cluster: Cluster, roles: Sequence[Role]) -> tuple[RunSpec, Cluster]:
    """Return the spec with a group for each role, and the cluster with the hosts of all roles. Raises UsageError.

    spec: its only group has what all roles share
    """
    if spec.launcher is not Launch.NONE:
        raise UsageError("--launcher starts one program on all hosts", hint="leave it out, or --role")
    of_node: dict[int, str] = {}
    groups: list[Group] = []
    for role in roles:
        if role.label in [group.label for group in groups]:
            raise UsageError(f"--role: two roles are called {role.label}")
        nodes = sorted(set(_nodes(cluster, f"--role {role.label}", role.hosts)))
        for node in nodes:
            if (other := of_node.setdefault(node, role.label)) != role.label:
                raise UsageError(f"--role: host {cluster.hosts[node].name} has two roles, {other} and {role.label}")
        hosts, command = tuple(cluster.hosts[node].name for node in nodes), (*SHELL, role.text)
        groups.append(replace(spec.groups[0], label=role.label, command=command, hosts=hosts))
    return replace(spec, groups=tuple(groups)), _with_nodes(cluster, of_node)


def _with_nodes(cluster: Cluster, picked: Collection[int]) -> Cluster:
    nodes = sorted(picked)
    hosts = tuple(cluster.hosts[node] for node in nodes)
    return replace(cluster, hosts=hosts, slices=_slices(cluster, nodes, cluster.name))


def _nodes(cluster: Cluster, place: str, text: str) -> list[int]:
    """Return the indices of hosts that are written as names, ranges of names, or numbers."""
    names = [host.name for host in cluster.hosts]
    found = list[int]()
    for part in _COMMA.split(text):
        try:
            for name in expand(part.strip()):
                if name in names:
                    found.append(names.index(name))
                elif _INDICES.fullmatch(name):
                    found += _indices(cluster, place, name)
                else:
                    raise UsageError(f"{place}: no host {name!r} in {cluster.name}{did_you_mean(name, names)}")
        except NoHost as error:
            raise UsageError(f"{place}: {error}") from error
    return found


def _indices(cluster: Cluster, place: str, text: str) -> list[int]:
    try:
        found = [int(number) for number in numbers(text)]
    except NoHost as error:
        raise UsageError(f"{place}: {error}") from error
    if max(found) >= len(cluster.hosts):
        last = len(cluster.hosts) - 1
        raise UsageError(f"{place}: no host {max(found)} in {cluster.name}: its hosts are 0-{last}")
    return found
