"""The answer to the question for figures of a host: CPU, memory, disk, network, GPUs, and the ranks there."""

from __future__ import annotations

from .kinds import COUNT, RANK, SHOWN, listed, number
from .records import Record, field, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

DEVICES_MAX = 256
RANKS_MAX = 65536  # of all runs on a host
RATE, PART = number(0.0, 1e15), number(0.0, 1.0)


class RankFigures(Record):
    """The figures of a rank with its child processes."""

    run: str = field(SHOWN)
    rank: int = field(RANK)
    cpu: float = field(RATE)  # cores that it uses
    memory: int = field(COUNT)  # bytes


class DeviceFigures(Record):
    """The figures of a GPU."""

    name: str = field(SHOWN)
    busy: float = field(PART)
    memory: int = field(COUNT)  # bytes
    memory_used: int = field(COUNT)  # bytes


class Figures(Record):
    """The figures of the host. Rates are bytes for a second."""

    cores: int = field(COUNT)
    cpu: float = field(PART)  # of all cores
    memory: int = field(COUNT)  # bytes
    memory_used: int = field(COUNT)  # bytes
    disk_read: float = field(RATE)
    disk_written: float = field(RATE)
    received: float = field(RATE)
    sent: float = field(RATE)
    devices: Sequence[DeviceFigures] = field(listed(record(DeviceFigures), DEVICES_MAX))
    ranks: Sequence[RankFigures] = field(listed(record(RankFigures), RANKS_MAX))
