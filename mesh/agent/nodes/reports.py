"""The reports about nodes: their results for the client, and their changes for other nodes and for people."""

from __future__ import annotations

import os

from mesh.agent.base.errors import why
from mesh.agent.nodes.files import RESULT
from mesh.protocol import nodes as messages
from mesh.protocol.answers import Output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh.agent.nodes.files import NodeFiles
    from mesh.agent.port import NodesPort
    from mesh.protocol.nodes import Node, NodeState

RESULT_BYTES_MAX = 64 << 20
RESULT_PIECE_BYTES = 64 << 10


def send_result(port: NodesPort, files: NodeFiles, about: Node, path: str) -> None:
    """Send a file of the private directory to the client, as the result of a node."""
    if os.path.dirname(os.path.abspath(path)) != files.path:
        return
    try:
        with open(path, "rb") as file:
            data = file.read(RESULT_BYTES_MAX)
        os.replace(path, files.place(f"{RESULT}-{about.rank}"))  # for clients that come later
    except OSError as error:
        port.send(messages.Result(rank=about.rank, last=True))
        text = f"mesh: {about.label}: its result cannot be read: {why(error)}\n"
        port.send(Output(rank=about.rank, stream="stderr"), text.encode())
        return
    for begin in range(0, len(data), RESULT_PIECE_BYTES):
        piece = data[begin : begin + RESULT_PIECE_BYTES]
        port.send(messages.Result(rank=about.rank, last=False), piece)
    port.send(messages.Result(rank=about.rank, last=True))


def news(state: NodeState) -> dict[str, object]:
    """Return the message to a node about another one."""
    return {"news": state.label, "state": state.state, "attempt": state.attempt, "why": state.why}


def how_ended(code: int, number: int) -> str:
    """Return how a process has ended, for people. number: of the signal that ended it; 0: none did"""
    if not number:
        return f"exit {code}"
    from signal import Signals  # after a failure only

    try:
        return f"ended by {Signals(number).name}"
    except ValueError:
        return f"ended by signal {number}"
