"""``mesh job setup``: the modules of a job by hand."""

from __future__ import annotations

from mesh.cli import joboptions as j
from mesh.cli.command import Takes, command
from mesh.cli.jobs import GROUP
from mesh.cli.options import Given
from mesh.core.errors import UsageError


@command(
    "job setup",
    GROUP,
    "ID [MODULE ...]",
    takes=Takes.PATHS,
    examples=(
        ("mesh job setup 42", "all of its modules, on the hosts that it has"),
        ("mesh job setup 42 gcsfuse --force", "one of them, also where it is in place"),
        ("mesh job setup 42 --undo", "remove keys, mounts and environments"),
    ),
)
def setup(given: Given) -> int:
    """Set up the modules of a job on its hosts, or undo them."""
    from mesh.api.jobsetup import job_setup
    from mesh.app.screen import Showing

    if not given.words:
        raise UsageError("expected a job: a number, a name or last", hint="mesh job setup 42")
    job, *modules = given.words
    showing = Showing(look=given.look())
    return job_setup(job, modules, force=given[j.FORCE_SETUP], undo=given[j.UNDO_SETUP], showing=showing).exit_code
