"""A program of Launchpad as a program of ``mesh.program``: one group for each label, one part for each node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from mesh.config.settings import Options
from mesh.core.cluster import Cluster
from mesh.core.errors import UsageError
from mesh.core.run import PrerunEntry
from mesh.launchpad.nodes import MultiProcessingColocation, PyNode, PythonProcess, Where
from mesh.launchpad.program import Program
from mesh.launchpad.runtime.nodes import LaunchpadNode
from mesh.launchpad.runtime.part import Part
from mesh.program.program import Program as MeshProgram

NO_LABEL = re.compile(r"[^A-Za-z0-9_.-]")


class Plan(Struct, frozen=True, kw_only=True):
    """The choices of one launch."""

    cluster: str | Cluster = ""  # a selector; "": hosts of this machine
    hosts: tuple[str, ...] = ()  # of the cluster, in its order; (): names stand for themselves
    names: Mapping[str, str] = {}  # hosts as nodes name them: their names in the cluster
    where: Mapping[str, Where] = {}  # by label
    processes: Mapping[str, PythonProcess] = {}  # by label
    flags: Mapping[str, tuple[str, ...]] = {}  # words of the command line in place of the program's own, by label
    prerun: tuple[PrerunEntry, ...] = ()  # after that of the project
    options: Options = Options()


class _Placed(Struct):
    """A node and its wishes."""

    node: PyNode
    host: str
    restarts: int
    flags: tuple[str, ...] = ()  # of its command line, in place of the program's own


def translate(program: Program, plan: Plan) -> MeshProgram:
    """Return the program to launch; the handles of its nodes become usable. Raises UsageError."""
    check_nodes(program)
    found = MeshProgram(label_of(program.name), cluster=plan.cluster, options=plan.options)
    found.prerun = plan.prerun
    order = {name: place for place, name in enumerate(_order(program, plan))}
    labels: set[str] = set()
    parts: dict[str, list[Part]] = {}
    members: dict[str, list[_Placed]] = {}
    for written, nodes in program.groups.items():
        label = _unused(label_of(written), labels)
        labels.add(label)
        placed = [one for node in nodes for one in _placed(node, plan)]
        if {bool(one.host) for one in placed} == {True, False}:
            hint = "SSHNode(...).to_host(HOST) for each of them, or for none"
            raise UsageError(f"{written}: some of its nodes name a host and some do not", hint=hint)
        placed.sort(key=lambda one: order.get(one.host, 0))  # ranks are numbered host after host
        for index, one in enumerate(placed):
            one.node.bind(found.id, f"{label}/{index}" if len(placed) > 1 else label)
        members[label], parts[label] = placed, []
    for (written, _), (label, placed) in zip(program.groups.items(), members.items(), strict=True):
        for one in placed:
            one.flags = plan.flags.get(written, ())
        _add(found, label, placed, (plan.where.get(written, Where()), plan.processes.get(written, PythonProcess())))
    return found


def check_nodes(program: Program) -> None:
    """Raise UsageError for a program without nodes."""
    if not program.groups:
        raise UsageError(f"{program.name}: the program has no nodes", hint="program.add_node(node, label='actor')")


def _add(found: MeshProgram, label: str, placed: Sequence[_Placed], choices: tuple[Where, PythonProcess]) -> None:
    where, process = choices
    parts = [one.node.part() for one in placed]
    for part, one in zip(parts, placed, strict=True):
        part.argv, part.has_own_argv = (*process.argv, *one.flags), bool(one.flags)
    restarts = max(one.restarts for one in placed)
    hosts = [one.host for one in placed if one.host]
    found.add(
        LaunchpadNode,
        parts,
        on=hosts or where.on,
        count=len(placed),
        label=label,
        gpus=where.gpus,
        env={**where.env, **{name: str(value) for name, value in process.env.items()}},
        python=where.python,
        concurrency=max(one.node.concurrency for one in placed),
        restarts=restarts,
        on_failure="restart" if restarts else "stop",
    )


def _placed(node: PyNode, plan: Plan) -> Iterator[_Placed]:
    """Yield a node, or those of a colocation, with the host that it names."""
    if not isinstance(node, MultiProcessingColocation):
        yield _Placed(node, plan.names.get(node.host, node.host), 0)
        return
    host = node.host or next((one.host for one in node.nodes if one.host), "") or (plan.hosts or ("",))[0]
    for one in node.nodes:
        yield _Placed(one, plan.names.get(host, host), node.restarts)


def _order(program: Program, plan: Plan) -> Sequence[str]:
    """Return the hosts in the order in which ranks are numbered."""
    return plan.hosts or list(dict.fromkeys(plan.names.get(host, host) for host in named_hosts(program)))


def named_hosts(program: Program) -> list[str]:
    """Return the hosts that nodes name, as they are written, in order of first use."""
    nodes = program.get_all_nodes()
    inner = [one for node in nodes if isinstance(node, MultiProcessingColocation) for one in node.nodes]
    return list(dict.fromkeys(node.host for node in [*nodes, *inner] if node.host))


def label_of(written: str) -> str:
    """Return a label as mesh allows it.

    >>> label_of("10.0.0.1_worker"), label_of("me@host worker"), label_of("actor")
    ('_10.0.0.1_worker', 'me-host-worker', 'actor')
    """
    found = NO_LABEL.sub("-", written)
    return found if found[:1].isalpha() or found.startswith("_") else f"_{found}"


def _unused(label: str, used: set[str]) -> str:
    return next(name for name in (label, *(f"{label}-{n}" for n in range(2, len(used) + 3))) if name not in used)
