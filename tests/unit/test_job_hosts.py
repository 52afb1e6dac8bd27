"""Hosts of jobs that a scheduler gives: what is read of its answers, and what follows. No scheduler is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from mesh.api.submitting import Wanted, resolved_job
from mesh.app.evidence import Pace
from mesh.app.jobhosts import CarrierMaker, wish_of
from mesh.backends.pods.api import ApiFailed
from mesh.backends.pods.objects import Pod, Thing
from mesh.backends.slurm.commands import Job as SlurmJob
from mesh.config.carried import JOB_HOLD_S, carrier_spec, with_source
from mesh.config.clusters import find_cluster, load_clusters
from mesh.config.podspec import MadePods
from mesh.config.slurm import MadeAllocation
from mesh.core.cluster import Cluster, Host, PodPlace
from mesh.core.errors import UsageError
from mesh.core.job import JobSpec, MachinesSpec
from mesh.hosts.interfaces import How, NotMade, Stand, Why, Wish
from mesh.hosts.kubernetes.jobhosts import lost_of, made_of, refusal
from mesh.hosts.slurm.jobhosts import stand_of
from mesh.jobs import events
from mesh.jobs.coding import decode, encode
from mesh.jobs.decide import decide
from mesh.jobs.events import AnyEvent, MachinesAbsent, MachinesLost, MachinesPending, MachinesReady, Refusal
from mesh.jobs.generations import generation_name, overdue_at
from mesh.jobs.interfaces import Request
from mesh.jobs.orders import Delete, LookAtMachines, Make
from mesh.jobs.values import Job, Phase, State, row_of
from tests.job_histories import job_spec

CLUSTERS = """\
gpus: {kubernetes: {image: "team/train:3", nodes: 2, context: prod, namespace: team, resources: {cpu: 1}}}
big: {gateway: login1, slurm: {nodes: 4, partition: gpu, time: 60, start_timeout: 5m, hold: 2m}}
there: {kubernetes: {selector: app=x}}
mine: {slurm: {jobid: 12}}
"""
ONCE = Pace(absent_again=0.0, lost_again=0.0, list_interval=0.0, queue_interval=0.0, hurried_interval=0.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTERS)
    return path


def cluster_of(file: Path, name: str) -> Cluster:
    return find_cluster(name, load_clusters(file, required=True))


def spec_on(file: Path, name: str, maker: str) -> JobSpec:
    """Return a job on a cluster, as it is submitted."""
    carrier = carrier_spec(cluster_of(file, name))
    return replace(
        job_spec("failure"), name="Train it", machines=MachinesSpec(cluster=name, maker=maker, carrier=carrier)
    )


def lived(spec: JobSpec, *history: AnyEvent) -> Job:
    """Return a job after some events, a second apart."""
    job: Job | None = None
    first = events.Submitted(job=7, store="abc123", spec=spec)
    for number, event in enumerate((first, *history)):
        job, _ = decide(job, msgspec.structs.replace(event, time=1000.0 + number))
    assert job is not None
    return job


@pytest.mark.parametrize(("name", "maker"), [("gpus", "kubernetes"), ("big", "slurm")])
def test_a_request_survives_the_store_and_waits_long_for_the_steward(file: Path, name: str, maker: str) -> None:
    cluster = cluster_of(file, name)
    carrier = decode(encode(spec_on(file, name, maker)), JobSpec).machines.carrier
    assert carrier is not None
    found = with_source(maker, carrier).source
    assert isinstance(found, MadePods | MadeAllocation)
    assert found.hold == JOB_HOLD_S
    assert isinstance(cluster.source, MadePods | MadeAllocation)
    assert replace(found, hold=cluster.source.hold, start_timeout=cluster.source.start_timeout) == cluster.source
    assert carrier.start_timeout == cluster.source.start_timeout


def test_a_request_of_another_version_is_refused_in_one_message(file: Path) -> None:
    carrier = replace(carrier_spec(cluster_of(file, "gpus")), source={"nodes": "many"})
    with pytest.raises(UsageError, match="gpus: its description is of another version of mesh"):
        with_source("kubernetes", carrier)


def test_names_are_of_the_job_and_its_generation(file: Path) -> None:
    assert generation_name(spec_on(file, "gpus", "kubernetes"), "abc123", 7, 2) == "mesh-train-it-abc123-7-g2"


BAD = {
    "machines: there\nrun: x\n": "job.yaml:1: machines: there: jobs make their own hosts, and use no existing set",
    "machines: mine\nrun: x\n": "machines: mine: jobs make their own hosts, and use no existing allocation",
    "machines: 'big:0'\nrun: x\n": "machines: big:0: a job gets all hosts of big, and no others",
    "machines: 'big,@h1'\nrun: x\n": "a job gets all hosts of big, and no others",
    "machines: {cluster: big, hosts: 5}\nrun: x\n": "hosts: big has 4, and not 5",
    "machines: big\ncommand: {run: x, workers: [4]}\n": "workers: no host 4: the job has 4",
    "machines: {cluster: big, hosts: 2}\ncommand: {run: x, workers: [2]}\n": "workers: no host 2: the job has 2",
    "machines: big\nrun: x\ncost: {limit: 3}\n": "is for machines that are made by tpu:",
}


@pytest.mark.parametrize("text", BAD)
def test_each_bad_request_has_one_message(file: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    Path("job.yaml").write_text(text)
    with pytest.raises(UsageError) as caught:
        resolved_job(Wanted(file="job.yaml", clusters_file=str(file)))
    assert BAD[text] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_fewer_hosts_than_the_cluster_has_are_asked_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    Path("job.yaml").write_text("machines: {cluster: big, hosts: 2}\nrun: x\n")
    spec, cluster = resolved_job(Wanted(file="job.yaml", clusters_file=str(file)))
    assert cluster is None
    carrier = spec.machines.carrier
    assert carrier is not None
    assert (spec.machines.maker, spec.machines.units, carrier.nodes) == ("slurm", 2, 2)
    assert carrier.asked == "2 nodes of Slurm, partition gpu, time 60"


# ---- what a scheduler shows

SLURM_STATES = {
    "waits": (SlurmJob(job="7", state="PENDING", reason="Priority"), How.PENDING, "jobs of a higher priority"),
    "never": (SlurmJob(job="7", state="PENDING", reason="PartitionNodeLimit"), How.LOST, "cannot begin"),
    "no holder": (SlurmJob(job="7", state="RUNNING"), How.PENDING, "does not listen yet"),
    "ready": (SlurmJob(job="7", state="RUNNING", comment="mesh h:5", nodes="h[1-2]"), How.READY, "runs on h[1-2]"),
    "is ending": (SlurmJob(job="7", state="RUNNING", comment="mesh ended: its time is up"), How.LOST, "its time is up"),
    "completing": (SlurmJob(job="7", state="COMPLETING", comment="mesh h:5"), How.LOST, "it was cancelled"),
    "ended": (SlurmJob(job="7", state="NODE_FAIL"), How.ENDED, "one of its nodes has failed"),
    "preempted": (SlurmJob(job="7", state="PREEMPTED"), How.ENDED, "it was preempted"),
    "unknown": (None, How.ABSENT, "Slurm has no job"),
}


@pytest.mark.parametrize("name", SLURM_STATES)
def test_states_of_slurm(name: str) -> None:
    job, how, text = SLURM_STATES[name]
    found = stand_of("mesh-x-abc123-7-g1", job)
    assert (found.how, text in found.text) == (how, True), found
    assert found.is_waiting == (name == "waits")
    assert found.is_final == (name == "never")


def pod(name: str, uid: str, phase: str = "Running", **status: object) -> Pod:
    container = {"name": "main", "state": {"running": {}}}
    fields = {
        "metadata": {"name": name, "uid": uid},
        "spec": {"containers": [{"name": "main"}], "restartPolicy": "Never", "nodeName": "n1"},
        "status": {"phase": phase, "containerStatuses": [container], **status},
    }
    return msgspec.convert(fields, Pod)


def wish(file: Path, *keys: str) -> Wish:
    cluster = cluster_of(file, "gpus")
    return Wish(name="mesh-x-abc123-7-g1", cluster=cluster, directory=file.parent, keys=keys)


def test_pods_that_are_gone_are_a_loss_with_its_reason(file: Path) -> None:
    one, two = pod("p-0", "a"), pod("p-1", "b")
    root = Thing()
    assert lost_of(wish(file, "a", "b"), root, [one, two]) is None
    evicted = pod("p-1", "b", "Failed", reason="Evicted", message="The node was low on memory.")
    lost = lost_of(wish(file, "a", "b"), root, [one, evicted])
    assert lost is not None
    assert (lost.how, lost.text, lost.rest) == (How.LOST, "p-1: evicted: The node was low on memory.", ("p-0",))
    for pods in ([one], [one, pod("p-1", "c")]):
        gone = lost_of(wish(file, "a", "b"), root, pods)
        assert gone is not None
        assert gone.text == "1 of 2 pods are there: others were deleted"


def test_a_refusal_of_the_api_is_a_full_quota_a_person_s_matter_or_no_answer(file: Path) -> None:
    place = PodPlace(namespace="team")
    quota = refusal(ApiFailed('pods "x" is forbidden: exceeded quota: small', status=403), place, has_rest=True)
    assert isinstance(quota, NotMade)
    assert (quota.why, quota.has_rest) == (Why.CAPACITY, True)
    for status in (400, 403, 404, 422):
        refused = refusal(ApiFailed("no", status=status), place)
        assert isinstance(refused, NotMade)
        assert refused.why is Why.PERSON
    for status in (409, 429, 500, 503):
        assert not isinstance(refusal(ApiFailed("no", status=status), place), NotMade)
    assert made_of(wish(file)).mark == wish(file).name


# ---- what follows


class Scripted:
    """A source whose answers are given."""

    def __init__(self, *stands: Stand | None) -> None:
        self._stands = list(stands)

    def make(self, wish: Wish) -> None:
        raise NotMade(Why.CAPACITY, "exceeded quota", has_rest=True)

    def look(self, wishes: Sequence[Wish]) -> Sequence[Stand | None]:
        return [self._stands.pop(0) for _ in wishes]

    def delete(self, wish: Wish) -> Sequence[str]:
        return ["allocation 7"]

    def fixed(self, cluster: Cluster) -> Cluster:
        return cluster

    def knows(self, cluster: Cluster) -> bool:
        return True


def request(job: Job, directory: Path, order: Make | Delete | LookAtMachines) -> Request:
    return Request(op=1, order=order, job=job, directory=directory)


def test_looks_become_facts_and_only_the_second_one_proves_a_loss(file: Path) -> None:
    job = lived(spec_on(file, "big", "slurm"), events.Granted(), events.Made(op=1, generation=1))
    look = request(job, file.parent, LookAtMachines(generation=1, name="mesh-train-it-abc123-7-g1"))
    cluster = Cluster(name="x", hosts=(Host(name="h1", address="h1"),))
    lost = Stand(how=How.LOST, text="allocation 7: its time is up", is_final=True, hint="sinfo")
    maker = CarrierMaker(
        Scripted(
            None,
            Stand(how=How.PENDING, text="waits", is_waiting=True),
            Stand(how=How.READY, text="runs", cluster=cluster, keys=("7/h1",)),
            lost,
            lost,
            Stand(how=How.ENDED, text="it has ended"),
        ),
        ONCE,
    )
    found = [maker.look([look])[0] for _ in range(6)]
    assert found[0] is None
    assert found[1] == MachinesPending(generation=1, state="waits", is_waiting=True)
    assert found[2] == MachinesReady(generation=1, hosts=("h1",), keys=("7/h1",))
    assert isinstance(found[3], MachinesPending)
    assert found[4] == MachinesLost(generation=1, evidence=lost.text, is_final=True, hint="sinfo")
    assert found[5] == MachinesAbsent(generation=1, evidence="it has ended")


def test_condemned_hosts_are_neither_lost_nor_ready_again(file: Path) -> None:
    stop = events.Wished(wanted=events.Wanted.STOP)
    job = lived(spec_on(file, "big", "slurm"), events.Granted(), events.Made(op=1, generation=1), stop)
    assert job.generation is not None
    assert job.generation.phase is Phase.RELEASING
    look = request(job, file.parent, LookAtMachines(generation=1, name=job.generation.name))
    lost = Stand(how=How.LOST, text="gone", is_deleting=True)
    maker = CarrierMaker(Scripted(lost, lost), ONCE)
    for _ in range(2):
        assert maker.look([look]) == [MachinesPending(generation=1, state="gone", is_deleting=True)]
    deleted = maker.delete(request(job, file.parent, Delete(generation=1, name=job.generation.name)))
    assert deleted == MachinesPending(generation=1, state="allocation 7: being deleted")


def test_a_refusal_that_leaves_hosts_has_them_deleted_before_the_next_request(file: Path) -> None:
    job = lived(spec_on(file, "gpus", "kubernetes"), events.Granted())
    answer = CarrierMaker(Scripted(), ONCE).make(request(job, file.parent, Make(generation=1, name="x")))
    assert isinstance(answer, events.Refused)
    assert (answer.kind, answer.has_rest) == (Refusal.CAPACITY, True)
    job = lived(spec_on(file, "gpus", "kubernetes"), events.Granted(), replace(answer, op=1))
    assert job.state is State.RECOVERING
    assert [type(one.order) for one in job.open] == [Delete]


def test_hosts_that_can_never_be_had_hold_the_job_once_they_are_condemned(file: Path) -> None:
    never = MachinesLost(generation=1, evidence="cannot pull x", is_final=True, hint="change it")
    job = lived(spec_on(file, "gpus", "kubernetes"), events.Granted(), events.Made(op=1, generation=1), never)
    assert (job.state, job.reason, job.hint) == (State.HELD, "cannot pull x", "change it")
    assert [type(one.order) for one in job.open] == [Delete]


def test_the_wait_in_the_queue_has_no_limit_and_the_start_has_one(file: Path) -> None:
    history: list[AnyEvent] = [events.Granted(), events.Made(op=1, generation=1)]
    waiting = MachinesPending(generation=1, state="waits", is_waiting=True)
    assert overdue_at(lived(spec_on(file, "big", "slurm"), *history, waiting)) == float("inf")
    begun = lived(spec_on(file, "big", "slurm"), *history, MachinesPending(generation=1, state="runs"))
    assert overdue_at(begun) == 1003.0 + 300.0


def test_a_job_shows_the_name_of_its_pods_and_the_number_of_its_allocation(file: Path) -> None:
    history = [events.Granted(), events.Made(op=1, generation=1)]
    ready = MachinesReady(generation=1, hosts=("h1", "h2"), keys=("12/h1", "12/h2"))
    name = "mesh-train-it-abc123-7-g1"
    for cluster, maker, given in (("big", "slurm", f"allocation 12 ({name})"), ("gpus", "kubernetes", name)):
        row = row_of(lived(spec_on(file, cluster, maker), *history, ready))
        assert (row.maker, row.machines, row.given) == (maker, ("h1", "h2"), given)


def test_a_request_without_an_answer_is_unsure_until_it_is_found(file: Path) -> None:
    spec = spec_on(file, "big", "slurm")
    unsure = lived(spec, events.Granted(), events.TakenOver(epoch=2))
    found = lived(spec, events.Granted(), events.TakenOver(epoch=2), events.Made(op=1, generation=1))
    for job, is_unsure in ((unsure, True), (found, False)):
        assert job.generation is not None
        order = LookAtMachines(generation=1, name=job.generation.name)
        assert wish_of(request(job, file.parent, order), job.generation).is_unsure is is_unsure
