"""A question to the hosts of several clusters at once. A host that stands in more than one of them is asked once."""

from __future__ import annotations

import math
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from mesh.api.choosing import knowing_secrets, make_spec
from mesh.app.assemble import Parts, launch
from mesh.app.carriers import Carrier, Means, carrier_of
from mesh.app.screen import Showing
from mesh.config.project import Project
from mesh.config.settings import Options
from mesh.core.cluster import Cluster, Host, place_ranks
from mesh.core.errors import HostUnreachable
from mesh.core.events import Answered, Event
from mesh.core.interfaces import CLIENT_RETURN_S, Backend, Channel, NoAgent, Opened
from mesh.core.outcome import Cause
from mesh.engine.question import Question

if TYPE_CHECKING:
    from mesh.backends.ssh.passwords import Passwords
    from mesh.engine.inquiry import Inquiry

HOST_LIMIT_S = 5.0  # for a host to be reached and to answer
CONNECT_LIMIT_S = 4.0  # for TCP alone: the message then names TCP as the step that failed
PARALLEL_HOSTS = 32  # that are reached at a time in each cluster; as backends/ssh/ahead.py has it
JOIN_TIMEOUT_S = 5.0  # for a thread to end after its backend was closed

OnAnswer = Callable[[Host, object], object]  # is called with a host and its answer


def ask_everywhere(clusters: Sequence[Cluster], question: Question, on_answer: OnAnswer) -> list[str]:
    """Ask every host of these clusters; return the hosts that gave no answer in time, one line each.

    on_answer: called for each answer as it comes, in a thread of its own
    """
    from mesh.engine.inquiry import Inquiry

    parts = distinct(clusters)
    hosts = tuple(host for part in parts for host in part.hosts)
    together = Cluster(name="all clusters", hosts=hosts, parts=tuple(parts))
    spec = make_spec(Project(workspace=Path("/"), named=False), Options(), ())
    spec = knowing_secrets(replace(spec, sync=False, lock=False))
    most = max((len(part.hosts) for part in parts), default=0)
    prompts = Prompts()
    inquiry = Inquiry(
        place_ranks(hosts),
        question,
        limit=HOST_LIMIT_S * math.ceil(most / PARALLEL_HOSTS),
        is_paused=lambda: prompts.is_open,
    )
    outcome, _, _ = launch(
        Parts(
            spec=spec,
            cluster=together,
            showing=Showing(kept=False, quiet=True),
            sinks=(_Answers(hosts, on_answer),),
            decider=inquiry,
            carrier=Carrier(
                open=lambda cluster, means: SeveralBackend(parts, means, prompts),
                descriptors=max((carrier_of(part).descriptors for part in parts), default=0),
            ),
        )
    )
    if outcome.cause is Cause.SIGNAL:
        raise KeyboardInterrupt
    return _failures(inquiry, hosts)


def distinct(clusters: Sequence[Cluster]) -> list[Cluster]:
    """Return the clusters without the hosts that an earlier one has, reached in the same way."""
    seen: set[tuple[object, ...]] = set()
    parts = []
    for cluster in clusters:
        hosts = []
        for host in cluster.hosts:
            host = replace(host, remote_dir=host.remote_dir or cluster.remote_dir)
            way = host.proxy_command or cluster.gateway, cluster.command
            key = (cluster.backend, way, host.address, host.port, host.user, host.remote_dir)
            if key not in seen:
                seen.add(key)
                hosts.append(host)
        if hosts:
            parts.append(replace(cluster, hosts=tuple(hosts)))
    return parts


def _failures(inquiry: Inquiry, hosts: Sequence[Host]) -> list[str]:
    return [f"{hosts[node].name}: {failure.message}" for node, failure in sorted(inquiry.failures.items())]


class Prompts:
    """The questions that the logins of several clusters ask the user, one at a time."""

    def __init__(self) -> None:
        self.is_open = False
        self._lock = threading.Lock()

    def of(self, cluster: Cluster, passwords: Passwords) -> Callable[[str], str]:
        """Return the function that asks for the secrets of one cluster. passwords: has the terminal"""

        def ask(prompt: str) -> str:
            with self._lock:
                self.is_open = True
                try:
                    return passwords.ask(f"{cluster.name}: {prompt}")
                finally:
                    self.is_open = False

        return ask


class SeveralBackend:
    """Reaches the hosts of several clusters, each in the way of its cluster, all at the same time."""

    def __init__(self, parts: Sequence[Cluster], means: Means, prompts: Prompts) -> None:
        """parts: the clusters, whose hosts in this order are those that ``open`` is given."""
        from mesh.backends.ssh.passwords import Passwords

        self._parts = parts
        self._passwords = [
            Passwords(part.password_env, os.environ, ask=prompts.of(part, means.passwords)) for part in parts
        ]
        self._backends: list[Backend] = [
            carrier_of(part).open(part, Means(environ=os.environ, passwords=own, reach=CONNECT_LIMIT_S))
            for part, own in zip(parts, self._passwords, strict=True)
        ]
        self._threads: list[threading.Thread] = []

    @property
    def client_return(self) -> float:
        return max((backend.client_return for backend in self._backends), default=CLIENT_RETURN_S)

    def listen(self, post: Callable[[Event], None]) -> None:
        for backend in self._backends:
            backend.listen(post)

    def open(self, hosts: Sequence[Host], argv: Sequence[str]) -> Iterator[Opened]:
        """argv: is not used, as each cluster names its own Python."""
        came: queue.SimpleQueue[Opened | BaseException | None] = queue.SimpleQueue()
        first = 0
        for part, backend in zip(self._parts, self._backends, strict=True):
            self._open_part(part, backend, first, came)
            first += len(part.hosts)
        open_parts = len(self._parts)
        while open_parts:
            one = came.get()
            if isinstance(one, BaseException):
                raise one
            if one is None:
                open_parts -= 1
            else:
                yield one

    def _open_part(
        self, part: Cluster, backend: Backend, first: int, came: queue.SimpleQueue[Opened | BaseException | None]
    ) -> None:
        """Start a thread that reaches the hosts of one cluster. first: the node of its first host"""
        from mesh.remote.blob import start_command

        def work() -> None:
            try:
                for opened in backend.open(part.hosts, start_command(part.python)):
                    came.put(replace(opened, node=first + opened.node))
                came.put(None)
            except BaseException as error:
                came.put(error)

        thread = threading.Thread(target=work, name=f"mesh-open-{part.name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def reopen(self, node: int, argv: Sequence[str]) -> Channel:
        raise HostUnreachable("a question is asked once")

    def explain(self, node: int, end: NoAgent) -> HostUnreachable:
        backend, own = self._backend_of(node)
        return backend.explain(own, end)

    def why(self, node: int) -> str:
        backend, own = self._backend_of(node)
        return backend.why(own)

    def user(self, node: int) -> str:
        backend, own = self._backend_of(node)
        return backend.user(own)

    def _backend_of(self, node: int) -> tuple[Backend, int]:
        """Return the backend of a host, and the host's index there."""
        for part, backend in zip(self._parts, self._backends, strict=True):
            if node < len(part.hosts):
                return backend, node
            node -= len(part.hosts)
        raise IndexError(node)

    def close(self) -> None:
        for passwords in self._passwords:
            passwords.close()
        for backend in self._backends:
            backend.close()
        for thread in self._threads:
            thread.join(JOIN_TIMEOUT_S)


class _Answers:
    """A sink that passes answers on."""

    def __init__(self, hosts: Sequence[Host], on_answer: OnAnswer) -> None:
        self._hosts, self._on_answer = hosts, on_answer

    def handle(self, event: Event) -> None:
        if isinstance(event, Answered):
            self._on_answer(self._hosts[event.node], event.answer)

    def idle(self) -> None: ...

    def close(self) -> None: ...
