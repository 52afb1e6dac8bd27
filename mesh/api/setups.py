"""The run that sets up the modules of a job on its hosts, or undoes them."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from mesh.api.attempts import setup_of_attempt
from mesh.api.checking import numbered
from mesh.api.joblogs import link_setup, note
from mesh.app.assemble import Parts, launch, new_run_id
from mesh.app.screen import Showing
from mesh.core.cluster import Cluster
from mesh.core.events import Stream
from mesh.core.outcome import Outcome
from mesh.core.run import RunSpec
from mesh.jobs.values import Job
from mesh.rundir.results import RunResult, run_result

SHOWS_NOTHING = Showing(quiet=True)


class Wish(Struct, frozen=True, kw_only=True):
    """Modules of a job that a person or the steward wants set up or undone."""

    only: tuple[str, ...] = ()  # names of modules; (): all of them
    force: bool = False  # also those that are in place
    undo: bool = False  # remove what they have made, the last one first
    locks: bool = True  # take the locks of the hosts


def set_up(job: Job, directory: Path, cluster: Cluster, wish: Wish) -> tuple[Outcome, RunSpec]:
    """Set up or undo modules of a job on all of its hosts, and link their logs.

    Raises UsageError for local files that cannot be read, OSError for a directory that cannot be written.
    """
    outcome, spec, _ = carry_out(job, directory, cluster, wish, SHOWS_NOTHING)
    return outcome, spec


def carry_out(
    job: Job, directory: Path, cluster: Cluster, wish: Wish, showing: Showing
) -> tuple[Outcome, RunSpec, RunResult]:
    """Set up or undo modules, as ``set_up`` does; return the result for programs as well."""
    spec, preparation = setup_of_attempt(job, new_run_id(), cluster, only=wish.only, undo=wish.undo)
    spec = replace(spec, force=wish.force, lock=spec.lock and wish.locks, claim=spec.claim and wish.locks)
    what = "removes" if wish.undo else "sets up"
    note(
        directory, f"run {spec.run} {what} {', '.join(spec.modules)} on {', '.join(one.name for one in cluster.hosts)}"
    )
    link_setup(directory, spec.run, spec.modules, cluster, undo=wish.undo)
    decider = numbered(spec, cluster, preparation)
    parts = Parts(spec=spec, cluster=cluster, showing=showing, decider=decider, preparation=preparation)
    outcome, placement, store = launch(parts)
    assert store is not None  # runs are kept
    note(directory, f"run {spec.run}: {outcome.cause.value}")
    return outcome, spec, run_result(outcome, placement, store, (Stream.STDOUT, Stream.STDERR))
