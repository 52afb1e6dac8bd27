"""The Role that pods need, the objects that mesh makes, and those that are there."""

from __future__ import annotations

import calendar
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import yaml

from mesh.api.choosing import NOT_NAMED, cluster_file, with_archive
from mesh.backends.pods import state
from mesh.backends.pods.api import Api
from mesh.backends.pods.happenings import events_of
from mesh.backends.pods.objects import Pod, Pods, Thing, Things
from mesh.config.clusters import find_cluster
from mesh.config.kubernetes import Pods as ExistingPods
from mesh.config.podspec import MadePods
from mesh.config.userspaces import pod_home, with_home
from mesh.core.amounts import ago
from mesh.core.cluster import Cluster
from mesh.core.errors import UsageError
from mesh.core.statusline import StatusLine
from mesh.core.width import Table
from mesh.hosts.kubernetes import render
from mesh.hosts.kubernetes.choice import in_order
from mesh.hosts.kubernetes.made import maker_of
from mesh.hosts.kubernetes.records import PodsRecords
from mesh.hosts.kubernetes.render import Made, pod_object, role_object, root_object, secret_object
from mesh.hosts.kubernetes.source import api_of, place_of
from mesh.hosts.kubernetes.user import user_here

ROOT_UID = "UID-OF-THE-ROOT"  # in the place of what the API server gives
SHOWN_EVENTS = 3  # of each pod, where no pod is named
HEAD = ("#", "pod", "phase", "node", "since", "state")


def role_text(*, is_existing: bool = False, gang: str = "", has_jobs: bool = False) -> str:
    """Return the Role that mesh needs. Raises UsageError.

    is_existing: for pods that are there; mesh makes none; gang: of pods that it makes, as "volcano"
    has_jobs: also for what ``mesh pods render --as`` prints
    """
    for option, is_given in (("--gang", bool(gang)), ("--jobs", has_jobs)):
        if is_existing and is_given:
            raise UsageError(f"{option}: has no meaning with --existing", hint="leave one of them out")
    return yaml_of([role_object(is_existing=is_existing, gang_kind=gang, has_jobs=has_jobs)])


def objects_text(name: str, clusters_file: str = "") -> str:
    """Return the objects that mesh makes for a cluster. Raises UsageError if it makes no pods for it."""
    cluster = with_archive(named(name, clusters_file))
    if not isinstance(cluster.source, MadePods):
        raise no_pods_made(cluster)
    source = with_home(cluster.source, pod_home(os.environ))
    made = Made(cluster=name, user=user_here(), source=source, python=cluster.python)
    pods = [pod_object(made, index, ROOT_UID) for index in range(source.nodes)]
    secrets = [secret_object(made, ROOT_UID)] if made.has_switchboard else []
    beside = [*render.archive_objects(made, ROOT_UID), *render.gang_objects(made, ROOT_UID)]
    return yaml_of([root_object(made), *secrets, *beside, *pods])


def no_pods_made(cluster: Cluster) -> UsageError:
    """Return the error for a cluster whose hosts are no pods, or pods that are there."""
    described = f"write `kubernetes: {{image: team/train:3}}` below {cluster.name}: in cluster.yaml"
    hint = f"mesh pods show {cluster.name}" if isinstance(cluster.source, ExistingPods) else described
    return UsageError(f"{cluster.name}: mesh makes no pods for it", hint=hint)


def pods_lines(name: str, host: str = "", clusters_file: str = "", *, width: int = 0) -> list[str]:
    """Return lines about the pods of a cluster that are there: their state, conditions and events.

    host: one pod, by its name or number, with all of its conditions and events; "": all
    width: of a line of the table; 0: unlimited
    Raises UsageError if its hosts are not pods, and MeshError.
    """
    cluster = named(name, clusters_file)
    if isinstance(cluster.source, MadePods):
        api, _ = maker_of(cluster, StatusLine())
    elif isinstance(cluster.source, ExistingPods):
        api = api_of(place_of(cluster.source), cluster.source.place)
    else:
        raise UsageError(f"{name}: its hosts are not pods", hint=f"mesh check {name}")
    with api:
        return _shown(api, cluster, host, width)


def _shown(api: Api, cluster: Cluster, host: str, width: int) -> list[str]:
    name = cluster.name
    roots: Sequence[Thing] = ()
    if isinstance(cluster.source, ExistingPods):
        query = {"labelSelector": cluster.source.selector}
        pods: Sequence[Pod] = in_order(api.get(api.pods, Pods, query).items or (), cluster.source.order)
    else:
        pods, roots = _made_pods(api, name)
    place = f"namespace {api.place.namespace}" + f" of context {api.place.context}" * bool(api.place.context)
    if not pods:
        return [f"{name}: no pods in {place}", *map(_root_line, roots)]
    chosen = [(number, pod) for number, pod in enumerate(pods) if host in ("", pod.name, str(number), _host(pod))]
    if not chosen:
        raise UsageError(f"{name}: there is no pod {host!r}", hint=f"it has {', '.join(pod.name for pod in pods)}")
    lines = [f"{name}: {len(pods)} pods in {place}", *_group_lines(pods), *map(_root_line, roots)]
    container = cluster.source.container if isinstance(cluster.source, ExistingPods) else render.CONTAINER
    ill = [pod for _, pod in chosen if not state.runs(pod, container) or state.is_over(pod)]
    events = {pod.name: events_of(api, pod) for _, pod in chosen if host or pod in ill}
    waits = {pod.name: state.waits_for(pod, events[pod.name], container)[0] for pod in ill}
    rows = [_row(number, pod, waits.get(pod.name, "")) for number, pod in chosen]
    lines += Table(HEAD, width=width, dropped=("node", "since")).lines(rows)
    for _, pod in chosen:
        if pod.name in events:
            lines += ["", pod.name, *_conditions(pod, is_whole=bool(host))]
            shown = events[pod.name] if host else events[pod.name][-SHOWN_EVENTS:]
            lines += [_event_line(one.time, one.count or 1, f"{one.reason}: {one.message}") for one in shown]
    return lines


def named(name: str, clusters_file: str) -> Cluster:
    """Return a cluster by its name, without a look for its hosts. Raises UsageError."""
    if not name:
        raise NOT_NAMED
    return find_cluster(name, cluster_file(clusters_file))


def _made_pods(api: Api, name: str) -> tuple[Sequence[Pod], Sequence[Thing]]:
    """Return this user's existing pods of a cluster, and their roots, made on any machine."""
    query = {"labelSelector": f"{render.CLUSTER}={render.safe(name)},{render.USER}={render.safe(user_here())}"}
    pods = sorted(api.get(api.pods, Pods, query).items or (), key=_place)
    return pods, api.get(api.path("configmaps"), Things, query).items or ()


def _place(pod: Pod) -> tuple[str, int]:
    """Return the root of a pod, and its index there."""
    labels = pod.metadata.labels or {}
    return labels.get(render.ROOT, ""), int(labels.get(render.INDEX, "0"))


def _root_line(root: Thing) -> str:
    meta = root.metadata
    whose = "" if PodsRecords(os.environ).has(meta.uid) else ", made elsewhere"
    return f"ConfigMap {meta.name}, from {_age(meta.creation_timestamp or '')}{whose}"


def _host(pod: Pod) -> str:
    """Return the name of the host that a pod of a group is; that of the pod for others."""
    return (pod.metadata.labels or {}).get(render.HOST, pod.name)


def _group_lines(pods: Sequence[Pod]) -> Iterator[str]:
    """Yield a line for each group of pods, with how many of them are in each phase."""
    groups: dict[str, Counter[str]] = {}
    for pod in pods:
        if group := (pod.metadata.labels or {}).get(render.GROUP):
            groups.setdefault(group, Counter())[_phase(pod)] += 1
    for group, phases in groups.items():
        yield f"{group}: {', '.join(f'{count} {phase}' for phase, count in phases.items())}"


def _phase(pod: Pod) -> str:
    return "Terminating" if pod.metadata.deletion_timestamp else pod.status.phase


def _row(number: int, pod: Pod, text: str) -> list[str]:
    age = _age(pod.metadata.creation_timestamp or "")
    return [str(number), pod.name, _phase(pod), pod.spec.node_name or "-", age, text]


def _conditions(pod: Pod, *, is_whole: bool) -> Iterator[str]:
    """Yield a line for each condition of a pod and each state of a container. is_whole: also for the good ones"""
    for one in pod.status.conditions or ():
        if is_whole or one.status != "True":
            why = ": ".join(filter(None, (one.reason, one.message)))
            yield f"  {one.type}={one.status}" + f" ({why})" * bool(why)
    for status in pod.status.container_statuses or ():
        states = status.state
        found = states.waiting or states.terminated
        word = "waiting" if states.waiting else "ended" if states.terminated else "running"
        why = ": ".join(filter(None, (found.reason, found.message))) if found else ""
        restarts = f", {status.restart_count} restarts" if status.restart_count else ""
        if is_whole or found:
            yield f"  container {status.name} {word}{restarts}" + f" ({why})" * bool(why)


def _event_line(when: str, count: int, text: str) -> str:
    times = f", {count} times" if count > 1 else ""
    return f"  {_age(when)}{times}: {text}"


def _age(when: str) -> str:
    """Return how long ago a time of the API was.

    >>> _age("")
    'at some time'
    """
    try:
        at = calendar.timegm(time.strptime(when[:19], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return "at some time"
    return ago(time.time() - at)


def yaml_of(objects: Sequence[object]) -> str:
    """Return objects as YAML documents."""
    plain = [json.loads(json.dumps(one)) for one in objects]  # equal parts are written out each time
    return yaml.safe_dump_all(plain, sort_keys=False, width=1000)
