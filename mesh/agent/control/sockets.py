"""Control sockets: each agent listens on one that only its user can reach, for requests about its run."""

from __future__ import annotations

import errno
import os
import struct
import time

from mesh.agent.base.directories import private_directories, private_directory, remove_nodes
from mesh.agent.base.light import Socket, dumps, loads, socket
from mesh.protocol.control import AT_CONTROL_SOCKET
from mesh.protocol.frames import FrameError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh.protocol.control import AtControlSocket

DESCRIPTOR_BYTES = struct.calcsize("i")
DESCRIPTORS_MAX = 2  # with one request
REQUEST_BYTES = 1 << 16  # a request is sent in one piece, and so is an answer
BACKLOG_CONNECTIONS = 8
REQUEST_LIMIT_S = 1.0  # from the connection to the request
CONNECT_INTERVAL_S = 0.02  # between two attempts to connect to an agent for which others wait


class ControlSocket:
    """The control socket of this agent."""

    def __init__(self, run: str, node: int) -> None:
        """Listen. Raises OSError."""
        place = private_directory()
        self._path = os.path.join(place, f"{run}-{node}")
        self._socket = Socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        unopened = os.path.join(place, f".{run}-{node}")  # before listen() it looks like that of a killed agent
        self._socket.bind(unopened)
        self._socket.listen(BACKLOG_CONNECTIONS)
        os.rename(unopened, self._path)
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor, which is readable once a process connects."""
        return self._socket.fileno()

    def receive(self) -> tuple[AtControlSocket, list[int], Socket] | None:
        """Return the next request, its descriptors and the connection; None for one that is no request."""
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return None
        connection.settimeout(REQUEST_LIMIT_S)
        descriptors: list[int] = []
        try:
            space = socket.CMSG_SPACE(DESCRIPTORS_MAX * DESCRIPTOR_BYTES)
            text, ancillary, _, _ = connection.recvmsg(REQUEST_BYTES, space)
            came = b"".join(data for _, _, data in ancillary)
            descriptors += struct.unpack(f"{len(came) // DESCRIPTOR_BYTES}i", came)
            return AT_CONTROL_SOCKET.read(loads(text)), descriptors, connection
        except (OSError, ValueError, FrameError):  # of another version of mesh, or of another program
            for descriptor in descriptors:
                os.close(descriptor)
            connection.close()
            return None

    def close(self) -> None:
        """Remove the socket."""
        self._socket.close()
        unlink(self._path)


def socket_path(run: str, node: int) -> str:
    """Return the path of an agent's control socket; several hosts of a run may be one machine."""
    name = f"{run}-{node}"
    paths = [os.path.join(place, name) for place in private_directories()]
    return next((path for path in paths if os.path.exists(path)), "/nowhere")


def socket_paths(run: str = "") -> list[str]:
    """Return the control sockets of a run, or ("") of all. Other parts of mesh have files there too."""
    found = []
    for place in private_directories():
        for name in sorted(os.listdir(place)):
            owner, _, node = name.rpartition("-")
            if not name.startswith(".") and owner and node.isdigit() and run in ("", owner):
                found.append(os.path.join(place, name))
    return found


def run_of_socket(path: str) -> tuple[str, int]:
    """Return the run and the node that a control socket belongs to."""
    run, _, node = os.path.basename(path).rpartition("-")
    return run, int(node)


def other_runs(run: str) -> list[str]:
    """Return the ids of all runs but one that have a control socket here."""
    return sorted({run_of_socket(path)[0] for path in socket_paths()} - {run})


def remove_socket(run: str, node: int) -> None:
    """Remove the control socket of an agent that was killed, and the files of its nodes."""
    path = socket_path(run, node)
    if not has_agent(path):
        unlink(path)
        remove_nodes(run, node)


def unlink(path: str) -> None:
    """Remove a file, unless another process has removed it."""
    try:
        os.unlink(path)
    except OSError:
        pass


def rights_of(*descriptors: int) -> tuple[int, int, bytes]:
    """Return the ancillary data that passes descriptors on with a message."""
    return socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(descriptors)}i", *descriptors)


def send_request(
    path: str, request: AtControlSocket, descriptors: Sequence[int] = (), limit_s: float = float("inf")
) -> Socket:
    """Send a request to the agent at a control socket, and return the connection. Raises OSError if it is gone.

    limit_s: BlockingIOError is raised when so many others have been waiting for the agent for so long
    """
    connection = Socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    deadline = time.monotonic() + limit_s
    try:
        while not _connect(connection, path):
            if time.monotonic() >= deadline:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
            time.sleep(CONNECT_INTERVAL_S)
        rights = [rights_of(*descriptors)] if descriptors else []
        connection.sendmsg([dumps(request.header()).encode()], rights)
    except OSError:
        connection.close()
        raise
    return connection


def _connect(connection: Socket, path: str) -> bool:
    """Connect; False if too many others wait for the agent. Raises OSError if it is gone."""
    connection.setblocking(False)  # a stopped agent would hold this process up for ever
    try:
        connection.connect(path)
    except BlockingIOError:
        return False
    connection.setblocking(True)
    return True


def reply(visitor: Socket, answer: dict[str, object]) -> None:
    """Answer a process at the control socket, which may have gone."""
    with visitor:
        try:
            visitor.send(dumps(answer).encode())
        except OSError:
            pass


def has_agent(path: str) -> bool:
    """Return True if an agent listens at a control socket."""
    with Socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            _connect(connection, path)
        except OSError:
            return False
    return True
