"""Readers of the sources of hosts, and of the names of clusters that are in no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from yaml.nodes import Node

from mesh.config import jobname, kubernetes, slurm, tpusource
from mesh.config.yamlfile import Problems
from mesh.core.cluster import Host, Source

LOCAL = "local"


class BuiltInReader(Protocol):
    """Reader of names of clusters that are in no file, a module."""

    BUILT_IN: str  # begins the names

    def built_in(self, name: str) -> Source: ...  # raises UsageError


class SourceReader(BuiltInReader, Protocol):
    """Reader of one source of hosts, a module: its key in cluster.yaml, and its built-in clusters."""

    KEY: str  # of a cluster; its value describes the source

    def read(self, cluster: Mapping[str, tuple[Node, Node]], name: str, like: Host, problems: Problems) -> Source: ...


SOURCE_READERS: Sequence[SourceReader] = (tpusource, kubernetes, slurm)
BUILT_IN_READERS: Sequence[BuiltInReader] = (*SOURCE_READERS, jobname)
RESERVED = (LOCAL, jobname.WORD, kubernetes.WORD, slurm.WORD, tpusource.KEY)  # names that no cluster of a file may have
BEGINNINGS = (f"{LOCAL}:", *(reader.BUILT_IN for reader in BUILT_IN_READERS))  # nor names that begin so
