"""Source of hosts that are nodes of an allocation which mesh asks for when a command needs it."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence

from msgspec.structs import replace

from mesh.backends.slurm import commands
from mesh.backends.slurm.commands import Job, words_of
from mesh.backends.slurm.login import Login, login_of
from mesh.backends.slurm.records import AllocationRecord, AllocationRecords
from mesh.config.slurm import Allocation, MadeAllocation
from mesh.core.cluster import AllocationPlace, Cluster, Host
from mesh.core.errors import MeshError, NoHosts
from mesh.core.findings import Finding, failed, few, ok, unknown, warning
from mesh.core.statusline import StatusLine
from mesh.hosts.interfaces import Purpose
from mesh.hosts.slurm import render
from mesh.hosts.slurm.dialling import NOT_DIALLED, answers, dialled
from mesh.hosts.slurm.making import Made, Maker

KEY_SPARE_DAYS = 30  # that a key is valid beyond the time limit: a job may wait, and an operator may move its end
UNLIMITED_KEY_DAYS = 3650  # of an allocation whose limit is not asked for, or that has none
DAY_S = 86400.0


class MadeAllocationSource:
    """Nodes of an allocation that ends itself once it has been idle for a time."""

    def __init__(self) -> None:
        self.is_quiet = False

    def find(self, cluster: Cluster, purpose: Purpose) -> Cluster:
        """Return the cluster with its nodes as hosts; ask for an allocation for a run. Raises MeshError."""
        if purpose is Purpose.LIST:
            return replace(cluster, note=_listed(cluster))
        login, maker = maker_of(cluster, StatusLine() if self.is_quiet else StatusLine(_report, sys.stderr))
        try:
            if purpose is Purpose.RUN:
                job, record = maker.ensure()
                if maker.may_end(job) and not answers(login, record.address, record.key, cluster.python):
                    job, record = maker.ensure()
                return with_nodes(cluster, job, record)
            return _there(cluster, maker, purpose)
        finally:
            login.close()

    def check(self, cluster: Cluster) -> Sequence[Finding]:
        login, maker = maker_of(cluster, StatusLine())
        try:
            return checked(login, maker)
        finally:
            login.close()

    def forget(self, cluster: Cluster) -> None: ...

    def origin(self, cluster: Cluster) -> str:
        return "are nodes of an allocation that mesh asks for"


def maker_of(cluster: Cluster, notify: StatusLine, until: float = 0.0) -> tuple[Login, Maker]:
    """Return the login node and the maker of a cluster's allocation. until: as in Made. Close the login node."""
    source = cluster.source
    assert isinstance(source, MadeAllocation)
    login = login_of(replace(cluster, allocation=AllocationPlace(login=source.login)))
    where = "" if login.is_here else login.name
    made = Made(
        cluster=cluster.name, source=source, python=cluster.python, login=where, until=until, home=cluster.remote_dir
    )
    limit = commands.limit_of(source.request.get("time", ""))
    return login, Maker(login, made, AllocationRecords(os.environ), notify, lambda: new_key(limit), program)


def new_key(limit: float) -> str:
    """Return the key of a new switchboard. limit: seconds until its allocation ends; 0: unknown, or never"""
    from mesh.core.credentials import make_credentials

    return make_credentials(key_days(limit))


def key_days(limit: float) -> int:
    """Return for how many days a key is valid. limit: as in ``new_key``

    >>> key_days(60.0), key_days(40 * DAY_S), key_days(0.0)
    (31, 70, 3650)
    """
    return math.ceil(limit / DAY_S) + KEY_SPARE_DAYS if limit else UNLIMITED_KEY_DAYS


def program() -> bytes:
    """Return the zip of the switchboard."""
    from mesh.backends.switchboard.program import pack

    return pack()


def with_nodes(cluster: Cluster, job: Job, record: AllocationRecord) -> Cluster:
    """Return a cluster with the nodes of its allocation as hosts."""
    if isinstance(cluster.source, MadeAllocation) and cluster.source.is_by_ssh:
        directory = render.local_directory(record.key) if cluster.source.local else cluster.remote_dir
        return nodes_by_ssh(replace(cluster, remote_dir=directory), cluster.source, job, record.nodes)
    hosts = tuple(Host(name=name, address=name) for name in record.nodes)
    assert cluster.source is not None
    login = getattr(cluster.source, "login", None)
    place = AllocationPlace(job=job.job, record=record.name, end=job.end, login=login)
    note = f"job {job.job} of Slurm"
    if isinstance(cluster.source, MadeAllocation) and cluster.source.local:
        cluster = replace(cluster, remote_dir=render.local_directory(record.key))
    return replace(cluster, hosts=hosts, backend="slurm", allocation=place, gateway="", note=note)


def nodes_by_ssh(cluster: Cluster, source: Allocation | MadeAllocation, job: Job, nodes: Sequence[str]) -> Cluster:
    """Return a cluster with the nodes of a job as hosts behind SSH, through its gateway."""
    like = source.like or Host(name="", address="")
    hosts = tuple(replace(like, name=name, address=name) for name in nodes)
    place = AllocationPlace(job=job.job, end=job.end, login=source.login)
    note = f"job {job.job} of Slurm, by SSH"
    return replace(cluster, hosts=hosts, backend="ssh", allocation=place, note=note)


def _there(cluster: Cluster, maker: Maker, purpose: Purpose) -> Cluster:
    """Return the cluster with the nodes that it has now. Raises NoHosts if it has none, and MeshError."""
    source = cluster.source
    assert isinstance(source, MadeAllocation)
    job = maker.job()
    if purpose is Purpose.REFRESH:
        note = f"no allocation now; a run asks for {_count(source)}" if job is None else _state(job)
        if job is None or not job.address:
            return replace(cluster, note=note)
        return replace(with_nodes(cluster, job, maker.record(job)), note=f"{note}; {_listed(cluster)}")
    if job is None or not (job.is_living and job.address):
        if purpose is Purpose.PLAN:
            hosts = tuple(Host(name=f"{cluster.name}-{number}", address="") for number in range(source.nodes or 1))
            return replace(cluster, hosts=hosts)
        waits = f" yet: job {job.job} waits ({commands.waits_for(job)})" if job is not None else ""
        raise NoHosts(f"{cluster.name} has no allocation{waits}", hint=f"mesh up {cluster.name}")
    return with_nodes(cluster, job, maker.record(job))


def checked(login: Login, maker: Maker) -> Sequence[Finding]:
    """Return the findings about an allocation that mesh asks for, without a job."""
    made = maker.made
    try:
        values = commands.settings(login)
    except MeshError as error:
        return [failed("slurm", str(error), error.hint), unknown("schedule")]
    version, tracking = values.get("SLURM_VERSION", "?"), values.get("ProctrackType", "?")
    shown = f"; {partitions}" if (partitions := _partitions(login)) else ""
    found = [ok("slurm", f"{version}, {tracking}{shown}")]
    if "cgroup" not in tracking:
        told = f"{version}; {tracking} leaves processes that have left their session: mesh ends them, Slurm does not"
        found = [
            warning("slurm", told + shown, "a cancelled job may leave such processes where mesh's agent was killed")
        ]
    try:
        job = maker.job()
        if job is not None:
            is_held = job.is_living and job.address
            nodes = dialled(login, maker.record(job), made.python) if is_held else NOT_DIALLED
            return [*found, ok("schedule", _state(job)), *([] if made.source.is_by_ssh else [nodes])]
        done = commands.ask(login, render.submit_words(made.source, made.cluster, is_test=True), b"#!/bin/sh\n")
    except MeshError as error:
        return [*found, failed("schedule", str(error), error.hint)]
    words = words_of(done)
    if done.status:
        return [*found, failed("schedule", f"sbatch: {words}", "sinfo --long")]
    return [*found, ok("schedule", words), *([] if made.source.is_by_ssh else [NOT_DIALLED])]


def _partitions(login: Login) -> str:
    """Return the partitions of the site in words; "" if they are not shown. Raises MeshError."""
    done = commands.ask(login, ["sinfo", "--noheader", "--format=%P %a"])
    names = commands.partitions_of(done.out) if not done.status else []
    return f"partitions {few(names)}" if names else ""


def _state(job: Job) -> str:
    if job.is_waiting:
        return f"job {job.job} waits: {commands.waits_for(job)}"
    end = f", until {time.strftime('%b %d %H:%M', time.localtime(job.end))}" if job.end else ""
    return f"job {job.job} runs on {job.nodes}{end}"


def _count(source: MadeAllocation) -> str:
    return f"{source.nodes} nodes" if source.nodes else source.request.get("nodelist", "")


def _listed(cluster: Cluster) -> str:
    """Return how the allocation of a cluster is held, by what was recorded here."""
    source = cluster.source
    assert isinstance(source, MadeAllocation)
    found = [one for one in AllocationRecords(os.environ).read() if one.cluster == cluster.name and one.is_ours]
    if not found:
        return f"{_count(source)} of Slurm, asked for when a command needs them"
    record = found[-1]
    since = time.strftime("%b %d %H:%M", time.localtime(record.since))
    until = time.strftime("%b %d %H:%M", time.localtime(record.until))
    end = f"until {until}" if record.until else f"until idle for {record.hold:g} s"
    return f"job {record.job}, asked for {since}, held {end}"


def _report(text: str) -> None:
    sys.stderr.write(f"==> {text}\n")
    sys.stderr.flush()
