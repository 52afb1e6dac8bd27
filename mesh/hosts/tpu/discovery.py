"""The hosts of a cluster that is a TPU: as the API told them lately, or as it tells them now."""

from __future__ import annotations

import os
import time
from pathlib import Path

from msgspec.structs import replace

from mesh.core.cluster import Cluster, TpuName
from mesh.core.errors import MeshError
from mesh.core.events import CONNECTING
from mesh.core.outcome import Outcome
from mesh.core.paths import cache_directory
from mesh.hosts.tpu import gcloud
from mesh.hosts.tpu.answering import all_answer
from mesh.hosts.tpu.cache import Answer, AnswerCache
from mesh.hosts.tpu.client import NotAsked, ask
from mesh.hosts.tpu.nodes import MOST_NAMED, gaps, with_nodes

FRESH = 60.0  # seconds in which what was told is taken as it is
OLD = 3600.0  # seconds after which the API is asked again, as there may be more slices by now
ANSWER = 2.0  # seconds for all hosts of an answer to take a connection: else they may be others by now
CHECK = "check"  # the step of connecting at which hosts contradict what the API has told


def with_hosts(cluster: Cluster, *, all_ready: bool, refresh: bool) -> Cluster:
    """A cluster of a TPU with its hosts.

    all_ready: refuse a TPU of which a slice is not; else take what can be reached
    refresh: ask the API, whatever it has told lately
    Raises MeshError: where the API cannot be asked, and what it has told before does not hold any more.
    """
    assert cluster.tpu is not None
    zone, cache = _zone_and_cache(cluster)
    known = None if refresh else cache.get()
    found = _hosts_of(cluster, zone, known, all_ready) if known else None
    age = time.time() - known.time if known else 0.0
    if known and found and 0 <= age < OLD and (age < FRESH or _are_there(found)):
        return _noted(found, known, zone, f"as told {_ago(age)}")
    try:
        answer = Answer(time=time.time(), nodes=ask(cluster.tpu, zone, os.environ))
    except NotAsked as error:
        if known and found and _are_there(found):
            return _noted(found, known, zone, f"as told {_ago(age)}; now {error}")
        if known:
            error.hint += f"\nwhat it told {_ago(age)} does not hold any more: not all of these hosts answer"
        raise
    cache.keep(answer)
    return _noted(_with_nodes(cluster, zone, answer, all_ready), answer, zone, "")


def forget_if_wrong(cluster: Cluster, outcome: Outcome) -> None:
    """Have the API asked the next time, if hosts were not those that it has told of."""
    if cluster.tpu and any(failure.step in (*CONNECTING, CHECK) for failure in outcome.failures):
        _zone_and_cache(cluster)[1].forget()


def zone_here(tpu: TpuName) -> gcloud.Zone:
    """Where a TPU is: as its name says, or as gcloud is set. Raises MeshError."""
    return gcloud.zone_of(tpu, os.environ)


def _zone_and_cache(cluster: Cluster) -> tuple[gcloud.Zone, AnswerCache]:
    assert cluster.tpu is not None
    zone = zone_here(cluster.tpu)
    return zone, AnswerCache(cache_directory(os.environ), cluster.tpu, zone)


def _hosts_of(cluster: Cluster, zone: gcloud.Zone, answer: Answer, all_ready: bool) -> Cluster | None:
    """None if the answer cannot be used: things may be better by now."""
    try:
        return _with_nodes(cluster, zone, answer, all_ready)
    except MeshError:
        return None


def _with_nodes(cluster: Cluster, zone: gcloud.Zone, answer: Answer, all_ready: bool) -> Cluster:
    key = Path(gcloud.KEY).expanduser()
    return with_nodes(
        cluster,
        answer.nodes,
        zone,
        key=str(key) if key.is_file() else "",
        is_google=gcloud.is_google(),
        all_ready=all_ready,
    )


def _are_there(cluster: Cluster) -> bool:
    """Whether all hosts answer, as far as it can be seen from here: not behind a gateway."""
    if cluster.gateway or any(host.proxy_command for host in cluster.hosts):
        return True
    return all_answer([(host.address, host.port) for host in cluster.hosts], ANSWER)


def _noted(cluster: Cluster, answer: Answer, zone: gcloud.Zone, told: str) -> Cluster:
    slices, hosts = len(cluster.slices), len(cluster.hosts)
    counted = f"{slices} slice{'s' * (slices != 1)}, {hosts} host{'s' * (hosts != 1)}"
    assert cluster.tpu is not None
    missing = gaps(answer.nodes)
    if missing:
        counted += f"; there is no {', '.join(missing[:MOST_NAMED])}{' ...' if missing[MOST_NAMED:] else ''}"
    note = f"TPU {cluster.tpu.name} in {zone.zone}: {counted}{f' ({told})' if told else ''}"
    return replace(cluster, note=note)


def _ago(seconds: float) -> str:
    """
    >>> _ago(30), _ago(150), _ago(7300), _ago(200000)
    ('30 s ago', '2 min ago', '2 h ago', '2 days ago')
    """
    for size, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {name} ago"
    return f"{max(seconds, 0):.0f} s ago"
