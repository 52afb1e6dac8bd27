"""Pods that are made for jobs of mesh, each set under a name that is used once.

Every object has its name from that of the set, so that a request which is sent again makes nothing twice.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from mesh.backends.pods import state
from mesh.backends.pods.api import Api, ApiAway, ApiFailed, OtherServer, only
from mesh.backends.pods.happenings import events_of
from mesh.backends.pods.objects import Pod, PodEvent, Pods, Thing, Things
from mesh.config.podspec import MadePods
from mesh.core.cluster import Cluster, PodPlace
from mesh.core.errors import MeshError
from mesh.hosts.interfaces import How, NotMade, Stand, Why, Wish
from mesh.hosts.kubernetes import render
from mesh.hosts.kubernetes.choice import all_hosts, in_groups
from mesh.hosts.kubernetes.clearing import delete_pods, pending
from mesh.hosts.kubernetes.made import with_pods
from mesh.hosts.kubernetes.making import Maker, progress
from mesh.hosts.kubernetes.records import PodsRecords
from mesh.hosts.kubernetes.render import Made
from mesh.hosts.kubernetes.source import api_of
from mesh.hosts.kubernetes.user import user_here

PREFIX = "mesh-"  # of names of sets and of roots
EVENTS_AFTER_S = 5.0  # that a pod waits before its events are read
EVENTS_INTERVAL_S = 10.0
EVENTS_PODS = 4
QUOTA = "exceeded quota"  # in the words of an API server
FORBIDDEN, NOT_THERE, CONFLICT = 403, 404, 409  # statuses of HTTP
ASK_AGAIN = (CONFLICT, 429)
SERVER_FAILED = 500  # a status from which on the object may have been created all the same


class JobPods(Maker):
    """The pods of one job, without a wait for them, and without a record on this machine."""

    def make(self) -> None:
        """Create the root and every pod that is not there. Raises NotMade, ApiFailed, and ApiAway."""
        root, place = self._own_root(), self._api.place
        try:
            there = {(pod.metadata.labels or {}).get(render.INDEX) for pod in self.pods(root.metadata.uid)}
            missing = [index for index in range(self.made.source.nodes) if str(index) not in there]
            if missing:
                self._create(root, missing, [])
        except ApiFailed as error:
            raise refusal(error, place, has_rest=True) from error
        except ApiAway:
            raise
        except MeshError as error:  # an object beside the pods is not to be had
            raise NotMade(Why.PERSON, str(error), hint=error.hint, has_rest=True) from error

    def _own_root(self) -> Thing:
        """Return the root of the pods, which is created if it is not there. Raises NotMade, ApiFailed, and ApiAway."""
        path = self._api.path("configmaps")
        try:
            root = self.any_root()
            if root is None:
                with contextlib.suppress(_Exists):
                    root = self._created(path)
            root = root or self.any_root()
        except ApiFailed as error:
            raise refusal(error, self._api.place) from error
        if root is None:
            raise ApiAway(f"{self.made.root_name} is being deleted")
        if not is_ours(root, self.made):
            hint = f"{self._api.place.kubectl('get configmap')} {self.made.root_name} -o yaml"
            raise NotMade(Why.PERSON, f"{self.made.root_name} exists, and is not of this job", hint=hint)
        return root

    def _created(self, path: str) -> Thing:
        try:
            return self._api.create(path, render.root_object(self.made))
        except ApiFailed as error:
            if error.status == CONFLICT:
                raise _Exists(str(error)) from error
            raise


class _Exists(MeshError):
    """An object of the name is there."""


def refusal(error: ApiFailed, place: PodPlace, *, has_rest: bool = False) -> MeshError:
    """Return what a refused request means: NotMade, or the error itself where it may be sent again."""
    if error.status in ASK_AGAIN or error.status >= SERVER_FAILED:
        return error
    if error.status == NOT_THERE:
        hint = "kubectl get namespaces"
        return NotMade(Why.PERSON, f"there is no namespace {place.namespace}", hint=hint, has_rest=has_rest)
    is_full = error.status == FORBIDDEN and QUOTA in str(error)
    return NotMade(Why.CAPACITY if is_full else Why.PERSON, str(error), hint=error.hint, has_rest=has_rest)


class PodMaker:
    """Makes, finds and deletes pods of jobs. See mesh.hosts.interfaces.HostMaker."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._records = PodsRecords(environ)
        self._apis: dict[PodPlace, Api] = {}
        self._events: dict[str, tuple[float, tuple[PodEvent, ...]]] = {}  # by UIDs of pods: when, and which

    def make(self, wish: Wish) -> None:
        try:
            with self._api(wish) as api:
                JobPods(api, made_of(wish), self._records).make()
        except OtherServer as error:
            raise NotMade(Why.PERSON, str(error), hint=error.hint) from error

    def look(self, wishes: Sequence[Wish]) -> Sequence[Stand | None]:
        by_place: dict[PodPlace, list[Wish]] = {}
        for wish in wishes:
            by_place.setdefault(_place(wish), []).append(wish)
        found: dict[str, Stand | None] = {}
        for some in by_place.values():
            try:
                with self._api(some[0]) as api:
                    roots, pods = _listed(api, some)
                    for wish in some:
                        made = made_of(wish)
                        own = [pod for pod in pods if is_ours(pod, made)]
                        named = [one for one in roots if one.metadata.name == made.root_name]
                        root = next((one for one in named if is_ours(one, made)), None)
                        found[wish.name] = self._stand(api, wish, root, in_order(own))
            except MeshError as error:
                silent = Stand(how=How.UNKNOWN, text=str(error))
                found |= {wish.name: silent for wish in some if wish.name not in found}
        return [found[wish.name] for wish in wishes]

    def delete(self, wish: Wish) -> Sequence[str]:
        with self._api(wish) as api:
            made = made_of(wish)
            roots, pods = _listed(api, [wish])
            pods = [pod for pod in pods if is_ours(pod, made)]
            delete_pods(api, [pod for pod in pods if not pod.metadata.deletion_timestamp])
            for root in roots:
                if root.metadata.name == made.root_name and is_ours(root, made):
                    api.delete(api.path("configmaps", root.metadata.name), only(root.metadata.uid))
            return [f"pod {pod.name}" for pod in pods]

    def fixed(self, cluster: Cluster) -> Cluster:
        """Return a cluster whose pods are made in the context and namespace of now, by the server of now.

        Raises UsageError, and MeshError.
        """
        source = cluster.source
        assert isinstance(source, MadePods)
        with api_of(PodPlace(context=source.context, namespace=source.namespace), source.place) as api:
            place = api.place
            fixed = replace(source, context=place.context, namespace=place.namespace, server=place.server)
            return replace(cluster, source=fixed)

    def knows(self, cluster: Cluster) -> bool:
        return True

    @contextlib.contextmanager
    def _api(self, wish: Wish) -> Iterator[Api]:
        """Yield the API of a wish, whose connections stay open for the next call; an error closes them."""
        place, source = _place(wish), wish.cluster.source
        assert isinstance(source, MadePods)
        if place not in self._apis:
            self._apis[place] = api_of(place, source.place)
        try:
            yield self._apis[place]
        except MeshError:
            self._apis.pop(place).close()
            raise

    def _stand(self, api: Api, wish: Wish, root: Thing | None, pods: Sequence[Pod]) -> Stand:
        """Return how the pods of a wish are. root, pods: all that is there of it"""
        if root is None and not pods:
            how = How.ABSENT if wish.is_unsure else How.ENDED  # a request of a hand before may be under way
            return Stand(how=how, text=f"{wish.name} has no pods")
        if wish.condemned:
            is_deleting = bool(pods) and all(pod.metadata.deletion_timestamp for pod in pods)
            text = f"{len(pods)} pods are being deleted" if pods else f"{wish.name} is being deleted"
            return Stand(how=How.PENDING, text=text, is_deleting=is_deleting)
        if (lost := lost_of(wish, root, pods)) is not None:
            return lost
        waiting = [pod for pod in pods if not state.runs(pod, render.CONTAINER)]
        if not waiting and root is not None:
            cluster = with_pods(wish.cluster, api, root.metadata.uid, list(pods))
            keys = tuple(pod.metadata.uid for pod in pods)
            return Stand(how=How.READY, text=f"{len(pods)} pods run", cluster=cluster, keys=keys)
        reasons = [state.waits_for(pod, self._events_of(api, pod), render.CONTAINER) for pod in waiting[:EVENTS_PODS]]
        reasons += [state.waits_for(pod, (), render.CONTAINER) for pod in waiting[EVENTS_PODS:]]
        text = progress(len(pods), len(pods) - len(waiting), [text for text, _ in reasons])
        if any(is_final for _, is_final in reasons):
            hint = f"change kubernetes: of {wish.cluster.name} in cluster.yaml, and submit it again"
            return Stand(how=How.LOST, text=text, is_final=True, hint=hint)
        are_queued = all(not pod.spec.node_name for pod in waiting)
        return Stand(how=How.PENDING, text=text, is_waiting=are_queued)

    def _events_of(self, api: Api, pod: Pod) -> Sequence[PodEvent]:
        """Return the events of a pod that waits, as they were a moment ago."""
        if pending(pod) < EVENTS_AFTER_S:
            return ()
        read, found = self._events.get(pod.metadata.uid, (-EVENTS_INTERVAL_S, ()))
        if time.monotonic() >= read + EVENTS_INTERVAL_S:
            found = tuple(events_of(api, pod))
            self._events[pod.metadata.uid] = time.monotonic(), found
        return found


def lost_of(wish: Wish, root: Thing | None, pods: Sequence[Pod]) -> Stand | None:
    """Return that some pods of a wish are gone, with the reason; None if all are there. Pure."""
    source = wish.cluster.source
    assert isinstance(source, MadePods)
    over = [pod for pod in pods if state.has_ended(pod, render.CONTAINER)]
    there = [pod for pod in pods if pod not in over]
    rest = tuple(host.name for host in in_groups(there, all_hosts(there)))
    if over:
        text = f"{over[0].name}: {state.end_of(over[0], render.CONTAINER)}"
        is_ended = len(over) == len(pods) == source.nodes and all(pod.status.phase in state.ENDED for pod in pods)
        return Stand(how=How.LOST, text=text, rest=rest, is_ended=is_ended)
    new = [pod for pod in pods if wish.keys and pod.metadata.uid not in wish.keys]
    if root is None or len(pods) < source.nodes or new:
        text = f"{len(pods) - len(new)} of {source.nodes} pods are there: others were deleted"
        return Stand(how=How.LOST, text=text, rest=rest)
    return None


def made_of(wish: Wish) -> Made:
    """Return the pods of a wish, as they are rendered."""
    source = wish.cluster.source
    assert isinstance(source, MadePods)
    name = wish.name.removeprefix(PREFIX)
    return Made(cluster=name, user=wish.user or user_here(), source=source, python=wish.cluster.python, mark=wish.name)


def is_ours(thing: Pod | Thing, made: Made) -> bool:
    """Return True if an object was made for a set of pods, by its labels."""
    labels = thing.metadata.labels or {}
    wanted = {render.CLUSTER: render.safe(made.cluster), render.USER: render.safe(made.user)}
    return all(labels.get(key) == value for key, value in wanted.items())


def in_order(pods: Sequence[Pod]) -> list[Pod]:
    """Return pods by their index."""
    return sorted(pods, key=lambda pod: int((pod.metadata.labels or {}).get(render.INDEX, "0")))


def _place(wish: Wish) -> PodPlace:
    source = wish.cluster.source
    assert isinstance(source, MadePods)
    container = render.CONTAINER
    return PodPlace(context=source.context, namespace=source.namespace, container=container, server=source.server)


def _listed(api: Api, wishes: Sequence[Wish]) -> tuple[Sequence[Thing], Sequence[Pod]]:
    """Return the roots and the pods of some wishes. Raises MeshError."""
    names = ",".join(render.safe(made_of(wish).cluster) for wish in wishes)
    selector = {"labelSelector": f"{render.CLUSTER} in ({names})"}
    roots = api.get(api.path("configmaps"), Things, selector).items or ()
    return roots, api.get(api.pods, Pods, selector).items or ()
