"""The number of a TPU VM, from Google's metadata server, which only such machines have."""

from __future__ import annotations

import os
import socket

from mesh.protocol.replies import Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh.agent.ask.context import Context
    from mesh.protocol.questions import AskWorker

# https://cloud.google.com/compute/docs/metadata: the address of metadata.google.internal, which needs no name server.
SERVER, VARIABLE = "169.254.169.254", "GCE_METADATA_HOST"
PATH = "/computeMetadata/v1/instance/attributes/agent-worker-number"
SERVER_TIMEOUT_S = 1.0  # it is next to this machine
ANSWER_BYTES = 4096


def worker(question: AskWorker, context: Context) -> Worker:
    """Answer with the number of this worker in its TPU."""
    return worker_number()


def worker_number() -> Worker:
    """Return the number of this worker in its TPU; None on other machines. May block."""
    host, _, port = os.environ.get(VARIABLE, SERVER).partition(":")
    try:
        with socket.create_connection((host, int(port or 80)), SERVER_TIMEOUT_S) as server:
            request = f"GET {PATH} HTTP/1.0\r\nHost: {host}\r\nMetadata-Flavor: Google\r\n\r\n"
            server.sendall(request.encode())
            answer = b""
            while len(answer) < ANSWER_BYTES:
                data = server.recv(ANSWER_BYTES)
                if not data:
                    break
                answer += data
    except (OSError, ValueError):  # no such server
        return Worker()
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    is_found = lines[0].split()[1:2] == [b"200"] and b"metadata-flavor: google" in lines
    return Worker(number=int(body)) if is_found and body.strip().isdigit() else Worker()
