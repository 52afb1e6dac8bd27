"""Objects of Kubernetes, with the fields that mesh reads. They are decoded from the API's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec import Struct

T = TypeVar("T")


class Part(Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of an object. Fields that mesh does not read are left out."""


class Owner(Part, frozen=True, kw_only=True):
    """The object that another one belongs to."""

    uid: str = ""
    kind: str = ""
    name: str = ""


class Meta(Part, frozen=True, kw_only=True):
    """Name, identity and labels of an object."""

    name: str = ""
    uid: str = ""  # another object of the same name has another one
    namespace: str = ""
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None  # set once the object is being deleted
    owner_references: tuple[Owner, ...] | None = None


class ContainerState(Part, frozen=True, kw_only=True):
    """The state of a container: it waits or has ended, for a reason."""

    reason: str = ""
    message: str = ""
    exit_code: int = 0
    signal: int = 0


class ContainerStates(Part, frozen=True, kw_only=True):
    """The one state that a container is in."""

    waiting: ContainerState | None = None
    running: ContainerState | None = None
    terminated: ContainerState | None = None


class ContainerStatus(Part, frozen=True, kw_only=True):
    """The state of a container, and how often it was started again."""

    name: str = ""
    image: str = ""
    restart_count: int = 0
    state: ContainerStates = ContainerStates()
    last_state: ContainerStates = ContainerStates()


class Condition(Part, frozen=True, kw_only=True):
    """A condition of a pod or a node."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class Resources(Part, frozen=True, kw_only=True):
    """The requests and limits of a container."""

    requests: Mapping[str, str] | None = None
    limits: Mapping[str, str] | None = None


class Container(Part, frozen=True, kw_only=True):
    """A container of a pod, as it was asked for."""

    name: str = ""
    image: str = ""
    resources: Resources = Resources()


class Toleration(Part, frozen=True, kw_only=True):
    """A taint that a pod puts up with."""

    key: str = ""  # "": every key
    operator: str = "Equal"  # or Exists
    value: str = ""
    effect: str = ""  # "": every effect


class PodSpec(Part, frozen=True, kw_only=True):
    """A pod as it was asked for."""

    containers: tuple[Container, ...] = ()
    node_name: str = ""
    restart_policy: str = "Always"  # or OnFailure, Never
    node_selector: Mapping[str, str] | None = None
    tolerations: tuple[Toleration, ...] | None = None


class PodStatus(Part, frozen=True, kw_only=True):
    """The state of a pod."""

    phase: str = "Unknown"  # Pending, Running, Succeeded, Failed or Unknown
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[Condition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None


class Pod(Part, frozen=True, kw_only=True):
    """A pod."""

    metadata: Meta = Meta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def name(self) -> str:
        return self.metadata.name


class Pods(Part, frozen=True, kw_only=True):
    """A list of pods."""

    metadata: Meta = Meta()
    items: tuple[Pod, ...] | None = None


class Change(Part, frozen=True, kw_only=True):
    """A change of a pod, as a watch reports it."""

    type: str
    object: Pod


class Thing(Part, frozen=True, kw_only=True):
    """An object of which only the name and the labels matter."""

    metadata: Meta = Meta()


class PodEvent(Part, frozen=True, kw_only=True):
    """An event about a pod: the scheduler or a node has done something, or has failed to."""

    type: str = ""  # Normal or Warning
    reason: str = ""
    message: str = ""
    count: int | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None

    @property
    def time(self) -> str:
        """The time of its last occurrence, as the API writes it; "" if it has none."""
        return self.last_timestamp or self.event_time or self.first_timestamp or ""


class PodEvents(Part, frozen=True, kw_only=True):
    """A list of events."""

    items: tuple[PodEvent, ...] | None = None


class ApiResource(Part, frozen=True, kw_only=True):
    """A kind of objects that a server has."""

    name: str = ""


class ApiResources(Part, frozen=True, kw_only=True):
    """The kinds of one API that a server has."""

    resources: tuple[ApiResource, ...] | None = None


class Version(Part, frozen=True, kw_only=True):
    """The version of an API server."""

    git_version: str = ""


class ReviewStatus(Part, frozen=True, kw_only=True):
    """The answer to a question about a right."""

    allowed: bool = False


class Review(Part, frozen=True, kw_only=True):
    """A question about a right, and its answer."""

    status: ReviewStatus = ReviewStatus()


class QuotaSpec(Part, frozen=True, kw_only=True):
    """The part of the namespace's pods that a quota counts."""

    scopes: tuple[str, ...] | None = None
    scope_selector: Mapping[str, object] | None = None


class QuotaStatus(Part, frozen=True, kw_only=True):
    """The quantities that a quota allows, and those in use."""

    hard: Mapping[str, str] | None = None
    used: Mapping[str, str] | None = None


class Quota(Part, frozen=True, kw_only=True):
    """A ResourceQuota of a namespace."""

    metadata: Meta = Meta()
    spec: QuotaSpec = QuotaSpec()
    status: QuotaStatus = QuotaStatus()


class Quotas(Part, frozen=True, kw_only=True):
    """A list of quotas."""

    items: tuple[Quota, ...] | None = None


class Things(Part, frozen=True, kw_only=True):
    """A list of objects."""

    items: tuple[Thing, ...] | None = None


class NodeStatus(Part, frozen=True, kw_only=True):
    """The state of a node."""

    conditions: tuple[Condition, ...] | None = None
    allocatable: Mapping[str, str] | None = None


class Taint(Part, frozen=True, kw_only=True):
    """A mark of a node that keeps away pods without a toleration."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Part, frozen=True, kw_only=True):
    """A node as it was set up."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class Node(Part, frozen=True, kw_only=True):
    """A machine of the cluster."""

    metadata: Meta = Meta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Nodes(Part, frozen=True, kw_only=True):
    """A list of nodes."""

    items: tuple[Node, ...] | None = None


class Cause(Part, frozen=True, kw_only=True):
    """A cause in a Status."""

    reason: str = ""
    message: str = ""


class Details(Part, frozen=True, kw_only=True):
    """The details of a Status."""

    causes: tuple[Cause, ...] | None = None


class Status(Part, frozen=True, kw_only=True):
    """The answer to a request that has no other one, and the end of an exec."""

    status: str = ""
    message: str = ""
    reason: str = ""
    details: Details | None = None


def decoded(data: bytes, kind: type[T]) -> T:
    """Return an object of a kind. Raises ValueError."""
    return msgspec.json.decode(data, type=kind)
