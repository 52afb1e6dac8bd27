"""Program on a login node that reads and writes the files of a run's attempts, below mesh's directory there.

``attempts.py`` sends it as text, with a call at the end that has one order: a method, and its arguments. It writes a
line of JSON. The holder of an allocation reads the same files. It needs Python 3.8.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh.protocol.frames import Header as Record

PREFIX, SUFFIX = "attempts-", ".json"  # of a record; without the suffix, the directory of its attempts
STOP, TAKEN, REPORTED = "stop", "taken.json", "first.json"  # as in mesh/agent/switchboard/attempts.py
PAUSE_S = 0.1
CALL_TIMEOUT_S = 20.0
KEPT_S = 30 * 86400.0  # that the record of attempts that are over stays


class Desk:
    """The files of all attempts of this user, which nobody else can read."""

    def __init__(self, home: str) -> None:
        """home: mesh's directory"""
        self._place = os.path.join(os.path.expanduser(home), "slurm")
        os.makedirs(self._place, 0o700, exist_ok=True)

    def leave(self, name: str, job: str, files: dict[str, str], limit: float) -> Record:
        """Write the directory of a run's attempts, and wait until the holder of a job has taken them.

        files: in base 64, by their names; limit: seconds
        """
        self._prune()
        place, mark = os.path.join(self._place, name), os.path.join(self._place, job + "." + PREFIX[:-1])
        os.mkdir(place, 0o700)
        for one, data in files.items():
            with open(os.path.join(place, one), "wb", opener=_private) as file:
                file.write(base64.b64decode(data))
        with open(mark + ".new", "w", opener=_private) as text:
            text.write(name)
        os.rename(mark + ".new", mark)
        _call(job)
        until = time.monotonic() + limit
        while time.monotonic() < until:
            if TAKEN in os.listdir(place):  # a list is never an old one of the network's file system
                found = _read(os.path.join(place, TAKEN))
                if found and not found["problem"]:
                    return found
                shutil.rmtree(place, ignore_errors=True)
                return found or {"problem": "its answer cannot be read"}
            time.sleep(PAUSE_S)
        shutil.rmtree(place, ignore_errors=True)
        if os.path.exists(mark):
            os.unlink(mark)
        return {"problem": "", "is_late": True}

    def find(self, run: str, cluster: str) -> Record | None:
        """Return the record of a run's attempts; run "": of the newest ones of a cluster that are not over."""
        found = None
        for name in sorted(os.listdir(self._place)):
            record = _read(os.path.join(self._place, name)) if _is_record(name) else None
            if record and (run in record["runs"] if run else record["cluster"] == cluster and not record["is_over"]):
                found = {**record, "name": name[: -len(SUFFIX)]}
        return found

    def stop(self, name: str) -> None:
        """Have no other attempt begin."""
        place = os.path.join(self._place, name)
        if os.path.isdir(place):
            with open(os.path.join(place, STOP), "w", opener=_private):
                pass

    def report(self, name: str, status: int) -> None:
        """Note how the first attempt has ended while its client was there."""
        path = os.path.join(self._place, name, REPORTED)
        with open(path + ".new", "w", opener=_private) as file:
            json.dump(status, file)
        os.rename(path + ".new", path)

    def forget(self, name: str) -> None:
        """Remove all but the record, which notes that they are over."""
        shutil.rmtree(os.path.join(self._place, name), ignore_errors=True)
        path = os.path.join(self._place, name + SUFFIX)
        record = _read(path)
        if record and not record["is_over"]:
            with open(path + ".new", "w", opener=_private) as file:
                json.dump({**record, "waiting": [], "is_over": True}, file)
            os.rename(path + ".new", path)

    def _prune(self) -> None:
        for name in filter(_is_record, os.listdir(self._place)):
            path = os.path.join(self._place, name)
            is_old = os.stat(path).st_mtime < time.time() - KEPT_S
            if is_old and not os.path.isdir(path[: -len(SUFFIX)]):
                os.unlink(path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _call(job: str) -> None:
    """Have the holder of a job look for files at once. It looks seldom otherwise; SIGCONT disturbs no older holder."""
    words = ["scancel", "--quiet", "--batch", "--signal=CONT", job]
    try:
        subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=CALL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        pass


def _is_record(name: str) -> bool:
    return name.startswith(PREFIX) and name.endswith(SUFFIX)


def _read(path: str) -> Record | None:
    try:
        with open(path) as file:
            found: Record = json.load(file)
    except (OSError, ValueError):
        return None
    return found


def carry_out(order: str) -> None:
    """Carry out an order, which is JSON, and write the answer."""
    given = json.loads(order)
    sys.stdout.write(json.dumps(getattr(Desk(given["home"]), given["do"])(**given["with"])) + "\n")
