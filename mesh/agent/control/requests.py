"""Requests to the agents of this user on this machine, and their answers."""

from __future__ import annotations

import time

from mesh.agent.base.light import loads, socket
from mesh.agent.control.sockets import REQUEST_BYTES, run_of_socket, send_request, socket_paths, unlink
from mesh.protocol.control import About, Over, Stop
from mesh.protocol.kinds import Wrong, as_it_is

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeVar

    from mesh.agent.base.light import Socket
    from mesh.protocol.control import AtControlSocket
    from mesh.protocol.records import Record
    from mesh.protocol.replies import Run

    R = TypeVar("R", bound=Record)

NOT_ANSWERING = "not answering"  # the state of a run whose agent is there, but does nothing
ANSWER_LIMIT_S = 5.0  # for the answers of all agents
ANSWER_MIN_S = 0.01  # for an agent that is read after the others
LIST_LIMIT_S = 3.0  # for the answers of all agents to `mesh ps`, which gives a host 5 s


def runs(run: str = "", limit_s: float = ANSWER_LIMIT_S) -> list[Run]:
    """Return the runs of this user's agents, or one run's of each of its agents."""
    return describe(run, About(), limit_s)


def stop_runs(run: str = "", grace: float | None = None) -> list[Run]:
    """Have the agents of a run, or of all, end it; return the runs.

    grace: seconds from SIGTERM to SIGKILL; None: as each run was started with
    """
    return describe(run, Stop(grace=grace))


def describe(run: str, request: AtControlSocket, limit_s: float = ANSWER_LIMIT_S) -> list[Run]:
    """Send a request to the agents of a run, or of all, that they answer with their runs."""
    from mesh.protocol.answers import Owner
    from mesh.protocol.replies import Run

    found = []
    for path, answer in request_all(run, request, Run, limit_s):
        name, node = run_of_socket(path)
        silent = Run(run=name, node=node, about=Owner(), attached=True, state=NOT_ANSWERING, ranks=[])
        found.append(answer or silent)
    return found


def send_over(ended: Sequence[str]) -> None:
    """Have the agents of these runs end them, because their clients are over. Never block, and wait for no answer."""
    for path in socket_paths():
        if run_of_socket(path)[0] in ended:
            try:
                send_request(path, Over(), limit_s=0.0).close()
            except OSError:  # the agent is gone, or takes nothing
                pass


def request_all(run: str, request: AtControlSocket, kind: type[R], limit_s: float) -> list[tuple[str, R | None]]:
    """Send a request to the agents of a run, or ("") of all; return their sockets and answers. Ended ones have none.

    The answer is None for an agent that does not answer in time, or has another version of mesh: it is alive.
    limit_s: for the answers of all, which are asked before the first answer is awaited
    """
    deadline = time.monotonic() + limit_s
    asked: list[tuple[str, Socket]] = []
    busy: list[str] = []  # too many others wait for these agents
    found: list[tuple[str, R | None]] = []
    for path in socket_paths(run):
        try:
            asked += [(path, connection) for connection in _request(path, request, 0.0)]
        except BlockingIOError:
            busy.append(path)
    for path, connection in asked:
        found += [(path, answer) for answer in _answers(connection, kind, deadline)]
    for path in busy:
        try:
            for connection in _request(path, request, max(0.0, deadline - time.monotonic())):
                found += [(path, answer) for answer in _answers(connection, kind, deadline)]
        except BlockingIOError:
            found.append((path, None))
    return found


def _request(path: str, request: AtControlSocket, limit_s: float) -> list[Socket]:
    """Return the connection to an agent, or nothing if it is gone; then its socket is removed.

    limit_s: BlockingIOError is raised for an agent that accepts no connection for so long
    """
    try:
        return [send_request(path, request, limit_s=limit_s)]
    except ConnectionRefusedError:
        unlink(path)
    except BlockingIOError:
        raise
    except OSError:
        pass
    return []


def _answers(connection: Socket, kind: type[R], deadline: float) -> list[R | None]:
    """Return the answer of an agent, or nothing if it has ended. It is None from an agent that is late."""
    connection.settimeout(max(ANSWER_MIN_S, deadline - time.monotonic()))
    with connection:
        try:
            return [kind.take(loads(connection.recv(REQUEST_BYTES)), as_it_is)]
        except (socket.timeout, Wrong):
            return [None]
        except (OSError, ValueError):
            return []
