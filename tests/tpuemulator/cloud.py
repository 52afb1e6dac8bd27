"""The emulated cloud: nodes and queued resources whose states change with time. One lock; no network."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.tpuemulator.hosts import NO_HOSTS, Hosts

CORES = {"v2": 2, "v3": 2, "v4": 2, "v5p": 2}  # that a chip has, where the number of a type counts cores
CHIPS_PER_HOST = 4
NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
TICK_S = 0.03
TAKE_AWAY_LIMIT_S = 60.0  # for the machines of a preempted node to be killed
# Seconds in each state; a state in `hold` is never left.
TIMES = {
    "ACCEPTED": 0.05,
    "WAITING_FOR_RESOURCES": 0.1,
    "PROVISIONING": 0.1,
    "CREATING": 0.3,
    "DELETING": 0.3,
    "SUSPENDING": 0.3,
    "endpoints": 0.0,  # from READY until the first address, and between two
    "boot": 0.0,  # from READY until sshd answers
}
SETTINGS: dict[str, Any] = {
    "times": {},
    "hold": [],  # states that are never left
    "quota": {},  # chips by zone; none: unlimited
    "capacity": {},  # chips by zone that there are; none: unlimited. A tpu-vm is refused, a request waits
    "active_early": True,  # a queued resource is ACTIVE before its nodes are READY
    "repeats_conflict": False,  # a second create with one request id is ALREADY_EXISTS, and not the same operation
}


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class Node:
    """A TPU."""

    name: str
    zone: str
    id: int
    fields: dict[str, Any]  # of the request, as JSON
    state: str = "CREATING"
    since: float = 0.0
    request: str = ""  # its queued resource
    created: float = 0.0
    hosts: list[int] = field(default_factory=list)  # numbers of its hosts
    addresses: list[str] = field(default_factory=list)
    shown: int = 0  # addresses that the API lists

    @property
    def chips(self) -> int:
        return chips(self.fields["accelerator_type"])


@dataclass
class Queued:
    """A queued resource."""

    name: str
    zone: str
    fields: dict[str, Any]
    state: str = "ACCEPTED"
    since: float = 0.0
    created: float = 0.0
    error: str = ""

    @property
    def node_names(self) -> list[str]:
        (spec,) = self.fields["tpu"]["node_spec"]
        many = spec.get("multi_node_params")
        if many:
            return [f"{many['node_id_prefix']}-{number}" for number in range(many["node_count"])]
        return [spec["node_id"]]

    @property
    def node_fields(self) -> dict[str, Any]:
        return dict(self.fields["tpu"]["node_spec"][0]["node"])

    @property
    def chips(self) -> int:
        return chips(self.node_fields["accelerator_type"]) * len(self.node_names)


def chips(accelerator: str) -> int:
    """Chips of one slice."""
    family, _, number = accelerator.partition("-")
    return max(1, int(number) // CORES.get(family, 1))


class Cloud:
    """Zones of one project."""

    def __init__(self, directory: Path, hosts: Hosts = NO_HOSTS) -> None:
        self._journal = directory / "journal.jsonl"
        self._hosts = hosts
        self.lock = threading.RLock()
        self.settings: dict[str, Any] = json.loads(json.dumps(SETTINGS))
        self.nodes: dict[tuple[str, str], Node] = {}
        self.requests: dict[tuple[str, str], Queued] = {}
        self._operations: dict[str, str] = {}  # by request id: what it made
        self._ids = 1000 + int(time.time()) % 100000 * 100
        self._chores: list[Callable[[], None]] = []  # for the main thread, which starts and kills hosts
        self._boots: list[tuple[float, Node, int]] = []  # when which host of which node boots

    # ---- what the API does

    def create_node(self, zone: str, name: str, fields: dict[str, Any], request_id: str) -> Node:
        """Begin to make a node."""
        with self.lock:
            if self._repeats(request_id, "node", zone, name):
                return self.nodes[zone, name]
            self._check(zone, name, fields, chips(fields["accelerator_type"]))
            if (zone, name) in self.nodes:
                raise Refused("ALREADY_EXISTS", f"Resource {name} already exists")
            if self._lacks_capacity(zone, chips(fields["accelerator_type"])):
                raise Refused("RESOURCE_EXHAUSTED", "There is no more capacity in the zone")
            self._operations[request_id] = f"node {zone}/{name}"
            return self._add_node(zone, name, fields, "")

    def create_request(self, zone: str, name: str, fields: dict[str, Any], request_id: str) -> Queued:
        """Accept a queued resource."""
        with self.lock:
            if self._repeats(request_id, "request", zone, name):
                return self.requests[zone, name]
            found = Queued(name=name, zone=zone, fields=fields, since=time.time(), created=time.time())
            self._check(zone, name, found.node_fields, found.chips)
            taken = any((zone, node) in self.nodes for node in found.node_names)
            if (zone, name) in self.requests or taken:
                raise Refused("ALREADY_EXISTS", f"Resource {name} already exists")
            self._operations[request_id] = f"request {zone}/{name}"
            self.requests[zone, name] = found
            self._note("create-request", zone, name, fields=fields, labels=found.node_fields.get("labels", {}))
            return found

    def delete_node(self, zone: str, name: str) -> None:
        """Begin to delete a node."""
        with self.lock:
            node = self.nodes.get((zone, name))
            if node is None:
                raise Refused("NOT_FOUND", f"Resource {name} was not found")
            if node.request and (zone, node.request) in self.requests:
                raise Refused("FAILED_PRECONDITION", f"{name} belongs to queued resource {node.request}")
            self._end_node(node, "delete-node")

    def delete_request(self, zone: str, name: str, *, force: bool) -> None:
        """Begin to delete a queued resource, and its nodes if that is forced."""
        with self.lock:
            request = self.requests.get((zone, name))
            if request is None:
                raise Refused("NOT_FOUND", f"Resource {name} was not found")
            nodes = self._nodes_of(request)
            if nodes and not force:
                raise Refused("FAILED_PRECONDITION", f"{name} has nodes; delete it with force")
            if request.state == "DELETING":
                return
            self._note("delete-request", zone, name)
            self._move(request, "DELETING")
            for node in nodes:
                self._end_node(node, "delete-node")

    def _check(self, zone: str, name: str, fields: dict[str, Any], wanted: int) -> None:
        if not NAME.fullmatch(name):
            raise Refused("INVALID_ARGUMENT", f"{name!r} is no name")
        if not fields.get("runtime_version") or fields["runtime_version"] == "wrong":
            raise Refused("INVALID_ARGUMENT", "runtime_version is not known")
        limit = self.settings["quota"].get(zone)
        if limit is not None and self.used(zone) + wanted > limit:
            raise Refused("RESOURCE_EXHAUSTED", f"Quota limit has been exceeded: {limit} chips in {zone}")

    def used(self, zone: str) -> int:
        """Chips that count for the quota: also those of requests that are suspended or have failed."""
        requests = sum(one.chips for (place, _), one in self.requests.items() if place == zone)
        alone = [one for (place, _), one in self.nodes.items() if place == zone and not one.request]
        return requests + sum(one.chips for one in alone)

    def _lacks_capacity(self, zone: str, wanted: int) -> bool:
        limit = self.settings["capacity"].get(zone)
        in_use = sum(one.chips for (place, _), one in self.nodes.items() if place == zone)
        return limit is not None and in_use + wanted > limit

    def _repeats(self, request_id: str, kind: str, zone: str, name: str) -> bool:
        made = self._operations.get(request_id) if request_id else None
        if made is None:
            return False
        there = self.nodes if kind == "node" else self.requests
        if self.settings["repeats_conflict"] or made != f"{kind} {zone}/{name}" or (zone, name) not in there:
            raise Refused("ALREADY_EXISTS", f"Request id {request_id} was used")
        return True

    def _add_node(self, zone: str, name: str, fields: dict[str, Any], request: str) -> Node:
        self._ids += 1
        node = Node(name=name, zone=zone, id=self._ids, fields=fields, request=request, created=time.time())
        node.since = node.created
        self.nodes[zone, name] = node
        self._note("create-node", zone, name, id=node.id, labels=fields.get("labels", {}))
        return node

    def _nodes_of(self, request: Queued) -> list[Node]:
        return [one for (zone, _), one in self.nodes.items() if zone == request.zone and one.request == request.name]

    def _end_node(self, node: Node, what: str) -> None:
        if node.state != "DELETING":
            self._note(what, node.zone, node.name, id=node.id)
            self._move(node, "DELETING")
            self._down(node)

    def _note(self, what: str, zone: str, name: str, **more: object) -> None:
        with open(self._journal, "a") as file:
            file.write(json.dumps({"time": time.time(), "what": what, "zone": zone, "name": name, **more}) + "\n")

    def _move(self, one: Node | Queued, state: str) -> None:
        one.state, one.since = state, time.time()

    # ---- time

    def run(self, is_over: Callable[[], bool]) -> None:
        """Let time pass until it is over. It starts and kills hosts, which belong to this thread."""
        while not is_over():
            time.sleep(TICK_S)
            with self.lock:
                chores, self._chores = self._chores, []
            for chore in chores:
                chore()
            self._hosts.tick()
            with self.lock:
                self._tick()
        self._hosts.end()

    def _is_due(self, one: Node | Queued) -> bool:
        times = {**TIMES, **self.settings["times"]}
        return one.state not in self.settings["hold"] and time.time() >= one.since + times.get(one.state, 1e18)

    def _tick(self) -> None:
        for boot in [one for one in self._boots if time.time() >= one[0]]:
            self._boots.remove(boot)
            _, node, number = boot
            if number in node.hosts:
                self._chores.append(lambda number=number, node=node: self._boot(number, node))
        for request in list(self.requests.values()):
            self._tick_request(request)
        for node in list(self.nodes.values()):
            self._tick_node(node)

    def _tick_request(self, request: Queued) -> None:
        if request.state == "PROVISIONING" or (request.state == "ACTIVE" and "PROVISIONING" not in TIMES):
            nodes = self._nodes_of(request)
            if "PROVISIONING" in self.settings["hold"]:
                return
            if self._is_due(request) and (self.settings["active_early"] or all(one.state == "READY" for one in nodes)):
                self._move(request, "ACTIVE")
            return
        if not self._is_due(request):
            return
        match request.state:
            case "ACCEPTED":
                self._move(request, "WAITING_FOR_RESOURCES")
            case "WAITING_FOR_RESOURCES":
                if not self._lacks_capacity(request.zone, request.chips):
                    for name in request.node_names:
                        self._add_node(request.zone, name, request.node_fields, request.name)
                    self._move(request, "PROVISIONING")
            case "SUSPENDING":
                if not self._nodes_of(request):
                    self._move(request, "SUSPENDED")
            case "DELETING":
                if not self._nodes_of(request):
                    del self.requests[request.zone, request.name]
                    self._note("gone-request", request.zone, request.name)

    def _tick_node(self, node: Node) -> None:
        if node.state == "CREATING" and self._is_due(node):
            if not node.hosts:
                count = max(1, node.chips // CHIPS_PER_HOST)
                found = self._hosts.take(count)
                if found is None:
                    return  # no host is free yet
                node.hosts = found
                node.addresses = [self._hosts.address(number) for number in found]
                boots = time.time() + {**TIMES, **self.settings["times"]}["boot"]
                self._boots += [(boots, node, number) for number in found]
            self._move(node, "READY")
            self._note("ready-node", node.zone, node.name, id=node.id)
        if node.state == "READY" and node.shown < len(node.addresses):
            pause = {**TIMES, **self.settings["times"]}["endpoints"]
            if "endpoints" not in self.settings["hold"] and time.time() >= node.since + pause * (node.shown + 1):
                node.shown = len(node.addresses) if not pause else node.shown + 1
        if node.state == "DELETING" and self._is_due(node):
            del self.nodes[node.zone, node.name]
            self._note("gone-node", node.zone, node.name, id=node.id)

    def _down(self, node: Node) -> None:
        numbers, node.hosts = node.hosts, []
        name = node.name
        self._chores += [lambda number=number: self._hosts.down(number, name) for number in numbers]

    # ---- what the world does to machines

    def preempt(self, zone: str, name: str, how: str) -> None:
        """Take a node away: PREEMPTED, TERMINATED, vanished, suspended, dead (READY all the same), or worker.

        The API shows it once no process runs there any more, and this returns then.
        """
        is_done = threading.Event()
        with self.lock:
            node = self.nodes[zone, name]
            request = self.requests[zone, node.request] if how == "suspended" else None
            self._note(f"preempt-{how}", zone, name, id=node.id)
            self._chores.append(lambda: self._take_away(node, how, request, is_done))
        is_done.wait(TAKE_AWAY_LIMIT_S)

    def _take_away(self, node: Node, how: str, request: Queued | None, is_done: threading.Event) -> None:
        """Kill the machines of a node that is preempted, then have the API show it. The main thread does it."""
        with self.lock:
            nodes = self._nodes_of(request) if request is not None else [node]
            if how == "worker":
                machines = [(node.name, number) for number in node.hosts[-1:]]
            else:
                machines = [(one.name, number) for one in nodes for number in one.hosts]
                for one in nodes:
                    one.hosts = []
        for name, number in machines:
            self._hosts.down(number, name)
        with self.lock:
            is_there = self.nodes.get((node.zone, node.name)) is node and node.state != "DELETING"
            if is_there and how in ("PREEMPTED", "TERMINATED"):
                self._move(node, how)
            elif is_there and how == "vanished":
                del self.nodes[node.zone, node.name]
                self._note("gone-node", node.zone, node.name, id=node.id)
            elif is_there and request is not None:
                self._move(request, "SUSPENDING")
                for one in nodes:
                    self._move(one, "DELETING")
        is_done.set()

    def lose_request(self, zone: str, name: str) -> None:
        """Have a queued resource vanish while its nodes stay."""
        with self.lock:
            del self.requests[zone, name]
            self._note("gone-request", zone, name)

    def suspend(self, zone: str, name: str) -> None:
        """Suspend a queued resource that has no nodes."""
        with self.lock:
            self._move(self.requests[zone, name], "SUSPENDED")

    def fail(self, zone: str, name: str, error: str) -> None:
        """Have a queued resource fail."""
        with self.lock:
            self.requests[zone, name].error = error
            self._move(self.requests[zone, name], "FAILED")

    def _boot(self, number: int, node: Node) -> None:
        """Have a machine up, and its start-up script run as root."""
        self._hosts.up(number, node.name)
        if text := str(node.fields.get("metadata", {}).get("startup-script", "")):
            self._hosts.begin_script(number, text)

    def replace_id(self, zone: str, name: str) -> None:
        """Have another node under the same name and address, with a new host key."""
        with self.lock:
            node = self.nodes[zone, name]
            self._ids += 1
            node.id = self._ids
            for number in node.hosts:
                self._chores.append(lambda number=number: self._hosts.down(number, node.name))
                self._chores.append(lambda number=number: self._hosts.up(number, node.name))

    def shown(self, kind: str, zone: str) -> Sequence[Node] | Sequence[Queued]:
        """Return the entries of a list in the order of names."""
        with self.lock:
            there: dict[tuple[str, str], Any] = self.nodes if kind == "nodes" else self.requests
            return [one for (place, _), one in sorted(there.items()) if place == zone]
