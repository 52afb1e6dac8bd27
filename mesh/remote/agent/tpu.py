"""What a TPU VM knows of itself: Google's metadata server, which only such machines have."""

from __future__ import annotations

import os
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# https://cloud.google.com/compute/docs/metadata: the address of metadata.google.internal, which needs no name server.
SERVER, VARIABLE = "169.254.169.254", "GCE_METADATA_HOST"
PATH = "/computeMetadata/v1/instance/attributes/agent-worker-number"
PATIENCE = 1.0  # seconds; it is on the same machine as good as
MOST = 4096  # bytes of an answer


def worker_number() -> dict[str, Any]:
    """{"number": the number of this worker in its TPU}, or {} where nobody knows. May block."""
    host, _, port = os.environ.get(VARIABLE, SERVER).partition(":")
    try:
        with socket.create_connection((host, int(port or 80)), PATIENCE) as server:
            request = f"GET {PATH} HTTP/1.0\r\nHost: {host}\r\nMetadata-Flavor: Google\r\n\r\n"
            server.sendall(request.encode())
            answer = b""
            while len(answer) < MOST:
                data = server.recv(MOST)
                if not data:
                    break
                answer += data
    except (OSError, ValueError):  # no such server
        return {}
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    is_found = lines[0].split()[1:2] == [b"200"] and b"metadata-flavor: google" in lines
    return {"number": int(body)} if is_found and body.strip().isdigit() else {}
