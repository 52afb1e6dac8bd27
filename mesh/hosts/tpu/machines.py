"""Machines of the TPU API that mesh makes: the values, and the labels by which they are ours. Pure."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping

from msgspec import Struct, field

from mesh.core.tpu import TpuSpec
from mesh.hosts.tpu.nodes import TpuNode

STORE_LABEL, JOB_LABEL, GENERATION_LABEL, USER_LABEL = "mesh-store", "mesh-job", "mesh-generation", "mesh-user"
OWN_LABELS = (STORE_LABEL, JOB_LABEL, GENERATION_LABEL)  # by which a machine has an owner
LABEL_CHARACTERS = 63
_NAMES = uuid.UUID("5a3ff7d4-51a0-4e0c-8a8c-6f1d6f2f9c1b")  # the namespace of request ids


class Intent(Struct, frozen=True, kw_only=True):
    """Machines that may be made: one generation, under a name that is used once."""

    spec: TpuSpec
    project: str
    zone: str
    name: str
    labels: Mapping[str, str]  # see labels_of

    @property
    def request_id(self) -> str:
        """The id of the request to make them: the same for each repetition."""
        return str(uuid.uuid5(_NAMES, f"{self.project}/{self.zone}/{self.name}"))


class Machine(Struct, frozen=True, kw_only=True):
    """A resource of the API: a node, which is a TPU, or a queued resource, which is a request for some."""

    name: str
    state: str  # as the API calls it; a number that the client does not have a name for stays a number
    is_request: bool = False  # a queued resource
    request: str = ""  # of a node: the queued resource that it belongs to
    labels: Mapping[str, str] = field(default_factory=dict)  # of a queued resource: those of its node spec
    accelerator: str = ""
    pricing: str = ""  # a value of core.tpu.Pricing
    slices: int = 1  # of a queued resource
    zone: str = ""
    project: str = ""
    created: float = 0.0  # seconds since the epoch; 0: the API has not given it
    why: str = ""  # of a queued resource that failed
    node: TpuNode | None = None  # of a node
    health: str = ""  # of a node, in the words of the API; "": it gives none


class Seen(Struct, frozen=True, kw_only=True):
    """An answer of the API about a zone. Without a complete one nothing follows from it."""

    complete: bool
    machines: tuple[Machine, ...] = ()
    time: float = 0.0  # seconds, on this machine's monotonic clock, when the API was asked
    why: str = ""  # it is not complete
    hint: str = ""


def labels_of(store: str, job: str, generation: int, user: str) -> dict[str, str]:
    """Return the labels of machines that mesh makes.

    store: six characters of the store's id; job: the id of the job, or another owner such as "up-pod"

    >>> labels_of("abc123", "7", 2, "Me@home")["mesh-user"]
    'me-home'
    """
    return {
        STORE_LABEL: store,
        JOB_LABEL: label_value(job),
        GENERATION_LABEL: str(generation),
        USER_LABEL: label_value(user),
    }


def label_value(text: str) -> str:
    """Return a text as the value of a label."""
    return re.sub(r"[^a-z0-9_-]", "-", text.lower())[:LABEL_CHARACTERS]


def is_ours(machine: Machine, labels: Mapping[str, str]) -> bool:
    """Return True if a machine has the labels of its owner: store, job and generation."""
    return all(machine.labels.get(name) == labels.get(name) for name in OWN_LABELS)


def of_intent(seen: Seen, intent: Intent) -> tuple[Machine, ...]:
    """Return the machines of an intent in an answer: by their labels, and by their names."""
    numbered = re.compile(re.escape(intent.name) + r"(-[0-9]+)?")
    return tuple(one for one in seen.machines if is_ours(one, intent.labels) and numbered.fullmatch(one.name))
