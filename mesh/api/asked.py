"""Machines that a job asks to be made: where, at which price, and what is lost with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from mesh.config.project import Project
from mesh.core.amounts import span
from mesh.core.job import JobSpec
from mesh.core.module import Gcsfuse
from mesh.core.tpu import Provision, TpuSpec


def in_zone(tpu: TpuSpec, environ: Mapping[str, str]) -> TpuSpec:
    """Return a request with project and zone: its own, or those of gcloud. Raises UsageError without any."""
    if tpu.project and tpu.zones:
        return tpu
    from mesh.config.tpu import TpuName
    from mesh.hosts.tpu.gcloud import zone_of

    zone = tpu.zones[0] if tpu.zones else ""
    name = TpuName(name=tpu.prefix or tpu.accelerator, project=tpu.project, zone=zone)
    found = zone_of(name, environ, of_job=True)
    return replace(tpu, project=found.project, zones=tpu.zones or (found.zone,))


def about_login(spec: JobSpec, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a notice if machines cannot be requested from this machine: no client of Google's, or no credentials.

    The steward may be another machine's, so that the job is submitted all the same.
    """
    tpu = spec.machines.tpu
    if tpu is None:
        return ()
    from mesh.config.tpu import TpuName
    from mesh.hosts.tpu.client import login_problem
    from mesh.hosts.tpu.gcloud import zone_of

    name = TpuName(name=tpu.prefix or tpu.accelerator, project=tpu.project, zone=tpu.zones[0])
    problem = login_problem(zone_of(name, environ), environ)
    return (f"this machine cannot request the TPU: {problem}",) if problem else ()


def about_made_machines(spec: JobSpec, project: Project) -> tuple[str, ...]:
    """Return a notice if all that a job leaves on its machines is deleted with them."""
    modules = spec.modules or project.modules.descriptions
    mounts = any(isinstance(one, Gcsfuse) for _, one in modules)
    machines = spec.machines
    are_deleted = machines.tpu is not None or machines.maker == "kubernetes"
    if not are_deleted or spec.results or spec.logs or spec.checkpoint_dir or mounts:
        return ()
    return ("its machines are deleted at the end with all files on them: `results:` names those to keep",)


def tpu_lines(tpu: TpuSpec) -> Iterator[str]:
    """Yield what would be asked for, a fact a line."""
    slices = f"{tpu.slices} slices of " if tpu.slices > 1 else ""
    yield f"machines   {slices}{tpu.accelerator}, {tpu.runtime}, {tpu.chips} chips"
    yield f"zones      {', '.join(tpu.zones)} of project {tpu.project}"
    waits = f", given up after {tpu.valid_for:g} s in the queue" if tpu.valid_for else ""
    way = "a request that waits in Google's queue" if tpu.provision is Provision.QUEUED_RESOURCES else "a tpu-vm"
    yield f"request    {way}{waits}"
    yield f"pricing    {tpu.pricing.value}{f', reservation {tpu.reservation}' if tpu.reservation else ''}"
    facts = {
        "network": "/".join(filter(None, (tpu.network, tpu.subnetwork))),
        "addresses": "" if tpu.external_ips else "internal ones alone",
        "account": tpu.service_account,
        "labels": ", ".join(f"{name}={value}" for name, value in tpu.labels.items()),
        "tags": ", ".join(tpu.tags),
        "metadata": ", ".join(tpu.metadata),
        "disks": ", ".join(tpu.data_disks),
        "keep": f"{span(tpu.keep)} for the next job of the same kind, at the same price" if tpu.keep else "",
        "script": f"{len(tpu.startup_script.splitlines())} lines at start-up" if tpu.startup_script else "",
    }
    yield from (f"{name:<10} {text}" for name, text in facts.items() if text)
