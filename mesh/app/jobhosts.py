"""Hosts for jobs that a scheduler gives: pods and allocations, made, looked at and deleted by their source."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mesh.app.evidence import (
    HOSTS_FILE,
    HURRIED_S,
    Evidence,
    Pace,
    generation_of,
    read_hosts,
    write_hosts,
)
from mesh.config.carried import with_source
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError, UsageError
from mesh.core.paths import job_directory
from mesh.hosts.interfaces import HostMaker, How, NotMade, Stand, Why, Wish
from mesh.jobs.events import (
    MachinesAbsent,
    MachinesLost,
    MachinesPending,
    MachinesReady,
    Made,
    NotAsked,
    Refusal,
    Refused,
)
from mesh.jobs.interfaces import MachineFacts, Maker, NoAnswer, Request
from mesh.jobs.orders import Delete, LookAtMachines, Make
from mesh.jobs.values import Generation, Job, Phase

QUEUE_INTERVAL_S = 10.0  # between two looks at hosts that wait in a scheduler's queue
REFUSALS = {Why.CAPACITY: Refusal.CAPACITY, Why.PERSON: Refusal.PERSON}


def host_maker(name: str, environ: Mapping[str, str] = os.environ) -> HostMaker:
    """Return the source of a maker's name."""
    if name == "slurm":
        from mesh.hosts.slurm.jobhosts import AllocationMaker

        return AllocationMaker(environ)
    from mesh.hosts.kubernetes.jobhosts import PodMaker

    return PodMaker(environ)


class Makers:
    """The makers of all kinds of machines, by the name that a job has. See mesh.jobs.interfaces.Maker."""

    def __init__(self, pace: Pace | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self._pace, self._environ = pace or Pace(), environ
        self._makers: dict[str, Maker] = {}

    def make(self, request: Request) -> Made | Refused:
        return self._of(request).make(request)

    def delete(self, request: Request) -> MachinesPending | MachinesAbsent:
        return self._of(request).delete(request)

    def look(self, requests: Sequence[Request]) -> Sequence[MachineFacts | None]:
        by_name: dict[str, list[Request]] = {}
        for request in requests:
            by_name.setdefault(request.job.spec.machines.maker, []).append(request)
        facts: dict[tuple[int, str], MachineFacts | None] = {}
        for some in by_name.values():
            found = self._of(some[0]).look(some)
            facts |= {_key(request): fact for request, fact in zip(some, found, strict=True)}
        return [facts[_key(request)] for request in requests]

    def _of(self, request: Request) -> Maker:
        name = request.job.spec.machines.maker
        if name not in self._makers:
            if request.job.spec.machines.carrier is not None:
                self._makers[name] = CarrierMaker(host_maker(name, self._environ), self._pace)
            else:
                from mesh.app.machines import JobMaker

                self._makers[name] = JobMaker(self._pace, self._environ)
        return self._makers[name]


def _key(request: Request) -> tuple[int, str]:
    assert isinstance(request.order, LookAtMachines)
    return request.job.id, request.order.name


class _Look(Struct, frozen=True):
    """The last look at the hosts of a generation."""

    stand: Stand | None
    asked: float  # monotonic


class CarrierMaker:
    """Makes, looks at and deletes the hosts of jobs by a source. See mesh.jobs.interfaces.Maker."""

    def __init__(self, source: HostMaker, pace: Pace) -> None:
        self._source, self._pace = source, pace
        self._evidence = Evidence(pace)
        self._looks: dict[str, _Look] = {}  # by names of generations

    def make(self, request: Request) -> Made | Refused:
        order = request.order
        assert isinstance(order, Make)
        generation = generation_of(request.job, order.generation)
        if generation.phase is not Phase.ASKED:
            raise NoAnswer(f"{order.name} is {generation.phase.value}: it is not made any more")
        try:
            self._source.make(wish_of(request, generation))
        except NotMade as error:
            return Refused(kind=REFUSALS[error.why], why=str(error), hint=error.hint, has_rest=error.has_rest)
        except UsageError as error:
            return Refused(kind=Refusal.PERSON, why=str(error), hint=error.hint)
        except MeshError as error:
            raise NoAnswer(str(error), hint=error.hint) from error
        return Made(generation=order.generation)

    def delete(self, request: Request) -> MachinesPending | MachinesAbsent:
        order = request.order
        assert isinstance(order, Delete)
        generation = generation_of(request.job, order.generation)
        if generation.phase not in (Phase.RELEASING, Phase.RELEASED):
            raise NoAnswer(f"{order.name} is {generation.phase.value}, and not condemned")
        try:
            names = self._source.delete(wish_of(request, generation))
        except MeshError as error:
            raise NoAnswer(str(error), hint=error.hint) from error
        state = f"{', '.join(names)}: being deleted" if names else "not listed any more"
        return MachinesPending(generation=order.generation, state=state)

    def look(self, requests: Sequence[Request]) -> Sequence[MachineFacts | None]:
        due = [request for request in requests if self._is_due(request)]
        asked = time.monotonic()
        wishes: list[Wish] = []
        for request in due:
            self._looks[_key(request)[1]] = _Look(None, asked)
            with contextlib.suppress(UsageError):  # of one job, which must not keep others without an answer
                wishes.append(_wish(request))
        stands = self._source.look(wishes) if wishes else ()
        for wish, stand in zip(wishes, stands, strict=True):
            self._looks[wish.name] = _Look(stand, asked)
        return [self._fact(request, self._looks[_key(request)[1]]) for request in requests]

    def _is_due(self, request: Request) -> bool:
        """Return True if the last look at a generation is old, or had no answer."""
        name, generation = _key(request)[1], _generation(request)
        last, now = self._looks.get(name), time.monotonic()
        if last is None or last.stand is None or last.stand.how is How.UNKNOWN:
            return True
        if last.asked < self._evidence.wanted_at([name]) <= now:
            return True
        pause = self._pace.list_interval
        if last.stand.is_waiting:
            pause = min(QUEUE_INTERVAL_S, self._pace.queue_interval)
        since = {Phase.ASKED: generation.granted, Phase.RELEASING: generation.condemned}
        if time.time() < since.get(generation.phase, 0.0) + HURRIED_S:
            pause = min(pause, self._pace.hurried_interval)
        return now >= last.asked + pause

    def _fact(self, request: Request, look: _Look) -> MachineFacts | None:
        stand, generation = look.stand, _generation(request)
        number = generation.number
        if stand is None:
            return None
        if stand.how is How.UNKNOWN:
            return NotAsked(what=request.job.spec.machines.maker, why=stand.text)
        is_proved = self._evidence.is_proved(generation.name, stand, look.asked)
        is_condemned = generation.phase is Phase.RELEASING
        match stand.how:
            case How.ABSENT | How.ENDED if is_proved:
                return MachinesAbsent(generation=number, evidence=stand.text)
            case How.LOST | How.MISSING if is_proved and not is_condemned:
                return MachinesLost(
                    generation=number,
                    evidence=stand.text,
                    rest=stand.rest,
                    is_ended=stand.is_ended,
                    is_final=stand.is_final,
                    hint=stand.hint,
                )
            case How.READY if stand.cluster is not None and not is_condemned:
                if generation.phase is not Phase.READY:
                    cluster = replace(stand.cluster, name=f"job:{request.job.id}")
                    write_hosts(request.directory / HOSTS_FILE.format(number), cluster)
                hosts = tuple(host.name for host in stand.cluster.hosts)
                return MachinesReady(generation=number, hosts=hosts, keys=stand.keys)
        return MachinesPending(
            generation=number, state=stand.text, is_waiting=stand.is_waiting, is_deleting=stand.is_deleting
        )


def wish_of(request: Request, generation: Generation) -> Wish:
    """Return the hosts of a generation as their source makes them. Raises UsageError."""
    machines = request.job.spec.machines
    assert machines.carrier is not None
    return Wish(
        name=generation.name,
        cluster=with_source(machines.maker, machines.carrier),
        directory=request.directory,
        user=request.job.spec.user,
        keys=generation.keys,
        is_unsure=generation.is_unsure and not generation.asked,
        condemned=generation.condemned,
    )


def hosts_of_made(job: Job, hosts: Sequence[str], environ: Mapping[str, str] = os.environ) -> Cluster:
    """Return the hosts that were made for a job, by their names.

    They are read from the job's directory; where another machine has written it, their source is asked.
    Raises NoAnswer.
    """
    if job.spec.machines.carrier is None:
        from mesh.app.machines import hosts_of_generation

        return hosts_of_generation(job, hosts, environ)
    generation = next((one for one in reversed(job.generations) if one.hosts == tuple(hosts)), None)
    if generation is None:
        raise NoAnswer(f"job {job.id} has no machines {', '.join(hosts)}")
    source = host_maker(job.spec.machines.maker, environ)
    directory = job_directory(environ, job.id)
    found = read_hosts(directory / HOSTS_FILE.format(generation.number))
    if found is None or not source.knows(found):
        order = LookAtMachines(generation=generation.number, name=generation.name)
        (stand,) = source.look([_wish(Request(op=0, order=order, job=job, directory=directory))])
        found = stand.cluster if stand is not None else None
        if found is None:
            raise NoAnswer(f"{generation.name}: {stand.text if stand else 'there is no answer'}")
    return replace(found, name=f"job:{job.id}", source=None)


def _generation(request: Request) -> Generation:
    assert isinstance(request.order, LookAtMachines)
    return generation_of(request.job, request.order.generation)


def _wish(request: Request) -> Wish:
    return wish_of(request, _generation(request))
