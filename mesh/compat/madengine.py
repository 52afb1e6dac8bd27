"""Runs of MAD Engine: its command on every node, each with its own place among them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from mesh.api.checking import vetted
from mesh.api.choosing import make_spec, project_here
from mesh.app.assemble import Parts, launch, placed
from mesh.app.screen import Showing
from mesh.config.mad import MadJob
from mesh.config.project import check_workspace
from mesh.config.settings import Options
from mesh.core.events import Stream
from mesh.core.run import PrerunEntry, RunSpec
from mesh.rundir.results import RunResult, run_result

HINT = "there, as that user: pip install git+https://github.com/ROCm/madengine.git; or name it by --madengine-path"
BY_THE_ROUTE = "(by the route)"


def mad(
    job: MadJob,
    *,
    wait: float = 0.0,
    output: str = "all",
    label: str = "host",
    json: bool = False,
    quiet: bool = False,
) -> RunResult:
    """Run madengine on all nodes of a job, once every one of them was found fit: reachable, madengine and the shared
    path there, the master's port within reach of all.

    wait: seconds for nodes that are busy with another run; output, label, json, quiet: as with ``run``
    Rank i is the i-th node. Raises UsageError; whatever goes wrong later is in the result.
    """
    spec, cluster = _spec(job, wait), job.cluster
    paths = [job.shared_data_path, *([_directory(job)] if job.working_directory else [])]
    # Where prerun or the directory decides which one is meant, prerun's last entry looks for it.
    programs = () if spec.prerun else (job.madengine_path,)
    decider = vetted(spec, cluster, paths=paths, programs=programs, program_hint=HINT)
    showing = Showing(output=output, label=label, json=json, quiet=quiet)
    outcome, placement, store = launch(Parts(spec=spec, cluster=cluster, showing=showing, decider=decider))
    assert store is not None  # runs are kept
    return run_result(outcome, placement, store, (Stream.STDOUT, Stream.STDERR))


def plan_mad(job: MadJob) -> Iterator[str]:
    """The command of each node, in lines for people; does nothing. Raises UsageError."""
    from mesh.engine.wrapping import host_command

    spec = _spec(job, 0.0)
    first = job.nodes[0].internal_ip or job.nodes[0].address
    known = {"MASTER_ADDR": first, "NCCL_SOCKET_IFNAME": BY_THE_ROUTE, "GLOO_SOCKET_IFNAME": BY_THE_ROUTE}
    placement = placed(spec, job.cluster)
    for node, host in enumerate(job.nodes):
        command = host_command(spec, placement, node, {**known, **spec.groups[0].env})
        yield f"{host.name}: {' '.join(map(_quoted, command))}"


def _spec(job: MadJob, wait: float) -> RunSpec:
    project = project_here()
    check_workspace(project, Path.home())
    env = {
        "MASTER_ADDR": job.master_addr,
        "MASTER_PORT": str(job.master_port),
        "NCCL_SOCKET_IFNAME": job.nccl_interface,
        "GLOO_SOCKET_IFNAME": job.gloo_interface,
    }
    options = Options(
        env={name: value for name, value in env.items() if value},
        master_port=job.master_port,
        timeout=job.timeout,
        wait=wait,
    )
    spec = make_spec(project, options, job.command)
    return replace(spec, multi_node=True, prerun=_prerun(spec, job), lock=True, claim=True)


def _prerun(spec: RunSpec, job: MadJob) -> tuple[PrerunEntry, ...]:
    """That of the project, and what madengine needs beyond it."""
    added = [PrerunEntry(run=f"cd -- {_in_shell(_directory(job))}")] if job.working_directory else []
    is_relative = "/" in job.madengine_path and not job.madengine_path.startswith("/")
    if spec.prerun or added or is_relative:
        program = shlex.quote(job.madengine_path)
        told = shlex.quote(f"{job.madengine_path} is not found here; {HINT}")
        added.append(PrerunEntry(run=f"command -v {program} >/dev/null || {{ echo {told} >&2; false; }}"))
    return (*spec.prerun, *added)


def _directory(job: MadJob) -> str:
    """The working directory, for the nodes to expand."""
    named = job.working_directory
    return named if named.startswith(("/", "~/")) else f"~/{named}"


def _in_shell(path: str) -> str:
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)


def _quoted(word: str) -> str:
    """A word for a shell, in double quotes where it holds single ones and nothing that they would not protect.

    >>> print(_quoted("{'A': '1'}"), _quoted("a b"), _quoted("it's $5"))
    "{'A': '1'}" 'a b' 'it'"'"'s $5'
    """
    return f'"{word}"' if "'" in word and not set(word) & set('"\\$`!') else shlex.quote(word)
