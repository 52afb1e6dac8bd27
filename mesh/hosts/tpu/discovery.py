"""Source of the hosts of TPUs: the API's last answer while it holds, else a new one."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from mesh.config.tpu import TpuName
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError
from mesh.core.findings import Finding
from mesh.core.paths import cache_directory
from mesh.hosts.interfaces import Purpose
from mesh.hosts.tpu import gcloud
from mesh.hosts.tpu.answering import all_answer
from mesh.hosts.tpu.cache import Answer, AnswerCache
from mesh.hosts.tpu.client import NotAsked, ask
from mesh.hosts.tpu.nodes import SHOWN_NAMES, gaps, tpu_of, with_nodes

FRESH_ANSWER_S = 60.0  # an answer of the API is taken without a look at its hosts
OLD_ANSWER_S = 3600.0  # the API is asked again after that, as there may be more slices by now
CONNECT_LIMIT_S = 2.0  # for all hosts of an answer to take a connection; else they may be others by now


class TpuSource:
    """TPUs by name, whose hosts Google's API lists."""

    def find(self, cluster: Cluster, purpose: Purpose) -> Cluster:
        """Return the cluster with its hosts: for a question those that can be reached, else all of READY slices.

        Raises MeshError if the API cannot be asked and its last answer does not hold any more.
        """
        return _with_hosts(cluster, all_ready=purpose is not Purpose.ASK, refresh=purpose is Purpose.REFRESH)

    def check(self, cluster: Cluster) -> Sequence[Finding]:
        return ()

    def forget(self, cluster: Cluster) -> None:
        _zone_and_cache(cluster)[1].forget()

    def origin(self, cluster: Cluster) -> str:
        return f"are those of TPU {tpu_of(cluster).name}, which `gcloud compute tpus tpu-vm` makes and deletes"


def _with_hosts(cluster: Cluster, *, all_ready: bool, refresh: bool) -> Cluster:
    zone, cache = _zone_and_cache(cluster)
    known = None if refresh else cache.get()
    found = _hosts_of(cluster, zone, known, all_ready) if known else None
    age = time.time() - known.time if known else 0.0
    if known and found and 0 <= age < OLD_ANSWER_S and (age < FRESH_ANSWER_S or _are_there(found)):
        return _noted(found, known, zone, f"as told {_ago(age)}")
    try:
        answer = Answer(time=time.time(), nodes=ask(tpu_of(cluster), zone, os.environ))
    except NotAsked as error:
        if known and found and _are_there(found):
            return _noted(found, known, zone, f"as told {_ago(age)}; now {error}")
        if known:
            error.hint += f"\nits answer of {_ago(age)} is out of date: not all of these hosts answer"
        raise
    cache.keep(answer)
    return _noted(_with_nodes(cluster, zone, answer, all_ready), answer, zone, "")


def zone_here(tpu: TpuName) -> gcloud.Zone:
    """Return the zone of a TPU, by its name or gcloud's settings. Raises MeshError."""
    return gcloud.zone_of(tpu, os.environ)


def _zone_and_cache(cluster: Cluster) -> tuple[gcloud.Zone, AnswerCache]:
    tpu = tpu_of(cluster)
    zone = zone_here(tpu)
    return zone, AnswerCache(cache_directory(os.environ), tpu, zone)


def _hosts_of(cluster: Cluster, zone: gcloud.Zone, answer: Answer, all_ready: bool) -> Cluster | None:
    """Return None if the answer has no hosts that can be used: there may be some by now."""
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
    """True if all hosts answer. Hosts behind a gateway count as if they did."""
    if cluster.gateway or any(host.proxy_command for host in cluster.hosts):
        return True
    return all_answer([(host.address, host.port) for host in cluster.hosts], CONNECT_LIMIT_S)


def _noted(cluster: Cluster, answer: Answer, zone: gcloud.Zone, told: str) -> Cluster:
    slices, hosts = len(cluster.slices), len(cluster.hosts)
    counted = f"{slices} slice{'s' * (slices != 1)}, {hosts} host{'s' * (hosts != 1)}"
    missing = gaps(answer.nodes)
    if missing:
        counted += f"; there is no {', '.join(missing[:SHOWN_NAMES])}{' ...' if missing[SHOWN_NAMES:] else ''}"
    note = f"TPU {tpu_of(cluster).name} in {zone.zone}: {counted}{f' ({told})' if told else ''}"
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
