"""Reader of ``ports:`` of a cluster: the TCP ports at which nodes of programs listen."""

from __future__ import annotations

import re
from collections.abc import Mapping

from yaml.nodes import Node

from mesh.config import yamlfile
from mesh.config.yamlfile import Problems

KEY = "ports"
RANGE = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")
PORT_MAX = 65535


def read(keys: Mapping[str, tuple[Node, Node]], where: str, problems: Problems) -> tuple[int, ...]:
    """Return the first and the last port of the cluster's range; (): it has none, or no valid one."""
    if KEY not in keys:
        return ()
    node, expected = keys[KEY][1], "a range of ports, as 40000-40100"
    written = yamlfile.text(node, f"{where}.{KEY}", problems, expected)
    match = RANGE.fullmatch(written)
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= first <= last <= PORT_MAX:
        if written:  # else that is a problem already
            problems.unexpected(node, f"{where}.{KEY}", expected)
        return ()
    return first, last
