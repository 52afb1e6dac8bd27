"""Reader of ``tpu:`` of a cluster: machines that are there, by their name, or machines that `mesh up` makes."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace
from yaml.nodes import MappingNode, Node

from mesh.config import tpu
from mesh.config.yamlfile import Problems
from mesh.core.cluster import Host, Source
from mesh.core.tpu import TpuSpec

KEY, BUILT_IN, built_in = tpu.KEY, tpu.BUILT_IN, tpu.built_in
MAKES = ("accelerator", "version", "runtime", "pricing", "zones")  # keys of machines that are made


class TpuMade(Source, frozen=True, kw_only=True):
    """TPU VMs that `mesh up` makes, and `mesh down` deletes."""

    spec: TpuSpec


def read(cluster: Mapping[str, tuple[Node, Node]], name: str, like: Host, problems: Problems) -> Source:
    """Read ``tpu:`` of a cluster, whose keys are given. The result is valid only without problems.

    like: user, port and key of every host
    """
    node, where = cluster[KEY][1], f"{name}.{KEY}"
    keys = [str(key.value) for key, _ in node.value] if isinstance(node, MappingNode) else []
    if not set(keys) & set(MAKES):
        return tpu.read(cluster, name, like, problems)
    from mesh.config.tpuspec import read_tpu

    for other in tpu.INSTEAD:
        if other in cluster:
            problems.add(node, where, f"has {other}: beside it; the hosts of a TPU are asked of its API")
    spec = read_tpu(node, where, problems)
    if spec.keep:
        problems.add(node, where, "has keep: in it, which is for job files; `mesh down` ends these machines")
    if spec.iap and "gateway" in cluster:
        problems.add(cluster["gateway"][1], f"{name}.gateway", "has tpu.iap: true beside it; connections go one way")
    user, key = spec.user or like.user, spec.identity_file or like.identity_file
    return TpuMade(spec=replace(spec, user=user, identity_file=key))
