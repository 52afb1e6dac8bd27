"""The removal of a job's keys and mounts from hosts of a cluster, before the job gives these hosts back.

A generation owes this removal from the order to set modules up until the report of the hosts. The store keeps that.
If a host cannot be reached in time, its keys and mounts stay, and people see the command that removes them.
Environments and images stay as caches for the next job of the user.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from mesh.core.job import JobSpec
from mesh.core.module import Gcsfuse, Ssh
from mesh.jobs.events import Refusal, Undone
from mesh.jobs.generations import with_generation
from mesh.jobs.orders import Undo
from mesh.jobs.values import Generation, Job, Phase, Setup, Stage, State

REMOVED = (Ssh, Gcsfuse)  # modules whose keys and mounts end with the job
UNDO_LIMIT_S = 120.0  # for hosts that do not answer, or that another run holds
UNDO_RETRY_S = 5.0


def removed_modules(spec: JobSpec) -> tuple[str, ...]:
    """Return the modules of a job that are undone when it gives back hosts of a cluster."""
    described = spec.modules or spec.project_modules
    return tuple(name for name, module in described if isinstance(module, REMOVED))


def setup_due(job: Job, generation: Generation) -> tuple[str, ...] | None:
    """Return the modules to set up before the next start: () for all of them, None for none.

    Without set-up (``--skip-setup``), modules that were removed when the job gave its hosts back are still set up.
    """
    if not job.spec.modules or job.prepared == generation.number:
        return None
    used = {attempt.generation for attempt in job.attempts if attempt.stage is Stage.ENDED}
    is_known = any(one.number in used and one.keys == generation.keys for one in job.generations)
    if job.setup is not Setup.SKIP or not is_known:
        return ()
    return (None if generation.maker else removed_modules(job.spec)) or None


def begun(job: Job, hosts: Sequence[str]) -> Job:
    """Note that hosts of the present generation may have keys or mounts from now on."""
    generation = job.generation
    if generation is None or generation.maker or not removed_modules(job.spec):
        return job
    unclean = tuple(dict.fromkeys((*generation.unclean, *hosts)))
    return with_generation(job, generation.number, unclean=unclean)


def released(job: Job, generation: Generation, time: float) -> Job:
    """Give back hosts that stay: at once, or when their modules are undone."""
    if not generation.unclean:
        return with_generation(job, generation.number, phase=Phase.RELEASED)
    return with_generation(job, generation.number, phase=Phase.RELEASING, undo_since=time)


def undo_order(job: Job, generation: Generation) -> Undo | None:
    """Return the order to undo the modules on condemned hosts that stay; None if it is under way."""
    if job.is_open(Undo):
        return None
    return Undo(generation=generation.number, hosts=generation.unclean, modules=removed_modules(job.spec))


def cleaned(job: Job, hosts: Sequence[str]) -> Job:
    """Note that some hosts have no keys or mounts of the job any more, in whichever generation they were."""
    for one in job.generations:
        if set(one.unclean) & set(hosts):
            unclean = tuple(host for host in one.unclean if host not in hosts)
            job = with_generation(job, one.number, unclean=unclean, unclean_why=one.unclean_why if unclean else "")
    return job


def undone(job: Job, event: Undone) -> Job:
    """Fold the report of hosts: try again after a pause, or give the hosts back as they are."""
    job, generation = cleaned(job, event.hosts), job.generation
    if generation is None or generation.number != event.generation or not _is_condemned(generation):
        return job
    tries = generation.undo_tries + 1
    job = with_generation(job, generation.number, undo_tries=tries, unclean_why=event.problem)
    if event.problem and event.time < generation.undo_since + UNDO_LIMIT_S:
        # A lost host must not keep the next attempt waiting. A busy one is free soon: an earlier try ends there.
        may_wait = event.kind is Refusal.UNREACHABLE and job.state is not State.RECOVERING
        if event.kind is Refusal.BUSY or may_wait:
            return replace(job, retry_at=event.time + UNDO_RETRY_S)
    return with_generation(job, generation.number, phase=Phase.RELEASED)


def unanswered(job: Job, order: Undo) -> Job:
    """Note that the child that undid modules has ended without a report."""
    tries = [one.undo_tries + 1 for one in job.generations if one.number == order.generation]
    return with_generation(job, order.generation, undo_tries=sum(tries), unclean_why="no answer")


def given_up(job: Job, time: float) -> Job:
    """Give back hosts whose modules could not be undone in time."""
    generation = job.generation
    if generation is None or not _is_condemned(generation) or job.is_open(Undo) or not generation.undo_tries:
        return job
    if generation.unclean and time < generation.undo_since + UNDO_LIMIT_S:
        return job
    return with_generation(job, generation.number, phase=Phase.RELEASED)


def left_words(job: Job) -> str:
    """Return the words about keys or mounts left on hosts, for the reason of an ended job; "" without any."""
    if not job.left_on:
        return ""
    why = next((one.unclean_why for one in reversed(job.generations) if one.unclean and one.unclean_why), "")
    return f"; {leftovers(job.left_on)}{f' ({why})' if why else ''}"


def leftovers(hosts: Sequence[str]) -> str:
    """Return the message that keys or mounts may be left on hosts.

    >>> leftovers(["h1", "h2"])
    'keys or mounts may be left on h1, h2'
    """
    return f"keys or mounts may be left on {', '.join(hosts)}"


def undo_command(job: int) -> str:
    """Return the command that removes what modules have left."""
    return f"mesh job setup {job} --undo"


def _is_condemned(generation: Generation) -> bool:
    return generation.phase is Phase.RELEASING and not generation.maker
