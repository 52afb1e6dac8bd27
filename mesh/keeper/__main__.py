"""The keeper's process: ``python -m mesh.keeper SOCKET [DESCRIPTOR]``, with its first requests on stdin."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading

import msgspec

from mesh.keeper.packets import Fill, Stop, ask
from mesh.keeper.places import LOCK_SUFFIX, has_lock, lock_file, other_versions


def main(path: str, locked: str = "") -> None:
    """Run the keeper unless there is one already, which gets the requests then.

    locked: the descriptor of the keeper's lock, if this process was given it
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    requests = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Fill])
    with open(int(locked), "wb") if locked else lock_file(path) as lock:
        if has_lock(lock):
            serve(path, requests)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + LOCK_SUFFIX)
        else:
            with contextlib.suppress(OSError):
                for request in requests:
                    ask(path, request).close()


def serve(path: str, requests: list[Fill]) -> None:
    """Be the keeper until nothing waits any more."""
    from mesh.keeper.server import Keeper  # it brings Fabric: the lock is looked at before that

    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    keeper = Keeper(path)
    signal.signal(signal.SIGTERM, lambda number, frame: keeper.end())
    for other in other_versions(path, os.environ):  # so that no host has two agents waiting
        with contextlib.suppress(OSError):
            ask(other, Stop()).close()
    for request in requests:
        threading.Thread(target=keeper.fill, args=(request,), daemon=True).start()
    keeper.serve()


main(*sys.argv[1:])
