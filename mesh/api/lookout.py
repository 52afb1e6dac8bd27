"""A standing question to one host: which runs are there. One connection answers it again and again."""

from __future__ import annotations

import threading
import time

from mesh.api.checking import TCP_TIMEOUT_S
from mesh.api.inquiries import ask
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError
from mesh.engine.inquiry import Inquiry, Questions
from mesh.engine.question import Question
from mesh.protocol.questions import AskRuns
from mesh.protocol.replies import Runs

ANSWER_LIMIT_S = 30.0  # for a host's answer about its runs
IDLE_LIMIT_S = 120.0  # without a question, after which the connection is closed


class Lookout:
    """A connection to one host, in a thread of its own."""

    def __init__(self, cluster: Cluster) -> None:
        """cluster: of one host"""
        self._cluster = cluster
        self._changed = threading.Condition()
        self._asked = 1  # questions so far; the first one is asked at once
        self._answered = 0
        self._latest: Runs | None = None
        self._has_ended = False
        self.problem = ""  # why there is no answer
        threading.Thread(target=self._work, name="mesh-lookout", daemon=True).start()

    @property
    def is_usable(self) -> bool:
        """True until the connection has failed or was closed."""
        return not self._has_ended

    def runs(self) -> Runs | None:
        """Return the runs that are on the host now; None if it gives no answer."""
        with self._changed:
            self._asked = max(self._asked, self._answered + 1)
            number = self._asked
            self._changed.notify_all()
            deadline = time.monotonic() + ANSWER_LIMIT_S
            while self._answered < number and not self._has_ended:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    return None
            return self._latest if self._answered >= number else None

    def _work(self) -> None:
        question = Question(message=AskRuns(), answer_s=ANSWER_LIMIT_S)
        try:
            inquiry = ask(self._cluster, question, self._then, reach=TCP_TIMEOUT_S, quiet=True)
            problem = next((failure.message for failure in inquiry.failures.values()), "")
        except (MeshError, KeyboardInterrupt) as error:
            problem = str(error)
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()
        self.problem = problem

    def _then(self, inquiry: Inquiry) -> Questions:
        """Take the answer, and wait for the next question. The connection's beats come from another thread."""
        answers = inquiry.replies(Runs, len(inquiry.rounds) - 1)
        with self._changed:
            self._latest = answers.get(0)
            if self._latest is None:
                return {}
            self._answered = self._asked
            self._changed.notify_all()
            while self._asked == self._answered:
                if not self._changed.wait(IDLE_LIMIT_S):
                    self._has_ended = True
                    return {}
        inquiry.rounds.clear()  # only the last answer counts
        return {0: AskRuns()}


class Lookouts:
    """The standing questions of one process, by host."""

    def __init__(self) -> None:
        self._found: dict[str, Lookout] = {}
        self._lock = threading.Lock()

    def of(self, cluster: Cluster) -> Lookout:
        """Return the standing question to the only host of a cluster."""
        host = cluster.hosts[0]
        key = repr((cluster.backend, cluster.command, host))
        with self._lock:
            found = self._found.get(key)
            if found is None or not found.is_usable:
                found = self._found[key] = Lookout(cluster)
            return found
