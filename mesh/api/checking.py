"""mesh check: the fitness of every host for a run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from mesh.api.choosing import choose_cluster, make_spec, named_clusters, project_here
from mesh.app.assemble import placed
from mesh.app.carriers import carrier_of
from mesh.app.owner import Owners
from mesh.config.project import Project
from mesh.config.settings import Options
from mesh.core.cluster import Cluster, place_ranks
from mesh.core.errors import NoHosts, UsageError
from mesh.core.findings import Finding, Verdict, unknown
from mesh.core.module import NO_PREPARATION, Conda, Docker, Preparation
from mesh.core.module import Python as PythonEnvironment
from mesh.core.run import Kind, PrerunEntry, RunSpec
from mesh.engine.question import Question
from mesh.hosts.interfaces import Purpose
from mesh.hosts.sources import source_of

if TYPE_CHECKING:
    from mesh.check.checkup import Wanted
    from mesh.check.vetting import Vetted

DEFAULTS = Options()
TCP_TIMEOUT_S = 3.0  # seconds for a host to take a connection; a packet that was lost is sent again after 1 s
_ACTIVATED = re.compile(r"(?:^|[\s;&|])(?:source|\.)\s+[\"']?([^\s\"';&|]+)/bin/activate(?=$|[\s\"';&|])", re.MULTILINE)
# Other words that may choose the interpreter of the ranks, in a way that cannot be seen from here.
_CHOOSES = re.compile(r"\b(?:conda|mamba|micromamba|pyenv|module|activate|PATH)\b")


class HostReport(Struct, frozen=True, kw_only=True):
    """The findings of ``check`` on one host."""

    host: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True if nothing there is in the way of a run."""
        return all(finding.verdict.value != "failed" for finding in self.findings)


def check(
    *,
    cluster: str,
    options: Options = DEFAULTS,
    clusters_file: str = "",
    paths: Sequence[str] = (),
    programs: Sequence[str] = (),
    workspaces: bool = False,
) -> list[HostReport]:
    """See whether every host of a cluster is fit for a run, and all of them together; takes no lock.

    paths: that must be there, readable, and the same on all hosts; relative ones are in the workspace there
    programs: names that must be on PATH; workspaces: report the size of each workspace
    No host is made for it: of a cluster without hosts there is one report, which has the name of the cluster.
    Raises UsageError, and MeshError if the hosts of a cluster cannot be found.
    """
    from mesh.check.checkup import Wanted

    for what, given in (("path", paths), ("program", programs)):
        if isinstance(given, str) or not all(isinstance(one, str) and one and "\0" not in one for one in given):
            raise UsageError(f"expected a list of {what}s, found {given!r}")
    named = named_clusters(cluster, clusters_file)
    before = {one.name: source_of(one).check(one) for one in named}
    is_failed = any(one.verdict is Verdict.FAILED for findings in before.values() for one in findings)
    try:
        found = named[0] if is_failed else choose_cluster(cluster, options, clusters_file, purpose=Purpose.CHECK)
    except NoHosts:
        if not any(before.values()):
            raise
        is_failed, found = True, named[0]
    project = project_here()
    spec, is_shared = make_spec(project, options, ()), carrier_of(found).locks
    wanted = Wanted(
        project=spec.project,
        env=spec.groups[0].env,
        venv=_environment(project),
        devices=found.devices if is_shared else (),
        lock=is_shared,
        paths=tuple(dict.fromkeys(paths)),
        programs=tuple(dict.fromkeys(programs)),
        workspaces=workspaces,
        master_port=options.master_port,
        steps=carrier_of(found).steps,
        hints=carrier_of(found).hints,
        shm_hint=carrier_of(found).shm_hint,
    )
    if is_failed:
        return [_without_hosts(name, findings, wanted) for name, findings in before.items() if findings]
    return _check(found, wanted, before)


def vetted(
    spec: RunSpec,
    cluster: Cluster,
    preparation: Preparation = NO_PREPARATION,
    *,
    paths: Sequence[str] = (),
    programs: Sequence[str] = (),
    program_hint: str = "",
) -> Vetted:
    """Return the decider of a run that begins with a check of obstacles, and of reasons to hang.

    paths, programs: as with ``check``; program_hint: what to do where one is missing; "": the usual
    Versions are not looked at, as prerun may change them; nor is the lock, which the run waits for or is refused.
    """
    from mesh.check.checkup import Checkup, Wanted
    from mesh.check.vetting import Vetted
    from mesh.engine.supervisor import Supervisor

    placement = placed(spec, cluster)
    devices = cluster.devices if spec.claim and not spec.evict else ()
    wanted = Wanted(
        env={},
        venv=None,
        devices=devices,
        lock=False,
        paths=tuple(paths),
        programs=tuple(programs),
        program_hint=program_hint,
        master_port=spec.master_port,
        steps=carrier_of(cluster).steps,
        hints=carrier_of(cluster).hints,
    )
    return Vetted(
        Supervisor(spec, placement, preparation), Checkup(placement, wanted, new_key(), Owners().is_dead), placement
    )


def numbered(spec: RunSpec, cluster: Cluster, preparation: Preparation = NO_PREPARATION) -> Vetted | None:
    """Return the decider of a run that first asks hosts for their own numbers; None if their source has none."""
    if spec.kind is not Kind.RUN or not any(host.slice_index >= 0 for host in cluster.hosts):
        return None
    from mesh.check.vetting import Vetted
    from mesh.check.workers import Numbers
    from mesh.engine.supervisor import Supervisor

    placement = placed(spec, cluster)
    return Vetted(Supervisor(spec, placement, preparation), Numbers(placement), placement)


def _environment(project: Project) -> str | None:
    """Return the virtual environment of the command; "": none; None: this client cannot name it."""
    for _, description in project.modules.descriptions:
        if isinstance(description, PythonEnvironment):
            return description.path
        if isinstance(description, Docker | Conda):
            return None
    return activated(project.prerun)


def activated(prerun: Sequence[PrerunEntry]) -> str | None:
    """The virtual environment that prerun activates last; "": none; None: prerun chooses an interpreter, but which?

    >>> activated([PrerunEntry(run="uv venv"), PrerunEntry(run="source .venv/bin/activate")])
    '.venv'
    >>> activated([PrerunEntry(run="export A=1")]), activated([PrerunEntry(run="conda activate x")])
    ('', None)
    """
    text = "\n".join(entry.run for entry in prerun)
    found = _ACTIVATED.findall(text)
    if found:
        return str(found[-1])
    return None if _CHOOSES.search(text) else ""


def new_key() -> str:
    """Return a key by which the hosts of a check recognise each other."""
    return os.urandom(32).hex()


def _without_hosts(name: str, findings: Sequence[Finding], wanted: Wanted) -> HostReport:
    """Return the report about a cluster whose hosts are not asked."""
    known = {one.name for one in findings}
    return HostReport(host=name, findings=(*findings, *(unknown(one) for one in wanted.names if one not in known)))


def _check(cluster: Cluster, wanted: Wanted, before: Mapping[str, Sequence[Finding]]) -> list[HostReport]:
    """Ask all hosts. before: the findings of each cluster that needed none"""
    from mesh.api.inquiries import ask
    from mesh.check.checkup import Checkup, merged

    checkup = Checkup(place_ranks(cluster.hosts, slices=cluster.slices), wanted, new_key(), Owners().is_dead)
    inquiry = ask(cluster, Question(message=checkup.question()), then=checkup.then, reach=TCP_TIMEOUT_S)
    of_cluster = [before.get(part.name, ()) for part in cluster.parts or () for _ in part.hosts]
    if len(of_cluster) != len(cluster.hosts):
        of_cluster = [next(iter(before.values()), ())] * len(cluster.hosts)
    return [
        HostReport(host=host.name, findings=(*merged(own, findings), *carrier_of(cluster).findings(host)))
        for host, own, findings in zip(cluster.hosts, of_cluster, checkup.findings(inquiry), strict=True)
    ]
