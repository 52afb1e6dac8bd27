"""Source of hosts that are pods which are there already."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from mesh.backends.pods import state
from mesh.backends.pods.api import Api, ApiFailed, NoContext
from mesh.backends.pods.happenings import events_of
from mesh.backends.pods.objects import Pod, Thing
from mesh.backends.pods.objects import Pods as PodList
from mesh.config.kubernetes import Pods
from mesh.core.cluster import DEFAULT_REMOTE_DIR, Cluster, PodPlace
from mesh.core.errors import MeshError, NoHosts, UsageError
from mesh.core.findings import Finding
from mesh.hosts.interfaces import Purpose
from mesh.hosts.kubernetes import render
from mesh.hosts.kubernetes.choice import all_hosts, container_of, hosts_of, in_groups, in_order
from mesh.hosts.kubernetes.preflight import Preflight


class PodSource:
    """Pods of a namespace, by their labels. Mesh neither makes nor deletes them."""

    def find(self, cluster: Cluster, purpose: Purpose) -> Cluster:
        """Return the cluster with its pods as hosts. Raises MeshError."""
        source = cluster.source
        assert isinstance(source, Pods)
        if purpose is Purpose.LIST:  # half a second of imports, and a request
            return replace(cluster, note=f"pods with {source.selector}; mesh clusters --refresh asks for them")
        with api_of(place_of(source), source.place) as api:
            pods = in_order(pods_of(api, source, purpose), source.order)
            place = replace(api.place, container=container_of(pods, source.container, source.place))
            if purpose is Purpose.CHECK:
                hosts = all_hosts(pods)
            else:
                hosts = hosts_of(pods, place, all_run=purpose is Purpose.RUN, events=partial(events_of, api))
            if not hosts:
                raise MeshError(f"{cluster.name}: none of its {len(pods)} pods runs", hint=_shown(api, source))
        note = f"pods of namespace {place.namespace}{f', context {place.context}' if place.context else ''}"
        found = replace(cluster, hosts=in_groups(pods, hosts), backend="pods", pods=place, note=note)
        is_made = all(render.ROOT in (pod.metadata.labels or {}) for pod in pods)
        if is_made and cluster.remote_dir == DEFAULT_REMOTE_DIR:
            return replace(found, remote_dir=render.REMOTE_DIR)
        return found

    def check(self, cluster: Cluster) -> Sequence[Finding]:
        source = cluster.source
        assert isinstance(source, Pods)
        with api_of(place_of(source), source.place) as api:
            return Preflight(api, None).findings()

    def forget(self, cluster: Cluster) -> None: ...

    def origin(self, cluster: Cluster) -> str:
        return "are pods that are there already"


def api_of(place: PodPlace, written: str) -> Api:
    """Return the API of a place. written: where the context is named in a file; "": in none. Raises UsageError."""
    try:
        return Api(place, os.environ)
    except NoContext as error:
        if not written or not place.context:
            raise
        raise UsageError(f"{written}.context: {error}", hint=error.hint) from error


def place_of(source: Pods) -> PodPlace:
    """Return where the pods of a source are."""
    return PodPlace(
        context=source.context, namespace=source.namespace, container=source.container, selector=source.selector
    )


def pods_of(api: Api, source: Pods, purpose: Purpose) -> list[Pod]:
    """Return the pods of a selector that have not ended. Raises MeshError if there are none; NoHosts for a question."""
    found = api.get(api.pods, PodList, {"labelSelector": source.selector}).items or ()
    pods = [pod for pod in found if not state.is_over(pod)]
    if not pods:
        namespace = api.place.namespace
        try:
            api.get(f"/api/v1/namespaces/{namespace}", Thing)
        except ApiFailed as error:
            if error.status == 404:
                raise MeshError(f"there is no namespace {namespace}", hint="kubectl get namespaces") from error
        ended = f": its {len(found)} pods have ended" if found else ""
        kind = NoHosts if purpose is Purpose.ASK else MeshError
        raise kind(
            f"selector {source.selector!r} matches no pod of namespace {namespace}{ended}", hint=_shown(api, source)
        )
    return pods


def _shown(api: Api, source: Pods) -> str:
    return f"{api.place.kubectl('get pods')} -l {source.selector!r} --show-labels"
