"""Findings of a check on one host, and their meaning for a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from enum import Enum
from typing import TypeVar

from msgspec import Struct

Value = TypeVar("Value", bound=Hashable)
HOSTS_NAMED = 8  # in one line
HOST = "\0"  # stands for a host's own name, so that equal findings of several hosts are one


class Verdict(Enum):
    """The meaning of a finding for a run."""

    OK = "ok"
    WARNING = "warning"  # a run starts nevertheless
    FAILED = "failed"  # no run would start, or it would hang or crash
    UNKNOWN = "unknown"  # an earlier failure made it impossible to check


class Finding(Struct, frozen=True, kw_only=True):
    """A checked property of a host."""

    name: str  # one of NAMES
    verdict: Verdict
    told: str  # the result, for people
    hint: str = ""  # advice


Findings = Mapping[int, list[Finding]]  # by node

# In their order in output; the last three only if they are asked for.
NAMES = (
    *("reachable", "host key", "login", "api", "rights", "admission", "slurm", "schedule"),
    *("switchboard", "image", "python3"),
    *("bash", "home", "disk", "memory", "shm", "clock", "name", "lock", "users"),
    *("modules", "worker", "devices", "logout", "versions", "network", "master port", "path", "program", "workspaces"),
)


def ok(name: str, told: str = "") -> Finding:
    return Finding(name=name, verdict=Verdict.OK, told=told)


def warning(name: str, told: str, hint: str) -> Finding:
    return Finding(name=name, verdict=Verdict.WARNING, told=told, hint=hint)


def failed(name: str, told: str, hint: str) -> Finding:
    return Finding(name=name, verdict=Verdict.FAILED, told=told, hint=hint)


def unknown(name: str) -> Finding:
    return Finding(name=name, verdict=Verdict.UNKNOWN, told="")


def usual(values: Mapping[int, Value]) -> Value:
    """Return the value that most hosts have; of several such values the one that comes first.

    values: by node, not empty
    >>> usual({0: "a", 1: "b", 2: "b"}), usual({3: "b", 1: "a"})
    ('b', 'a')
    """
    counted = Counter(values[node] for node in sorted(values))
    return counted.most_common(1)[0][0]


def explain(found: Mapping[str, Sequence[Finding]]) -> list[list[str]]:
    """Return failures and advice in lines for people; what several hosts share comes once.

    found: by the names of the hosts
    """
    groups: dict[tuple[Verdict, str, str, str], list[str]] = {}
    for host, findings in found.items():
        for one in findings:
            if one.verdict in (Verdict.FAILED, Verdict.WARNING):
                key = (one.verdict, one.name, one.told.replace(host, HOST), one.hint.replace(host, HOST))
                groups.setdefault(key, []).append(host)
    told = []
    for (verdict, name, text, hint), hosts in sorted(
        groups.items(), key=lambda group: group[0][0] is not Verdict.FAILED
    ):
        lead = verdict.value.upper() if verdict is Verdict.FAILED else verdict.value
        lines = [f"{lead}: {few(hosts)}: {name}: {text}", *(f"    {line}" for line in hint.split("\n") if line)]
        told.append([line.replace(HOST, hosts[0] if len(hosts) == 1 else "HOST") for line in lines])
    return told


def few(names: Sequence[str]) -> str:
    """
    >>> few(["a", "b"]), few([str(number) for number in range(10)])
    ('a, b', '0, 1, 2, 3, 4, 5, 6, 7 and 2 more')
    """
    return ", ".join(names[:HOSTS_NAMED]) + (f" and {len(names) - HOSTS_NAMED} more" if names[HOSTS_NAMED:] else "")
