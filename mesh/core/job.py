"""The spec of a job: its file, fully resolved when it is submitted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, field

from mesh.core.cluster import Cluster
from mesh.core.module import Described
from mesh.core.notify import Moment
from mesh.core.run import DEFAULT_GRACE, Launch, PrerunEntry, Seconds
from mesh.core.tasks import WorkerSpec
from mesh.core.tpu import TpuSpec

PRIORITY_LIMIT = 100  # priorities are -100 .. 100
UNLIMITED = -1  # as a number of recoveries
FIRST_BACKOFF_S = 30.0
LAST_BACKOFF_S = 1800.0
NOTICE_FIELDS = ("job", "name", "state", "before", "reason", "attempt", "exit_code", "user", "time", "text")
Priority = Annotated[int, Meta(ge=-PRIORITY_LIMIT, le=PRIORITY_LIMIT)]


class RestartOn(Enum):
    """Ends of an attempt that are followed by another one. Each includes those before it."""

    NEVER = "never"
    PREEMPTION = "preemption"  # machines or hosts were lost
    FAILURE = "failure"
    ALWAYS = "always"  # success too


class Keep(Enum):
    """The workspace of a job."""

    SNAPSHOT = "snapshot"  # of a directory, made at submit
    NONE = "none"
    GIT = "git"


class Candidate(Struct, frozen=True, kw_only=True):
    """A host that a job may be given."""

    name: str  # as its cluster calls it
    # The machine behind the name: equal for two names of one machine, as "user@address:port". No machine has two jobs.
    key: str


class CarrierSpec(Struct, frozen=True, kw_only=True):
    """Hosts that a scheduler gives: pods that are made for the job, or the nodes of an allocation of its own."""

    cluster: Cluster  # as cluster.yaml had it at submit, without hosts and source
    source: Mapping[str, object]  # the fields of its source
    nodes: int = 0  # 0: only the scheduler has the number
    start_timeout: Seconds = 0.0  # from the end of the wait in the scheduler's queue until every host is there
    asked: str = ""  # what is asked for, for people


class MachinesSpec(Struct, frozen=True, kw_only=True):
    """The machines that a job asks for: hosts that are there, or machines that a maker makes."""

    cluster: str = ""  # a selector, as `mesh run` takes it
    clusters_file: str = ""  # the absolute path of the cluster.yaml that has it; "": the usual one
    candidates: tuple[Candidate, ...] = ()  # hosts of the cluster that the job may have, in cluster order
    hosts: int = 0  # how many of the candidates; 0: all
    maker: str = ""  # the name of a maker of machines; "": hosts that are there
    pool: str = ""  # of a maker: the quota that its machines use
    units: int = 0  # of a maker: how much of the quota
    tpu: TpuSpec | None = None  # of the maker "tpu": what it makes
    carrier: CarrierSpec | None = None  # of the makers "kubernetes" and "slurm"
    login: str = ""  # the user to log in as where the hosts' cluster names none; "": as elsewhere
    login_key: str = ""  # the path of a private key, where the hosts' cluster names none

    @property
    def count(self) -> int:
        """The number of hosts that the job gets, of hosts that are there."""
        return self.hosts or len(self.candidates)


class CommandSpec(Struct, frozen=True, kw_only=True):
    """The command of a job."""

    words: tuple[str, ...]  # for execve; shell text as ("bash", "-c", TEXT)
    workers: tuple[int, ...] = ()  # indexes of the hosts that run it; (): all
    nproc: int = 1  # processes on each host; core.run.AUTO: as many as it has GPUs
    launcher: Launch = Launch.NONE
    timeout: Seconds = 0.0  # for one attempt, from the start of its ranks; 0: none
    grace: Seconds = DEFAULT_GRACE  # from SIGTERM to SIGKILL


class RestartSpec(Struct, frozen=True, kw_only=True):
    """Rules by which an attempt that ended is followed by another one."""

    on: RestartOn = RestartOn.PREEMPTION
    failures: int = 3  # attempts that may fail; the next failure is final. Losses never count
    recoveries: int = UNLIMITED  # losses that may be recovered from
    again: tuple[int, ...] = ()  # exit statuses that ask for another attempt; they count as no failure
    never: tuple[int, ...] = ()  # exit statuses that end the job
    backoff: tuple[Seconds, Seconds] = (FIRST_BACKOFF_S, LAST_BACKOFF_S)  # doubled from the first to the second


class WorkspaceSpec(Struct, frozen=True, kw_only=True):
    """The files that an attempt starts from."""

    keep: Keep = Keep.SNAPSHOT
    directory: Path = Path("/")  # the one that was snapshot, or that a git URL was cloned for
    tree: str = ""  # the hash of the snapshot
    url: str = ""  # of a git repository
    ref: str = ""  # a commit, once resolved


class Format(Enum):
    """The form of a notification's body."""

    JSON = "json"
    SLACK = "slack"


class NotifySpec(Struct, frozen=True, kw_only=True):
    """An entry of ``notify:``. Exactly one of command and url_env is given."""

    on: tuple[Moment, ...] = (Moment.END,)
    command: tuple[str, ...] = ()  # words for execve, with {job}, {state} and the like in them
    url_env: str = ""  # the variable, in the steward's environment, that holds the address of a webhook
    format: Format = Format.JSON


class LogNames(Enum):
    """The names of a job's output in a bucket."""

    RUNS = "runs"  # RUN/logs/rank-0000.out, as in run directories
    MAXTEXT = "maxtext"  # main_command_log_slice_S_worker_W, of all attempts


class ArraySpec(Struct, frozen=True, kw_only=True):
    """The place of a job in an array."""

    first: int = 0  # the id of the array's first member; the store fills it in
    index: int = 0  # MESH_ARRAY_INDEX
    limit: int = 0  # members that may run at a time; 0: any number


class JobSpec(Struct, frozen=True, kw_only=True):
    """A job as its file and options ask for it; nothing in it is looked up later but values of variables."""

    name: str
    user: str
    machines: MachinesSpec
    command: CommandSpec
    priority: Priority = 0
    queue: str = "default"
    depends_on: tuple[int, ...] = ()  # ids of jobs that must succeed first
    after: float = 0.0  # seconds since the epoch before which it does not start; 0: at once
    env: Mapping[str, str] = field(default_factory=dict)
    passed: tuple[str, ...] = ()  # `pass:`: patterns of variables that the steward's environment gives at the start
    secret: tuple[str, ...] = ()  # the same, and their values are masked
    workspace: WorkspaceSpec = WorkspaceSpec()
    modules: Described = ()  # that prepare the hosts before the start; (): those of mesh.yaml in the snapshot
    project_modules: Described = ()  # the latter: each attempt sets them up by itself
    prerun: tuple[PrerunEntry, ...] = ()
    restart: RestartSpec = RestartSpec()
    results: tuple[str, ...] = ()  # paths and patterns pulled into the job's directory at the end
    progress: str = ""  # a regular expression of output lines whose groups are shown; "": none
    cost_limit: float = 0.0  # in the currency of prices.yaml, for machines that are made; 0: none
    logs: str = ""  # gs://BUCKET/DIRECTORY that the output is copied to after each attempt; "": nowhere
    log_names: LogNames = LogNames.RUNS
    notify: tuple[NotifySpec, ...] = ()
    array: ArraySpec | None = None
    holds: str = ""  # the cluster whose machines `mesh up` has it make and hold, without a command; "": it has one
    checkpoint_dir: str = ""  # MESH_CHECKPOINT_DIR
    worker: WorkerSpec | None = None  # the job takes its commands from a task file
    file: str = ""  # the text of the job file, as given
    config: str = ""  # the resolved file, for people

    @property
    def time_limit(self) -> float:
        """The seconds after which an attempt has certainly ended; infinity without a timeout."""
        return self.command.timeout + self.command.grace if self.command.timeout else math.inf
