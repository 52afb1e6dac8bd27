"""TLaunch's ``tlaunchrun --image``: jobs in pods of Kubernetes that mesh makes for them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import join

import yaml
from msgspec import Struct
from msgspec.structs import replace

from mesh import api
from mesh.api.choosing import cluster_file, project_here
from mesh.config import lpjobs
from mesh.config.clusters import find_cluster
from mesh.config.gpushare import KEY, GpuShare
from mesh.config.settings import Options
from mesh.config.userspaces import PodHome, pod_home
from mesh.core.errors import MeshError, UsageError
from mesh.core.outcome import Cause
from mesh.core.paths import open_lock

PULL_POLICIES = ("Always", "IfNotPresent", "Never")
DEFAULT_NAME = lpjobs.PREFIX
MODELS, CACHE = "models", "cache"  # directories of the user's volume
HOLD = "30s"  # that idle pods stay: long enough for the next command of the same job
CONTAINER = "main"
MAKE_DIRECTORY = 'mkdir -p "$0"'
NO_SHARE = "no volume is mounted in all pods"


class PodRequest(Struct, frozen=True, kw_only=True):
    """The pods of a job."""

    image: str
    nodes: int  # pods
    namespace: str = ""  # "": the context's
    pull_policy: str = ""  # one of PULL_POLICIES; "": the server decides
    gpu: int = 0  # of each pod
    gpu_memory: str = ""  # of each GPU, in the unit of the plug-in that shares GPUs; "": all of it
    gpu_cores: str = ""  # likewise


class PodPaths(Struct, frozen=True, kw_only=True):
    """The paths that are added to the words of a trainer; "" for those that are not asked for."""

    save: str = ""
    checkpoint: str = ""
    share_file: str = ""


def paths_of(name: str, home: PodHome | None, *, saves: bool, checkpoints: bool, shares: bool) -> PodPaths:
    """Return the paths for a trainer: on the user's volume, else in the workspace in the pod. Raises UsageError.

    shares: with a file by which trainers meet, which is another one for each job
    """
    base = f"{home.path}/{MODELS}" if home else MODELS
    if shares and home is None:
        hint = 'export MESH_TDATA=CLAIM:/TData, or init_method="env://", which reads MASTER_ADDR and MASTER_PORT'
        raise UsageError(f"--set_share_file: {NO_SHARE}", hint=hint)
    return PodPaths(
        save=f"{base}/{name or DEFAULT_NAME}" if saves else "",
        checkpoint=f"{base}/last.tar.gz" if checkpoints else "",
        share_file=f"{home.path}/{CACHE}/{name or DEFAULT_NAME}-{uuid.uuid4().hex[:12]}" if shares and home else "",
    )


def cluster_of(name: str) -> str:
    """Return the name of the cluster of a job's pods. Raises UsageError."""
    found = f"{DEFAULT_NAME}-{name}" if name else DEFAULT_NAME
    if not lpjobs.is_lpjob_name(found):
        raise UsageError(f"--lpjob_name: expected letters, digits, dots, dashes and underscores, found {name!r}")
    return found


def clusters_text(name: str, request: PodRequest, share: GpuShare) -> str:
    """Return a cluster.yaml with the pods of a job. Raises UsageError.

    name: of the job; share: the resources that a plug-in has for parts of GPUs
    """
    if request.pull_policy and request.pull_policy not in PULL_POLICIES:
        raise UsageError(f"--image_pull_policy: expected {', '.join(PULL_POLICIES)}, found {request.pull_policy!r}")
    described: dict[str, object] = {"image": request.image, "nodes": request.nodes, "hold": HOLD}
    if request.namespace:
        described["namespace"] = request.namespace
    if resources := _resources(request, share):
        described["resources"] = dict(resources)
    if request.pull_policy:
        described["pod"] = {"containers": [{"name": CONTAINER, "imagePullPolicy": request.pull_policy}]}
    return yaml.safe_dump({cluster_of(name): {"kubernetes": described}}, sort_keys=False)


def _resources(request: PodRequest, share: GpuShare) -> Mapping[str, str]:
    """Return the resources of a pod. Raises UsageError for parts of GPUs without the names of their resources."""
    found = {share.gpu: str(request.gpu)} if request.gpu else {}
    for option, value, resource in (
        ("gpu_memory", request.gpu_memory, share.memory),
        ("gpu_cores", request.gpu_cores, share.cores),
    ):
        if not value:
            continue
        if not resource:
            hint = (
                f"mesh.yaml: `{KEY}: {{memory: nvidia.com/gpumem, cores: nvidia.com/gpucores}}`, as your plug-in has it"
            )
            raise UsageError(f"--{option}: no resource is named for it", hint=hint)
        if not value.isdecimal():
            raise UsageError(f"--{option}: expected a number, found {value!r}")
        found[resource] = value
    return found


def run_in_pods(name: str, words: tuple[str, ...], options: Options, request: PodRequest, save: str) -> api.RunResult:
    """Make the pods of a job, and run words in all of them. Raises UsageError, InUse and MeshError.

    save: a directory to make first; "": none
    """
    cluster, text = cluster_of(name), clusters_text(name, request, project_here().gpu_share)
    place = lpjobs.lpjob_path(cluster)
    with only_job(place):
        write_cluster(place, text, cluster)
        if save.startswith("/"):
            made = api.exec(["sh", "-c", MAKE_DIRECTORY, save], cluster=cluster, clusters_file=str(place), quiet=True)
            if made.exit_code and made.cause is not Cause.RANK:  # Ctrl-C, or pods that cannot be reached
                made.raise_for_status()
            if made.exit_code:
                raise MeshError(f"--set_save_path: {save} cannot be made in all pods", hint=f"mesh logs {made.run}")
        return api.run(words, cluster=cluster, options=options, clusters_file=str(place))


@contextlib.contextmanager
def only_job(place: Path) -> Iterator[None]:
    """Keep other jobs of the same name on this machine away for the time of a job, which reads the file of its cluster.

    place: of that file. Raises InUse if such a job is on, and MeshError. A file system without locks keeps none away.
    """
    from mesh.api.holding import InUse

    descriptor = open_lock(place.with_suffix(".lock"))
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "mesh tlaunchrun --lpjob_name OTHER ...  # a job beside it"
            raise InUse(f"{place.stem}: another job of this name is on", hint=hint) from None
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)


def write_cluster(place: Path, text: str, cluster: str) -> None:
    """Write the cluster of a job. Pods of the same name that were made by another description go first.

    Raises InUse if those pods are in use, or are starting for another job.
    """
    from mesh.api.podhold import down_pods

    new = place.with_name(f"{place.name}.{uuid.uuid4().hex[:8]}")
    try:
        is_same = not place.exists() or place.read_bytes() == text.encode()
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new.write_text(text)
        try:
            if not is_same:  # the file that is there may have been cut short: the new one is read
                down_pods(find_cluster(cluster, cluster_file(str(new))), lambda text: None, keeps_awaited=True)
            new.replace(place)
        finally:
            new.unlink(missing_ok=True)
    except OSError as error:
        raise MeshError(f"cannot write {place}: {error.strerror}") from error


def shown(name: str, words: tuple[str, ...], options: Options, request: PodRequest) -> Iterator[str]:
    """Yield the lines of --dry-run: the objects, and the words of each rank. Raises UsageError."""
    import tempfile

    from mesh.api.podshow import objects_text

    text = clusters_text(name, request, project_here().gpu_share)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "cluster.yaml")
        file.write_text(text)
        yield from objects_text(cluster_of(name), str(file)).splitlines()
    by = f"{options.launcher}, " if options.launcher else ""
    yield f"# {by}{options.nproc} processes in each pod: {join(words)}"


def home_here() -> PodHome | None:
    """Return the volume that pods made here mount; None without one. Raises UsageError."""
    return pod_home(os.environ)


def with_pods(options: Options, nproc: int) -> Options:
    """Return the options of a run with so many processes in each pod."""
    return replace(options, nproc=nproc, bind=False, ranks="")
