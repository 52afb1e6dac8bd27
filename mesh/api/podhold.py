"""`mesh up` and `mesh down` of pods."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from mesh.api.holding import InUse, check_idle
from mesh.backends.pods import state
from mesh.backends.pods.api import NoContext
from mesh.backends.pods.objects import Pod
from mesh.config.podspec import MadePods
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError, NoHosts, UsageError
from mesh.core.statusline import StatusLine
from mesh.hosts.interfaces import Purpose
from mesh.hosts.kubernetes import render
from mesh.hosts.kubernetes.made import MadePodSource, make, maker_of
from mesh.hosts.kubernetes.records import PodsRecord, PodsRecords
from mesh.hosts.kubernetes.waiters import are_waited_for

Notify = Callable[[str], None]


def up_pods(cluster: Cluster, notify: Notify, seconds: float, *, adopts: bool = False) -> Cluster:
    """Make the pods of a cluster, which stay for a time; return it with them. Raises MeshError.

    notify: a StatusLine shows the state of the pods in one line
    """
    if seconds <= 0:
        raise UsageError("--for: expected a time of more than 0 s", hint=f"mesh up --for 8h {cluster.name}")
    line = notify if isinstance(notify, StatusLine) else StatusLine(notify)
    found, record = make(cluster, line, time.time() + seconds, adopts=adopts)
    if record.until:
        until = time.strftime("%b %d %H:%M", time.localtime(record.until))
        line(f"{cluster.name}: its pods stay until {until}, and then until idle for {record.hold:g} s")
    return found


def down_pods(cluster: Cluster, notify: Notify, *, is_forced: bool = False, keeps_awaited: bool = False) -> None:
    """Delete the pods of a cluster that were made here, and wait until they are gone.

    Those in a context or namespace that cluster.yaml named before are deleted as well.

    is_forced: even while a run is on, or if pods do not answer; pods whose context or server kubeconfig lacks are
        given up
    keeps_awaited: not while another command of this machine makes them or waits for them
    Raises InUse if a run is on or they are awaited, NotOurs for pods that were made elsewhere, and MeshError.
    """
    count, failure = 0, None
    for one in _places(cluster):
        try:
            count += _down(one, notify, is_forced=is_forced, keeps_awaited=keeps_awaited)
        except NoContext as error:
            if is_forced and one is not cluster:
                count += _give_up(one, _recorded(one), notify)
            else:
                failure = failure or (error if one is cluster else _out_of_reach(one, error))
        except MeshError as error:  # the others are deleted all the same
            failure = failure or error
    if failure is not None:
        raise failure
    if not count:
        notify(f"{cluster.name} has no pods: nothing to delete")


def _out_of_reach(cluster: Cluster, error: NoContext) -> MeshError:
    """Return the error for pods that were made in a context that kubeconfig does not have any more."""
    assert isinstance(cluster.source, MadePods)
    return MeshError(
        f"{cluster.name}: its pods in namespace {cluster.source.namespace} cannot be deleted ({error})",
        hint=_give_up_hint(cluster),
    )


def _give_up_hint(cluster: Cluster) -> str:
    return f"mesh down --force {cluster.name}  # gives them up: idle pods end by themselves"


def _recorded(cluster: Cluster) -> Sequence[PodsRecord]:
    """Return the records of the pods of a cluster in its context and namespace."""
    source = cluster.source
    assert isinstance(source, MadePods)
    place = (cluster.name, source.context, source.namespace)
    return [one for one in PodsRecords(os.environ).read() if (one.cluster, one.context, one.namespace) == place]


def _give_up(cluster: Cluster, given_up: Sequence[PodsRecord], notify: Notify) -> int:
    """Remove the records of pods that are out of reach; return how many there were."""
    for record in given_up:
        PodsRecords(os.environ).remove(record.uid)
        what = f"{cluster.name}: {record.pods} pods in namespace {record.namespace} are given up"
        where = f"context {record.context!r}" + f" with {record.server}" * bool(record.server)
        notify(f"{what}: kubeconfig has no {where}; {record.root} there owns them")
    return len(given_up)


def _check_server(cluster: Cluster, elsewhere: Sequence[PodsRecord], server: str) -> None:
    """Raise MeshError for pods at another server. elsewhere: their records; server: that the context names now"""
    if elsewhere:
        first = elsewhere[0]
        why = f"they are at {first.server}, and context {first.context!r} names {server}"
        raise MeshError(
            f"{cluster.name}: its pods in namespace {first.namespace} cannot be deleted ({why})",
            hint=_give_up_hint(cluster),
        )


def _places(cluster: Cluster) -> Iterator[Cluster]:
    """Yield the cluster, and then with each other place where pods of it were made here."""
    source = cluster.source
    assert isinstance(source, MadePods)
    yield cluster
    seen = set[tuple[str, str]]()
    with contextlib.suppress(MeshError):  # it was raised before: its context may be gone
        api, _ = maker_of(cluster, StatusLine())
        api.close()
        seen.add((api.place.context, api.place.namespace))
    for record in PodsRecords(os.environ).read():
        if record.cluster == cluster.name and (record.context, record.namespace) not in seen:
            seen.add((record.context, record.namespace))
            other = replace(source, context=record.context, namespace=record.namespace, place="")
            yield replace(cluster, source=other)


def _down(cluster: Cluster, notify: Notify, *, is_forced: bool, keeps_awaited: bool) -> bool:
    """Delete the pods of a cluster in one place; return False if there are none. Raises as ``down_pods``."""
    api, maker = maker_of(cluster, StatusLine(notify))
    with api:
        recorded = maker.recorded()
        root = maker.root()
        if root is None:
            maker.forget(recorded)
            elsewhere = [one for one in recorded if one.server not in ("", api.server)]
            if is_forced:
                return _give_up(cluster, elsewhere, notify) > 0
            _check_server(cluster, elsewhere, api.server)
            return False
        if keeps_awaited:
            check_not_awaited(cluster.name, recorded)
        if not is_forced:
            _check_idle(cluster, lambda: {pod.name for pod in maker.pods(root.metadata.uid) if _may_have_a_run(pod)})
        maker.delete(root)
    notify(f"{cluster.name}: its pods in namespace {api.place.namespace} are deleted")
    return True


def check_not_awaited(cluster: str, recorded: Sequence[PodsRecord]) -> None:
    """Raise InUse if a command of this machine makes or waits for pods now. recorded: of these pods"""
    records = PodsRecords(os.environ)
    if any(are_waited_for(records, one.place) for one in recorded):
        raise InUse(f"{cluster}: its pods are starting for another command", hint="wait for it, or end it with Ctrl-C")


def _check_idle(cluster: Cluster, running: Callable[[], set[str]]) -> None:
    """Raise as ``check_idle``, but not for pods that end while they are asked. running: returns those that run now"""
    asked = running()
    while asked:
        try:
            check_idle(MadePodSource().find(cluster, Purpose.ASK))
        except (InUse, NoHosts):
            left = running()
            if left >= asked:
                raise
            asked = left
        else:
            return


def _may_have_a_run(pod: Pod) -> bool:
    return state.runs(pod, render.CONTAINER) and not state.is_over(pod)
