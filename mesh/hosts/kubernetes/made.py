"""Source of hosts that are pods which mesh makes when a command needs them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from msgspec.structs import replace

from mesh.backends.pods import state
from mesh.backends.pods.api import Api, ApiAway, ApiFailed
from mesh.backends.pods.objects import Meta, Pod
from mesh.config.podspec import MadePods
from mesh.config.userspaces import pod_home, with_home
from mesh.core.cluster import DEFAULT_REMOTE_DIR, Cluster, PodPlace
from mesh.core.errors import NoHosts, UsageError
from mesh.core.findings import Finding, failed
from mesh.core.statusline import StatusLine
from mesh.hosts.interfaces import Purpose
from mesh.hosts.kubernetes import code, render
from mesh.hosts.kubernetes.choice import all_hosts, counted_groups, hosts_of, in_groups
from mesh.hosts.kubernetes.clearing import remove_ended
from mesh.hosts.kubernetes.making import Maker, NotOurs
from mesh.hosts.kubernetes.preflight import Preflight
from mesh.hosts.kubernetes.records import PodsRecord, PodsRecords
from mesh.hosts.kubernetes.render import Made
from mesh.hosts.kubernetes.source import api_of
from mesh.hosts.kubernetes.user import user_here


class MadePodSource:
    """Pods that are made for a run, and end themselves once they have been idle for a time."""

    def __init__(self) -> None:
        self.is_quiet = False

    def find(self, cluster: Cluster, purpose: Purpose) -> Cluster:
        """Return the cluster with its pods as hosts; make them for a run. Raises MeshError."""
        if purpose is Purpose.LIST:
            return replace(cluster, note=_listed(cluster))
        api, maker = maker_of(cluster, StatusLine() if self.is_quiet else StatusLine(_report, sys.stderr))
        with api:
            if purpose is not Purpose.RUN:
                return _there(cluster, api, maker, purpose)
            remove_ended(api, user_here(), PodsRecords(os.environ))
            uid, pods = maker.ensure()
            return with_pods(cluster, api, uid, pods)

    def check(self, cluster: Cluster) -> Sequence[Finding]:
        api, maker = maker_of(cluster, StatusLine())
        with api:
            return _checked(api, maker)

    def forget(self, cluster: Cluster) -> None: ...

    def origin(self, cluster: Cluster) -> str:
        return "are pods that mesh makes"


def _there(cluster: Cluster, api: Api, maker: Maker, purpose: Purpose) -> Cluster:
    """Return the cluster with the pods that there are now. Raises NoHosts if none runs, and MeshError."""
    recorded = maker.recorded()
    # A question changes nothing: `ps`, `logs` and `attach` find what this user has made on another machine.
    root = maker.any_root() if purpose is Purpose.ASK else maker.root()
    pods = _left(maker, root.metadata.uid) if root else []
    if purpose is Purpose.REFRESH:
        if root is None:
            maker.forget(recorded)
        return _refreshed(cluster, pods)
    if purpose is Purpose.PLAN and not pods:
        planned = [_planned(maker.made, index) for index in range(maker.made.source.nodes)]
        return replace(with_pods(cluster, api, "", []), hosts=in_groups(planned, all_hosts(planned)))
    jobs = maker.job_pods() if purpose is Purpose.ASK else []
    if jobs:
        return with_pods(cluster, api, root.metadata.uid if root else "", [*pods, *jobs], with_jobs=True)
    if root is None or not pods:
        raise NoHosts(f"{cluster.name} has no pods", hint=f"mesh up {cluster.name}")
    found = with_pods(cluster, api, root.metadata.uid, pods)
    if purpose in (Purpose.CHECK, Purpose.PLAN):
        return replace(found, hosts=in_groups(pods, all_hosts(pods)))
    if not found.hosts:
        raise NoHosts(f"{cluster.name}: none of its {len(pods)} pods runs", hint=f"mesh pods show {cluster.name}")
    return found


def _planned(made: Made, index: int) -> Pod:
    return Pod(metadata=Meta(name=render.pod_name(made, index, ""), labels=render.host_labels(made.source, index)))


def _left(maker: Maker, uid: str) -> list[Pod]:
    """Return the pods of a root that have not ended. Raises MeshError."""
    return [pod for pod in maker.pods(uid) if not state.has_ended(pod, render.CONTAINER)]


def _checked(api: Api, maker: Maker) -> Sequence[Finding]:
    """Return the findings about pods that mesh makes, without a look into those that are there."""
    there, elsewhere = list[Pod](), list[Finding]()
    try:
        if (root := maker.root()) is not None:
            there = _left(maker, root.metadata.uid)
    except (ApiFailed, ApiAway):
        pass  # the findings have the reason
    except NotOurs as error:
        elsewhere = [failed("schedule", str(error), error.hint)]
    found = Preflight(api, maker.made, there).findings()
    return [*(one for one in found if not elsewhere or one.name != "schedule"), *elsewhere]


def maker_of(cluster: Cluster, notify: StatusLine, until: float = 0.0) -> tuple[Api, Maker]:
    """Return the API and the maker of a cluster's pods. until: seconds since the epoch before which they stay"""
    source = cluster.source
    assert isinstance(source, MadePods)
    if source.template.source is not None and cluster.remote_dir != DEFAULT_REMOTE_DIR:
        raise UsageError(f"{cluster.name}: remote_dir has no meaning beside source:", hint="leave one of them out")
    place = PodPlace(context=source.context, namespace=source.namespace, container=render.CONTAINER)
    api = api_of(place, source.place)
    source = with_home(source, pod_home(os.environ))
    made = Made(cluster=cluster.name, user=user_here(), source=source, python=cluster.python, until=until)
    return api, Maker(api, made, PodsRecords(os.environ), notify, warn=_report)


def make(cluster: Cluster, notify: StatusLine, until: float, *, adopts: bool = False) -> tuple[Cluster, PodsRecord]:
    """Make the pods of a cluster, which stay until a time; return it with them, and their record. Raises MeshError."""
    api, maker = maker_of(cluster, notify, until)
    with api:
        remove_ended(api, user_here(), PodsRecords(os.environ))
        if adopts:
            maker.adopt()
        uid, pods = maker.ensure()
    record = next((one for one in PodsRecords(os.environ).read() if one.uid == uid), None)
    if record is None:
        raise NotOurs(f"{cluster.name}: another command deletes its pods now", hint=f"mesh up {cluster.name}")
    if record.until < until and record.until < time.time():
        raise NotOurs(
            f"{cluster.name}: its pods are there, and end after {record.hold:g} s without a run",
            hint=f"mesh down {cluster.name} && mesh up {cluster.name}",
        )
    return with_pods(cluster, api, uid, pods), record


def with_pods(cluster: Cluster, api: Api, uid: str, pods: list[Pod], *, with_jobs: bool = False) -> Cluster:
    """Return a cluster with those of its pods that run as hosts.

    uid: of their root; with_jobs: some of them belong to declared jobs
    """
    described = cluster.source
    assert isinstance(described, MadePods)
    is_large = described.nodes >= described.switchboard_from and not with_jobs
    whose = f"{render.CLUSTER}={render.safe(cluster.name)},{render.USER}={render.safe(user_here())}"
    selector = whose if with_jobs else f"{render.ROOT}={uid}"
    place = replace(api.place, container=render.CONTAINER, selector=selector, switchboard=is_large)
    remote_dir = render.REMOTE_DIR if cluster.remote_dir == DEFAULT_REMOTE_DIR else cluster.remote_dir
    hosts = in_groups(pods, hosts_of(pods, place, all_run=False))
    note = f"pods of namespace {place.namespace} that mesh has made"
    slices = described.slices
    if slices > 1 and len(hosts) == described.nodes and not with_jobs:
        cluster = replace(cluster, slices=(len(hosts) // slices,) * slices)
    found = replace(cluster, hosts=hosts, backend="pods", pods=place, remote_dir=remote_dir, note=note)
    if (source := described.template.source) is not None:
        found = replace(found, workspace=code.PROJECT, fetched=source.line)
    return found


def _listed(cluster: Cluster) -> str:
    """Return how the pods of a cluster are held, by what was recorded here."""
    found = [one for one in PodsRecords(os.environ).read() if one.cluster == cluster.name]
    assert isinstance(cluster.source, MadePods)
    if not found:
        groups = ", ".join(f"{group.name} {group.nodes}" for group in cluster.source.groups)
        return f"{cluster.source.nodes} pods" + f" ({groups})" * bool(groups) + ", made when a command needs them"
    return "; ".join(_held(record) for record in found)


def _held(record: PodsRecord) -> str:
    since = time.strftime("%b %d %H:%M", time.localtime(record.since))
    until = time.strftime("%b %d %H:%M", time.localtime(record.until))
    end = f"until {until}" if record.until else f"until idle for {record.hold:g} s"
    return f"{record.pods} pods of namespace {record.namespace} made {since}, held {end}"


def _refreshed(cluster: Cluster, pods: Sequence[Pod]) -> Cluster:
    """Return a cluster with the pods that there are now as hosts, and a note about them."""
    source = cluster.source
    assert isinstance(source, MadePods)
    running = [pod for pod in pods if state.runs(pod, render.CONTAINER)]
    groups = counted_groups(source.groups, running)
    note = f"{len(running)} of {source.nodes} pods run" + f" ({groups})" * bool(groups) + f"; {_listed(cluster)}"
    if not pods:
        note = f"no pods now; a run makes {source.nodes}"
    return replace(cluster, hosts=in_groups(pods, all_hosts(pods)), note=note)


def _report(text: str) -> None:
    sys.stderr.write(f"==> {text}\n")
    sys.stderr.flush()
