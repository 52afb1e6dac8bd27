"""Task files: the tasks that workers take, and the worker that a job is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from mesh.core.run import Seconds

USUAL_MAX_JOBS = 1
USUAL_MAX_RETRIES = 3
USUAL_BACKOFF_S = (10.0, 600.0)
USUAL_IDLE_S = 600.0
STATE_SUFFIX = "_state.yaml"  # of the mirror beside a task file


class TaskSpec(Struct, frozen=True, kw_only=True):
    """A task of a task file, with the defaults of its accelerator and of the file."""

    id: str
    run: str  # shell text
    accelerator: str  # the group that it stands in
    zone: str = ""  # only workers of this zone take it; "": those of any
    workers: tuple[int, ...] = (0,)  # indexes of the hosts that run it; (): all
    variables: Mapping[str, str] = field(default_factory=dict)
    environment: str = ""  # the name of a virtual or conda environment on the hosts; "": none
    url: str = ""  # of the git repository; "": none
    branch: str = ""  # a branch, tag or commit; "": the repository's own
    workdir: str = ""  # the directory that it runs in; "": that of the repository, or the workspace
    max_jobs: int = USUAL_MAX_JOBS  # instances that may run at a time
    max_retries: int = USUAL_MAX_RETRIES  # the failure of this number, since the last success, is final
    backoff: tuple[Seconds, Seconds] = USUAL_BACKOFF_S  # pauses after a failure: doubled from the first to the last
    depends_on: tuple[str, ...] = ()  # ids of tasks that must be done
    priority: int = 0  # the greatest is next
    is_hidden: bool = False  # lists leave it out

    @property
    def failures_max(self) -> int:
        """The number of failures at which the task has failed."""
        return max(1, self.max_retries)


class TaskList(Struct, frozen=True, kw_only=True):
    """The tasks of a file, in its order."""

    path: Path
    tasks: tuple[TaskSpec, ...] = ()
    accelerators: tuple[str, ...] = ()  # groups of the file, also those without tasks
    notices: tuple[str, ...] = ()  # for people: keys at another place than JOBMAN has them


class PrefixStep(Struct, frozen=True, kw_only=True):
    """A step that a worker runs once on each generation of its machines, before any task."""

    name: str
    run: str  # shell text
    workers: tuple[int, ...] = (0,)  # indexes of hosts; (): all
    required: bool = False  # its failure holds the worker


class WorkerSpec(Struct, frozen=True, kw_only=True):
    """A job that takes its commands from a task file."""

    tasks: Path  # absolute
    accelerator: str = ""  # only tasks of this group; "": of any
    zone: str = ""  # only tasks of this zone, and those without one; "": of any
    prefix: tuple[PrefixStep, ...] = ()
    idle: Seconds = USUAL_IDLE_S  # machines are held so long without a task
    ends: bool = False  # it ends once no task is left for it
