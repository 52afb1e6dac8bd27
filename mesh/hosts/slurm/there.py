"""Source of hosts that are nodes of an allocation which is there already. Nothing of it is ever cancelled."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mesh.backends.slurm import commands
from mesh.backends.slurm.commands import Job, words_of
from mesh.backends.slurm.login import Login, login_of
from mesh.backends.slurm.records import AllocationRecord, AllocationRecords, name_of
from mesh.config.slurm import Allocation
from mesh.core.cluster import AllocationPlace, Cluster
from mesh.core.errors import MeshError, NoHosts, UsageError
from mesh.core.findings import Finding, failed, ok
from mesh.core.interpreter import interpreter
from mesh.hosts.interfaces import Purpose
from mesh.hosts.slurm import render
from mesh.hosts.slurm.dialling import answers
from mesh.hosts.slurm.made import new_key, nodes_by_ssh, program, with_nodes

JOB_VARIABLE = "SLURM_JOB_ID"
FILE = "~/.mesh/slurm/{job}.json"  # of the holder, on the login node
READ_FILE = 'cat "$HOME/.mesh/slurm/$1.json"'


class HolderFile(Struct, frozen=True, kw_only=True):
    """The address and the key of a holder, as its file has them."""

    address: str
    key: str
    digest: str = ""


class AllocationSource:
    """Nodes of a running job of this user. A step with mesh's program starts beside the others."""

    def find(self, cluster: Cluster, purpose: Purpose) -> Cluster:
        """Return the cluster with the nodes of the job as hosts. Raises MeshError."""
        number = _number(cluster)
        if purpose in (Purpose.LIST, Purpose.REFRESH):
            return replace(cluster, note=f"job {number} of Slurm, which is there already")
        login = _login(cluster)
        try:
            job = _running(login, cluster, number)
            if isinstance(cluster.source, Allocation) and cluster.source.is_by_ssh:
                return nodes_by_ssh(cluster, cluster.source, job, commands.nodes_of(login, job.nodes))
            records = AllocationRecords(os.environ)
            with records.alone(f"job-{number}"):
                record = _record(login, cluster, job)
                records.write(record)
            return with_nodes(cluster, job, record)
        finally:
            login.close()

    def check(self, cluster: Cluster) -> Sequence[Finding]:
        try:
            number, login = _number(cluster), _login(cluster)
            try:
                job = _running(login, cluster, number)
            finally:
                login.close()
        except MeshError as error:
            return [failed("schedule", str(error), error.hint)]
        return [ok("schedule", f"job {job.job} runs on {job.nodes}")]

    def forget(self, cluster: Cluster) -> None: ...

    def origin(self, cluster: Cluster) -> str:
        return "are nodes of an allocation that is there already"


def _number(cluster: Cluster) -> str:
    """Return the number of the job. Raises UsageError outside of an allocation."""
    source = cluster.source
    assert isinstance(source, Allocation)
    number = source.job or os.environ.get(JOB_VARIABLE, "")
    if not number:
        hint = "run it within an allocation (salloc), or name one: slurm:JOB, as squeue --me lists it"
        raise UsageError(f"{cluster.name}: {JOB_VARIABLE} is not set here", hint=hint)
    return number


def _login(cluster: Cluster) -> Login:
    assert isinstance(cluster.source, Allocation)
    return login_of(replace(cluster, allocation=AllocationPlace(login=cluster.source.login)))


def _running(login: Login, cluster: Cluster, number: str) -> Job:
    """Return the job, which runs. Raises MeshError if it does not, or is not ours."""
    mine = [one for one in commands.jobs(login, job=number, is_mine=True) if one.is_living]
    if mine:
        return mine[-1]
    found = commands.jobs(login, job=number)
    if found and found[-1].is_waiting:
        text = f"{cluster.name}: job {number} waits: {commands.waits_for(found[-1])}"
        raise NoHosts(text, hint=f"squeue --jobs={number}")
    if found and found[-1].is_living:
        raise MeshError(f"{cluster.name}: job {number} is another user's", hint="squeue --me")
    end = commands.end_of(commands.about(login, "job", number))
    raise MeshError(f"{cluster.name}: job {number} {f'has ended: {end}' if end else 'is unknown'}", hint="squeue --me")


def _record(login: Login, cluster: Cluster, job: Job) -> AllocationRecord:
    """Return the record of a job with a holder; start one if there is none. Raises MeshError."""
    found = _holder(login, job.job)
    if found is None or not answers(login, found.address, found.key, cluster.python):
        found = _start(login, cluster, job)
    assert isinstance(cluster.source, Allocation)
    where, site = "" if login.is_here else login.name, commands.site_of(login)
    return AllocationRecord(
        name=name_of(where, f"beside-{job.job}"),  # mesh may have asked for it: then it has a record, with another key
        job=job.job,
        cluster=cluster.name,
        login=where,
        key=found.key,
        nodes=commands.nodes_of(login, job.nodes),
        address=found.address,
        since=time.time(),
        hold=cluster.source.hold,
        kill_wait=site.kill_wait,
        accounts=site.accounts,
        is_ours=False,
    )


def _holder(login: Login, job: str) -> HolderFile | None:
    """Return the holder of a job by its file on the login node; None if there is none."""
    done = login.run(["sh", "-c", READ_FILE, "sh", job])
    return _decoded(done.out) if not done.status else None


def _start(login: Login, cluster: Cluster, job: Job) -> HolderFile:
    """Start a holder on the login node. Raises MeshError."""
    source = cluster.source
    assert isinstance(source, Allocation)
    count = len(commands.nodes_of(login, job.nodes))
    given = render.values(
        source,
        new_key(max(1.0, job.end - time.time()) if job.end else 0.0),
        program(),
        cluster.python,
        render.step_words(count, {}, job.job),
        job=job.job,
        file=FILE.format(job=job.job),
    )
    argv = [*interpreter(cluster.python), "-I", "-S", "-c", render.START_FROM_STDIN]
    done = login.run(argv, render.text_of(given).encode())
    found = _decoded(done.out)
    if done.status or found is None:
        where = "this machine" if login.is_here else login.name
        hint = "check that python: in cluster.yaml is Python 3.8 or later there as well"
        raise MeshError(f"{cluster.name}: its holder did not start on {where} ({words_of(done)})", hint=hint)
    return found


def _decoded(text: str) -> HolderFile | None:
    try:
        return msgspec.json.decode(text, type=HolderFile)
    except msgspec.MsgspecError:
        return None
