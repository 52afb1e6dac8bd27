"""Figures of hosts and ranks: CPU, memory, disk, network and GPUs, read only while somebody asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from msgspec import Struct

from mesh.api.choosing import choose_cluster
from mesh.api.inquiries import ask
from mesh.config.settings import Options
from mesh.core.amounts import told_bytes
from mesh.core.cluster import Cluster
from mesh.engine.question import Question
from mesh.hosts.interfaces import Purpose
from mesh.protocol.figures import Figures
from mesh.protocol.questions import AskFigures

if TYPE_CHECKING:
    from mesh.engine.inquiry import Inquiry, Questions

DEFAULTS = Options()
SPAN_S = 0.5  # between the two readings of an answer
PERIOD_S = 2.0  # likewise where one answer follows another


class Device(Struct, frozen=True, kw_only=True):
    """A GPU."""

    name: str
    busy: float  # 0 .. 1
    memory: int  # bytes
    memory_used: int  # bytes


class RankFigures(Struct, frozen=True, kw_only=True):
    """A rank of this user with its child processes."""

    run: str
    rank: int
    cpu: float  # cores that it uses
    memory: int  # bytes


class HostFigures(Struct, frozen=True, kw_only=True):
    """A host. Rates are bytes for a second."""

    host: str
    error: str = ""  # why it gave no answer; all figures are 0 then
    cores: int = 0
    cpu: float = 0.0  # 0 .. 1, of all cores
    memory: int = 0  # bytes
    memory_used: int = 0  # bytes
    disk_read: float = 0.0
    disk_written: float = 0.0
    received: float = 0.0
    sent: float = 0.0
    devices: tuple[Device, ...] = ()
    ranks: tuple[RankFigures, ...] = ()


def top(*, cluster: str, options: Options = DEFAULTS, clusters_file: str = "") -> list[HostFigures]:
    """Return the figures of a cluster's hosts, each from two readings half a second apart.

    Nothing is read on the hosts between two calls, and nothing is kept. Raises UsageError.
    """
    found = choose_cluster(cluster, options, clusters_file, purpose=Purpose.ASK)
    return _hosts(found, ask(found, Question(message=AskFigures(seconds=SPAN_S)), quiet=True))


def watch(
    show: Callable[[list[HostFigures]], object], *, cluster: str, options: Options = DEFAULTS, clusters_file: str = ""
) -> NoReturn:
    """Show the figures of a cluster's hosts every PERIOD_S, until Ctrl-C. One agent on each host gives all answers.

    show: is called with the figures as ``top`` returns them
    If a host fails, all are connected again. Raises UsageError and KeyboardInterrupt.
    """
    found = choose_cluster(cluster, options, clusters_file, purpose=Purpose.ASK)
    while True:
        _watch_until_failure(found, show)
        time.sleep(PERIOD_S)


def _watch_until_failure(found: Cluster, show: Callable[[list[HostFigures]], object]) -> None:
    shown = 0  # failures

    def go_on(inquiry: Inquiry) -> Questions:
        nonlocal shown
        show(_hosts(found, inquiry))
        shown = len(inquiry.failures)
        inquiry.forget()
        return {} if shown else dict.fromkeys(range(len(found.hosts)), AskFigures(seconds=PERIOD_S))

    inquiry = ask(found, Question(message=AskFigures(seconds=SPAN_S)), go_on, quiet=True)
    if len(inquiry.failures) > shown:  # no host is left that could be asked more
        show(_hosts(found, inquiry))


def _hosts(cluster: Cluster, inquiry: Inquiry) -> list[HostFigures]:
    """Return the figures of all hosts by their last answers."""
    answers = inquiry.replies(Figures, -1)
    hosts = []
    for node, host in enumerate(cluster.hosts):
        if node in answers:
            hosts.append(_host(host.name, answers[node]))
        else:
            failure = inquiry.failures.get(node)
            hosts.append(HostFigures(host=host.name, error=failure.message if failure else "no answer"))
    return hosts


def _host(name: str, answer: Figures) -> HostFigures:
    devices = [
        Device(name=one.name, busy=one.busy, memory=one.memory, memory_used=one.memory_used) for one in answer.devices
    ]
    ranks = [RankFigures(run=one.run, rank=one.rank, cpu=one.cpu, memory=one.memory) for one in answer.ranks]
    return HostFigures(
        host=name,
        cores=answer.cores,
        cpu=answer.cpu,
        memory=answer.memory,
        memory_used=answer.memory_used,
        disk_read=answer.disk_read,
        disk_written=answer.disk_written,
        received=answer.received,
        sent=answer.sent,
        devices=tuple(devices),
        ranks=tuple(ranks),
    )


def top_rows(hosts: Sequence[HostFigures]) -> Iterator[list[str]]:
    """Yield the cells of a table: a row for each host, and below it its GPUs and ranks."""
    for one in hosts:
        if one.error:
            yield [one.host, one.error.split("\n")[0], "", "", "", ""]
            continue
        disk = f"{told_bytes(int(one.disk_read))} {told_bytes(int(one.disk_written))}"
        network = f"{told_bytes(int(one.received))} {told_bytes(int(one.sent))}"
        yield [one.host, f"{one.cpu:.0%} of {one.cores}", _of(one.memory_used, one.memory), disk, network, ""]
        for device in one.devices:
            yield [f"  {device.name}", f"{device.busy:.0%}", _of(device.memory_used, device.memory), "", "", ""]
        for rank in one.ranks:
            yield [f"  rank {rank.rank}", f"{rank.cpu:.0%}", told_bytes(rank.memory), "", "", rank.run]


def _of(used: int, total: int) -> str:
    return f"{told_bytes(used)} of {told_bytes(total)}"
