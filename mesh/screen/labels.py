"""Labels in front of lines: the ranks or hosts that wrote them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from mesh.core.cluster import Placement
from mesh.core.look import Paint
from mesh.core.ranks import counted, members, told

HOSTS_WIDTH = 60  # characters of host names in a label; longer ones become a number of hosts
SET_WIDTH = 30  # characters of a set of ranks on a terminal
LABELS_KEPT = 4096
PLAIN = Paint(False)

_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)")


class Labels:
    """The labels of one run; ``with_hosts``: with the names of the hosts.

    A label has the same hue in every line. Labels of one rank and of several never share theirs.
    """

    def __init__(self, placement: Placement, *, with_hosts: bool) -> None:
        self._placement, self._with_hosts = placement, with_hosts
        self._known: dict[tuple[int, bool, bool], bytes] = {}
        self._digits = len(str(placement.world_size - 1))
        # Characters of the longest name of a rank in its group; 0: the run has no roles.
        self._role_width = max(map(len, placement.labels)) and max(
            len(placement.role(rank)) for rank in range(placement.world_size)
        )

    def of_rank(self, rank: int, paint: Paint = PLAIN) -> bytes:
        """``[03] ``, as wide as that of every other rank; ``[tpu-3:03] ``. In a run with roles ``[actor/1] ``."""
        place = self._placement.role(rank) or f"{rank:0{self._digits}d}"
        padding = " " * max(0, self._role_width - len(place))
        label = f"[{self._host(rank)}:{place}]" if self._with_hosts else f"[{place}]"
        return f"{paint.label(rank, label)}{padding} ".encode()

    def of_host(self, rank: int, paint: Paint = PLAIN) -> bytes:
        """``[tpu-3] ``, for output of a host that is no rank's."""
        return f"{paint.label(rank, f'[{self._host(rank)}]')} ".encode()

    def of_set(self, bits: int, *, is_short: bool, paint: Paint = PLAIN) -> bytes:
        """``[0-6,8-31] ``, for ranks that are written as bits; ``[tpu-[0-6,8-31]:0-6,8-31] ``.

        In a run with roles ``[actor/0-2,learner/0] ``.
        is_short: shorten a long set to its beginning and its size, ``[0,2,4,..: 128 ranks] ``
        """
        label = self._known.get((bits, is_short, paint.is_on))
        if label is None:
            if len(self._known) >= LABELS_KEPT:
                self._known.clear()
            ranks = members(bits)
            hosts = f"{told_hosts(map(self._host, ranks))}:" if self._with_hosts else ""
            text = self._set(ranks)
            if is_short and len(text) > SET_WIDTH:
                begin = text[: text.rfind(",", 0, SET_WIDTH - 12) + 1]
                text = f"{begin}..: {counted(len(ranks), 'rank')}"
            painted = paint.label(ranks[0], f"[{hosts}{text}]", len(ranks))
            label = self._known[bits, is_short, paint.is_on] = f"{painted} ".encode()
        return label

    def _set(self, ranks: Sequence[int]) -> str:
        if not self._role_width:
            return told(ranks)
        by_group: dict[int, list[int]] = {}
        for place in map(self._placement.table.__getitem__, ranks):
            by_group.setdefault(place.group, []).append(place.index)
        parts = [(self._placement.labels[group], told(indices).split(",")) for group, indices in by_group.items()]
        return ",".join(f"{label}/{part}" for label, listed in parts for part in listed)

    def _host(self, rank: int) -> str:
        return self._placement.hosts[self._placement.node(rank)].name


def told_hosts(names: Iterable[str]) -> str:
    """Return names of hosts in short, as ``--hosts`` takes them.

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
    return text if len(text) <= HOSTS_WIDTH else counted(len(unique), "host")
