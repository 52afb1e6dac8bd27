"""Launchpad's ``launch``: in threads, as processes of this machine, or on the hosts of a cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from mesh.config.settings import Options
from mesh.core.errors import UsageError
from mesh.launchpad import leaving
from mesh.launchpad.hosts import find_hosts
from mesh.launchpad.nodes import PythonProcess, Where
from mesh.launchpad.program import Program
from mesh.launchpad.runtime import flags
from mesh.launchpad.runtime.flags import LaunchType
from mesh.launchpad.terminals import OUTPUT_TO_FILES, check_terminal, open_windows, showing_for
from mesh.launchpad.translating import Plan, named_hosts, translate
from mesh.launchpad.wishes import hosts_named, with_project
from mesh.program.launching import launch as launch_program
from mesh.program.running import ProgramResult, Running

READY_TIMEOUT_S = 300.0  # for the processes of all nodes; the objects of users are made later
PLACES = {
    LaunchType.LOCAL_MULTI_THREADING: "threads",
    LaunchType.TEST_MULTI_THREADING: "threads",
    LaunchType.LOCAL_MULTI_PROCESSING: "local",
    LaunchType.TEST_MULTI_PROCESSING: "local",
    LaunchType.MESH: "cluster",
}
REFUSED = {
    LaunchType.LOCAL_DOCKER: "containers of this machine: use a cluster with `backend: command`",
    LaunchType.VERTEX_AI: "Vertex AI: mesh starts programs on hosts that exist",
}


class TestCase(Protocol):
    """The part of unittest.TestCase that a launch uses."""

    def addCleanup(self, function: object, /) -> object:
        """Call a function after the test."""


class Choices(Struct, frozen=True, kw_only=True):
    """The choices of a launch that Launchpad does not have."""

    cluster: str = ""  # a selector, as "pod"; "": MESH_CLUSTER, else the hosts that nodes name
    where: Mapping[str, Where] = {}  # hosts, GPUs and interpreter by label
    options: Options | None = None  # of the run
    serialize_py_nodes: bool | None = None  # arguments are always pickled
    controller_xm_requirements: object = None  # of XManager, which mesh does not have


class Launched:
    """A program that was launched."""

    def __init__(self, running: Running) -> None:
        self.running = running

    def wait(self, timeout: float | None = None) -> ProgramResult:
        """Wait for the end of the program, at most so many seconds, and return how it ended.

        Raises the exception of the node that ended it, MeshError for another failure, TimeoutError.
        """
        result = self.running.wait(timeout)
        if result.reason == "failure":
            result.raise_for_failure()
        return result

    def stop(self) -> ProgramResult:
        """Stop the program and wait until nothing of it is left."""
        return self.running.stop()

    def close(self) -> None:
        """Stop the program. Raises the exception of a node that has failed."""
        result = self.stop()
        if result.reason == "failure":
            result.raise_for_failure()


def launch(
    programs: Program | Sequence[Program],
    launch_type: LaunchType | str | None = None,
    xm_resources: object = None,
    local_resources: Mapping[str, PythonProcess] | None = None,
    test_case: TestCase | None = None,
    terminal: str | None = None,
    **choices: object,
) -> Launched | list[Launched]:
    """Launch a program, or each of several; return at once. The interpreter waits for their ends before it exits.

    launch_type: None for "mesh" where a cluster is named, else for the flag --lp_launch_type
    local_resources: command line and environment by label
    test_case: the test that fails if a node fails; its end stops the program
    terminal: a view of the logs: "tmux_session", "xterm", "gnome-terminal", "output_to_files", "current_terminal"
    choices: ``cluster``, ``where``, ``options`` as in Choices; the others, and xm_resources, change nothing
    Raises UsageError for a launch type that mesh does not have, or for hosts that are not there.
    """
    del xm_resources
    chosen = choices_of(choices)
    many = [programs] if isinstance(programs, Program) else list(programs)
    check_terminal(terminal)
    found = []
    for program in many:
        where = with_project(chosen.where, [*program.groups])
        kind = _kind(launch_type, chosen.cluster, program)
        plan = Plan(where=where, processes=local_resources or {}, options=options_of(chosen.options))
        found.append(_launched(program, kind, _with_hosts(plan, program, chosen.cluster, kind), terminal))
        if kind not in flags.TEST:
            leaving.wait_at_exit(found[-1].running)
        elif test_case is not None:
            test_case.addCleanup(found[-1].close)
    return found[0] if isinstance(programs, Program) else found


def launch_ssh(
    programs: Program | Sequence[Program],
    local_resources: Mapping[str, PythonProcess] | None = None,
    terminal: str | None = None,
    session_name_prefix: str = "",
    **choices: object,
) -> Launched | list[Launched]:
    """Launch TLaunch's programs on the hosts that their nodes name, and return at once, as ``launch`` does.

    session_name_prefix: the name of the tmux session; "": that of the program
    choices: as in Choices
    """
    chosen = choices_of(choices)
    many = [programs] if isinstance(programs, Program) else list(programs)
    check_terminal(terminal)
    found = []
    for program in many:
        where = with_project(chosen.where, [*program.groups])
        plan = Plan(where=where, processes=local_resources or {}, options=options_of(chosen.options))
        plan = _with_hosts(plan, program, chosen.cluster, LaunchType.MESH)
        found.append(_launched(program, LaunchType.MESH, plan, terminal, session_name_prefix))
        leaving.wait_at_exit(found[-1].running)
    return found[0] if isinstance(programs, Program) else found


def choices_of(choices: Mapping[str, object]) -> Choices:
    """Return the choices of a launch, with MESH_CLUSTER. Raises TypeError for an unknown name."""
    found = Choices(**choices)  # type: ignore[arg-type]
    return replace(found, cluster=found.cluster or os.environ.get("MESH_CLUSTER", ""), where=found.where or {})


def _kind(launch_type: LaunchType | str | None, cluster: str, program: Program) -> LaunchType:
    """Return the launch type that is meant. Raises UsageError for one that mesh does not have."""
    if launch_type is None:
        launch_type = LaunchType.MESH if cluster or named_hosts(program) else flags.parsed().lp_launch_type
    try:
        kind = LaunchType(launch_type)
    except ValueError as error:
        known = ", ".join(one.value for one in PLACES)
        hint = 'lp.launch(program, launch_type="local_mt")'
        raise UsageError(f"launch_type {launch_type!r}: expected {known}", hint=hint) from error
    if kind in REFUSED:
        raise UsageError(f"launch_type {kind.value!r}: mesh has no {REFUSED[kind]}", hint='launch_type="local_mt"')
    return kind


def _with_hosts(plan: Plan, program: Program, cluster: str, kind: LaunchType) -> Plan:
    if kind is not LaunchType.MESH:
        return plan
    wished = hosts_named(plan.where)
    named = named_hosts(program)
    found = find_hosts(cluster or _default(named), named or wished, plan.options)
    return replace(plan, cluster=found.cluster, hosts=found.hosts, names=found.names)


def _default(named: Sequence[str]) -> str:
    """Return the default cluster of the project for a program that names no host; "" where there is none."""
    if named:
        return ""
    from mesh.api.choosing import default_cluster

    try:
        return default_cluster()[0]
    except UsageError:
        return ""


def options_of(options: Options | None) -> Options:
    """Return the options of the run, with the seconds to SIGKILL that the flag has."""
    options = options or Options()
    notice = flags.parsed().lp_termination_notice_secs
    if options.grace is None and notice != flags.TERMINATION_NOTICE_S and notice >= 0:
        options = replace(options, grace=float(notice))
    return options


def _session_of_flag() -> str:
    """Return the name of the tmux session that the command line has; "" where it has none."""
    name = flags.parsed().tmux_session_name
    return "" if name == flags.SESSION_NAME else name


def _launched(program: Program, kind: LaunchType, plan: Plan, terminal: str | None, session: str = "") -> Launched:
    return Launched(launch_plan(program, kind, plan, terminal, session))


def launch_plan(program: Program, kind: LaunchType, plan: Plan, terminal: str | None, session: str = "") -> Running:
    """Launch a program by the choices of a plan, open its windows, and return at once.

    Raises UsageError, and MeshError if it does not start.
    """
    found = translate(program, plan)
    showing = showing_for(terminal, plan.options)
    running = launch_program(found, PLACES[kind], calls_run=True, ready_timeout=READY_TIMEOUT_S, showing=showing)
    if terminal and terminal != OUTPUT_TO_FILES and running.run:
        labels = [node.label for node in running.nodes]
        open_windows(terminal, session or _session_of_flag() or found.name, running.run, labels)
    return running
