"""Machines for jobs with ``tpu:``, made, looked at and deleted through the TPU API."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec.structs import replace

from mesh.app.evidence import HOSTS_FILE, HURRIED_S, generation_of, read_hosts, write_hosts
from mesh.app.evidence import Evidence as Evidence
from mesh.app.evidence import Pace as Pace
from mesh.app.silences import Silences
from mesh.config.tpu import TpuName
from mesh.core.cluster import Cluster, Host
from mesh.core.errors import MeshError
from mesh.core.paths import job_directory
from mesh.core.tpu import TpuSpec
from mesh.hosts.job import MACHINES
from mesh.hosts.tpu import gcloud, google
from mesh.hosts.tpu.client import NotAsked
from mesh.hosts.tpu.machines import Intent, Machine, Seen, labels_of
from mesh.hosts.tpu.nodes import TpuNode, with_nodes
from mesh.hosts.tpu.standing import How, Standing, standing
from mesh.jobs.events import MachinesAbsent, MachinesLost, MachinesPending, MachinesReady, Made, Refusal, Refused
from mesh.jobs.interfaces import MachineFacts, NoAnswer, Request
from mesh.jobs.orders import Delete, LookAtMachines, Make
from mesh.jobs.values import Generation, Job, Phase

ZONES_AT_ONCE = 8
REFUSALS = {google.Why.CAPACITY: Refusal.CAPACITY, google.Why.PERSON: Refusal.PERSON}


# ---- functions for jobs, `mesh up` and reports


def zone_of(project: str, zone: str, environ: Mapping[str, str]) -> gcloud.Zone:
    """Return a zone of a project, "" is gcloud's, with the address of the API. Raises UsageError."""
    return gcloud.zone_of(TpuName(name="tpu", project=project, zone=zone), environ)


def list_owned(project: str, zone: str, store: str = "", environ: Mapping[str, str] = os.environ) -> Seen:
    """Return the machines of a zone that mesh has made: all that have its label. Never raises for a silent API.

    store: only those of a store, by the six characters of its id
    Raises UsageError without a project.
    """
    from mesh.hosts.tpu.machines import STORE_LABEL

    seen = google.list_machines(zone_of(project, zone, environ), environ)
    labels = [(one, one.labels.get(STORE_LABEL, "")) for one in seen.machines]
    return replace(seen, machines=tuple(one for one, label in labels if label and store in ("", label)))


def make_machines(intent: Intent, environ: Mapping[str, str] = os.environ) -> None:
    """Ask for the machines of an intent, or find that they are asked for. Raises NotMade, UsageError, NotAsked."""
    google.make(intent, zone_of(intent.project, intent.zone, environ), environ)


def look_at_machines(
    intent: Intent, ids: Sequence[str] = (), environ: Mapping[str, str] = os.environ
) -> Standing | None:
    """Return how the machines of an intent are by one list; None if the API gave no complete answer.

    ids: of its nodes when they were ready. One look is no evidence for absence: see Evidence.
    """
    seen = google.list_machines(zone_of(intent.project, intent.zone, environ), environ)
    return standing(intent, seen, ids) if seen.complete else None


def delete_machines(intent: Intent, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Send the deletion of all that is there of an intent; return its names. Raises NotAsked."""
    return google.delete(intent, zone_of(intent.project, intent.zone, environ), environ)


def delete_machine(machine: Machine, environ: Mapping[str, str] = os.environ) -> None:
    """Send the deletion of one resource of a list. Raises NotAsked."""
    zone = zone_of(machine.project, machine.zone, environ)
    google.delete_machine(machine, environ, zone.endpoint)


def cluster_of_nodes(intent: Intent, nodes: Sequence[TpuNode], name: str, environ: Mapping[str, str]) -> Cluster:
    """Return the hosts of nodes as a cluster, each node a slice. Raises MeshError, and NotAsked for iap."""
    spec = intent.spec
    zone = zone_of(intent.project, intent.zone, environ)
    if spec.iap:
        nodes = google.with_tunnels(tuple(nodes), zone, environ)
    source = TpuName(
        name=intent.name,
        is_prefix=True,
        project=intent.project,
        zone=intent.zone,
        internal_ip=spec.internal_ip,
        iap=spec.iap,
        like=Host(name="", address="", user=spec.user, identity_file=spec.identity_file),
    )
    key = Path(gcloud.KEY).expanduser()
    cluster = Cluster(name=name, hosts=(), source=source)
    shown = str(key) if key.is_file() else ""
    return with_nodes(cluster, nodes, zone, key=shown, is_google=gcloud.is_google())


# ---- jobs


def intent_of(job: Job, generation: Generation) -> Intent:
    """Return the machines of a generation of a job."""
    spec = job.spec.machines.tpu
    assert spec is not None
    owner, number = made_for(job, generation)
    labels = labels_of(job.store, str(owner), number, job.spec.user)
    return Intent(spec=spec, project=spec.project, zone=generation.zone, name=generation.name, labels=labels)


def made_for(job: Job, generation: Generation) -> tuple[int, int]:
    """Return the job for which machines were made, and their number there: their labels and their file name these."""
    return generation.made_by or job.id, generation.made_number or generation.number


class JobMaker:
    """Makes, looks at and deletes the machines of jobs. See mesh.jobs.interfaces.Maker."""

    def __init__(self, pace: Pace | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self._pace, self._environ = pace or Pace(), environ
        self._evidence = Evidence(self._pace)
        self._lists: dict[gcloud.Zone, Seen] = {}
        self._silence = Silences(self._pace.probe_interval)
        self._waiting: set[str] = set()  # names of generations that wait in Google's queue

    def make(self, request: Request) -> Made | Refused:
        order = request.order
        assert isinstance(order, Make)
        generation = generation_of(request.job, order.generation)
        if not _spec(request.job).project:
            hint = "submit it again with tpu.project"
            return Refused(kind=Refusal.PERSON, why="the job has no project for its machines", hint=hint)
        if generation.phase is not Phase.ASKED:
            raise NoAnswer(f"{order.name} is {generation.phase.value}: it is not made any more")
        try:
            make_machines(intent_of(request.job, generation), self._environ)
        except google.NotMade as error:
            return Refused(kind=REFUSALS[error.why], why=f"{generation.zone}: {error}", hint=error.hint)
        except NotAsked as error:
            raise NoAnswer(str(error), hint=error.hint) from error
        except MeshError as error:
            return Refused(kind=Refusal.PERSON, why=str(error), hint=error.hint)
        return Made(generation=order.generation)

    def delete(self, request: Request) -> MachinesPending | MachinesAbsent:
        order = request.order
        assert isinstance(order, Delete)
        generation = generation_of(request.job, order.generation)
        if generation.phase not in (Phase.RELEASING, Phase.RELEASED):
            raise NoAnswer(f"{order.name} is {generation.phase.value}, and not condemned")
        try:
            names = delete_machines(intent_of(request.job, generation), self._environ)
        except NotAsked as error:
            raise NoAnswer(str(error), hint=error.hint) from error
        state = f"{', '.join(dict.fromkeys(names))}: being deleted" if names else "not listed any more"
        return MachinesPending(generation=order.generation, state=state)

    def look(self, requests: Sequence[Request]) -> Sequence[MachineFacts | None]:
        zones: dict[gcloud.Zone, list[Request]] = {}
        for request in requests:
            zones.setdefault(self._zone(request), []).append(request)
        with ThreadPoolExecutor(max(1, min(len(zones), ZONES_AT_ONCE)), "mesh-zone") as pool:
            seen = dict(zip(zones, pool.map(self._list, zones, zones.values()), strict=True))
        facts = [self._fact(request, seen[self._zone(request)]) for request in requests]
        for request, fact in zip(requests, facts, strict=True):
            assert isinstance(request.order, LookAtMachines)
            is_waiting = isinstance(fact, MachinesPending) and fact.is_waiting
            (self._waiting.add if is_waiting else self._waiting.discard)(request.order.name)
        return facts

    def _zone(self, request: Request) -> gcloud.Zone:
        order = request.order
        assert isinstance(order, LookAtMachines)
        generation = generation_of(request.job, order.generation)
        return zone_of(_spec(request.job).project, generation.zone, self._environ)

    def _list(self, zone: gcloud.Zone, requests: Sequence[Request]) -> Seen:
        """Return a list of a zone that is not old. requests: the looks at generations in it"""
        last = self._lists.get(zone)
        names = [one.order.name for one in requests if isinstance(one.order, LookAtMachines)]
        pause = self._pace.queue_interval if self._waiting.issuperset(names) else self._pace.list_interval
        if any(_is_hurried(one, time.time()) for one in requests):
            pause = min(pause, self._pace.hurried_interval)
        now = time.monotonic()
        if last is None or now >= last.time + pause or last.time < self._evidence.wanted_at(names) <= now:
            last = self._lists[zone] = google.list_machines(zone, self._environ)
        return last

    def _fact(self, request: Request, seen: Seen) -> MachineFacts | None:
        order = request.order
        assert isinstance(order, LookAtMachines)
        if not seen.complete:
            return None
        job, number = request.job, order.generation
        generation = generation_of(job, number)
        intent = intent_of(job, generation)
        found = standing(intent, seen, node_ids(generation.keys))
        if not self._evidence.is_proved(order.name, found, seen.time):
            return _pending(number, found)
        match found.how:
            case How.UNKNOWN:
                return None
            case How.ABSENT:
                return MachinesAbsent(generation=number, evidence=found.text)
            case How.LOST | How.MISSING:
                rest = [name for name in generation.hosts if name.rpartition("-w")[0] in found.alive]
                return MachinesLost(generation=number, evidence=found.text, rest=tuple(rest), is_ended=found.is_ended)
            case How.PENDING:
                return _pending(number, found)
        try:
            ready, cluster = self._ready(request, intent, found)
        except MeshError:  # it is asked again
            return None
        if generation.phase is not Phase.READY:
            return ready
        if found.sickness:
            return _pending(number, found)
        evidence = self._silence.evidence(job, order.name, cluster)
        return MachinesLost(generation=number, evidence=evidence, by_silence=True) if evidence else ready

    def _ready(self, request: Request, intent: Intent, found: Standing) -> tuple[MachinesReady, Cluster]:
        """Write the hosts of a generation into the job's directory, and return them with the report."""
        assert isinstance(request.order, LookAtMachines)
        number = request.order.generation
        cluster = cluster_of_nodes(intent, found.nodes, f"job:{request.job.id}", self._environ)
        if generation_of(request.job, number).phase is not Phase.READY:
            write_hosts(request.directory / HOSTS_FILE.format(number), cluster)
        elif request.job.kept_until and not (request.directory / MACHINES).exists():
            write_hosts(request.directory / MACHINES, cluster)  # for `mesh ssh job:ID`: no start writes it
        keys = tuple(
            f"{node.id}/{worker}" for node in found.nodes for worker in range(len(node.workers))
        )  # node ids are unique for all time
        hosts = tuple(host.name for host in cluster.hosts)
        return MachinesReady(generation=number, hosts=hosts, keys=keys), cluster


def node_ids(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the ids of the nodes that a generation had when it was ready, by the keys of its hosts.

    >>> node_ids(("17/0", "17/1", "18/0"))
    ('17', '18')
    """
    return tuple(dict.fromkeys(key.partition("/")[0] for key in keys))


def hosts_of_generation(job: Job, hosts: Sequence[str], environ: Mapping[str, str] = os.environ) -> Cluster:
    """Return the machines that a job has or had, by the names of their hosts.

    They are read from the job's directory; where another machine has written it, the API is asked.
    Raises NoAnswer.
    """
    generation = next((one for one in reversed(job.generations) if one.hosts == tuple(hosts)), None)
    if generation is None:
        raise NoAnswer(f"job {job.id} has no machines {', '.join(hosts)}")
    owner, number = made_for(job, generation)
    path = job_directory(environ, owner) / HOSTS_FILE.format(number)
    if (written := read_hosts(path)) is not None:
        return replace(written, name=f"job:{job.id}")
    intent = intent_of(job, generation)
    found = look_at_machines(intent, node_ids(generation.keys), environ)
    if found is None or found.how not in (How.READY, How.OTHER_COUNT, How.FEWER):
        raise NoAnswer(f"{generation.name}: {found.text if found else 'the TPU API gives no answer'}")
    return replace(cluster_of_nodes(intent, found.nodes, f"job:{job.id}", environ), source=None)


def _pending(generation: int, found: Standing) -> MachinesPending:
    text = found.sickness or found.text
    return MachinesPending(
        generation=generation,
        state=text,
        is_waiting=found.is_waiting,
        is_deleting=found.is_deleting,
        is_sick=bool(found.sickness),
        is_unlisted=found.how is How.ABSENT,
    )


def _is_hurried(request: Request, now: float) -> bool:
    """Return True while an answer that a job waits for may come soon: machines were just asked for, or condemned."""
    assert isinstance(request.order, LookAtMachines)
    generation = generation_of(request.job, request.order.generation)
    since = {Phase.ASKED: generation.granted, Phase.RELEASING: generation.condemned}
    return now < since.get(generation.phase, 0.0) + HURRIED_S


def _spec(job: Job) -> TpuSpec:
    spec = job.spec.machines.tpu
    assert spec is not None
    return spec
