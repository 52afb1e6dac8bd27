"""The process that connects a client to one node of this host, or sends it the node's result or the run's plan.

A client that has not started the run uses it, also while the run is detached. The process has a channel of its own, so
the agent takes no part.
"""

from __future__ import annotations

import os
import select

from mesh.agent.base.directories import node_directory, places_of, private_directories
from mesh.agent.base.errors import why
from mesh.agent.base.light import dumps, socket
from mesh.agent.link.journal import journal_directory
from mesh.agent.nodes.files import ENDED, PLAN, RESULT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh.protocol.first import Reach

READ_BYTES = 1 << 17
RESULT_POLL_S = 0.2  # between two looks for a result that is not there yet


def reach(request: Reach) -> None:
    """Serve one client until it has the result, or one of the two ends is gone."""
    try:
        if request.wants == "result":
            _send_result(request)
        elif request.wants == "plan":
            _send_plan(request.run)
        else:
            _connect(request)
    except OSError:  # the client is gone
        pass


def _answer(reason: str) -> None:
    """Send the outcome as one line; "": success."""
    _write(dumps({"why": reason}).encode() + b"\n")


def _write(data: bytes) -> None:
    """Write all to the client. Raises OSError once it is gone."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _connect(request: Reach) -> None:
    node = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        node.connect(os.path.join(node_directory(request.run, request.node), str(request.rank)))
    except OSError as error:
        _answer(f"the node does not listen on its host: {why(error)}")
        return
    _answer("")
    import threading  # few clients come this way

    # In a thread, because each direction waits for its own reader only.
    threading.Thread(target=_pass_on, args=(node,), daemon=True).start()
    while data := node.recv(READ_BYTES):
        _write(data)


def _pass_on(node: socket.socket) -> None:
    """Send the node what comes from the client; end the connection once the client has left."""
    try:
        while data := os.read(0, READ_BYTES):
            node.sendall(data)
        node.shutdown(socket.SHUT_RDWR)
    except OSError:  # the node is gone
        pass


def _send_plan(run: str) -> None:
    """Send the plan of a run, which is the same for all of its hosts."""
    for place in private_directories():
        for name in os.listdir(place):
            if name.startswith(run + "-") and name.endswith(".nodes"):
                try:
                    with open(os.path.join(place, name, PLAN), "rb") as file:
                        data = file.read()
                except OSError:  # of a program that is ending
                    continue
                _answer("")
                _write(data)
                return
    _answer("no program of this run is on the host")


def _send_result(request: Reach) -> None:
    name, directory = f"{RESULT}-{request.rank}", node_directory(request.run, request.node)
    places = [journal_directory(place, request.run, request.node) for place in places_of(request.remote_dir)]
    while True:
        # Before the look: the agent has the result of a node before its end, and copies it before it removes all.
        is_on = os.path.isdir(directory)
        has_ended = os.path.exists(os.path.join(directory, f"{ENDED}-{request.rank}"))
        for place in (directory, *places):
            try:
                file = open(os.path.join(place, name), "rb")
            except OSError:
                continue
            with file:
                _answer("")
                while data := file.read(READ_BYTES):
                    _write(data)
            return
        if has_ended:
            _answer("it has ended without a result")
            return
        if not is_on:
            _answer("the run has ended, and its host has no result of this node")
            return
        if select.select([0], [], [], RESULT_POLL_S)[0]:  # the client sends nothing: it has left
            return
