"""Starting a steward: in this process, or in one of its own that no terminal and no command holds."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

from mesh.core.errors import MeshError
from mesh.jobs.locking import take_lock
from mesh.jobs.place import StorePlace
from mesh.jobs.requests import serving_pid, steward_of
from mesh.jobs.steward import Steward, StewardOptions
from mesh.jobs.store import open_store

START_TIMEOUT_S = 60.0  # for a steward that lives to answer on its socket
POLL_S = 0.05
LOG_FILE = "serve.log"
LOG_SHOWN_CHARACTERS = 2000
SERVE_VARIABLE = "MESH_SERVE"  # "0": no command starts a steward


def serve(place: StorePlace, options: StewardOptions, environ: Mapping[str, str]) -> None:
    """Be the steward of a store until a signal or a command ends it.

    Raises AlreadyServed, LeaseLost, or MeshError if the store cannot be had.
    """
    lock = take_lock(place)
    try:
        store = open_store(place)
        try:
            Steward(store, options, environ, keep=[lock]).run()
        finally:
            store.close()
    finally:
        os.close(lock)


def may_start(environ: Mapping[str, str]) -> bool:
    """Return True if a command may start a steward."""
    return environ.get(SERVE_VARIABLE, "") != "0"


def ensure(place: StorePlace, argv: Sequence[str], environ: Mapping[str, str], executable: str = "") -> int:
    """Return the process of the steward of a store; start one if none answers.

    argv: of the steward, as `ps` shows it. executable: the program, if argv does not begin with its path
    Raises MeshError if it does not start.
    """
    steward = steward_of(environ, place)
    if pid := serving_pid(steward):
        return pid
    try:
        os.makedirs(place.directory, mode=0o700, exist_ok=True)
        log = os.open(place.directory / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise MeshError(f"{place.directory}: cannot be written ({error.strerror})") from error
    try:
        process = subprocess.Popen(
            list(argv),
            executable=executable or None,
            cwd="/",  # it holds no directory that somebody wants to unmount
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            close_fds=True,
        )
    except OSError as error:
        raise MeshError(f"mesh serve: cannot be started ({error.strerror})") from error
    finally:
        os.close(log)
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if pid := serving_pid(steward):
            # A program that uses mesh as a library may outlive the steward, and has to collect it.
            threading.Thread(target=process.wait, name="mesh-serve", daemon=True).start()
            return pid
        if process.poll() is not None:  # another command may have been quicker
            if pid := serving_pid(steward):
                return pid
            raise MeshError(f"mesh serve: ended at once (exit {process.returncode})", hint=_last_words(place))
        time.sleep(POLL_S)
    hint = f"tail {place.directory / LOG_FILE}"
    raise MeshError(f"mesh serve: does not answer within {START_TIMEOUT_S:g} s", hint=hint)


def _last_words(place: StorePlace) -> str:
    """Return the end of the steward's log."""
    path = place.directory / LOG_FILE
    try:
        text = path.read_text(errors="replace")[-LOG_SHOWN_CHARACTERS:].strip()
    except OSError:
        return f"tail {path}"
    return text.rpartition("\n")[2] or f"tail {path}"
