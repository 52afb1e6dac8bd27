"""Interfaces of sources of hosts."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol, runtime_checkable

from mesh.core.cluster import Cluster
from mesh.core.findings import Finding


class Purpose(Enum):
    """Use of the hosts of a cluster, on which depends how hard its source tries to find them."""

    RUN = "run"  # all hosts, ready for a run
    ASK = "ask"  # the hosts that there are, for a question
    CHECK = "check"  # as RUN, but makes no host, and includes hosts that a run could not use
    PLAN = "plan"  # as RUN, to show a plan; hosts not yet made may get other names
    LIST = "list"  # as RUN, for people; no host is made
    REFRESH = "refresh"  # as LIST, without anything that the source has remembered


class HostSource(Protocol):
    """Source of the hosts of some clusters."""

    def find(self, cluster: Cluster, purpose: Purpose) -> Cluster:
        """Return the cluster with its hosts. Raises NoHosts if a run would make them, and MeshError."""

    def check(self, cluster: Cluster) -> Sequence[Finding]:
        """Return findings that need no host, such as rights; () if there are none. Raises MeshError."""

    def forget(self, cluster: Cluster) -> None:
        """Look for the hosts anew the next time: some of them were not as found."""

    def origin(self, cluster: Cluster) -> str:
        """Return where the hosts come from, to complete the sentence "its hosts ..."."""


@runtime_checkable
class Reporter(Protocol):
    """A source that makes hosts, and shows on stderr how far it is."""

    is_quiet: bool  # set before `find`, to show nothing but trouble
