"""Comparison of the numbers that hosts have by themselves with their order in their source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mesh.core.cluster import Placement
from mesh.core.findings import Finding, Findings, failed, ok
from mesh.engine.inquiry import Inquiry, Questions
from mesh.protocol.questions import AskWorker, Question
from mesh.protocol.replies import Worker

HINT = """\
`mesh clusters --refresh` asks the API anew; if they still differ, list the hosts in the order of their own numbers,
below slices: in place of tpu:"""


class Numbers:
    """Asks each host for its number in its slice."""

    def __init__(self, placement: Placement) -> None:
        self._hosts, self._slices = placement.hosts, placement.slices or (len(placement.hosts),)
        self.are_known = any(host.slice_index >= 0 for host in placement.hosts)  # there is something to compare with

    def question(self) -> Question[object]:
        return AskWorker()

    def then(self, inquiry: Inquiry) -> Questions:
        return {}

    def findings(self, inquiry: Inquiry) -> list[list[Finding]]:
        """Return the findings of each host, in their order."""
        found = self.judge(inquiry.replies(Worker))
        return [list(found.get(node, ())) for node in range(len(self._hosts))]

    def judge(self, answers: Mapping[int, Worker | None]) -> Findings:
        """Return findings by node; where the orders of a slice differ, its first host has the finding."""
        own = {node: worker.number for node, worker in answers.items() if worker and worker.number is not None}
        found: dict[int, list[Finding]] = {}
        for nodes in self._nodes_of_slices():
            known = [node for node in nodes if node in own and self._hosts[node].slice_index >= 0]
            for node in known:
                found[node] = [ok("worker", str(own[node]))]
            if any(own[node] != self._hosts[node].slice_index for node in known):
                by_api = ", ".join(f"{self._hosts[node].slice_index}: {self._told(node)}" for node in known)
                by_own = ", ".join(f"{own[node]}: {self._told(node)}" for node in sorted(known, key=own.__getitem__))
                text = f"the TPU API has the workers in this order: {by_api}; by their own metadata it is {by_own}"
                found[known[0]] = [failed("worker", text, HINT)]
        return found

    def _nodes_of_slices(self) -> Iterator[range]:
        begin = 0
        for size in self._slices:
            yield range(begin, begin + size)
            begin += size

    def _told(self, node: int) -> str:
        return f"{self._hosts[node].name} ({self._hosts[node].internal_ip or self._hosts[node].address})"
