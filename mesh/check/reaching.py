"""The network between hosts: who tries to reach whom, and what it means where that fails."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping

from msgspec import Struct

from mesh.core.cluster import Placement
from mesh.core.findings import Finding, Findings, failed, few, ok, usual, warning
from mesh.engine.inquiry import Inquiry, Questions
from mesh.protocol import questions
from mesh.protocol.replies import Facts, Ports, Tried

REACHING_ROUNDS = 4
ALL_PAIRS = 16  # hosts: beyond it, not every pair is tried
OPEN = "let hosts reach each other on every TCP port: ranks, large syncs and detached runs need it"
# The results of a try (agent/ask/reach.py): in words, and what to do.
MEANINGS = {
    "silent": (
        "no answer within 2 s, as where a firewall drops packets",
        f"{OPEN}: `sudo ufw allow from SUBNET` there, or in a cloud a firewall rule for the subnet",
    ),
    "refused": (
        "refused, as where a firewall rejects it or another machine has that address",
        f"{OPEN}: `sudo ufw status`, `sudo nft list ruleset` there; internal_ip: in cluster.yaml names another address",
    ),
    "mute": (
        "somebody takes the connection, and does not answer",
        "is a proxy in between, or is the host overloaded? internal_ip: in cluster.yaml names another address",
    ),
    "stuck": (
        "small packets arrive, large ones do not",
        "give all interfaces on the way the same MTU: `ip link` on both hosts, then `sudo ip link set DEVICE mtu 1500`",
    ),
    "foreign": (
        "somebody else answers",
        "is the address used twice, or is a proxy in between? internal_ip: in cluster.yaml names another one",
    ),
    "unresolved": (
        "the name cannot be resolved there",
        "internal_ip: in cluster.yaml gives the address instead, or add a line to /etc/hosts there",
    ),
}
OTHER = "see `ip route get ADDRESS` there; internal_ip: in cluster.yaml names another address"


class Try(Struct, frozen=True, kw_only=True):
    """A connection that one host tries to another."""

    source: int  # node
    target: int
    address: str  # of the target, as the ranks get it
    port: int
    is_master: bool  # it is the port that was chosen for MASTER_PORT


class Network:
    """Connections that hosts try in the rounds after the first, and their results."""

    def __init__(
        self, placement: Placement, key: str, master_port: int, hints: Mapping[str, str] | None = None
    ) -> None:
        """key: as with Checkup; master_port, hints: as with Wanted"""
        self._placement, self._key, self._master_port = placement, key, master_port
        self._hints = hints or {}
        self._tries: dict[int, list[Try]] = {}

    def then(self, inquiry: Inquiry) -> Questions:
        """Listen; try; listen no more, as a run may come next."""
        here = sorted(inquiry.answers.keys() - inquiry.failures.keys())
        if len(inquiry.rounds) == 1 and (len(here) > 1 or (here == [0] and self._master_port)):
            return {node: questions.Listen(key=self._key, ports=self._ports(node)) for node in here}
        if len(inquiry.rounds) == 2 and len(here) > 1:
            self._tries = {node: self._plan(inquiry, node, here) for node in here}
            return {
                node: questions.Try(
                    key=self._key, targets=[questions.Target(address=one.address, port=one.port) for one in tries]
                )
                for node, tries in self._tries.items()
            }
        if 1 < len(inquiry.rounds) < REACHING_ROUNDS:
            return {node: questions.Hush() for node in here}
        return {}

    def _ports(self, node: int) -> list[int]:
        return [0, self._master_port or -1] if node == 0 else [0]

    def _plan(self, inquiry: Inquiry, source: int, here: list[int]) -> list[Try]:
        tries = []
        for target in partners(here, source):
            address = self._address(inquiry, target)
            for place, port in enumerate(inquiry.replies(Ports, 1)[target].ports):
                if isinstance(port, int):
                    tries.append(Try(source=source, target=target, address=address, port=port, is_master=place > 0))
        return tries

    def _address(self, inquiry: Inquiry, node: int) -> str:
        return self._placement.hosts[node].internal_ip or inquiry.connected[node].address

    def findings(self, inquiry: Inquiry) -> Findings:
        """Return the findings of all hosts that have answered."""
        facts = inquiry.replies(Facts)
        found: dict[int, list[Finding]] = {node: [] for node in facts}
        results: dict[Try, str] = {}
        interfaces: dict[int, tuple[str, int]] = {}
        answers = inquiry.replies(Tried, 2)
        for node in facts:
            if node in answers:
                tried = answers[node].tried
                results.update(zip(self._tries[node], (trial.how for trial in tried), strict=True))
                addresses = [self._address(inquiry, node), *(trial.detail for trial in tried)]
                interfaces[node] = _interface(facts[node], addresses)
            elif node in inquiry.failures:
                told = inquiry.failures[node].message
                found[node].append(failed("network", told, "it was there before: its connection may be unstable"))
        for node, finding in [*self._unheard(inquiry), *self._judge(results, facts, sorted(found))]:
            found[node].append(finding)
        for node, finding in _interfaces(interfaces).items():
            if finding.hint or not any(one.name == "network" for one in found[node]):
                found[node].append(finding)
        for findings in found.values():
            names = {one.name for one in findings}
            findings += [ok(name) for name in ("network", "master port") if name not in names]
        return found

    def _unheard(self, inquiry: Inquiry) -> Iterator[tuple[int, Finding]]:
        """Hosts that cannot listen where they should."""
        for node, answer in inquiry.replies(Ports, 1).items():
            for place, port in enumerate(answer.ports):
                if not isinstance(port, int) and place:
                    told = f"port {self._master_port}: {port}"
                    hint = f"`sudo ss -ltnp 'sport = :{self._master_port}'` there names who has it; choose another one"
                    yield node, failed("master port", told, hint)
                elif not isinstance(port, int):
                    yield node, failed("network", f"it cannot listen on a TCP port: {port}", "see `ulimit -n` there")

    def _judge(
        self, results: Mapping[Try, str], facts: Mapping[int, Facts], here: list[int]
    ) -> Iterator[tuple[int, Finding]]:
        """Where something fails: it is the target's fault if nobody reaches it, else that of who tried."""
        by_target: dict[tuple[int, bool], list[Try]] = {}
        for one in results:
            by_target.setdefault((one.target, one.is_master), []).append(one)
        by_source: dict[tuple[int, bool, str], list[Try]] = {}
        for tries in by_target.values():
            bad = [one for one in tries if results[one]]
            if len(bad) == len(tries) > 1:
                how = usual({one.source: results[one] for one in bad})
                port = f" port {bad[0].port}" if bad[0].is_master else ""
                told = f"no other host reaches it at {bad[0].address}{port}"
                yield bad[0].target, self._unreached(bad[0], told, how, facts)
                continue
            for one in bad:
                by_source.setdefault((one.source, one.is_master, results[one]), []).append(one)
        for (source, _, how), tries in by_source.items():
            told = f"it cannot reach {few([self._called(one) for one in sorted(tries, key=lambda one: one.target)])}"
            yield source, self._unreached(tries[0], told, how, facts)

    def _called(self, one: Try) -> str:
        name = self._placement.hosts[one.target].name
        called = name if name == one.address else f"{name} ({one.address})"
        return f"{called} port {one.port}" if one.is_master else called

    def _unreached(self, one: Try, told: str, how: str, facts: Mapping[int, Facts]) -> Finding:
        words, hint = MEANINGS.get(how, (how, OTHER))
        hint = self._hints.get(how, hint)
        own = [own.address for own in facts[one.target].addresses if not _is_local(own.address)]
        if how in ("silent", "refused", "foreign") and _is_number(one.address) and one.address not in own:
            name = self._placement.hosts[one.target].name
            mine = f"own addresses ({', '.join(own)})"
            hint = f"{one.address} is none of {name}'s {mine}: internal_ip: in cluster.yaml names the right one\n{hint}"
        return failed("master port" if one.is_master else "network", f"{told}: {words}", hint)


def partners(here: list[int], source: int) -> list[int]:
    """Whom a host tries: all others; of many, the first one, and those at distances that double.

    >>> partners([0, 1, 3], 1), [len(partners(list(range(256)), node)) for node in (0, 5)]
    ([0, 3], [255, 9])
    """
    if len(here) <= ALL_PAIRS or source == here[0]:
        return [node for node in here if node != source]
    place, chosen, distance = here.index(source), [here[0]], 1
    while distance < len(here):
        chosen.append(here[(place + distance) % len(here)])
        distance *= 2
    return [node for node in dict.fromkeys(chosen) if node != source]


def _interface(facts: Facts, addresses: list[str]) -> tuple[str, int]:
    """The interface that carries the first of these that is the host's own, and its MTU; "", 0 if none does."""
    own = {one.address: (one.interface, one.mtu) for one in facts.addresses}
    return next((own[address] for address in addresses if address in own), ("", 0))


def _interfaces(found: Mapping[int, tuple[str, int]]) -> dict[int, Finding]:
    known = {node: mtu for node, (_, mtu) in found.items() if mtu}
    most = usual(known) if known else 0
    findings = {}
    for node, (name, mtu) in found.items():
        if mtu and mtu != most:
            told = f"MTU {mtu} on {name}, others have {most}: large packets may get lost"
            findings[node] = warning("network", told, f"`sudo ip link set {name} mtu {most}` there")
        else:
            findings[node] = ok("network", f"{name}, MTU {mtu}" if name else "")
    return findings


def _is_number(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def _is_local(address: str) -> bool:
    found = ipaddress.ip_address(address)
    return found.is_loopback or found.is_link_local
