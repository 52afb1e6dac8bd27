"""The words of a command that reaches a host, with placeholders for the values of the host."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mesh.core.cluster import Host

PLACEHOLDERS = ("name", "address", "user", "port")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def placeholders(words: Sequence[str]) -> list[str]:
    """Return the names in braces, right or wrong.

    >>> placeholders(["docker", "--format={{.Id}}", "{user}@{name}"])
    ['user', 'name']
    """
    return [name for word in words for name in _PLACEHOLDER.findall(word)]


def filled(words: Sequence[str], host: Host) -> list[str]:
    """Return the words for one host.

    >>> filled(["docker", "exec", "-i", "{name}"], Host(name="web-1", address="web-1"))
    ['docker', 'exec', '-i', 'web-1']
    """
    values = {"name": host.name, "address": host.address, "user": host.user, "port": str(host.port or "")}
    return [_PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), word) for word in words]
