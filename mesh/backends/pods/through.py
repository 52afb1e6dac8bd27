"""Standard input and output connected with a port on the loopback address of a pod, for ssh as its ProxyCommand."""

from __future__ import annotations

import contextlib
import os
import threading

from mesh.backends.pods.api import Api
from mesh.backends.pods.channel import ExecChannel
from mesh.core.errors import ChannelClosed, MeshError

READ_BYTES = 32 << 10
# Runs in the container. Ends as soon as either end does: the server's exec may outlive its client.
RELAY = """
import os, socket, sys, threading
try:
    peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10)
except OSError as error:
    sys.exit("port %s: %s" % (sys.argv[1], error.strerror))
peer.settimeout(None)
def feed():
    while data := os.read(0, 32768):
        peer.sendall(data)
    os._exit(0)
threading.Thread(target=feed, daemon=True).start()
while data := peer.recv(32768):
    view = memoryview(data)
    while view:
        view = view[os.write(1, view):]
os._exit(0)
"""


def connect(api: Api, pod: str, port: int) -> int:
    """Connect standard input and output with a port of a pod; return an exit status. Raises MeshError."""
    channel = api.exec(pod, ["python3", "-I", "-S", "-c", RELAY, str(port)])
    threading.Thread(target=_feed, args=(channel,), name="mesh-proxy", daemon=True).start()
    try:
        while data := channel.receive():
            view = memoryview(data)
            while view:
                view = view[os.write(1, view) :]
    except OSError:  # ssh has ended
        return 0
    finally:
        farewell = channel.farewell()
        channel.close()
    if farewell.stderr:
        raise MeshError(f"{pod}: {farewell.stderr.decode(errors='replace').strip()}")
    return 0


def _feed(channel: ExecChannel) -> None:
    """Send what comes from standard input, and close the channel at its end: the program ends by that."""
    with contextlib.suppress(ChannelClosed, OSError):
        while data := os.read(0, READ_BYTES):
            channel.send(data)
    channel.close()
