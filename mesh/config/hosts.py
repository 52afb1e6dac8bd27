"""Hosts as they are written: ``host``, ``user@host:port``, ``[v6]:port``, ``tpu-[0-31]``."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from mesh.core.cluster import Host

MAX_RANGE = 10_000  # hosts that one range may name; more is a slip of the finger

_BRACKETS = re.compile(r"\[([0-9][0-9,-]*)\]")
_DOTS = re.compile(r"\{([0-9]+\.\.[0-9]+)\}|(?<![0-9.{])([0-9]+\.\.[0-9]+)(?![0-9.}])")
_OPEN_RANGE = re.compile(r"[\w.-]\[[0-9,-]*$")
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.%-]*[A-Za-z0-9_])?\.?")
USER = re.compile(r"[^-\s@:/][^\s@:/]*")


class NoHost(ValueError):
    """Raised with the reason for a text that is no host."""


def expand(pattern: str) -> list[str]:
    """Return the names that a range stands for.

    >>> expand("tpu-[8-10,12]"), expand("r[0-1]n[00-01]")
    (['tpu-8', 'tpu-9', 'tpu-10', 'tpu-12'], ['r0n00', 'r0n01', 'r1n00', 'r1n01'])
    >>> expand("tpu-0..2"), expand("tpu-{0..1}")
    (['tpu-0', 'tpu-1', 'tpu-2'], ['tpu-0', 'tpu-1'])
    >>> expand("plain")
    ['plain']
    """
    found = _BRACKETS.search(pattern) or _DOTS.search(pattern)
    if found is None:
        if _OPEN_RANGE.search(pattern):
            raise NoHost(f"the bracket is not closed in {pattern!r}; a range is written as tpu-[0-3]")
        return [pattern]
    before, after = pattern[: found.start()], pattern[found.end() :]
    names = [before + number + rest for number in numbers(_set_in(found)) for rest in expand(after)]
    if len(names) > MAX_RANGE:
        raise NoHost(f"more than {MAX_RANGE} hosts in {pattern!r}")
    return names


def _set_in(found: re.Match[str]) -> str:
    """Return the numbers of a range as ``numbers`` reads them."""
    return next(group for group in found.groups() if group).replace("..", "-")


def numbers(text: str) -> list[str]:
    """Return the numbers of a set such as ``0-3,5``; leading zeros give the width.

    >>> numbers("08-10,1")
    ['08', '09', '10', '1']
    """
    found: list[str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise NoHost(f"{text!r} is no set of numbers such as 0-3,5")
        last = last or first
        if int(last) < int(first):
            raise NoHost(f"the range {part} goes backwards")
        if int(last) - int(first) > MAX_RANGE:
            raise NoHost(f"more than {MAX_RANGE} numbers in {part}")
        found += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return found


def split(text: str) -> tuple[str, str, int]:
    """Return ``user@host:port`` as (user, host, port), "" and 0 for those that are absent. Raises NoHost.

    >>> split("me@tpu-0:2222"), split("[fe80::1]:22"), split("2001:db8::7"), split("10.0.0.1")
    (('me', 'tpu-0', 2222), ('', 'fe80::1', 22), ('', '2001:db8::7', 0), ('', '10.0.0.1', 0))
    """
    user, at, host = text.rpartition("@")
    if at and not USER.fullmatch(user):
        raise NoHost(f"{user!r} is no user")
    if _is_address(host):
        return user, host, 0
    port = ""
    if host.startswith("["):
        host, bracket, port = host[1:].partition("]")
        if not bracket or not _is_address(host) or (port and not port.startswith(":")):
            raise NoHost(f"{text!r} is no [address]:port")
        port = port[1:]
    elif ":" in host:
        host, _, port = host.partition(":")
        if not port:
            raise NoHost(f"{text!r} ends in a colon")
    if not _is_address(host) and not _NAME.fullmatch(host):
        raise NoHost(f"{host!r} is no host name")
    return user, host, check_port(port) if port else 0


def named_once(hosts: Sequence[Host]) -> tuple[tuple[Host, ...], list[int]]:
    """Add ports to names that several hosts have; return all hosts, and the indices of names that came before."""
    counted = Counter(host.name for host in hosts)
    # Containers on one machine have the same address and different ports.
    named = tuple(
        replace(host, name=f"{host.name}:{host.port}") if counted[host.name] > 1 and host.port else host
        for host in hosts
    )
    first = {host.name: index for index, host in reversed(list(enumerate(named)))}
    return named, [index for index, host in enumerate(named) if first[host.name] < index]


def check_port(text: str) -> int:
    """Return a port as a number. Raises NoHost."""
    if not text.isdecimal() or len(text) > 5 or not 1 <= int(text) <= 65535:
        raise NoHost(f"{text!r} is no port (1 to 65535)")
    return int(text)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
