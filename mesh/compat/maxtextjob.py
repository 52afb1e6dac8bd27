"""Command line of MaxText's multihost_job.py, on jobs of mesh."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator

from msgspec import Struct

from mesh.api.asked import in_zone
from mesh.api.costing import prices_for_lists, rate_of
from mesh.api.jobs import Submitted, submit_specs
from mesh.api.submitting import completed, snapshot_of
from mesh.app.bucket import SCHEME, check_bucket, place_of
from mesh.app.owner import user_name
from mesh.compat.maxtext import named_project
from mesh.config.tpuflags import read_flags
from mesh.config.tpuspec import machines_of, spec_of_keys
from mesh.core.errors import UsageError
from mesh.core.job import CommandSpec, JobSpec, LogNames
from mesh.core.naming import is_name
from mesh.core.run import SHELL
from mesh.core.tpu import TpuSpec

TPU_TYPE, VERSION, NUM_SLICES = "v4-8", "tpu-ubuntu2204-base", 2  # as multihost_job.py has them
OPEN_FILES = 100_000  # the limit that multihost_job.py sets
METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/attributes/tpu-env"
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# NODE_ID is the name of the TPU: Google's machines have it in their metadata, others are named by their host name.
PREAMBLE = f"""\
exec 2>&1
ulimit -n {OPEN_FILES} 2>/dev/null || ulimit -n "$(ulimit -Hn)"
NODE_ID="$(curl -sf -m 5 -H 'Metadata-Flavor: Google' {METADATA} | sed -n "s/^NODE_ID: '\\(.*\\)'/\\1/p")"
export NODE_ID="${{NODE_ID:-$(hostname)}}"
"""


class MultihostJob(Struct, frozen=True, kw_only=True):
    """The flags of multihost_job.py."""

    command: str
    bucket_name: str
    bucket_dir: str = ""
    script_dir: str = ""  # "": the working directory
    run_name: str = ""  # "": the user and the time
    tpu_type: str = TPU_TYPE
    version: str = VERSION
    num_slices: int = NUM_SLICES
    project: str = ""
    zone: str = ""
    extra_args: str = ""  # --CQR_EXTRA_ARGS
    autocheckpoint: bool = False


def multihost_job(flags: MultihostJob) -> tuple[Submitted, tuple[str, ...]]:
    """Submit the job that the flags ask for; return it, and lines about it for people.

    Its machines are made by one queued resource, and deleted when all hosts have ended.
    Raises UsageError, and MeshError if nothing was submitted.
    """
    spec = job_of(flags)
    check_bucket(spec.logs)
    submitted = submit_specs([completed(spec)], ())
    return submitted, tuple(about(flags, spec, submitted))


def job_of(flags: MultihostJob) -> JobSpec:
    """Return the job that the flags ask for, with a snapshot of the directory. Raises UsageError and MeshError."""
    if not flags.command or "\0" in flags.command:
        raise UsageError("--COMMAND: expected text for bash, without zero bytes")
    run_name = flags.run_name or f"{user_name()}-{time.strftime('%Y-%m-%d-%H-%M-%S')}"
    if not _RUN_NAME.fullmatch(run_name):
        raise UsageError(f"--RUN_NAME: expected letters, digits and any of ._- , found {run_name!r}")
    bucket = flags.bucket_name.removeprefix(SCHEME).strip("/")
    logs = "/".join((f"{SCHEME}{bucket}", *filter(None, (flags.bucket_dir.strip("/"), run_name))))
    place_of(logs)
    tpu = tpu_of(flags, run_name)
    workspace, variables, _ = snapshot_of(named_project(flags.script_dir))
    env = {**variables, "ZONE": tpu.zones[0], "PROJECT": tpu.project}
    return JobSpec(
        name=run_name if is_name(run_name) and not run_name.isdecimal() else "multihost-job",
        user=user_name(),
        machines=machines_of(tpu),
        command=CommandSpec(words=(*SHELL, f"{PREAMBLE}{flags.command}")),
        env=env,
        workspace=workspace,
        logs=logs,
        log_names=LogNames.MAXTEXT,
    )


def tpu_of(flags: MultihostJob, run_name: str) -> TpuSpec:
    """Return the machines that the flags ask for. Raises UsageError with all problems of --CQR_EXTRA_ARGS."""
    try:
        words = shlex.split(flags.extra_args)
    except ValueError as error:
        raise UsageError(f"--CQR_EXTRA_ARGS: {error}") from error
    found, problems = read_flags(words)
    own = {
        "accelerator": ("--TPU_TYPE", flags.tpu_type),
        "version": ("--VERSION", flags.version),
        "slices": ("--NUM_SLICES", str(flags.num_slices)),
        "project": ("--PROJECT", flags.project),
        "zone": ("--ZONE", flags.zone),
        "name": ("--RUN_NAME", run_name),
    }
    for key, (flag, value) in own.items():
        if value and key in found and found[key] != value:
            problems.append(f"{key}: {found[key]} contradicts {flag}, which is {value}")
        if value:
            found[key] = value
    if flags.autocheckpoint:
        found["autocheckpoint"] = True
    if problems:
        raise UsageError("\n".join(f"--CQR_EXTRA_ARGS: {problem}" for problem in problems))
    return in_zone(spec_of_keys(found, "flags"), os.environ)


def about(flags: MultihostJob, spec: JobSpec, submitted: Submitted) -> Iterator[str]:
    """Yield lines for people: the flags of a job, the place of its logs, and commands that list its machines."""
    tpu = spec.machines.tpu
    assert tpu is not None
    values = {
        "RUN_NAME": spec.logs.rpartition("/")[2],
        "TPU_TYPE": tpu.accelerator,
        "VERSION": tpu.runtime,
        "NUM_SLICES": str(tpu.slices),
        "PROJECT": tpu.project,
        "ZONE": ", ".join(tpu.zones),
        "PRICING": tpu.pricing.value,
        "COMMAND": flags.command,
    }
    yield from (f"{name:<11} {text}" for name, text in values.items())
    yield f"price       {rate_of(tpu, prices_for_lists())}"
    bucket = spec.logs.removeprefix(SCHEME)
    yield f"logs        {spec.logs}/, when all hosts have ended"
    yield f"            https://console.cloud.google.com/storage/browser/{bucket}"
    job = submitted[0].id
    yield f"now         mesh job logs -f {job}; mesh job show {job}"
    list_words = ["gcloud", "alpha", "compute", "tpus", "queued-resources", "list"]
    list_words += [f"--filter=mesh-job={job}", f"--zone={tpu.zones[0]}", f"--project={tpu.project}"]
    yield f"machines    mesh job machines; {shlex.join(list_words)}"
