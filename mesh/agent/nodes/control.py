"""The control socket of a node: one message each way at a time, as a JSON object."""

from __future__ import annotations

from mesh.agent.base.light import dumps, loads, socket, socketpair

MESSAGE_BYTES = 1 << 16


class ControlChannel:
    """The agent's end of a node's control socket, which lives as long as one process of the node."""

    def __init__(self) -> None:
        """Make both ends. The one of the node stays open until ``give``."""
        self._own, self._others = socketpair(socket.SOCK_SEQPACKET)
        self._own.setblocking(False)
        self.is_open = True

    def fileno(self) -> int:
        """Return the descriptor of the agent's end."""
        return self._own.fileno()

    def node_end(self) -> int:
        """Return the descriptor that the node's process inherits."""
        return self._others.fileno()

    def give(self) -> None:
        """Close the end of the node, once its process has it or will not exist."""
        self._others.close()

    def receive(self) -> list[dict[str, object]]:
        """Return the messages that have come. Anything else is dropped."""
        found: list[dict[str, object]] = []
        while self.is_open:
            try:
                text = self._own.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return found
            except ConnectionResetError:  # the process has left some of our messages; its own ones come behind that
                continue
            except OSError:
                text = b""
            if not text:
                self.close()
                break
            try:
                message = loads(text)
            except ValueError:
                continue
            if isinstance(message, dict):
                found.append(message)
        return found

    def send(self, message: dict[str, object]) -> None:
        """Send a message. A node that reads none of its messages loses them."""
        if self.is_open:
            try:
                self._own.send(dumps(message).encode())
            except OSError:  # it is full, or the process has ended
                pass

    def close(self) -> None:
        """Close the agent's end. The caller stops waiting for it before."""
        self.is_open = False
        self._own.close()
