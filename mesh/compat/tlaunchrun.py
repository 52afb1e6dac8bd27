"""TLaunch's ``tlaunchrun``: basic, torchrun and deepspeed jobs as runs, on hosts of a cluster or in new pods."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from mesh import api
from mesh.compat import tlaunchpods
from mesh.compat.tlaunchpods import PodPaths, PodRequest
from mesh.config.settings import Options
from mesh.core.errors import MeshError, UsageError

BASIC = "basic"
METHODS = (BASIC, "torchrun", "deepspeed")
# The shell replaces itself: the rank's own words follow as they are.
RANK_WORDS = 'exec "$@" --rank "$RANK" --world_size "$WORLD_SIZE"'
MODELS_DIRECTORY = "models"  # of the workspace on the host
CHECKPOINT_PATH = f"{MODELS_DIRECTORY}/last.tar.gz"
# Each host writes a file of its own into the directory, and then looks for those of all others.
WRITE = ': >"$1/.mesh-$2-$RANK"'
LOOK_SCRIPT = 'set -- "$1/.mesh-$2-"*; [ $# -eq "$WORLD_SIZE" ]'
REMOVE = 'rm -f "$1/.mesh-$2-"*'
KUBERNETES = "belongs to Kubernetes, and needs --image"
AUTO = "auto"  # in the place of the path of a shared file: pods have a place for it
PYTHON, PYTHON_ENDING = "python3", ".py"


class TLaunchJob(Struct, frozen=True, kw_only=True):
    """Description of a distributed job. method: one of METHODS; command: the words of the trainer"""

    method: str
    cluster: str  # a selector; "": the default cluster
    command: tuple[str, ...]
    name: str = ""  # of the run
    num_trainer: int = 0  # trainers in all; 0: one on each host, or one for each GPU of ``gpu``
    gpu: int = 0  # processes on each host, each with a GPU of its own; 0: one, with all GPUs
    share_file: str = ""  # a path in a directory that is the same on all hosts; "": none
    set_save_path: bool = False
    set_checkpoint_path: bool = False
    nodes: int = 0  # hosts of torchrun or deepspeed; 0: all of the cluster, or one pod
    pods: PodRequest | None = None  # that are made for the job; None: it runs on the cluster


def tlaunchrun(job: TLaunchJob, *, output: str = "all") -> api.RunResult:
    """Run a job on the hosts of its cluster, or in pods. Raises UsageError; the rest is in the result."""
    if job.pods is not None:
        words, options, paths = pod_run(job)
        return tlaunchpods.run_in_pods(job.name, words, options, job.pods, paths.save)
    options = options_of(job, _host_count(job))
    if job.share_file:
        _check_shared(job)
    return api.run(words_of(job), cluster=job.cluster, options=options, output=output)


def shown(job: TLaunchJob) -> Iterator[str]:
    """Yield the lines of --dry-run. Raises UsageError, and MeshError if hosts cannot be found."""
    if job.pods is not None:
        words, options, _ = pod_run(job)
        yield from tlaunchpods.shown(job.name, words, options, job.pods)
    else:
        yield from api.plan(words_of(job), cluster=job.cluster, options=options_of(job, _host_count(job)))


def pod_run(job: TLaunchJob) -> tuple[tuple[str, ...], Options, PodPaths]:
    """Return the words that every rank runs in pods, the options of the run, and the paths among the words."""
    given = replace(job, share_file="", gpu=0, num_trainer=0)
    options = options_of(given, 0)
    nproc = 1 if job.method == BASIC else job.gpu or 1
    paths = tlaunchpods.paths_of(
        job.name,
        tlaunchpods.home_here(),
        saves=job.set_save_path,
        checkpoints=job.set_checkpoint_path,
        shares=job.share_file == AUTO,
    )
    if job.share_file and job.share_file != AUTO:
        paths = replace(paths, share_file=job.share_file)
    return _words(job, paths), tlaunchpods.with_pods(options, nproc), paths


def options_of(job: TLaunchJob, hosts: int) -> Options:
    """Return the options of the run. hosts: of the cluster, 0: not needed. Raises UsageError."""
    if job.method not in METHODS:
        raise UsageError(f"tlaunchrun {job.method}: expected {', '.join(METHODS)}")
    if job.method != BASIC:
        if job.num_trainer or job.share_file:
            raise UsageError("--num_trainer and --set_share_file are for basic jobs", hint="mesh tlaunchrun basic ...")
        return Options(name=job.name, launcher=job.method, nproc=job.gpu or 1)
    nproc, ranks = job.gpu or 1, ""
    if job.num_trainer and job.gpu:
        raise UsageError("--num_trainer and --gpu both set the number of trainers", hint="leave one of them out")
    if job.num_trainer > hosts:
        nproc, rest = divmod(job.num_trainer, hosts)
        if rest:
            hint = f"--num_trainer {hosts * nproc}, or {hosts * (nproc + 1)}"
            raise UsageError(f"{job.num_trainer} trainers cannot be dealt evenly over {hosts} hosts", hint=hint)
    elif job.num_trainer:
        ranks = f"0-{job.num_trainer - 1}" if job.num_trainer > 1 else "0"
    return Options(name=job.name, nproc=nproc, ranks=ranks, bind=job.gpu > 0)


def words_of(job: TLaunchJob) -> tuple[str, ...]:
    """Return the words that every rank runs.

    >>> words_of(TLaunchJob(method="torchrun", cluster="", command=("train.py",), name="r", set_save_path=True))
    ('train.py', '--save_path', 'models/r')
    """
    save = f"{MODELS_DIRECTORY}/{job.name or 'lpjob'}" if job.set_save_path else ""
    checkpoint = CHECKPOINT_PATH if job.set_checkpoint_path else ""
    return _words(job, PodPaths(save=save, checkpoint=checkpoint, share_file=job.share_file))


def _words(job: TLaunchJob, paths: PodPaths) -> tuple[str, ...]:
    own: list[str] = []
    for option, path in (
        ("--share_file", paths.share_file),
        ("--save_path", paths.save),
        ("--checkpoint_path", paths.checkpoint),
    ):
        own += [option, path] if path else []
    words = (*job.command, *own)
    if job.method != BASIC:
        return words
    first = (PYTHON,) if words[0].endswith(PYTHON_ENDING) else ()
    return ("sh", "-c", RANK_WORDS, "sh", *first, *words)


def _host_count(job: TLaunchJob) -> int:
    """Return the number of hosts, where the number of trainers or of nodes depends on it. Raises UsageError."""
    found = _hosts(job) if job.num_trainer or job.nodes else 0
    if job.nodes and job.nodes != found:
        hint = f"{job.cluster}:0-{job.nodes - 1} has that many" if job.nodes < found else "mesh clusters"
        raise UsageError(f"{job.nodes} nodes: {job.cluster or 'the cluster'} has {found} hosts", hint=hint)
    return found


def _hosts(job: TLaunchJob) -> int:
    from mesh.api.choosing import choose_cluster
    from mesh.hosts.interfaces import Purpose

    return len(choose_cluster(job.cluster, Options(), "", purpose=Purpose.PLAN).hosts)


def _check_shared(job: TLaunchJob) -> None:
    """Raise UsageError unless the directory of the shared file is the same on all hosts."""
    directory = posixpath.dirname(job.share_file)
    if not directory.startswith("/"):
        raise UsageError(f"--set_share_file: {job.share_file!r} is no absolute path", hint=_hint())
    token = uuid.uuid4().hex
    try:
        written = _on_all(job, WRITE, directory, token)
        unlike = written or _on_all(job, LOOK_SCRIPT, directory, token)
    finally:
        _on_all(job, REMOVE, directory, token)
    if unlike:
        what = "cannot be written on" if written else "is not the same directory on"
        raise UsageError(f"--set_share_file: {directory} {what} {', '.join(unlike)}", hint=_hint())


def _on_all(job: TLaunchJob, script: str, *words: str) -> list[str]:
    """Run a shell script on all hosts; return those where it fails. Raises MeshError if a host cannot be reached."""
    result = api.exec(["sh", "-c", script, "sh", *words], cluster=job.cluster, quiet=True)
    if result.failures:
        raise MeshError("; ".join(result.failures))
    return [rank.host for rank in result.ranks if rank.code]


def _hint() -> str:
    return 'ranks meet without a file: init_method="env://" reads MASTER_ADDR and MASTER_PORT'


def refuse(name: str) -> None:
    """Raise UsageError for an argument that only Kubernetes has."""
    raise UsageError(f"--{name} {KUBERNETES}", hint="--image IMAGE makes pods, and then no cluster is named")
