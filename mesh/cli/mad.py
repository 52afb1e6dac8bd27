"""The command line of MAD Engine's SSH runner."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Iterator
from typing import Any

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from mesh import api
from mesh.cli.reports import aligned
from mesh.cli.speech import show
from mesh.cli.speech import told as telling
from mesh.config.settings import read_seconds
from mesh.sinks.escapes import plain

MOST_TOLD = 100  # characters of why a node could not take part
HELP: dict[str, Any] = {
    "model": "the tag of a model; required",
    "nodes": "host names or addresses, by commas, the first one has rank 0; required",
    "ssh-user": "who logs in there; required",
    "ssh-password": "ask for the password; it takes no value",
    "password-env": "the name of a variable that holds the password",
    "ssh-key": "a private key (default: as ssh finds them)",
    "master-addr": "where the ranks meet (default: the first node)",
    "master-port": "and at which port (default: 4000)",
    "shared-data-path": "where the data is on every node (default: /nfs/data)",
    "nccl-interface": "that NCCL uses (default: the one towards the master, on each node)",
    "gloo-interface": "that gloo uses (default: likewise)",
    "timeout": "end the run after so many seconds (or 30m, 2h), with status 124 (default: 3600)",
    "madengine-path": "madengine on the nodes (default: madengine)",
    "additional-args": "more words for madengine, as a shell would split them",
    "working-directory": "where madengine runs, relative to the home there (default: a copy of the working directory)",
    "config": "an INI file with these flags as keys, in sections cluster, ssh, training and madengine; flags win",
    "wait": "wait for busy nodes, at most so many seconds (or 10m); without a value: however long",
    "output": "all, fold, rank0 or none (default: fold on a terminal, else all)",
    "label": "what leads a line: host or rank (default: host)",
    "json": "print events as JSON lines",
    "dry-run": "tell the command of each node, and do nothing",
}


@task(auto_shortflags=False, optional=["ssh_password", "wait"], help=HELP)
@telling
def mad(
    context: Context,
    model: str = "",
    nodes: str = "",
    ssh_user: str = "",
    ssh_password: str | bool | None = None,
    password_env: str = "",
    ssh_key: str = "",
    master_addr: str = "",
    master_port: str = "",
    shared_data_path: str = "",
    nccl_interface: str = "",
    gloo_interface: str = "",
    timeout: str = "",
    madengine_path: str = "",
    additional_args: str = "",
    working_directory: str = "",
    config: str = "",
    wait: str | bool | None = None,
    output: str = "",
    label: str = "host",
    json: bool = False,
    dry_run: bool = False,
) -> None:
    """Run madengine on every node: the command line of MAD Engine's SSH runner."""
    typed: dict[str, str | bool | None] = {
        "model": model,
        "nodes": nodes,
        "ssh-user": ssh_user,
        "ssh-password": ssh_password,
        "password-env": password_env,
        "ssh-key": ssh_key,
        "master-addr": master_addr,
        "master-port": master_port,
        "shared-data-path": shared_data_path,
        "nccl-interface": nccl_interface,
        "gloo-interface": gloo_interface,
        "timeout": timeout,
        "madengine-path": madengine_path,
        "additional-args": additional_args,
        "working-directory": working_directory,
    }
    from mesh.config.mad import read_mad
    from mesh.core.outcome import Cause

    job = read_mad(typed, config, os.environ)
    if dry_run:
        show(api.plan_mad(job))
        return
    patience = math.inf if wait is True else read_seconds("--wait", wait or "") or 0.0
    result = api.mad(job, wait=patience, output=output, label=label, json=json)
    if not json and result.cause is not Cause.OUTPUT_CLOSED:
        show(node_table(result))
    raise Exit(code=result.exit_code)


def node_table(result: api.RunResult) -> Iterator[str]:
    """How madengine ended on each node, and on how many it succeeded."""
    yield from aligned(
        [["node", "rank", "result"], *([rank.host, str(rank.rank), _end(result, rank)] for rank in result.ranks)]
    )
    yield f"Successful nodes: {sum(rank.code == 0 for rank in result.ranks)}/{len(result.ranks)}"


def _end(result: api.RunResult, rank: api.RankResult) -> str:
    from mesh.core.events import Exited

    if rank.code is not None or rank.signal is not None:
        return Exited(time=0, node=0, rank=rank.rank, code=rank.code or 0, signal=rank.signal or 0).told()
    lead = f"{rank.host}: "
    why = next((failure for failure in result.failures if failure.startswith(lead)), "")
    return textwrap.shorten(plain(why.removeprefix(lead).split("\n")[0]), MOST_TOLD, placeholder="...") or (
        "not started" if result.failures else "its end is not known"
    )
