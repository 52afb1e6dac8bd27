"""TLaunch's ``tlaunchrun`` for hosts over SSH: basic, torchrun and deepspeed jobs as runs of mesh."""

from __future__ import annotations

import posixpath
import uuid

from msgspec import Struct

from mesh import api
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
KUBERNETES = "belongs to Kubernetes; mesh starts jobs on hosts over SSH"


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


def tlaunchrun(job: TLaunchJob, *, output: str = "all") -> api.RunResult:
    """Run a job on the hosts of its cluster. Raises UsageError; whatever goes wrong later is in the result."""
    options = options_of(job, _host_count(job))
    if job.share_file:
        _check_shared(job)
    return api.run(words_of(job), cluster=job.cluster, options=options, output=output)


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
    own: list[str] = []
    if job.share_file:
        own += ["--share_file", job.share_file]
    if job.set_save_path:
        own += ["--save_path", f"{MODELS_DIRECTORY}/{job.name or 'lpjob'}"]
    if job.set_checkpoint_path:
        own += ["--checkpoint_path", CHECKPOINT_PATH]
    words = (*job.command, *own)
    return ("sh", "-c", RANK_WORDS, "sh", *words) if job.method == BASIC else words


def _host_count(job: TLaunchJob) -> int:
    """Return the number of hosts, where the number of trainers depends on it."""
    from mesh.api.choosing import choose_cluster
    from mesh.hosts.interfaces import Purpose

    return len(choose_cluster(job.cluster, Options(), "", purpose=Purpose.PLAN).hosts) if job.num_trainer else 0


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
    raise UsageError(f"--{name} {KUBERNETES}", hint="leave it out; --gpu N gives each host N processes with a GPU each")
