"""Pods of jobs, and of commands, whose API server refuses requests or is another one. The server is the stand-in."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from mesh.api.podhold import down_pods
from mesh.app.evidence import Pace
from mesh.app.jobhosts import CarrierMaker
from mesh.backends.pods.api import Api, OtherServer
from mesh.config.carried import carrier_spec
from mesh.config.clusters import find_cluster, load_clusters
from mesh.config.podspec import MadePods
from mesh.core.cluster import PodPlace
from mesh.core.errors import MeshError
from mesh.core.job import MachinesSpec
from mesh.core.statusline import StatusLine
from mesh.hosts.interfaces import How, NotMade, Why, Wish
from mesh.hosts.kubernetes.jobhosts import PodMaker
from mesh.hosts.kubernetes.made import maker_of
from mesh.hosts.kubernetes.records import PodsRecords
from mesh.jobs import events
from mesh.jobs.interfaces import Request, event_of
from mesh.jobs.orders import LookAtMachines, Make
from mesh.jobs.values import Phase, State
from tests.job_histories import History, job_spec
from tests.kubecluster.alone import stand_in_alone
from tests.kubecluster.stand_in import Refused, StandIn
from tests.lab import Lab

ONCE = Pace(absent_again=0.0, lost_again=0.0, list_interval=0.0, queue_interval=0.0, hurried_interval=0.0)
NAME = "mesh-train-abc123-7-g1"
FORBIDDEN = Refused(403, "forbidden to me", "Forbidden")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    with stand_in_alone(tmp_path, monkeypatch) as stand_in:
        (tmp_path / "cluster.yaml").write_text("gpus:\n  kubernetes: {image: x, nodes: 2}\n")
        yield stand_in


@pytest.fixture
def maker() -> Iterator[PodMaker]:
    found = PodMaker()
    yield found
    for api in found._apis.values():
        api.close()


@pytest.fixture
def moved(cluster: StandIn, tmp_path: Path) -> Iterator[StandIn]:
    """Another server, which the context names from now on."""
    with StandIn(cast("Lab", SimpleNamespace(hosts=[]))) as other:
        other.write_kubeconfig(tmp_path)
        yield other


def wish_of(maker: PodMaker, home: Path) -> Wish:
    cluster = find_cluster("gpus", load_clusters(home / "cluster.yaml", required=True))
    return Wish(name=NAME, cluster=maker.fixed(cluster), directory=home, user="ana")


@pytest.mark.parametrize(("verb", "has_rest"), [("get configmaps", False), ("list pods", True)])
def test_a_refused_look_before_pods_are_made_is_a_refusal(
    cluster: StandIn, maker: PodMaker, tmp_path: Path, verb: str, has_rest: bool
) -> None:
    cluster.refused[verb] = FORBIDDEN
    with pytest.raises(NotMade, match="forbidden to me") as caught:
        maker.make(wish_of(maker, tmp_path))
    assert (caught.value.why, caught.value.has_rest) == (Why.PERSON, has_rest)
    assert "mesh pods role" in caught.value.hint


def test_a_refusal_holds_the_job_with_its_reason(cluster: StandIn, maker: PodMaker, tmp_path: Path) -> None:
    carrier = carrier_spec(wish_of(maker, tmp_path).cluster)
    machines = MachinesSpec(cluster="gpus", maker="kubernetes", carrier=carrier)
    spec = job_spec("failure", machines=machines)
    history = History(spec)
    history.happen(events.Granted(time=2.0))
    job = history.job
    (one,) = job.open
    assert (job.state, one.order) == (State.REQUESTING, Make(generation=1, name=job.generations[0].name))
    cluster.refused["get configmaps"] = FORBIDDEN
    asked = Request(op=one.op, order=one.order, job=job, directory=tmp_path)
    history.happen(event_of(asked, CarrierMaker(maker, ONCE).make(asked), 3.0))
    assert (history.job.state, history.job.reason) == (State.HELD, "forbidden to me")
    assert "mesh pods role" in history.job.hint
    assert history.job.generations[0].phase is Phase.RELEASED


def test_a_look_that_has_no_answer_says_why(cluster: StandIn, maker: PodMaker, tmp_path: Path) -> None:
    wish = wish_of(maker, tmp_path)
    machines = MachinesSpec(cluster="gpus", maker="kubernetes", carrier=carrier_spec(wish.cluster))
    history = History(job_spec("failure", machines=machines))
    history.happen(events.Granted(time=2.0))
    job = history.job
    cluster.refused["list configmaps"] = FORBIDDEN
    look = LookAtMachines(generation=1, name=job.generations[0].name)
    (fact,) = CarrierMaker(maker, ONCE).look([Request(op=0, order=look, job=job, directory=tmp_path)])
    assert fact == events.NotAsked(what="kubernetes", why="forbidden to me")


def test_pods_at_another_server_of_the_same_context_are_neither_absent_nor_made(
    cluster: StandIn, maker: PodMaker, tmp_path: Path
) -> None:
    wish = wish_of(maker, tmp_path)
    assert isinstance(wish.cluster.source, MadePods)
    assert wish.cluster.source.server == cluster.address
    maker.make(wish)
    assert len(cluster.objects["pods"]) == 2
    with StandIn(cast("Lab", SimpleNamespace(hosts=[]))) as other:
        other.write_kubeconfig(tmp_path)
        later = PodMaker()  # a hand that is started now
        told = f"context stand-in: names the API server {other.address}, and the pods are at {cluster.address}"
        (stand,) = later.look([wish])
        assert stand is not None
        assert (stand.how, stand.text) == (How.UNKNOWN, told)
        with pytest.raises(MeshError, match="and the pods are at"):
            later.delete(wish)
        with pytest.raises(NotMade, match="and the pods are at") as caught:
            later.make(wish)
        assert (caught.value.why, caught.value.hint) == (Why.PERSON, "kubectl config view --minify --context stand-in")
        assert other.requests == []
        assert later._apis == {}


def test_a_place_without_a_server_takes_that_of_the_context(cluster: StandIn, moved: StandIn) -> None:
    with Api(PodPlace()) as api:
        assert api.place.server == moved.address
    with pytest.raises(OtherServer):
        Api(PodPlace(server=cluster.address))


def test_down_names_pods_at_another_server_and_gives_them_up_by_force(
    cluster: StandIn, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    found = find_cluster("gpus", load_clusters(tmp_path / "cluster.yaml", required=True))
    api, maker = maker_of(found, StatusLine())
    with api:
        maker._create_root()
    moved: StandIn = request.getfixturevalue("moved")
    told = f"they are at {cluster.address}, and context 'stand-in' names {moved.address}"
    with pytest.raises(MeshError, match=re.escape(told)) as caught:
        down_pods(found, lambda text: None)
    assert caught.value.hint.startswith("mesh down --force gpus")
    (record,) = PodsRecords(os.environ).read()
    lines: list[str] = []
    down_pods(found, lines.append, is_forced=True)
    assert lines == [
        f"gpus: 2 pods in namespace team are given up: kubeconfig has no context 'stand-in' with {cluster.address}; "
        f"{record.root} there owns them"
    ]
    assert PodsRecords(os.environ).read() == []
    down_pods(found, lines.append)
    assert lines[1:] == ["gpus has no pods: nothing to delete"]
