"""TLaunch's ``lp_k8s.launch``: a program in pods that mesh makes for it, and deletes at its end."""

from __future__ import annotations

import os
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from mesh.api.choosing import cluster_file, default_cluster, project_here, with_archive
from mesh.api.held import find_hosts
from mesh.api.podhold import down_pods
from mesh.config.clusters import find_cluster
from mesh.config.kubernetes import BUILT_IN
from mesh.config.podcode import Code
from mesh.config.podspec import MadePods, PodTemplate
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError, UsageError
from mesh.core.run import PrerunEntry
from mesh.hosts.interfaces import Purpose
from mesh.hosts.kubernetes.render import safe
from mesh.launchpad import leaving, podparts
from mesh.launchpad.launching import Choices, Launched, choices_of, launch_plan, options_of
from mesh.launchpad.nodes import Where
from mesh.launchpad.podparts import PodPart
from mesh.launchpad.program import Program
from mesh.launchpad.runtime.flags import LaunchType
from mesh.launchpad.runtime.pods import Config, Source
from mesh.launchpad.terminals import check_terminal
from mesh.launchpad.translating import Plan, check_nodes
from mesh.launchpad.wishes import with_project
from mesh.program.ledger import Stop
from mesh.program.running import ProgramResult, Running

NAME_CHARACTERS = 20  # of a program, in the name of its cluster
MADE = MadePods(template=PodTemplate(image=""))  # where no cluster of cluster.yaml is named


class PodsRunning:
    """A program in pods, which are deleted once it has ended; not those of a program that goes on detached."""

    def __init__(self, running: Running, cluster: Cluster) -> None:
        self.running, self.run = running, running.run
        self._cluster = cluster
        self._deleting = threading.Lock()
        self._is_deleted = False

    def wait(self, timeout: float | None = None) -> ProgramResult:
        """Wait for the end of the program and until its pods are gone. Raises TimeoutError after so many seconds."""
        try:
            result = self.running.wait(timeout)
        except TimeoutError:
            raise
        except Exception:
            self._delete()
            raise
        if result.reason != "detached":
            self._delete()
        return result

    def end(self, stop: Stop) -> None:
        """Stop the program for a reason."""
        self.running.end(stop)

    def _delete(self) -> None:
        with self._deleting:
            if not self._is_deleted:
                self._is_deleted = True
                delete_pods(self._cluster)


class InPods(Launched):
    """A program that was launched in pods of its own."""

    def __init__(self, running: PodsRunning) -> None:
        super().__init__(running.running)
        self._pods = running

    def wait(self, timeout: float | None = None) -> ProgramResult:
        """Wait for the end of the program, and until its pods are gone. Raises as ``Launched.wait``."""
        self._pods.wait(timeout)
        return super().wait(timeout)

    def stop(self) -> ProgramResult:
        """Stop the program and wait until nothing of it is left, and no pod."""
        self.running.stop()
        return self._pods.wait()


def delete_pods(cluster: Cluster) -> None:
    """Delete the pods of a program. Trouble is written to stderr: idle pods end by themselves."""
    try:
        down_pods(cluster, lambda text: None, is_forced=True)
    except MeshError as error:
        left = f"its pods may be left, and end {podparts.HOLD_S:g} s after the program"
        sys.stderr.write(f"mesh: {cluster.name}: {left} ({error})\n")


def launch(
    programs: Program | Sequence[Program],
    source: Source | None = None,
    namespace: str | None = None,
    kube_config: str | None = None,
    group_config: Mapping[str, Config] | None = None,
    **choices: object,
) -> Launched | list[Launched]:
    """Make a pod for each node of a program, launch it there, and return at once; the pods end with the program.

    source: None or Source() for the directory of the program; GitSource(url) has the same files
    namespace: None for that of the configurations, the cluster, or kubeconfig's context
    kube_config: a path; None for KUBECONFIG, ~/.kube/config, or the service account of this pod
    group_config: image, command, resources and further fields of pods, by label
    choices: ``terminal`` as with ``lp.launch``; ``where`` and ``options`` as in Choices; ``cluster``: of cluster.yaml
        with ``kubernetes: {image: ...}``, which has what group_config lacks (default: MESH_CLUSTER)
    Raises UsageError for what mesh does not have, and MeshError if pods do not start.
    """
    terminal = choices.pop("terminal", None)
    check_terminal(terminal if isinstance(terminal, str) else None)
    chosen, configs = choices_of(choices), group_config or {}
    code = podparts.code_of(source)
    if kube_config:
        os.environ["KUBECONFIG"] = os.path.expanduser(kube_config)
    base = base_of(chosen.cluster)
    base = replace(base, source=_placed(base, podparts.namespace_of(namespace, configs), code))
    found = []
    for program in [programs] if isinstance(programs, Program) else list(programs):
        check_nodes(program)
        counts = {label: len(nodes) for label, nodes in program.groups.items()}
        parts = podparts.parts_of(counts, configs, _source(base), project_here().gpu_share)
        found.append(_launched(program, parts, base, chosen, str(terminal or "")))
    return found[0] if isinstance(programs, Program) else [*found]


def base_of(name: str) -> Cluster:
    """Return the cluster whose values pods have where a launch names none. name: "" for the project's default

    Raises UsageError for a named cluster that is not one of pods which mesh makes.
    """
    named = name
    if not named:
        try:
            named = default_cluster()[0]
        except UsageError:
            return Cluster(name="", hosts=(), source=MADE)
    cluster = find_cluster(named, cluster_file(""))
    if isinstance(cluster.source, MadePods):
        return cluster
    if name:
        hint = f"write `kubernetes: {{image: team/train:3}}` below {name}: in cluster.yaml"
        raise UsageError(f"{name}: mesh makes no pods for it", hint=hint)
    return Cluster(name="", hosts=(), source=MADE)


def _source(cluster: Cluster) -> MadePods:
    assert isinstance(cluster.source, MadePods)
    return cluster.source


def _placed(base: Cluster, namespace: str, code: Code | None) -> MadePods:
    """Return the description of pods with the namespace and the source of code that a launch names."""
    source = _source(base)
    source = replace(source, namespace=namespace or source.namespace)
    if code is None:
        return source
    groups = tuple(replace(one, template=replace(one.template, source=code)) for one in source.groups)
    return replace(source, template=replace(source.template, source=code), groups=groups)


def cluster_of(program: str, parts: Sequence[PodPart], base: Cluster) -> Cluster:
    """Return the cluster of the pods of a program, with a name that no other one has."""
    groups = tuple(part.group for part in parts)
    source = replace(
        _source(base),
        groups=groups,
        nodes=sum(group.nodes for group in groups),
        hold=min(_source(base).hold, podparts.HOLD_S),
    )
    name = f"{safe(program, NAME_CHARACTERS)}-{uuid.uuid4().hex[:6]}"
    return replace(base, name=name, source=source, backend=source.backend)


def _launched(program: Program, parts: Sequence[PodPart], base: Cluster, chosen: Choices, terminal: str) -> Launched:
    """Make the pods of a program and launch it there. They are deleted if it does not start."""
    cluster = cluster_of(program.name, parts, base)
    made = find_hosts(with_archive(cluster), Purpose.RUN)
    try:
        # By this name other commands find the pods, which are in no file.
        made = replace(made, name=f"{BUILT_IN}{made.pods.namespace}:{made.pods.selector}")
        for part in parts:
            for node, host in zip(program.groups[part.label], part.hosts, strict=True):
                node.host = host
        running = PodsRunning(launch_plan(program, LaunchType.MESH, _plan(parts, made, chosen), terminal), cluster)
    except BaseException:
        delete_pods(cluster)
        raise
    leaving.wait_at_exit(running)
    return InPods(running)


def _plan(parts: Sequence[PodPart], made: Cluster, chosen: Choices) -> Plan:
    """Return the choices of the launch. made: the cluster with its pods"""
    where = with_project(chosen.where, [part.label for part in parts])
    for part in parts:
        if part.python:
            where[part.label] = replace(where.get(part.label, Where()), python=part.python)
    names = tuple(host.name for host in made.hosts)
    return Plan(
        cluster=made,
        hosts=names,
        names={name: name for name in names},
        where=where,
        flags={part.label: part.flags for part in parts},
        prerun=tuple(PrerunEntry(run=text) for text in podparts.prerun_of(parts)),
        options=options_of(chosen.options),
    )
