"""The program in the switchboard's zip: ``python3 ZIP board`` or ``python3 ZIP node``, with the key on stdin.

In pods it is ``python3 ZIP pods-board`` or ``python3 ZIP pods-node``, with the key in a file.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

LAST_LINE = b"-----END CERTIFICATE-----"
TURN_S = 1.0


def main(words: Sequence[str] | None = None) -> int:
    """Run the switchboard or a node until it ends; return the exit status."""
    parser = argparse.ArgumentParser(prog="switchboard")
    roles = parser.add_subparsers(dest="role", required=True)
    board = roles.add_parser("board", help="the switchboard; writes a line of JSON with its port")
    board.add_argument("--address", default="", help="to listen at; every one of this host")
    board.add_argument("--ports", default="0-0", metavar="A-B", help="that may be taken; any")
    board.add_argument("--hold", type=float, default=0.0, help="seconds without clients and agents; then it ends")
    node = roles.add_parser("node", help="a node of it")
    node.add_argument("--board", action="append", required=True, metavar="HOST:PORT")
    node.add_argument("--name", required=True)
    roles.add_parser("pods-board", help="the switchboard of a client, at stdin and stdout")
    roles.add_parser("pods-node", help="the node in a pod, which switchboards call")
    chosen = parser.parse_args(words)
    if chosen.role.startswith("pods-"):
        from mesh.agent.switchboard import pods

        return pods.main(chosen.role)
    credentials = read_credentials(0)
    if chosen.role == "node":
        from mesh.agent.switchboard.node import Node

        addresses = [(host.strip("[]"), int(port)) for host, _, port in (one.rpartition(":") for one in chosen.board)]
        Node(addresses, chosen.name, credentials).run()
        return 0
    first, _, last = chosen.ports.partition("-")
    return serve(credentials, (int(first), int(last or first)), chosen.address, chosen.hold)


def read_credentials(descriptor: int) -> str:
    """Return the key and its certificate from a descriptor, up to the certificate's last line or the end."""
    data = b""
    while LAST_LINE not in data:
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            break
        data += chunk
    return data.decode()


def serve(credentials: str, ports: tuple[int, int], address: str, hold: float) -> int:
    """Run a switchboard until SIGTERM, or until it was idle for ``hold`` seconds (0: no end)."""
    from mesh.agent.switchboard.board import Board

    ended = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: ended.append(number))
    board = Board(credentials, ports, address)
    try:
        port = board.listen()
    except OSError as error:
        sys.stderr.write(f"switchboard: {error}\n")
        return 1
    os.write(1, json.dumps({"port": port}).encode() + b"\n")
    while not ended:
        board.run_once(TURN_S)
        idle = board.idle_since
        if hold and idle is not None and time.monotonic() - idle > hold:
            break
    board.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
