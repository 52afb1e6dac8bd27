"""The lines of ``mesh run --dry-run``."""

from __future__ import annotations

from collections.abc import Iterator

from mesh.app.assemble import placed
from mesh.app.carriers import carrier_of
from mesh.core.cluster import Cluster
from mesh.core.run import AUTO, Launch, RunSpec


def plan_lines(spec: RunSpec, cluster: Cluster) -> Iterator[str]:
    """Describe a run in lines for people."""
    from mesh.workspace import listing

    yield f"cluster    {cluster.name} ({cluster.backend})"
    placement = placed(spec, cluster)
    is_counted = spec.groups[0].nproc != AUTO
    for node, host in enumerate(cluster.hosts):
        ranks = placement.ranks(node)
        described = carrier_of(cluster).describe(cluster, host)
        where = f" ({described})" if described else ""
        none = "spare     " if placement.spares else "host      "
        number = f"rank {f'{ranks[0]}-{ranks[-1]}' if len(ranks) > 1 else ranks[0]!s:<5}" if ranks else none
        of_slice = " slice {}".format(*placement.worker(ranks[0])) if ranks and cluster.slices else ""
        label = spec.groups[placement.group(node)].label if ranks or not placement.spares else ""
        yield f"{number} {host.name}{where}{of_slice}{f' {label}' if label else ''}"
    if not is_counted:
        yield "nproc      as many as each host has GPUs: the hosts will be asked"
    if spec.launcher is not Launch.NONE:
        yield f"launcher   {spec.launcher.value}, one on each host, for {spec.groups[0].nproc or 'so many'} processes"
    found = listing.list_workspace(spec.workspace, spec.ignore, include_git=spec.include_git)
    files = [entry for entry in found.entries if entry.kind != listing.DIRECTORY]
    yield f"workspace  {spec.workspace}: {len(files)} file(s), {sum(entry.size for entry in files)} bytes"
    places = dict.fromkeys(host.remote_dir or cluster.remote_dir for host in cluster.hosts)
    for place in places:
        yield f"on hosts   {place}/workspaces/{spec.project}"
    for entry in spec.prerun:
        unless = f"  (skipped where it succeeded with the same {', '.join(entry.inputs)})" if entry.inputs else ""
        yield f"prerun     {entry.run}{unless if not spec.force else ''}"
    if env := spec.groups[0].env:
        yield f"env        {', '.join(sorted(env))}"
    for group in spec.groups:
        yield f"command    {group.told}"
