"""The run that a program becomes: cluster, options of the run, and facts about its hosts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from mesh.api.choosing import check_name, choose_cluster, make_spec, project_here, with_fetched
from mesh.api.inquiries import ask, told_failures
from mesh.api.running import Beside
from mesh.app.carriers import carrier_of
from mesh.app.modules import preparation_of
from mesh.app.screen import Showing
from mesh.config.project import check_workspace
from mesh.config.selectors import listed, select_hosts
from mesh.config.settings import Options as Options
from mesh.config.settings import patient
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError, UsageError
from mesh.engine.question import Question
from mesh.program.graph import Graph
from mesh.program.placing import Facts
from mesh.program.processes import Setting
from mesh.program.runtime.errors import CLIENT
from mesh.protocol.questions import AskGpus
from mesh.protocol.replies import Gpus

HERE = "local"  # the name of the only host, where no node names one
LOCAL_HOSTS_MAX = 64


def named_hosts(program: Graph) -> list[str]:
    """Return the hosts that nodes name, in order of first use; one of our own where no node names any."""
    return _names(program) or [HERE]


def _names(program: Graph) -> list[str]:
    names = dict.fromkeys(name for node in program.nodes for name in node.wish.hosts)
    return [name for name in names if name != CLIENT]


def setting_of(program: Graph, where: str, calls_run: bool) -> Setting:
    """Return the run of a program with all hosts of its cluster. Raises UsageError."""
    options = program.options or Options()
    spec = make_spec(project_here(), options, ())
    if where == "local":
        spec = replace(spec, sync=False, lock=False, prerun=())
        cluster, undetachable = _local(program)
        return Setting(
            cluster=cluster,
            spec=spec,
            beside=Beside(),
            is_local=True,
            calls_run=calls_run,
            undetachable=undetachable,
        )
    cluster, project = _cluster(program, options), project_here()
    check_name(options.name, "")
    check_workspace(project, Path.home())
    spec = with_fetched(cluster, replace(spec, prerun=(*spec.prerun, *program.prerun)))
    if cluster.backend == "local":
        spec = replace(spec, lock=False)
    locks = carrier_of(cluster).locks
    spec = replace(spec, lock=locks and not spec.share, claim=locks)
    spec, preparation = preparation_of(spec, cluster, project.modules.descriptions)
    beside = Beside(notify=project.notify, preparation=preparation)
    return Setting(cluster=cluster, spec=spec, beside=beside, is_local=False, calls_run=calls_run)


def _cluster(program: Graph, options: Options) -> Cluster:
    """Return the program's cluster, or one of the hosts that its nodes name. Raises UsageError."""
    if isinstance(program.cluster, Cluster):
        return select_hosts(patient(program.cluster, options, os.environ), options)
    if program.cluster:
        return choose_cluster(program.cluster, options, "")
    names = _names(program)
    if not names:
        hint = 'Program(NAME, cluster="pod"), on="host" for a node, or launch("local")'
        raise UsageError(f"{program.name}: neither a cluster nor a host is named", hint=hint)
    return listed(tuple(names))


def _local(program: Graph) -> tuple[Cluster, str]:
    """Return hosts on this machine that have the names of the program's hosts, and why they cannot keep it alone."""
    names = named_hosts(program)
    if len(names) > LOCAL_HOSTS_MAX:
        what = f'{len(names)} hosts; launch("local") takes at most {LOCAL_HOSTS_MAX}'
        raise UsageError(f"{program.name}: {what}", hint='program.launch("threads")')
    found = choose_cluster(f"local:{len(names)}", Options(), "")
    own_names = [host.name for host in found.hosts]
    undetachable = ""
    if names != own_names:
        undetachable = "its hosts have names that `mesh attach` does not find"
    if undetachable and program.options and program.options.detach:
        hint = f'on="{",".join(own_names)}"'
        raise UsageError(f"{program.name}: it cannot be detached ({undetachable})", hint=hint)
    hosts = tuple(replace(host, name=name) for host, name in zip(found.hosts, names, strict=True))
    # The interpreter of this process has the packages that the program imports.
    return replace(found, hosts=hosts, python=sys.executable), undetachable


def facts_of(program: Graph, cluster: Cluster) -> Mapping[str, Facts]:
    """Return the GPUs and the memory of each host; {} if no node wishes for any, because then no host is asked.

    Raises MeshError if a host gives no answer.
    """
    wishes = [node.wish for node in program.nodes]
    if not any(wish.gpus or (wish.has and (wish.has.gpus or wish.has.memory)) for wish in wishes):
        return {}
    inquiry = ask(cluster, Question(message=AskGpus()), quiet=True)
    if troubles := told_failures(cluster, inquiry):
        raise MeshError("\n".join(troubles), hint=next(iter(inquiry.failures.values())).hint)
    return {
        cluster.hosts[node].name: Facts(gpus=answer.gpus, memory=answer.memory or -1)
        for node, answer in inquiry.replies(Gpus).items()
    }


def showing_of(options: Options) -> Showing:
    """Return how the output of nodes is shown."""
    return Showing(output="all", stdin_notice=options.stdin_notice)
