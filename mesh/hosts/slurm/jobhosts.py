"""Allocations that are asked for by jobs of mesh, each under a name that is used once.

One call of sbatch is made for a name, ever. A hand that is killed may leave its sbatch alive for a moment. It holds a
lock then, or ends within a fixed time, so that a later look finds the allocation, or proves that there is none.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from mesh.backends.slurm import commands
from mesh.backends.slurm.commands import ENDS, FIELDS, SEPARATOR, SQUEUE, Job, waits_for, words_of
from mesh.backends.slurm.login import NOT_FOUND_STATUS, Done, Login, login_of
from mesh.backends.slurm.records import AllocationRecords, name_of
from mesh.config.slurm import MadeAllocation
from mesh.core.cluster import AllocationPlace, Cluster
from mesh.core.errors import MeshError
from mesh.core.paths import open_lock
from mesh.hosts.interfaces import How, NotMade, Stand, Why, Wish
from mesh.hosts.slurm import render
from mesh.hosts.slurm.made import new_key, program, with_nodes
from mesh.hosts.slurm.making import Made, Maker

SUBMIT_LIMIT_S = 50.0  # for sbatch, which is ended then: a hand that was killed leaves it no longer alive
SUBMIT_SLACK_S = 15.0
LOCK_LIMIT_S = 30.0  # for the sbatch of a hand before
LOCK_POLL_S = 0.05
FULL = ("submit limit", "MaxSubmit", "temporarily unable")  # words of sbatch for a limit that others may free
TIMED_OUT_STATUS = 124  # of timeout(1)
SIGNALLED_STATUS = 128  # above it: of timeout(1), whose command was ended by a signal


class AllocationMaker:
    """Asks for, finds and cancels allocations of jobs. See mesh.hosts.interfaces.HostMaker."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._records = AllocationRecords(environ)
        self._logins: dict[str, Login] = {}  # by their users and addresses

    def make(self, wish: Wish) -> None:
        with self._login(wish) as login, _locked(wish) as lock:
            if _named(login, [wish.name])[wish.name]:
                return
            if wish.is_unsure:
                raise NotMade(Why.CAPACITY, "its request had no answer, and Slurm has no job of it")
            _submit(login, wish, lock)

    def look(self, wishes: Sequence[Wish]) -> Sequence[Stand | None]:
        by_login: dict[str, list[Wish]] = {}
        for wish in wishes:
            by_login.setdefault(_login_key(wish), []).append(wish)
        found: dict[str, Stand | None] = {}
        for some in by_login.values():
            with contextlib.suppress(MeshError), self._login(some[0]) as login:
                jobs = _named(login, [wish.name for wish in some])
                for wish in some:
                    with contextlib.suppress(MeshError):
                        found[wish.name] = self._stand(login, wish, jobs[wish.name])
        return [found.get(wish.name) for wish in wishes]

    def delete(self, wish: Wish) -> Sequence[str]:
        with self._login(wish) as login:
            there = [one.job for one in _named(login, [wish.name])[wish.name] if one.state not in ENDS]
            if there:
                done = commands.ask(login, ["scancel", *there])
                if done.status and not any(words in done.error for words in commands.NO_JOB):
                    raise MeshError(f"scancel {' '.join(there)}: {words_of(done)}", hint=f"scancel {' '.join(there)}")
            return [f"allocation {job}" for job in there]

    def fixed(self, cluster: Cluster) -> Cluster:
        return cluster

    def knows(self, cluster: Cluster) -> bool:
        return self._records.get(cluster.allocation.record) is not None

    @contextlib.contextmanager
    def _login(self, wish: Wish) -> Iterator[Login]:
        """Yield the login node of a wish, whose connection stays open for the next call; an error closes it."""
        key, place = _login_key(wish), AllocationPlace(login=_source(wish).login)
        login = self._logins.get(key)
        if login is None:
            login = self._logins[key] = login_of(replace(wish.cluster, allocation=place))
        try:
            yield login
        except MeshError:
            self._logins.pop(key, None)
            login.close()
            raise

    def _stand(self, login: Login, wish: Wish, jobs: Sequence[Job]) -> Stand:
        """Return how the allocation of a wish is. jobs: all of its name, the newest last"""
        job = next((one for one in reversed(jobs) if one.state not in ENDS), jobs[-1] if jobs else None)
        if job is None and _may_come(login, wish):
            return Stand(how=How.PENDING, text="a request for it may still be under way")
        found = stand_of(wish.name, job)
        if found.how is How.READY and job is not None:
            python, where = wish.cluster.python, _where(login)
            made = Made(cluster=cluster_name(wish), source=_source(wish), python=python, login=where)
            record = Maker(login, made, self._records).record(job)
            keys = tuple(f"{job.job}/{node}" for node in record.nodes)
            if wish.keys and wish.keys != keys:
                return Stand(how=How.LOST, text=f"{wish.name} is another allocation now ({job.job})")
            return replace(found, cluster=with_nodes(wish.cluster, job, record), keys=keys)
        if found.how is How.ENDED and wish.condemned:
            for one in jobs:
                self._records.remove(name_of(_where(login), one.job))
        return found


def stand_of(name: str, job: Job | None) -> Stand:
    """Return how an allocation is, by the job that squeue shows; None: it shows none. Pure.

    >>> stand_of("x", Job(job="7", state="TIMEOUT")).text
    'allocation 7: its time is up'
    >>> stand_of("x", Job(job="7", state="PENDING", reason="Resources", start=9.0)).text
    'allocation 7 waits: it waits for nodes to be free (Resources)'
    """
    if job is None:
        return Stand(how=How.ABSENT, text=f"Slurm has no job {name}")
    label = f"allocation {job.job}"
    if job.is_waiting:
        why = waits_for(replace(job, start=0.0))  # Slurm's estimate changes all the time
        if job.reason.partition(",")[0] in commands.NEVER:
            hint = "change slurm: in cluster.yaml, and submit it again; sinfo --long"
            return Stand(how=How.LOST, text=f"{label} cannot begin: {why}", is_final=True, hint=hint)
        return Stand(how=How.PENDING, text=f"{label} waits: {why}", is_waiting=True)
    ended = commands.end_of({"JobState": job.state, "Comment": job.comment})
    if job.state in ENDS:
        return Stand(how=How.ENDED, text=f"{label}: {ended}")
    if not job.is_living or job.is_ending:
        why = ended or job.comment.removeprefix(commands.ENDED)
        return Stand(how=How.LOST, text=f"{label}: {why}", is_deleting=True)
    if not job.address:
        return Stand(how=How.PENDING, text=f"{label} runs; its holder does not listen yet")
    return Stand(how=How.READY, text=f"{label} runs on {job.nodes}")


def cluster_name(wish: Wish) -> str:
    """Return the name of the cluster whose job has the name of a wish."""
    return wish.name.removeprefix(render.NAME_PREFIX)


def _source(wish: Wish) -> MadeAllocation:
    source = wish.cluster.source
    assert isinstance(source, MadeAllocation)
    return source


def _login_key(wish: Wish) -> str:
    """Return a text that is equal for wishes with the same login node."""
    host = _source(wish).login
    return "" if host is None else f"{host.user}@{host.address}:{host.port} {host.identity_file}"


def _where(login: Login) -> str:
    return "" if login.is_here else login.name


def _named(login: Login, names: Sequence[str]) -> dict[str, list[Job]]:
    """Return this user's jobs by some names, also those that have ended a moment ago; newest last. Raises MeshError."""
    fields = SEPARATOR.join(("%j", *FIELDS))
    words = ["--me", "--states=all", f"--name={','.join(names)}", f"--format={fields}"]
    done = commands.ask(login, [*SQUEUE, *words])
    if done.status:
        raise MeshError(f"squeue: {words_of(done)}", hint="scontrol ping")
    lines: dict[str, list[str]] = {name: [] for name in names}
    for line in done.out.splitlines():
        name, _, rest = line.partition(SEPARATOR)
        lines.setdefault(name.strip(), []).append(rest)
    return {name: commands.parsed("\n".join(some)) for name, some in lines.items()}


# ---- sbatch


def _submit(login: Login, wish: Wish, lock: int) -> None:
    """Ask for an allocation. Raises NotMade with Slurm's words, and MeshError if it may be asked for all the same."""
    source, python = _source(wish), wish.cluster.python
    key = new_key(commands.limit_of(source.request.get("time", "")))
    script = render.request_script(source, key, program(), python).encode()
    words = ["timeout", f"{SUBMIT_LIMIT_S:g}", *render.submit_words(source, cluster_name(wish))]
    done = _here(words, script, lock) if login.is_here else login.run(words, script)
    if done.status == NOT_FOUND_STATUS:
        where = "on this machine" if login.is_here else f"on {login.name}"
        raise NotMade(Why.PERSON, f"there is no sbatch {where}", hint="gateway: in cluster.yaml names a login node")
    if is_unsure(done):
        raise MeshError(f"sbatch: {words_of(done)}", hint="scontrol ping")
    if done.status:
        is_full = any(words in done.error for words in FULL)
        hint = "" if is_full else f"change slurm: of {wish.cluster.name} in cluster.yaml, and submit it again"
        raise NotMade(Why.CAPACITY if is_full else Why.PERSON, f"sbatch: {words_of(done)}", hint=hint)


def is_unsure(done: Done) -> bool:
    """Return True for an end of sbatch after which Slurm may have the job, or not. Pure.

    >>> is_unsure(Done(status=137, out="", error="")), is_unsure(Done(status=1, out="", error="Invalid partition"))
    (True, False)
    """
    lost = (*commands.CONTROLLER_AWAY, *commands.ANSWER_LOST)
    was_ended = done.status < 0 or done.status == TIMED_OUT_STATUS or done.status > SIGNALLED_STATUS
    return was_ended or (done.status > 0 and any(words in done.error for words in lost))


def _here(words: Sequence[str], script: bytes, lock: int) -> Done:
    """Run sbatch on this machine. It holds the lock for as long as it lives. Raises MeshError."""
    try:
        done = subprocess.run(words, input=script, capture_output=True, pass_fds=[lock], check=False)
    except OSError as error:
        raise MeshError(f"cannot start {words[0]}: {error.strerror}") from error
    texts = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    return Done(status=done.returncode, out=next(texts), error=next(texts))


def _lock_path(wish: Wish) -> Path:
    return wish.directory / f"{wish.name}.lock"


@contextlib.contextmanager
def _locked(wish: Wish) -> Iterator[int]:
    """Hold the lock of a name, after the sbatch of a hand before has ended. Raises MeshError."""
    descriptor = open_lock(_lock_path(wish))
    try:
        deadline = time.monotonic() + LOCK_LIMIT_S
        while not _takes(descriptor):
            if time.monotonic() > deadline:
                raise MeshError("an earlier sbatch has not ended", hint="pgrep -a sbatch")
            time.sleep(LOCK_POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)


def _takes(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _may_come(login: Login, wish: Wish) -> bool:
    """Return True while an sbatch of a hand that was killed may still live."""
    if not wish.is_unsure:
        return False
    if not login.is_here:
        return time.time() < wish.condemned + SUBMIT_LIMIT_S + SUBMIT_SLACK_S if wish.condemned else True
    try:
        descriptor = os.open(_lock_path(wish), os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # no call has come so far
        return False
    try:
        return not _takes(descriptor)
    finally:
        os.close(descriptor)
