"""The switchboard of pods: one pod runs it for one client, over that client's exec, and calls the node in each pod.

A node listens, as its pod may start before the one of the switchboard has an address; the key, which both ends show,
is a file in each pod. Every call has a process of its own, which ends with its connection. An agent outlives that.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import threading
import time

from mesh.agent.switchboard import frames
from mesh.agent.switchboard.board import Board
from mesh.agent.switchboard.connection import Connection, ConnectionEnded
from mesh.agent.switchboard.node import Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Tuple

    Address = Tuple[str, int]

NODE_PORT = 7743  # in each pod
KEY_FILE = "key"  # beside the program
CALL_INTERVAL_S = 0.5  # between two calls of a node that does not answer
CALLS_AT_ONCE = 128  # that have not been answered
TURN_S = 1.0
LAST_FRAMES_S = 1.0  # for nodes to get what the client has sent last
CALLS_MAX = 64  # of one node, at a time
READ_BYTES = 128 << 10
FIRST_LINE_BYTES = 1 << 20


class Calls:
    """The nodes that a switchboard calls, each again and again until it answers."""

    def __init__(self, board: Board, nodes: Dict[str, Address]) -> None:
        """nodes: addresses by name"""
        self._board, self._nodes = board, nodes
        self._called_at = dict.fromkeys(nodes, float("-inf"))

    def turn(self, now: float) -> float:
        """Call the nodes that are not connected; return the seconds until the next call."""
        missing = [name for name in self._nodes if not self._board.has(name)]
        for name in missing:
            if self._board.unproved >= CALLS_AT_ONCE:
                break
            if now >= self._called_at[name] + CALL_INTERVAL_S:
                self._called_at[name] = now
                self._board.call(name, self._nodes[name])
        return CALL_INTERVAL_S if missing else TURN_S


def run_board(credentials: str) -> int:
    """Run a switchboard for the client at standard input and output, until that leaves.

    The client's first line has the addresses of the nodes by name; the answer has the key.
    """
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte or len(line) > FIRST_LINE_BYTES:
            return 1
        line += byte
    nodes = {str(name): (str(address), NODE_PORT) for name, address in json.loads(line.decode())["nodes"].items()}
    board = Board(credentials, (0, 0), "127.0.0.1")
    port = board.listen()
    os.write(1, json.dumps({"key": credentials}).encode() + b"\n")
    client = socket.create_connection(("127.0.0.1", port))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    over = threading.Event()  # the client has left
    for copy in (_copy_up, _copy_down):
        threading.Thread(target=copy, args=(client, over), daemon=True).start()
    calls, until = Calls(board, nodes), float("inf")
    while time.monotonic() < until:
        board.run_once(calls.turn(time.monotonic()))
        if over.is_set() and until == float("inf"):
            until = time.monotonic() + LAST_FRAMES_S
    board.close()
    return 0


def _copy_up(client: socket.socket, over: threading.Event) -> None:
    """Copy standard input to the switchboard."""
    try:
        while True:
            data = os.read(0, READ_BYTES)
            if not data:
                break
            client.sendall(data)
        client.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    over.set()


def _copy_down(client: socket.socket, over: threading.Event) -> None:
    """Copy to standard output what the switchboard sends."""
    try:
        while True:
            data = client.recv(READ_BYTES)
            if not data:
                break
            while data:
                data = data[os.write(1, data) :]
    except OSError:
        pass
    over.set()


class CalledNode(Node):
    """A node of one connection, which the switchboard has made."""

    def __init__(self, own: socket.socket, credentials: str) -> None:
        """own: the connection; credentials: the key, as PEM"""
        super().__init__((), "", credentials)
        self._own = own

    def run(self) -> None:
        """Serve the client of the switchboard until the connection ends."""
        self._prepare()
        self._board = Connection(self._own, self._context, server=False)
        version, role = frames.SWITCHBOARD_VERSION, frames.NODE_ROLE
        self._send(frames.record(frames.HELLO, version=version, role=role, name=""))
        while self._board is not None:
            self._turn()


def answer_calls(credentials: str, listener: socket.socket) -> int:
    """Answer the switchboards that call this pod, until SIGTERM."""
    calls: set[int] = set()
    while True:
        ready, _, _ = select.select([listener], [], [], TURN_S)
        for pid in list(calls):
            if os.waitpid(pid, os.WNOHANG)[0]:
                calls.discard(pid)
        if not ready or len(calls) >= CALLS_MAX:
            if ready:
                time.sleep(CALL_INTERVAL_S)
            continue
        try:
            own, _ = listener.accept()
        except OSError:  # it has ended meanwhile
            continue
        pid = os.fork()
        if pid:
            own.close()
            calls.add(pid)
            continue
        listener.close()
        status = 1
        try:
            CalledNode(own, credentials).run()
            status = 0
        except (OSError, ConnectionEnded) as error:
            sys.stderr.write(f"switchboard: {error}\n")
        finally:
            os._exit(status)


def _listener() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", NODE_PORT), family=socket.AF_INET6, dualstack_ipv6=True, backlog=CALLS_MAX)
    return socket.create_server(("", NODE_PORT), backlog=CALLS_MAX)


def main(role: str) -> int:
    """Run the switchboard ("pods-board") or a node ("pods-node"), with the key beside this program."""
    with open(os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), KEY_FILE)) as file:
        credentials = file.read()
    return run_board(credentials) if role == "pods-board" else answer_calls(credentials, _listener())
