"""Real container engines from Debian's packages, unpacked into a cache: nothing of them is installed or started.

Needs root, apt-get and a network. The engines run with their own storage, sockets and settings, on this machine or
on a test host, which sees the cache through its overlay.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from mesh.agent.process.processes import all_processes, below
from tests.lab import eventually

CACHE = Path("/var/cache/mesh-tests/engines-2")  # a new number when the packages change
PACKAGES = (
    *("docker.io", "containerd", "runc", "tini", "busybox-static", "docker-registry"),
    *("podman", "conmon", "catatonit", "golang-github-containers-common", "golang-github-containers-image"),
)
PATH = f"{CACHE}/usr/bin:{CACHE}/usr/sbin"
START_S = 120.0  # for what takes seconds, on a machine with much to do
MEDIA_TYPE = "application/vnd.docker"
PROGRAMS = ("sh", "cat", "env", "printf", "sleep", "echo", "id", "true")
# The rules of these test machines: no user namespaces for networks, cgroup v1 beside v2, no right to raise limits.
CONTAINERS_CONF = f"""
[containers]
seccomp_profile = "{CACHE}/usr/share/containers/seccomp.json"
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
conmon_path = ["{CACHE}/usr/bin/conmon"]
init_path = "{CACHE}/usr/libexec/podman/catatonit"
[engine.runtimes]
runc = ["{CACHE}/usr/sbin/runc"]
"""


def why_not() -> str:
    """Have the programs in the cache; return why there are none, or ""."""
    if os.geteuid():
        return "needs root"
    if not shutil.which("apt-get"):
        return "needs apt-get, to download docker and podman"
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with (CACHE.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if CACHE.exists():
            return ""
        with tempfile.TemporaryDirectory(dir=CACHE.parent) as place:
            fetch = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *PACKAGES]
            done = subprocess.run(fetch, cwd=place, capture_output=True, text=True, check=False)
            if done.returncode:  # the lists of packages may be empty or old
                subprocess.run(["apt-get", "-qq", "update"], capture_output=True, check=False)
                done = subprocess.run(fetch, cwd=place, capture_output=True, text=True, check=False)
            if done.returncode:
                return f"docker and podman cannot be downloaded: {done.stderr.strip()[-200:]}"
            new = Path(place) / "new"
            for package in Path(place).glob("*.deb"):
                subprocess.run(["dpkg", "-x", package, new], check=True)
            new.rename(CACHE)
    return ""


def lacks_libraries(program: str) -> str:
    """Return the libraries that a program lacks on this machine, or "": podman's own helpers find them only there."""
    found = shutil.which(program, path=PATH)
    lines = subprocess.run(["ldd", found or program], capture_output=True, text=True, check=False).stdout.splitlines()
    missing = [line.split()[0] for line in lines if "not found" in line]
    return f"{program} lacks {', '.join(missing)}" if missing else ""


def image_tar(*files: tuple[str, bytes]) -> bytes:
    """Return the files of an image with busybox, and some more, as a tar file."""
    held = BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        tar.add(CACHE / "bin/busybox", "bin/busybox")
        for name in PROGRAMS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        for path, data in (("bin/bash", b'#!/bin/sh\nexec sh "$@"\n'), *files):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o755
            tar.addfile(entry, BytesIO(data))
    return held.getvalue()


@dataclass
class Engine:
    """An engine that runs: its name, and the variables by which its client finds it."""

    name: str
    variables: Mapping[str, str]
    enter: Sequence[str] = ()  # words that enter a test host

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": f"{PATH}:{os.environ['PATH']}", **self.variables}

    def __call__(self, *words: str, stdin: bytes = b"", check: bool = True) -> str:
        """Run the client to its end; return what it printed."""
        environ = [f"{name}={value}" for name, value in self.environ.items()]
        argv = [*self.enter, "env", *environ, self.name, *words]
        done = subprocess.run(argv, input=stdin, capture_output=True, check=False, timeout=START_S)
        assert not check or done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def make_image(self, name: str, *files: tuple[str, bytes]) -> str:
        """Make an image; return its id."""
        self("import", "-", name, stdin=image_tar(*files))
        return self("image", "inspect", "--format", "{{.Id}}", name).strip()

    def containers(self) -> list[str]:
        """Return all containers, also those that have ended."""
        return self("ps", "-aq").split()


@contextlib.contextmanager
def dockerd(place: Path, *options: str, data: Path | None = None, enter: Sequence[str] = ()) -> Iterator[Engine]:
    """Run a daemon. place: its directory, short and new; data: for its images; enter: words that enter a test host"""
    sock = place / "sock"
    argv = [*enter, "env", f"PATH={PATH}:/usr/sbin:/usr/bin:/sbin:/bin", "dockerd"]
    argv += ["--bridge=none", "--iptables=false", "--exec-opt", "native.cgroupdriver=cgroupfs", "-H", f"unix://{sock}"]
    argv += ["--data-root", str(data or place / "data"), "--exec-root", str(place / "exec"), "-p", str(place / "pid")]
    argv += ["--insecure-registry", "127.0.0.1", *options]
    with (place / "log" if not enter else Path(os.devnull)).open("wb") as log:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    engine = Engine("docker", {"DOCKER_HOST": f"unix://{sock}"}, enter)
    try:
        assert eventually(
            lambda: process.poll() is not None or bool(engine("info", "--format", "{{.ID}}", check=False).strip()),
            START_S,
        )
        assert process.poll() is None, (place / "log").read_text() if not enter else "dockerd has ended"
        yield engine
    finally:
        if enter:  # nsenter hands no signal on
            subprocess.run([*enter, "sh", "-c", f"kill $(cat {place}/pid)"], check=False)
        else:
            process.terminate()
        process.wait()
        subprocess.run([*enter, "umount", place / "exec/netns/default"], capture_output=True, check=False)


@contextlib.contextmanager
def podman(place: Path, enter: Sequence[str] = (), root: Path = Path("/")) -> Iterator[Engine]:
    """Return a podman with a storage of its own. place: its directory, short and new; root: of its test host"""
    written = root / place.relative_to("/")
    config = written / "home/.config/containers"
    config.mkdir(parents=True)
    (config / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    (written / "containers.conf").write_text(CONTAINERS_CONF)
    storage = f'[storage]\ndriver = "overlay"\ngraphroot = "{place}/graph"\nrunroot = "{place}/run"\n'
    (written / "storage.conf").write_text(storage)
    (written / "registries.conf").write_text("")
    variables = {
        "CONTAINERS_CONF": f"{place}/containers.conf",
        "CONTAINERS_STORAGE_CONF": f"{place}/storage.conf",
        "CONTAINERS_REGISTRIES_CONF": f"{place}/registries.conf",
        "HOME": f"{place}/home",
    }
    try:
        yield Engine("podman", variables, enter)
    finally:
        _end_monitors(place)
        for mount in sorted(_mounts_below(place), reverse=True):
            subprocess.run(["umount", mount], capture_output=True, check=False)


def _end_monitors(place: Path) -> None:
    """End containers whose client was killed before they began, which podman itself does not find any more."""
    every = {process.pid: process for process in all_processes()}
    monitors = {pid for pid in every if f"-b\0{place}/".encode() in _command(pid)}
    for process in below(monitors, list(every.values())):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


def _mounts_below(place: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in lines if line.split()[4].startswith(f"{place}/")]


@contextlib.contextmanager
def registry(place: Path, port: int, address: str = "127.0.0.1") -> Iterator[str]:
    """Run a registry; yield its address with its port."""
    config = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(place / "registry")}},
        "http": {"addr": f"{address}:{port}"},
        "log": {"level": "error"},
    }
    (place / "registry.json").write_text(json.dumps(config))  # YAML takes JSON
    argv = [f"{CACHE}/usr/bin/docker-registry", "serve", str(place / "registry.json")]
    with (place / "registry.log").open("wb") as log:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        assert eventually(lambda: _answers(address, port), START_S), (place / "registry.log").read_text()
        yield f"{address}:{port}"
    finally:
        process.terminate()
        process.wait()


def _answers(address: str, port: int) -> bool:
    import socket

    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False


def push(registry: str, name: str, files: bytes) -> None:
    """Put an image of one layer into a registry, without an engine. name: NAME:TAG; files: a tar file"""
    name, _, tag = name.partition(":")
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    layers = {"type": "layers", "diff_ids": [_digest(files)]}
    settings = {"architecture": machine, "os": "linux", "config": {"Env": ["PATH=/bin"]}, "rootfs": layers}
    parts = {"config": json.dumps(settings).encode(), "layer": gzip.compress(files)}
    kinds = {"config": "container.image.v1+json", "layer": "image.rootfs.diff.tar.gzip"}
    listed = {
        part: {"mediaType": f"{MEDIA_TYPE}.{kinds[part]}", "size": len(data), "digest": _digest(data)}
        for part, data in parts.items()
    }
    url = f"http://{registry}/v2/{name}"
    for data in parts.values():
        place = _send("POST", f"{url}/blobs/uploads/", b"", "application/json")
        _send("PUT", f"{place}&digest={_digest(data)}", data, "application/octet-stream")
    kind = f"{MEDIA_TYPE}.distribution.manifest.v2+json"
    manifest = {"schemaVersion": 2, "mediaType": kind, "config": listed["config"], "layers": [listed["layer"]]}
    _send("PUT", f"{url}/manifests/{tag}", json.dumps(manifest).encode(), kind)


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _send(method: str, url: str, data: bytes, kind: str) -> str:
    """Send a request to a registry; return the place that its answer names."""
    request = urllib.request.Request(url, data, {"Content-Type": kind}, method=method)
    with urllib.request.urlopen(request, timeout=START_S) as answer:
        return str(answer.headers["Location"])
