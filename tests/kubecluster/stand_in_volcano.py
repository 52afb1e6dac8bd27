"""A stand-in for Volcano in the tests' cluster: a PodGroup with an open schema, and a scheduler that binds all or none.

It is no Volcano. It shows mesh's own side: what mesh creates, waits for and deletes.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from types import TracebackType
from typing import Any

from mesh.hosts.kubernetes.gang import GROUP, GROUP_NAME, KIND, RESOURCE, SCHEDULER, VERSION
from tests.kubecluster.cluster import NAMESPACE, Cluster, Refused
from tests.lab import eventually

GROUPS = f"/apis/{GROUP}/{VERSION}/namespaces/{NAMESPACE}/{RESOURCE}"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
LOOK_INTERVAL_S = 0.2
Object = dict[str, Any]


class StandInVolcano:
    """The stand-in; a context manager. ``bound`` has the name of each pod that it has bound to a node."""

    def __init__(self, kube: Cluster, counted: str) -> None:
        """counted: the resource by which pods fit on nodes or do not"""
        self._kube, self._counted = kube, counted
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stand-in-volcano")
        self.bound: list[str] = []
        self.members: list[int] = []  # `minMember` of each PodGroup that was seen
        self.error: Exception | None = None

    def __enter__(self) -> StandInVolcano:
        open_schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": VERSION, "served": True, "storage": True, "schema": {"openAPIV3Schema": open_schema}}
        names = {"kind": KIND, "plural": RESOURCE, "singular": KIND.lower()}
        spec = {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]}
        kind = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
        self._kube.ask("POST", DEFINITIONS, {**kind, "metadata": {"name": f"{RESOURCE}.{GROUP}"}, "spec": spec})
        assert eventually(self._is_served, 60.0)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        self._kube.ask("DELETE", f"{DEFINITIONS}/{RESOURCE}.{GROUP}")

    def groups(self) -> list[Object]:
        """Return the PodGroups that are there."""
        found: list[Object] = self._kube.ask("GET", GROUPS)["items"]
        return found

    def _is_served(self) -> bool:
        with contextlib.suppress(Refused):
            self.groups()
            return True
        return False

    def _run(self) -> None:
        try:
            while not self._is_over.wait(LOOK_INTERVAL_S):
                self._schedule()
        except Exception as error:  # the test shows it
            self.error = error

    def _schedule(self) -> None:
        """Bind the pods of each PodGroup that is complete and fits; say of all others why they wait."""
        pods = [one for one in self._kube.listed("pods") if one["spec"].get("schedulerName") == SCHEDULER]
        for group in self.groups():
            name, least = group["metadata"]["name"], group["spec"]["minMember"]
            self.members = [*dict.fromkeys((*self.members, least))]
            mine = [one for one in pods if one["metadata"].get("annotations", {}).get(GROUP_NAME) == name]
            waiting = [one for one in mine if not one["spec"].get("nodeName")]
            places = self._places(pods, len(waiting))
            if len(mine) >= least and len(places) == len(waiting):
                for pod, node in zip(waiting, places, strict=True):
                    self._bind(pod["metadata"]["name"], node)
            else:
                for pod in waiting:
                    self._refuse(pod, f"pod group is not ready, {len(waiting)} Pending, {least} minAvailable")

    def _places(self, pods: list[Object], count: int) -> list[str]:
        """Return a node for each of so many pods, fewer if not all fit."""
        used = Counter(one["spec"].get("nodeName") for one in pods if one["status"].get("phase") == "Running")
        found = []
        for node in self._kube.ask("GET", "/api/v1/nodes")["items"]:
            name = node["metadata"]["name"]
            found += [name] * (int(node["status"]["allocatable"].get(self._counted, "0")) - used[name])
        return found[:count]

    def _bind(self, name: str, node: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        with contextlib.suppress(Refused):  # it is bound already, or gone
            self._kube.ask("POST", self._kube.path("pods", f"{name}/binding"), binding)
            self.bound.append(name)

    def _refuse(self, pod: Object, message: str) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        if any(one.get("message") == message for one in pod["status"].get("conditions", ())):
            return
        path = self._kube.path("pods", f"{pod['metadata']['name']}/status")
        with contextlib.suppress(Refused):
            patch = {"status": {"conditions": [condition]}}
            self._kube.ask("PATCH", path, patch, kind="application/strategic-merge-patch+json")
