"""Files from the hosts."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from mesh.api.choosing import choose_cluster, here, make_spec, project_here
from mesh.api.detached import hosts_of_run
from mesh.api.meant import run_of
from mesh.app.assemble import Parts, launch
from mesh.app.screen import Showing
from mesh.config.project import Project
from mesh.config.settings import Options
from mesh.core.cluster import Placement, place_ranks
from mesh.core.errors import UsageError
from mesh.core.events import Event
from mesh.core.look import Look
from mesh.core.outcome import Outcome
from mesh.core.pull import NotPulled, Pulled
from mesh.core.run import Kind
from mesh.core.typed import Typed
from mesh.engine.question import Question
from mesh.protocol.questions import Pull
from mesh.rundir.results import PullResult, failures

DEFAULTS, PLAIN = Options(), Look()
INTO = "pulled"
# In the directory of pulled files, so that neither git nor the next sync takes them.
IGNORE = ".gitignore"


def pull(
    paths: Sequence[str],
    *,
    cluster: str,
    into: str | os.PathLike[str] = "",
    options: Options = DEFAULTS,
    clusters_file: str = "",
    json: bool = False,
    quiet: bool = False,
    look: Look = PLAIN,
    typed: Typed | None = None,
) -> PullResult:
    """Bring files and directories from every host of a cluster, those of the i-th one into rank-i (four digits).

    cluster: a selector, or a run of this machine, whose hosts and workspace are then meant
    paths: relative to the workspace on the hosts, or absolute, or patterns; ~ is a host's home directory
    into: the directory for them; "": ``pulled`` in the working directory, which git and syncs leave out
    json, quiet, look, typed: as with run
    A file that is here with the same size and time is not fetched again; a part of a file is completed. Takes no lock.
    Raises UsageError.
    """
    record = run_of(cluster, clusters_file)
    found = hosts_of_run(record, options, clusters_file) if record else choose_cluster(cluster, options, clusters_file)
    _check_paths(paths)
    from mesh.engine.inquiry import Inquiry
    from mesh.screen.summary import left_out, pull_summary
    from mesh.workspace.pulled import PulledFiles

    project = project_here()
    spec = replace(make_spec(project, options, ()), kind=Kind.PULL, sync=False, lock=False, prerun=())
    spec = replace(spec, project=(record.spec.project if record else found.workspace) or spec.project)
    directory = Path(into or INTO)
    place = here() / directory
    collected, began = _Collected(), time.monotonic()

    def landing(rank: int) -> PulledFiles:
        return PulledFiles(place / f"rank-{rank:04d}", _keep_out if not into else lambda made: None)

    def summary(outcome: Outcome, placement: Placement) -> tuple[Sequence[str], Sequence[str]]:
        took = time.monotonic() - began
        done, failed = pull_summary(outcome, placement, collected.pulled, collected.missing, took, str(directory))
        failed += left_out(outcome, placement, typed)
        return [*done, *_warned(project, place)] if done else [], failed

    question = Question(message=Pull(paths=list(paths)), answer_s=math.inf)
    inquiry = Inquiry(place_ranks(found.hosts), question)
    showing = Showing(json=json, quiet=quiet, look=look, kept=False)
    outcome, placement, _ = launch(
        Parts(
            spec=spec,
            cluster=found,
            showing=showing,
            sinks=(collected,),
            decider=inquiry,
            landing=landing,
            summary=summary,
        )
    )
    return collected.result(outcome, placement, directory)


def _check_paths(paths: Sequence[str]) -> None:
    """Raise UsageError unless these are paths, and at least one."""
    if isinstance(paths, str) or not paths:
        raise UsageError("no path was named", hint="mesh pull CLUSTER PATH ...; `.` is the whole workspace")
    if not all(isinstance(path, str) and path and "\0" not in path for path in paths):
        raise UsageError("an empty path", hint="`.` is the whole workspace")


def _warned(project: Project, place: Path) -> list[str]:
    """Return a warning if the next sync takes a directory for a part of the workspace."""
    from mesh.workspace.ignore import explain

    inside = os.path.relpath(place / "rank-0000", project.workspace)
    if inside.split(os.sep)[0] == os.pardir:
        return []
    path = os.fsencode(inside) + b"/"
    if not explain(project.workspace, path, project.ignore, include_git=project.include_git).belongs:
        return []
    name = os.path.dirname(inside) or inside
    return [f"{name} is in the workspace: the next run sends it, unless ignore: in mesh.yaml names it"]


def _keep_out(made: Path) -> None:
    """Leave a directory that we have made out of git and of syncs."""
    with contextlib.suppress(FileExistsError), (made / IGNORE).open("x") as file:
        file.write("*\n")


class _Collected:
    """A sink that keeps the results of a pull."""

    def __init__(self) -> None:
        self.pulled: list[Pulled] = []
        self.missing: list[NotPulled] = []

    def handle(self, event: Event) -> None:
        if isinstance(event, Pulled):
            self.pulled.append(event)
        elif isinstance(event, NotPulled):
            self.missing.append(event)

    def idle(self) -> None: ...

    def close(self) -> None: ...

    def result(self, outcome: Outcome, placement: Placement, directory: Path) -> PullResult:
        """Sum up. directory: of the pulled files"""
        return PullResult(
            exit_code=outcome.exit_code,
            directory=directory,
            files=sum(event.files for event in self.pulled),
            unchanged=sum(event.unchanged for event in self.pulled),
            bytes=sum(event.bytes for event in self.pulled),
            missing=tuple(
                f"{placement.hosts[event.node].name}: {event.path}: {event.reason}" for event in self.missing
            ),
            failures=failures(outcome, placement),
        )
