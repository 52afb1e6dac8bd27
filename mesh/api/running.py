"""A run from its start to its result."""

from __future__ import annotations

from mesh.api.checking import numbered, vetted
from mesh.app.assemble import Showing, launch
from mesh.core.cluster import Cluster
from mesh.core.events import Stream
from mesh.core.run import AUTO, Kind, RunSpec
from mesh.rundir.results import RunResult, run_result


def run_on(cluster: Cluster, spec: RunSpec, showing: Showing, *, check_first: bool = False) -> RunResult:
    """Run it to its end, in a run directory.

    check_first: see before whether every host is fit for it
    """
    if any(group.nproc == AUTO for group in spec.groups):
        from mesh.api.inquiries import count_gpus

        spec = spec.with_nproc(count_gpus(cluster, quiet=showing.quiet))
    decider = vetted(spec, cluster) if check_first else numbered(spec, cluster)
    outcome, placement, store = launch(spec, cluster, showing, supervisor=decider, keeps=not check_first)
    assert store is not None  # runs are kept
    outputs = (Stream.SETUP if spec.kind is Kind.SETUP else Stream.STDOUT, Stream.STDERR)
    return run_result(outcome, placement, store, outputs)
