"""Where hosts do not reach each other: whose fault it is, and what is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.check.checkup import Checkup, Wanted
from mesh.check.reaching import Network
from mesh.check.vetting import Vetted
from mesh.core.cluster import Host, place_ranks
from mesh.core.events import Answered, Connected, Event, Gone, Interrupted, Lost, PrepareFailed, Tick
from mesh.core.findings import Finding
from mesh.engine.inquiry import Inquiry
from mesh.engine.orders import Ask
from mesh.engine.question import Question
from mesh.engine.supervisor import Supervisor
from mesh.protocol.questions import AskRuns, Listen, Try
from mesh.protocol.replies import Ports, Trial, Tried
from tests.facts import facts
from tests.specs import spec_of

HOSTS = tuple(Host(name=f"h{node}", address=f"h{node}") for node in range(3))
MTUS = (1500, 1500, 1500)


def found(
    bad: dict[tuple[int, int], str],
    *,
    master: dict[int, str] | None = None,
    mtus: tuple[int, ...] = MTUS,
    master_port: int = 0,
    ports: tuple[object, ...] = (40000, 12345),
    address: str = "10.0.0.{}",
) -> dict[int, list[Finding]]:
    """What is found where these tries fail, by source and target; master: those of the first host's second port."""
    network = Network(place_ranks(HOSTS), "00", master_port)
    inquiry = Inquiry(place_ranks(HOSTS), Question(message=AskRuns()), then=network.then)
    inquiry.handle(Tick(time=0, monotonic=0))
    for node in range(3):
        event = Connected(time=0, node=node, address=address.format(node), machine=f"m{node}")
        inquiry.handle(event)
    for node in range(3):
        addresses = [["eth0", f"10.0.0.{node}", mtus[node]], ["lo", "127.0.0.1", 65536]]
        inquiry.handle(Answered(time=0, node=node, answer=facts(addresses=addresses), clock=0))
    orders = []
    for node in range(3):
        listens = Ports(ports=list(ports) if node == 0 else [40000])  # type: ignore[arg-type]
        orders = inquiry.handle(Answered(time=0, node=node, answer=listens, clock=0))
    for order in orders:
        assert isinstance(order, Ask)
        assert isinstance(order.question, Try)
        tried = []
        for target in order.question.targets:
            how = (master or {}).get(order.node, "") if target.port in ports[1:] else ""
            is_first = target.port == 40000
            how = how or (bad.get((order.node, int(target.address[-1])), "") if is_first else "")
            tried.append(Trial(how=how, detail=f"10.0.0.{order.node}"))
        inquiry.handle(Answered(time=0, node=order.node, answer=Tried(tried=tried), clock=0))
    return {node: list(findings) for node, findings in network.findings(inquiry).items()}


def told(findings: dict[int, list[Finding]]) -> dict[int, list[str]]:
    bad = {node: [f"{one.name}: {one.told}" for one in each if one.hint] for node, each in findings.items()}
    return {node: lines for node, lines in bad.items() if lines}


def test_nothing_is_wrong() -> None:
    healthy = found({})
    assert told(healthy) == {}
    for findings in healthy.values():
        assert [(one.name, one.told) for one in findings] == [("network", "eth0, MTU 1500"), ("master port", "")]


SILENT = "no answer within 2 s, as where a firewall drops packets"


@pytest.mark.parametrize(
    ("bad", "lines"),
    [
        ({(1, 2): "silent"}, {1: [f"network: it cannot reach h2 (10.0.0.2): {SILENT}"]}),
        ({(0, 2): "silent", (1, 2): "silent"}, {2: [f"network: no other host reaches it at 10.0.0.2: {SILENT}"]}),
        ({(1, 0): "No route to host"}, {1: ["network: it cannot reach h0 (10.0.0.0): No route to host"]}),
        (
            {(1, 0): "stuck", (1, 2): "stuck"},
            {1: ["network: it cannot reach h0 (10.0.0.0), h2 (10.0.0.2): small packets arrive, large ones do not"]},
        ),
    ],
)
def test_whose_fault_it_is(bad: dict[tuple[int, int], str], lines: dict[int, list[str]]) -> None:
    assert told(found(bad)) == lines


def test_the_port_where_the_ranks_meet() -> None:
    refused = "refused, as where a firewall rejects it or another machine has that address"
    assert told(found({}, master={1: "refused", 2: "refused"}, ports=(40000, 5000), master_port=5000)) == {
        0: [f"master port: no other host reaches it at 10.0.0.0 port 5000: {refused}"]
    }
    assert told(found({}, ports=(40000, "it is in use there"), master_port=5000)) == {
        0: ["master port: port 5000: it is in use there"]
    }


def test_an_address_that_is_not_the_hosts_own() -> None:
    """As behind the router of a cloud, which lets in nothing but SSH."""
    findings = found({(1, 2): "silent"}, address="34.1.1.{}")
    assert findings[1][0].hint.startswith("34.1.1.2 is none of h2's own addresses (10.0.0.2): internal_ip: ")


def test_another_mtu() -> None:
    assert told(found({}, mtus=(1500, 9000, 1500))) == {
        1: ["network: MTU 9000 on eth0, others have 1500: large packets may get lost"]
    }


def test_rounds_of_questions() -> None:
    """The next one is asked once nobody owes an answer; hosts leave together, and who is lost is not waited for."""
    asked: list[int] = []

    def then(inquiry: Inquiry) -> dict[int, Listen]:
        count = len(inquiry.rounds)
        asked.append(count)
        return dict.fromkeys(range(3), Listen(key="", ports=[count])) if count < 3 else {}

    inquiry = Inquiry(place_ranks(HOSTS), Question(message=Listen(key="", ports=[0])), then=then)

    def questions(*events: object) -> list[object]:
        orders = [order for event in events for order in inquiry.handle(event)]  # type: ignore[arg-type]
        return [(order.node, order.question.ports[0] if isinstance(order, Ask) else "leave") for order in orders]  # type: ignore[attr-defined, union-attr]

    def answers(*nodes: int) -> list[Answered]:
        return [Answered(time=1, node=node, answer={}, clock=0.0) for node in nodes]

    connected = [Connected(time=1, node=node, address="", machine="") for node in range(3)]
    assert questions(Tick(time=1, monotonic=1), *connected) == [(0, 0), (1, 0), (2, 0)]
    assert questions(*answers(2, 0)) == []
    assert questions(PrepareFailed(time=1, node=1, step="home", message="full")) == [(1, "leave"), (0, 1), (2, 1)]
    assert questions(*answers(0)) == []
    assert questions(Lost(time=1, node=2, reason="cut")) == [(0, 2)]
    assert questions(*answers(0)) == [(0, "leave")]
    assert asked == [1, 2, 3]
    assert not inquiry.done
    assert questions(*(Gone(time=1, node=node, left=(), stays=()) for node in range(2))) == []
    assert inquiry.done
    assert {node: failure.message for node, failure in inquiry.failures.items()} == {1: "full", 2: "cut"}
    assert [sorted(each) for each in inquiry.rounds] == [[0, 2], [0], [0]]


class TestVetted:
    """A run that is checked first."""

    def vetted(self) -> Vetted:
        placement = place_ranks(HOSTS[:1])
        spec = spec_of(run="r", project="p", workspace=Path("/w"), command=("true",), drain=0.0)
        wanted = Wanted(env={}, venv=None, lock=False)
        return Vetted(Supervisor(spec, placement), Checkup(placement, wanted, "00", lambda owner: False), placement)

    def replay(self, *events: Event) -> tuple[Vetted, list[str]]:
        vetted = self.vetted()
        first = (Tick(time=1, monotonic=1), Connected(time=1, node=0, address="", machine=""))
        orders = [order for event in (*first, *events) for order in vetted.handle(event)]
        return vetted, [type(order).__name__ for order in orders]

    def test_a_fit_host_is_locked_after_its_answer(self) -> None:
        assert self.replay()[1] == ["Ask"]
        assert self.replay(Answered(time=1, node=0, answer=facts(), clock=0))[1] == ["Ask", "Lock"]

    def test_another_one_never(self) -> None:
        full = Answered(time=1, node=0, answer=facts(disk_free=0), clock=0)
        vetted, orders = self.replay(full, Tick(time=9, monotonic=9), Gone(time=9, node=0, left=(), stays=()))
        assert orders[:2] == ["Ask", "Tell"]
        assert "Lock" not in orders
        assert vetted.done
        outcome = vetted.outcome(9.0)
        assert (outcome.exit_code, [one.message for one in outcome.failures]) == (125, ["disk: 0.0 GB free"])

    def test_what_else_goes_wrong_is_not_waited_for(self) -> None:
        vetted, _ = self.replay(Lost(time=2, node=0, reason="cut"), Tick(time=3, monotonic=3))
        assert vetted.done
        assert vetted.outcome(3.0).exit_code != 0
        interrupted, orders = self.replay(Interrupted(time=2, signal=2))
        assert orders[-1] in ("Finish", "Signal")
        assert not interrupted.done
