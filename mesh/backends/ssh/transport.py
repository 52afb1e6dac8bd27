"""paramiko's transport, with fewer wake-ups, a sign of life that can be asked for, and the fastest algorithms first.

Also the start of a command on a channel, with a time limit.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import paramiko

FAST_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")  # half the CPU time of ctr with a separate MAC
# sshd has OpenSSL compute on this curve; on Curve25519 it does that itself, and takes 4 ms more for it.
FAST_KEX = "ecdh-sha2-nistp256"


class QuietTransport(paramiko.Transport):
    """Its thread looks once a second whether it is to end, not ten times: closing the socket wakes it.

    Nor is there another one that waits for the end of the key exchange's time.
    """

    _active_check_timeout = 1.0
    _send_user_message: Callable[[paramiko.Message], None]

    def __init__(self, sock: Any, **options: Any) -> None:
        super().__init__(sock, **options)
        self._exchange_by = math.inf  # monotonic
        self._answered = threading.Event()
        packetizer: Any = self.packetizer
        packetizer.start_handshake = self._start_exchange
        packetizer.handshake_timed_out = lambda: time.monotonic() > self._exchange_by
        packetizer.complete_handshake = self._complete_exchange

    def _start_exchange(self, seconds: float) -> None:
        self._exchange_by = time.monotonic() + seconds

    def _complete_exchange(self) -> None:
        self._exchange_by = math.inf

    def ask(self) -> None:
        """Ask the other end for a sign of life, as OpenSSH does, and do not wait for it."""
        self._answered = self.completion_event = threading.Event()  # paramiko sets it, also at the connection's end
        request = paramiko.Message()
        request.add_byte(paramiko.common.cMSG_GLOBAL_REQUEST)
        request.add_string("keepalive@openssh.com")
        request.add_boolean(True)
        if self.clear_to_send.is_set():  # else this would wait for the end of a key exchange
            with contextlib.suppress(Exception):  # any error of paramiko on a connection that ends just now
                self._send_user_message(request)

    def answers(self, seconds: float) -> bool:
        """Return True if the other end has answered the last question within this time from now."""
        return bool(self.is_active() and self._answered.wait(seconds) and self.is_active())


class _LimitedEvent(threading.Event):
    """An event whose wait ends with an SSHException when its time is over."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set. Raises SSHException; timeout: seconds, None for those of the event"""
        if not super().wait(self._seconds if timeout is None else timeout):
            late = f"within {self._seconds:g} s"
            raise paramiko.SSHException(f"the server accepted the login but started no command {late}")
        return True


def start_within(channel: paramiko.Channel, command: str, seconds: float) -> None:
    """Start a command on a channel. Raises SSHException, also if the server does not answer within this time.

    paramiko waits for that answer without a limit. If the link is cut just then, it waits for ever.
    """
    channel.event = _LimitedEvent(seconds)  # exec_command waits for this one
    channel.exec_command(command)


def prefer(transport: paramiko.Transport, kinds: list[str]) -> None:
    """Put a fast key exchange, fast ciphers and the recorded kinds of key first in the offer."""
    options = transport.get_security_options()
    options.ciphers = sorted(options.ciphers, key=lambda name: name not in FAST_CIPHERS)
    options.kex = sorted(options.kex, key=lambda name: name != FAST_KEX)
    # An RSA key goes by three names, of which the signature's hash is the difference.
    known = {name for kind in kinds for name in (("rsa-sha2-512", "rsa-sha2-256") if kind == "ssh-rsa" else (kind,))}
    options.key_types = sorted(options.key_types, key=lambda name: name not in known)
