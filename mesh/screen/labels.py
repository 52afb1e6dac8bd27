"""What leads a line: whose it is."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mesh.core.cluster import Placement
from mesh.core.ranks import counted, members, told

WIDEST = 60  # characters of host names in a label; what would be longer is a number of hosts
WIDEST_SET = 30  # characters of a set of ranks on a terminal
KNOWN = 4096  # labels that are remembered

_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)")


class Labels:
    """The labels of one run; ``with_hosts``: with the names of the hosts."""

    def __init__(self, placement: Placement, *, with_hosts: bool) -> None:
        self._placement, self._with_hosts = placement, with_hosts
        self._known: dict[tuple[int, bool], bytes] = {}
        self._width = len(str(placement.world_size - 1))

    def of_rank(self, rank: int) -> bytes:
        """``[03] ``, as wide as that of every other rank; ``[tpu-3:03] ``."""
        number = f"{rank:0{self._width}d}"
        return f"[{self._host(rank)}:{number}] ".encode() if self._with_hosts else f"[{number}] ".encode()

    def of_host(self, rank: int) -> bytes:
        """``[tpu-3] ``, for what a host writes that is no rank's."""
        return f"[{self._host(rank)}] ".encode()

    def of_set(self, bits: int, *, is_short: bool) -> bytes:
        """``[0-6,8-31] ``, for ranks that are written as bits; ``[tpu-[0-6,8-31]:0-6,8-31] ``.

        is_short: a long set is told by its beginning and its size, ``[0,2,4,..: 128 ranks] ``
        """
        label = self._known.get((bits, is_short))
        if label is None:
            if len(self._known) >= KNOWN:
                self._known.clear()
            ranks = members(bits)
            hosts = f"{told_hosts(map(self._host, ranks))}:" if self._with_hosts else ""
            text = told(ranks)
            if is_short and len(text) > WIDEST_SET:
                begin = text[: text.rindex(",", 0, WIDEST_SET - 12) + 1]
                text = f"{begin}..: {counted(len(ranks), 'rank')}"
            label = self._known[bits, is_short] = f"[{hosts}{text}] ".encode()
        return label

    def _host(self, rank: int) -> str:
        return self._placement.hosts[self._placement.node(rank)].name


def told_hosts(names: Iterable[str]) -> str:
    """Names of hosts in short, as ``--hosts`` takes them.

    >>> told_hosts(["tpu-0", "tpu-1", "tpu-3", "login"]), told_hosts(["n08", "n09", "n10"])
    ('tpu-[0-1,3],login', 'n[08-10]')
    """
    unique = list(dict.fromkeys(names))
    series: dict[tuple[str, str], list[str]] = {}  # numbers, by what is around them
    for name in unique:
        match = _NUMBERED.fullmatch(name)
        series.setdefault((match[1], match[3]) if match else (name, ""), []).append(match[2] if match else "")
    parts = []
    for (before, after), numbers in series.items():
        is_padded = any(number.startswith("0") and len(number) > 1 for number in numbers)
        if len(numbers) == 1 or (is_padded and len({len(number) for number in numbers}) > 1):
            parts += [before + number + after for number in numbers]
        else:
            width = len(numbers[0]) if is_padded else 0
            parts.append(f"{before}[{told(map(int, numbers), width)}]{after}")
    text = ",".join(parts)
    return text if len(text) <= WIDEST else counted(len(unique), "host")
