"""The start of the ranks of a prompt."""

from __future__ import annotations

import time

from msgspec import Struct
from msgspec.structs import replace

from mesh.api.choosing import (
    LEASE_ON_A_TERMINAL_S,
    choose_cluster,
    default_cluster,
    make_spec,
    new_client,
    project_here,
)
from mesh.api.inquiries import count_gpus
from mesh.app.screen import Showing
from mesh.config.settings import DEFAULT, Options, times
from mesh.core.look import Look
from mesh.core.ranks import counted
from mesh.core.run import AUTO
from mesh.program.launching import launch
from mesh.program.program import Program
from mesh.program.prompt.outlet import Outlet
from mesh.program.prompt.runner import CellRunner
from mesh.program.prompt.screen import PromptScreen
from mesh.program.prompt.syncing import Workspace
from mesh.program.runtime.handles import Group
from mesh.program.runtime.shell import Shell

LABEL = "rank"  # of the nodes
READY_TIMEOUT_S = 300.0


class Wishes(Struct, frozen=True, kw_only=True):
    """The ranks of a prompt, and how their output is shown."""

    cluster: str
    python: str = "python3"  # the interpreter on the hosts
    options: Options = Options()
    fold: str = "numbers"
    look: Look = Look()


def start(
    wishes: Wishes, *, hint: str = "", outlet: Outlet | None = None, names: dict[str, object] | None = None
) -> CellRunner:
    """Start the ranks, and return once all of them take cells.

    hint: shown once they are ready; outlet, names: as PromptScreen and CellRunner have them
    Raises UsageError, and MeshError if a host cannot take part.
    """
    cluster = wishes.cluster or default_cluster()[0]
    found = choose_cluster(cluster, wishes.options, "")
    nproc = count_gpus(found, quiet=True) if wishes.options.nproc == AUTO else wishes.options.nproc
    program = Program("repl", cluster=cluster, python=wishes.python, options=wishes.options)
    names_of_hosts = [host.name for host in found.hosts]
    group = program.add(Shell, on=names_of_hosts, per_host=nproc, label=LABEL, on_failure="ignore")
    assert isinstance(group, Group)
    screen = PromptScreen(found.hosts, nproc, fold=wishes.fold, look=wishes.look, outlet=outlet)
    try:
        workspace = Workspace(make_spec(project_here(), wishes.options, ()))
        began, count = time.monotonic(), counted(screen.world_size, "rank")
        screen.say(f"starting {count} on {counted(len(names_of_hosts), 'host')}")
        screen.flush()
        program.watch = screen.handle
        running = launch(
            program,
            "cluster",
            calls_run=True,
            ready_timeout=READY_TIMEOUT_S,
            showing=Showing(output="none", quiet=True),
        )
        screen.say(f"{count} ready after {time.monotonic() - began:.1f} s{f'; {hint}' if hint else ''}")
        screen.flush()
    except BaseException:
        screen.close()
        raise
    return CellRunner(running, list(group), screen, workspace, names)


def outlasting_sleep(options: Options) -> Options:
    """Return options with the lease of a terminal, for a notebook on a laptop that sleeps, unless a lease is chosen."""
    if times(project_here(), options, new_client())["lease"].place != DEFAULT:
        return options
    return replace(options, lease=LEASE_ON_A_TERMINAL_S)
