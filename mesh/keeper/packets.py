"""Packets between a command and the keeper, over a Unix socket that keeps their borders.

A command sends one request for each connection. For ``Take`` the keeper answers for each key in turn: an address with
the descriptor of the socket to a waiting agent, or END where it has none. On such a socket the first byte of each
packet is DATA or END; END carries the agent's Farewell.
"""

from __future__ import annotations

import socket

import msgspec

from mesh.core.cluster import Cluster

PACKET_BYTES = 1 << 16  # of one packet with its first byte; a socket takes several of them
REQUEST_BYTES = 1 << 17
HOSTS_PER_REQUEST = 64
ANSWER_TIMEOUT_S = 5.0  # for the keeper to answer a request; before it lends an agent it waits for the agent's host
DATA, END = b"d", b"e"


class Fill(msgspec.Struct, frozen=True, kw_only=True, tag="fill", tag_field="do"):
    """A request to have an agent wait on each host of a cluster, once the client that asks is gone."""

    keys: tuple[str, ...]  # of each host
    cluster: Cluster  # the parts of it that decide how hosts are reached, and for how long agents wait


class Take(msgspec.Struct, frozen=True, kw_only=True, tag="take", tag_field="do"):
    """A request for the agents that wait on some hosts."""

    keys: tuple[str, ...]


class AskAbout(msgspec.Struct, frozen=True, kw_only=True, tag="about", tag_field="do"):
    """A question for what the keeper holds. Keepers of all versions of mesh answer it."""


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop", tag_field="do"):
    """A request to end the keeper and the agents that wait. Keepers of all versions of mesh do so."""


Request = Fill | Take | AskAbout | Stop


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to AskAbout."""

    pid: int
    waiting: int  # hosts on which an agent waits
    at_work: int  # agents that are lent to commands
    seconds: float  # for which the last of those that wait goes on to wait


def ask(path: str, request: Request) -> socket.socket:
    """Send a request to the keeper behind a socket, and return the connection on which its answers come.

    Raises OSError if no keeper listens there, or if it hangs and too many commands wait for it already.
    """
    way = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    way.settimeout(ANSWER_TIMEOUT_S)
    try:
        way.connect(path)
        way.send(msgspec.json.encode(request))
    except OSError:
        way.close()
        raise
    return way


def send_all(way: socket.socket, data: bytes) -> None:
    """Send data in packets. Raises OSError."""
    for place in range(0, len(data), PACKET_BYTES - 1):
        way.send(DATA + data[place : place + PACKET_BYTES - 1])


def receive(way: socket.socket) -> bytes:
    """Return the next packet, or b"" once the other end is gone and all that it sent has come."""
    for _ in range(2):
        try:
            return way.recv(PACKET_BYTES)
        except ConnectionResetError:  # the other end had not read all of ours; its last packets come after this
            continue
        except OSError:
            break
    return b""
