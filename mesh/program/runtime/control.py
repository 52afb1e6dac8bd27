"""The node's end of its control socket: reports to the agent, and the stop and news of other nodes from it."""

from __future__ import annotations

import json
import select
import socket
import threading
from typing import Callable, Dict

MESSAGE_BYTES = 1 << 16
WHY_CHARACTERS = 1000  # of the reason for the end of a program, which must fit into one message
Message = Dict[str, object]


def stop_message(code: int, why: str) -> Message:
    """Return the message that ends the program. Values of other types count as what they stand for."""
    return {"stop": int(code), "why": str(why)[:WHY_CHARACTERS]}


class Control:
    """Messages to and from the agent, each a JSON object in one packet."""

    def __init__(self, descriptor: int, take: "Callable[[Message], None]", on_end: "Callable[[], None]") -> None:
        """descriptor: inherited, of a SEQPACKET socket; on_end: called once the agent is gone"""
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._take, self._on_end = take, on_end
        self._taking = threading.Lock()  # messages are taken in order
        self._thread = threading.Thread(target=self._read, name="mesh-control", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def leave(self) -> None:
        """Leave the socket to the parent, in a process that was just forked."""
        self._socket.close()

    def send(self, message: Message) -> None:
        """Send a message; an agent that is gone needs none."""
        try:
            self._socket.send(json.dumps(message).encode())
        except OSError:
            pass

    def catch_up(self, timeout: float) -> None:
        """Act on all messages that have come. timeout: seconds for a message that is being acted on"""
        if self._taking.acquire(timeout=timeout):
            try:
                self._take_waiting()
            finally:
                self._taking.release()

    def _read(self) -> None:
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        is_open = True
        while is_open:
            waiting.poll()
            with self._taking:
                is_open = self._take_waiting()
        self._on_end()

    def _take_waiting(self) -> bool:
        """Act on the messages that wait; return False once the agent is gone."""
        while True:
            try:
                packet = self._socket.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except OSError:
                packet = b""
            if not packet:
                return False
            try:
                message = json.loads(packet)
            except ValueError:
                continue
            if isinstance(message, dict):
                self._take(message)
