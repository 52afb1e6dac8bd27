"""Allocations that are asked for, waited for, found again and cancelled."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Container, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mesh.backends.slurm import commands
from mesh.backends.slurm.commands import Job, jobs, waits_for, words_of
from mesh.backends.slurm.login import Login
from mesh.backends.slurm.records import AllocationRecord, AllocationRecords, name_of
from mesh.config.slurm import MadeAllocation
from mesh.core.errors import MeshError
from mesh.core.outcome import EXIT_BUSY
from mesh.core.statusline import StatusLine
from mesh.hosts.kubernetes.ending import cleaning_up
from mesh.hosts.slurm import render
from mesh.hosts.slurm.holder import UNUSED
from mesh.hosts.slurm.render import Written

LOOK_PAUSES_S = (0.3, 0.7, 1.0, 2.0, 5.0, 10.0)  # between two looks at a job that waits; then the last one
ADDRESS_PAUSE_S = 0.2  # between two looks at a job that runs, for the address of its switchboard
ADDRESS_TIMEOUT_S = 60.0  # from the beginning of the job until its holder listens
FIRST_LINE_S = 1.0
UNANSWERED_PAUSES_S = (0.0, 1.0, 3.0)  # before each look for the job of an sbatch that has not answered
SHORT_HOLD_S = 60.0  # with which commands often come in the moment in which an allocation ends
GONE_TIMEOUT_S = 120.0  # for a cancelled job to be gone
TROUBLE_LIMIT_S = 120.0  # without an answer of Slurm, while a job is waited for


class NotOurs(MeshError):
    """An allocation that is in use, or that another description has made."""

    exit_code = EXIT_BUSY


class Unused(MeshError):
    """An allocation that has ended because nobody used it."""


class Made(Struct, frozen=True, kw_only=True):
    """The allocation of a cluster that mesh asks for."""

    cluster: str
    source: MadeAllocation
    python: str
    login: str  # name of the login node; "": this machine
    until: float = 0.0  # seconds since the epoch before which it stays; 0: `hold` decides
    home: str = "~/.mesh"  # mesh's directory on the nodes

    @property
    def digest(self) -> str:
        return render.digest_of(self.source, self.python)


class Maker:
    """Asks for, finds and cancels the allocation of one cluster."""

    def __init__(
        self,
        login: Login,
        made: Made,
        records: AllocationRecords,
        notify: StatusLine | None = None,
        credentials: Callable[[], str] = lambda: "",
        program: Callable[[], bytes] = lambda: b"",
    ) -> None:
        """credentials: makes a new key; program: returns the zip of the switchboard"""
        self._login, self.made, self._records = login, made, records
        self._notify = notify or StatusLine()
        self._credentials, self._program = credentials, program
        self._key: str | None = None  # of the job that sbatch was asked for
        self._new = ""  # the number of that job; "": sbatch has not answered
        self._waits_for = ""  # the number of the job that this call waits for

    def job(self) -> Job | None:
        """Return the job of the cluster that waits or runs, the newest one; None if there is none. Raises MeshError."""
        known = self._records.read()  # before Slurm is asked: it lists all jobs that were there by now
        found = jobs(self._login, name=render.job_name(self.made.cluster))
        self._sweep(known, {one.job for one in found})
        usable = [one for one in found if one.is_waiting or (one.is_living and not one.is_ending)]
        # The job of a run's next attempt waits for the end of another one.
        own = [one for one in usable if not one.is_next]
        return own[-1] if own else usable[0] if usable else None

    def _sweep(self, known: Sequence[AllocationRecord], listed: Container[str]) -> None:
        """Remove the records of this cluster's allocations that have ended. listed: the jobs that Slurm lists"""
        for one in known:
            is_of_it = one.is_ours and (one.cluster, one.login) == (self.made.cluster, self.made.login)
            if is_of_it and one.job not in listed:
                self._records.remove(one.name)

    def record(self, job: Job) -> AllocationRecord:
        """Return the record of a job, with its nodes and address; by its batch script where there is none here.

        Raises MeshError.
        """
        name = name_of(self.made.login, job.job)
        found = self._records.get(name)
        if found is None:
            written = self._written(job.job)
            found = self._new_record(job.job, written.key, written)
        if job.address and (found.address != job.address or not found.nodes):
            nodes = found.nodes or commands.nodes_of(self._login, job.nodes)
            site = commands.site_of(self._login)
            found = replace(found, address=job.address, nodes=nodes, kill_wait=site.kill_wait, accounts=site.accounts)
            self._records.write(found)
        return found

    def ensure(self) -> tuple[Job, AllocationRecord]:
        """Return the job, which runs, and its record; ask for it if there is none.

        Raises MeshError with the reason. A job that this call has asked for is cancelled then, also after Ctrl-C and
        SIGTERM.
        """
        with cleaning_up():
            try:
                while True:
                    job, waiting = self._begun()
                    with waiting:
                        try:
                            return self._waited(job)
                        except Unused:
                            if job.job == self._new:
                                raise
            except BaseException:
                self._notify.end()
                self._give_up()
                raise

    def _begun(self) -> tuple[Job, contextlib.ExitStack]:
        """Return the job to wait for, which may be a new one, and what counts this call among those that wait."""
        with self._records.alone(self.made.cluster), contextlib.ExitStack() as waiting:
            job = self.job()
            if job is None:
                job = self._submit()
            else:
                self._check_same(job)
            waiting.enter_context(self._records.waiting(name_of(self.made.login, job.job)))
            self._waits_for = job.job
            return job, waiting.pop_all()

    def may_end(self, job: Job) -> bool:
        """Return True for a job whose time to wait may be over in a moment: its switchboard has to be asked.

        That time begins anew then.
        """
        source = self.made.source
        return source.is_by_ssh or (job.job != self._new and source.hold < SHORT_HOLD_S)

    def cancel(self, job: str) -> None:
        """Cancel a job that mesh has asked for. Raises MeshError."""
        done = commands.ask(self._login, ["scancel", job])
        if done.status and not any(words in done.error for words in commands.NO_JOB):
            raise MeshError(f"{self.made.cluster}: scancel {job}: {words_of(done)}", hint=f"scancel {job}")
        self._records.remove(name_of(self.made.login, job))

    def cancel_and_wait(self, job: str) -> None:
        """Cancel a job, and wait until it is gone. Raises MeshError."""
        self.cancel(job)
        deadline = time.monotonic() + GONE_TIMEOUT_S
        while any(one.job == job for one in jobs(self._login, job=job)):
            if time.monotonic() > deadline:
                raise MeshError(f"{self.made.cluster}: job {job} is still being ended", hint=f"squeue --jobs={job}")
            time.sleep(ADDRESS_PAUSE_S)

    def check_ours(self, job: Job) -> None:
        """Raise NotOurs if a job has the name, and mesh has not asked for it. Raises MeshError."""
        if self._records.get(name_of(self.made.login, job.job)) is None:
            self._written(job.job)

    def _check_same(self, job: Job) -> None:
        """Raise MeshError if a job was asked for by another description than that of now."""
        record = self._records.get(name_of(self.made.login, job.job))
        digest = record.digest if record is not None else self._written(job.job).digest
        if digest != self.made.digest:
            raise NotOurs(
                f"{self.made.cluster}: job {job.job} was asked for with other values than cluster.yaml and the options "
                f"have now",
                hint=f"mesh down {self.made.cluster}",
            )

    def _written(self, job: str) -> Written:
        """Return what the batch script of a job holds. Raises MeshError."""
        done = commands.ask(self._login, ["scontrol", "write", "batch_script", job, "-"])
        found = render.read_script(done.out) if not done.status else None
        if found is None:
            why = f" ({words_of(done)})" if done.status else ""
            raise NotOurs(f"{self.made.cluster}: job {job} is not one of mesh{why}", hint=f"scontrol show job {job}")
        return found

    def _submit(self) -> Job:
        """Ask for an allocation. Raises MeshError with Slurm's own words."""
        made, source = self.made, self.made.source
        key = self._credentials()
        self._key, self._new = key, ""
        text = render.request_script(source, key, self._program(), made.python, made.until, made.home)
        script = text.encode()
        done = commands.ask(self._login, render.submit_words(source, made.cluster), script)
        job = commands.submitted(done.out)
        if done.status or not job:
            if done.status > 0:  # else it was killed, or the connection broke, and Slurm may have the job
                self._key = None
            raise MeshError(
                f"{made.cluster}: sbatch: {words_of(done)}", hint=f"change slurm: of {made.cluster} in cluster.yaml"
            )
        self._new = job
        written = Written(key=key, digest=made.digest, hold=source.hold, until=made.until)
        self._new_record(job, key, written)
        self._notify(f"{made.cluster}: job {job} asks for {_wanted(source)}")
        return Job(job=job, state="PENDING")

    def _new_record(self, job: str, key: str, written: Written) -> AllocationRecord:
        record = AllocationRecord(
            name=name_of(self.made.login, job),
            job=job,
            cluster=self.made.cluster,
            login=self.made.login,
            key=key,
            digest=written.digest,
            since=time.time(),
            until=written.until,
            hold=written.hold,
        )
        self._records.write(record)
        return record

    def _give_up(self) -> None:
        """Cancel the job that this call has asked for, also if the answer of sbatch was lost.

        A job that another command waits for stays, and the last of them cancels it while it has not begun.
        """
        if self._key is None and not self._is_handed_on():
            return
        try:
            with self._records.alone(self.made.cluster):
                for job in self._own_jobs():
                    name = name_of(self.made.login, job)
                    if self._records.is_waited(name):
                        self._records.hand_on(name)
                        self._notify(f"{self.made.cluster}: job {job} stays, because another command waits for it")
                    else:
                        self.cancel(job)
        except MeshError as error:
            what = f"job {self._new} may be left: scancel {self._new}"
            if not self._new:
                what = f"a job may be left: squeue --me --name={render.job_name(self.made.cluster)}"
            self._notify(f"{self.made.cluster}: {what} ({error})")

    def _is_handed_on(self) -> bool:
        """Return True if the command that has asked for the job is gone, and this one has waited for it."""
        return bool(self._waits_for) and self._records.is_handed_on(name_of(self.made.login, self._waits_for))

    def _own_jobs(self) -> list[str]:
        """Return the jobs that this call has to cancel. Raises MeshError."""
        if self._key is None:  # another command has asked for it; one that runs ends itself
            return [one.job for one in jobs(self._login, job=self._waits_for) if one.is_waiting]
        return [self._new] if self._new else self._unanswered(self._key)

    def _unanswered(self, key: str) -> list[str]:
        """Return the jobs with a key: those of a call of sbatch that has not answered. Raises MeshError.

        Slurm may get such a call a moment after this one has given up.
        """
        for pause in UNANSWERED_PAUSES_S:
            time.sleep(pause)
            found = [one.job for one in self._named() if self._key_of(one.job) == key]
            if found:
                return found
        return []

    def _named(self) -> list[Job]:
        return jobs(self._login, name=render.job_name(self.made.cluster))

    def _key_of(self, job: str) -> str:
        done = commands.ask(self._login, ["scontrol", "write", "batch_script", job, "-"])
        written = render.read_script(done.out)
        return written.key if written is not None else ""

    def _waited(self, job: Job) -> tuple[Job, AllocationRecord]:
        """Wait until a job runs and has a switchboard. Raises MeshError."""
        running = self._wait(job)
        return running, self.record(running)

    def _wait(self, job: Job) -> Job:
        began, ran, looks = time.monotonic(), 0.0, 0
        answered_at = began
        while not (job.is_living and job.address):
            lasted = time.monotonic() - began
            if job.is_waiting:
                self._check_waiting(job, lasted)
                time.sleep(LOOK_PAUSES_S[min(looks, len(LOOK_PAUSES_S) - 1)])
                looks += 1
            else:
                ran = ran or time.monotonic()
                if time.monotonic() > ran + ADDRESS_TIMEOUT_S:
                    raise MeshError(
                        f"{self.made.cluster}: job {job.job} runs, and its holder does not listen",
                        hint=f"check that {self.made.python} is on its nodes: srun --jobid={job.job} --overlap "
                        f"{self.made.python} --version",
                    )
                time.sleep(ADDRESS_PAUSE_S)
            try:
                found = jobs(self._login, job=job.job)
            except MeshError:  # Slurm is started again, or the connection to the login node has broken
                if time.monotonic() > answered_at + TROUBLE_LIMIT_S:
                    raise
                continue
            answered_at = time.monotonic()
            if not found or not (found[-1].is_waiting or found[-1].is_living):
                raise self._ended(job.job)
            job = found[-1]
        self._notify.end()
        return job

    def _check_waiting(self, job: Job, lasted: float) -> None:
        """Show why a job waits. Raises MeshError if it will not begin, or has waited for too long."""
        name = self.made.cluster
        if job.reason.partition(",")[0] in commands.NEVER:
            raise MeshError(f"{name}: job {job.job} cannot begin: {waits_for(job)}", hint="sinfo --long")
        if lasted > self.made.source.start_timeout:
            limit = f"{self.made.source.start_timeout:g} s"
            hint = "--slurm start_timeout=8h waits longer; `sbatch --test-only` shows when nodes are free"
            raise MeshError(f"{name}: job {job.job} has not begun after {limit}: {waits_for(job)}", hint=hint)
        if lasted > FIRST_LINE_S:
            self._notify.show(f"{name}: job {job.job} waits: {waits_for(job)}", lasted)

    def _ended(self, job: str) -> MeshError:
        """Return the error for a job that has ended before it could be used."""
        fields = commands.about(self._login, "job", job)
        why = commands.end_of(fields) or "Slurm has no record of it"
        words = fields.get("Comment", "")
        last = words.removeprefix(commands.ENDED) if words.startswith(commands.ENDED) else ""
        last = "" if last == why else last
        hint = f"check that {self.made.python} is on the nodes, and srun; scontrol show job {job}"
        kind = Unused if last.startswith(UNUSED) else MeshError
        return kind(f"{self.made.cluster}: job {job} has ended: {why}" + f" ({last})" * bool(last), hint=hint)


def _wanted(source: MadeAllocation) -> str:
    """Return what is asked for, in one line."""
    count = f"{source.nodes} nodes" if source.nodes else source.request.get("nodelist", "nodes")
    more = [f"{key} {value}" for key, value in source.request.items() if key in ("partition", "gres", "time")]
    return ", ".join([count, *more])
