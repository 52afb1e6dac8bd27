"""A slow way between two network interfaces: every frame is handed on after a time. For kernels without netem.

    python -m benchmarks.delay ONE OTHER SECONDS

Needs root, and the network namespace of both. It says "ready" once it hands on, and ends when it is killed.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
import time
from collections import deque

# linux/if_ether.h, linux/if_packet.h, asm-generic/socket.h
ETH_P_ALL, SOL_PACKET = 3, 263
PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 1, 1, 15, 23
SO_RCVBUFFORCE, SO_SNDBUFFORCE = 33, 32
BUFFER = 64 << 20  # bytes
FRAME = 1 << 17  # bytes; the kernel joins packets into frames of up to 64 KiB


def interface(name: str) -> socket.socket:
    """All that comes in by an interface; what is sent goes out there."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    # What the kernel leaves to the network card (checksums, cutting into packets) travels along.
    sock.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    sock.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    for option in (SO_RCVBUFFORCE, SO_SNDBUFFORCE):
        sock.setsockopt(socket.SOL_SOCKET, option, BUFFER)
    sock.bind((name, ETH_P_ALL))
    member = struct.pack("IHH8s", socket.if_nametoindex(name), PACKET_MR_PROMISC, 0, b"")
    sock.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, member)
    sock.setblocking(False)
    return sock


def hand_on(one: socket.socket, other: socket.socket, seconds: float) -> None:
    """For ever."""
    opposite = {one: other, other: one}
    waiting: deque[tuple[float, socket.socket, bytes]] = deque()
    while True:
        left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for sock in select.select([one, other], [], [], left)[0]:
            try:
                while True:
                    waiting.append((time.monotonic() + seconds, opposite[sock], sock.recv(FRAME)))
            except BlockingIOError:
                pass
        while waiting and waiting[0][0] <= time.monotonic():
            _, to, frame = waiting.popleft()
            try:
                to.send(frame)
            except OSError:  # as a cable loses it
                pass


if __name__ == "__main__":
    ends = interface(sys.argv[1]), interface(sys.argv[2])
    print("ready", flush=True)
    hand_on(*ends, float(sys.argv[3]))
