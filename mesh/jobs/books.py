"""The steward's picture of the jobs that have not ended: what each waits for, has, and wants to be woken for."""

from __future__ import annotations

from collections import defaultdict

from mesh.jobs.agenda import Agenda
from mesh.jobs.decide import is_urgent, looks, wake_at
from mesh.jobs.doubts import sign_at
from mesh.jobs.orders import AnyLook, LookAtMachines, LookAtRun
from mesh.jobs.queue import NO_LIMITS, Ask, Hold, Pools, Turns, ask_of, hold_of, next_jobs
from mesh.jobs.values import Job

LOOK_S = 15.0  # between two looks at a run or at machines that are as they should be
URGENT_LOOK_S = 2.0  # where a look may let the job go on
SIGN_LIMIT_S = 300.0  # after the first sign of a loss, in which looks at machines are urgent
YOUNG_PART = 0.1  # a run that has just begun is looked at after this part of its age: it may be a short one
AGAIN_S = 0.5  # until a timer that changed nothing, or a look that had to wait, is due again
_Key = tuple[int, type[AnyLook], int]  # job, kind, and generation of machines


class Books:
    """Jobs by id, with what follows from each, kept up to date one job at a time."""

    def __init__(self, look_s: float = LOOK_S, urgent_look_s: float = URGENT_LOOK_S) -> None:
        self.jobs: dict[int, Job] = {}
        self.waits: dict[int, str] = {}  # why jobs wait for their turn
        self.has_changed = True  # the queue may decide otherwise than before
        self._look_s, self._urgent_look_s = look_s, urgent_look_s
        self._asks: dict[int, Ask] = {}
        self._holds: dict[int, Hold] = {}
        self._wakes: Agenda[int] = Agenda()
        self._turns: Agenda[int] = Agenda()  # times of their own before which jobs do not start
        self._looks: dict[_Key, AnyLook] = {}
        self._look_times: dict[type[AnyLook], Agenda[_Key]] = {LookAtRun: Agenda(), LookAtMachines: Agenda()}
        self._keys: defaultdict[int, list[_Key]] = defaultdict(list)  # of looks, by job
        self._looked: dict[_Key, float] = {}  # when jobs were last looked at
        self._dependents: dict[int, set[int]] = defaultdict(set)
        self._workers: set[int] = set()
        self._limited: set[int] = set()  # jobs with a cost limit

    def put(self, job: Job, *, is_ours: bool = True) -> None:
        """Take a job as it is now; one that has ended is forgotten. is_ours: this steward looks after it"""
        number = job.id
        before = self._asks.get(number), self._holds.get(number)
        had_changed = self.has_changed
        self.drop(number)
        if not job.state.is_final:
            self._put(job, is_ours=is_ours)
        self.has_changed = had_changed or before != (self._asks.get(number), self._holds.get(number))

    def _put(self, job: Job, *, is_ours: bool) -> None:
        self.jobs[job.id] = job
        if (ask := ask_of(job)) is not None:
            self._asks[job.id] = ask
            if ask.ready_at:
                self._turns.put(job.id, ask.ready_at)
        if (hold := hold_of(job)) is not None:
            self._holds[job.id] = hold
        if job.work is not None:
            self._workers.add(job.id)
        if job.spec.cost_limit:
            self._limited.add(job.id)
        if not is_ours:
            return
        self._wakes.put(job.id, wake_at(job))
        for look in looks(job):
            key = job.id, type(look), look.generation if isinstance(look, LookAtMachines) else 0
            self._looks[key] = look
            self._keys[job.id].append(key)
            self._look_times[type(look)].put(key, self._look_at(key))
        for other in job.depends_on:
            self._dependents[other].add(job.id)

    def drop(self, number: int) -> None:
        """Forget a job."""
        self.has_changed = True
        before = self.jobs.pop(number, None)
        self._asks.pop(number, None)
        self._holds.pop(number, None)
        self._wakes.drop(number)
        self._turns.drop(number)
        self._workers.discard(number)
        self._limited.discard(number)
        for key in self._keys.pop(number, ()):
            self._looks.pop(key, None)
            self._look_times[key[1]].drop(key)
        for other in before.depends_on if before else ():
            self._dependents[other].discard(number)

    def workers(self) -> list[Job]:
        """Return the jobs that take tasks of a file, by id."""
        return [self.jobs[number] for number in sorted(self._workers)]

    def limited(self) -> list[Job]:
        """Return the jobs with a cost limit, by id."""
        return [self.jobs[number] for number in sorted(self._limited)]

    def dependents(self, number: int) -> list[int]:
        """Return the jobs that wait for the end of another one."""
        return sorted(self._dependents.get(number, ()))

    def dependencies(self) -> list[int]:
        """Return the jobs that others wait for."""
        return [number for number, waiting in self._dependents.items() if waiting]

    def due(self, now: float) -> list[int]:
        """Return the jobs that a Timer lets go on; one that does not is due again after a pause."""
        found = self._wakes.take_due(now)
        for number in found:
            self._wakes.put(number, now + AGAIN_S)
        return found

    def due_looks(self, now: float, kind: type[AnyLook], *, is_busy: bool) -> list[tuple[Job, AnyLook]]:
        """Return the looks of a kind that are due, and take them for done. is_busy: they have to wait a little"""
        times = self._look_times[kind]
        wanted = times.take_due(now)
        for key in wanted:
            self._looked[key] = now - self._pause(key, now) + AGAIN_S if is_busy else now
            times.put(key, self._look_at(key))
        return [] if is_busy else [(self.jobs[key[0]], self._looks[key]) for key in wanted]

    def turns(self, now: float, pools: Pools = NO_LIMITS) -> Turns:
        """Ask the queue which jobs start now."""
        found = next_jobs(now, self._asks.values(), self._holds.values(), pools)
        self.waits = dict(found.waits)
        self.has_changed = bool(found.grants)
        return found

    def is_turn_due(self, now: float) -> bool:
        """Return True if a job has waited for its own time since the last call."""
        return bool(self._turns.take_due(now))

    def next_event(self) -> float:
        """Return the time of the next timer, look or turn; infinity without one."""
        times = [self._wakes.next(), self._turns.next()]
        return min(*times, *(one.next() for one in self._look_times.values()))

    def held_seconds(self, now: float) -> dict[str, float]:
        """Return for each user the seconds of hosts of the machines that are in use."""
        found: dict[str, float] = defaultdict(float)
        for number in self._holds:
            job = self.jobs[number]
            if (generation := job.generation) is not None:
                hosts = max(len(generation.hosts), generation.units)
                found[job.spec.user] += max(0.0, now - generation.granted) * hosts
        return found

    def _look_at(self, key: _Key) -> float:
        """Return when a job is to be looked at next."""
        looked = self._looked.get(key, 0.0)
        return looked + self._pause(key, looked)

    def _pause(self, key: _Key, now: float) -> float:
        """Return the seconds between the last look at a job and the next one. now: the time of the last one"""
        job = self.jobs[key[0]]
        # The API is asked more often after the first sign of a loss: evidence takes two of its answers.
        has_sign = key[1] is LookAtMachines and now < sign_at(job) + SIGN_LIMIT_S
        if has_sign or is_urgent(job):
            return self._urgent_look_s
        if key[1] is LookAtMachines:
            return self._look_s
        return min(self._look_s, max(self._urgent_look_s, (now - job.since) * YOUNG_PART))
