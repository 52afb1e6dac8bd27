"""Several labs at once: most of a trial is waiting, so that two cores have room for more than one."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from tests.lab import Lab

Job = TypeVar("Job")
Answer = TypeVar("Answer")

HOSTS = 4
# Of the machine, when nothing else runs: processes that share a core must not have to wait for seconds.
FORK = multiprocessing.get_context("fork")


class Crew(Generic[Job, Answer]):
    """Workers, each with four hosts of its own."""

    def __init__(
        self, workers: int, work: Callable[[Lab, Job], Answer], user: str = "root", *, shared_pids: bool = False
    ) -> None:
        """user: who logs in to the hosts; shared_pids: two of them are in one PID namespace"""
        self._workers, self._work, self._user, self._shared_pids = workers, work, user, shared_pids

    def do(self, jobs: Sequence[Job], until: float = float("inf")) -> Iterator[tuple[Job, Answer]]:
        """The answers as they come; until: monotonic, when no other job is begun."""
        todo, done, making = FORK.Queue(), FORK.Queue(), FORK.Lock()
        for number in range(len(jobs)):
            todo.put(number)
        for _ in range(self._workers):
            todo.put(-1)

        def serve() -> None:
            try:
                making.acquire()  # two labs must not choose the same network
                try:
                    lab = Lab(HOSTS, user=self._user, shared_pids=self._shared_pids).__enter__()
                finally:
                    making.release()
                try:
                    while (number := todo.get()) >= 0 and time.monotonic() < until:
                        done.put((number, self._work(lab, jobs[number])))
                finally:
                    lab.down()
            except BaseException:
                traceback.print_exc()
            finally:
                done.put((-1, None))

        processes = [FORK.Process(target=serve, name=f"chaos-{os.getpid()}-{n}") for n in range(self._workers)]
        for process in processes:
            process.start()
        ended = 0
        while ended < self._workers:
            number, answer = done.get()
            if number < 0:
                ended += 1
            else:
                yield jobs[number], answer
        for process in processes:
            process.join()
