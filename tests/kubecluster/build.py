"""Build of Kubernetes' programs from Debian's source package: ``python -m tests.kubecluster.build``.

They are kept between test runs. The source package carries its vendored modules; only Debian's archive is asked.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = "kubernetes"
PROGRAMS = ("kube-apiserver", "kubelet", "kube-scheduler", "kube-controller-manager")
DEBIAN_PACKAGES = (  # everything else that a cluster is made of
    "etcd-server",
    "containerd",
    "runc",
    "containernetworking-plugins",
    "golang-1.19-go",
    "gcc",  # links the kubelet
    "libc6-dev",
    "python3",  # for the image of pods
    "golang-github-modern-go-reflect2-dev",
    "dpkg-dev",
    "iptables",
    "conntrack",
    "iproute2",
)
GO = "/usr/lib/go-1.19/bin/go"
# The vendored one does not know the map iterators of this Go.
REFLECT2 = "/usr/share/gocode/src/github.com/modern-go/reflect2"
# Files of apt's sources: on newer images of Debian, and on older ones.
APT_SOURCES = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
LOW = ("nice", "-n19", "ionice", "-c3")  # priority
BUILD_TIMEOUT_S = 7200.0  # with the lowest priority on a busy machine
STEP_TIMEOUT_S = 1200.0
LOCK_S = 600  # that another apt may hold its lock
LOG_BYTES = 3000  # of the log, in a message


class BuildFailed(Exception):
    """The programs could not be built; the message has the end of the log."""


def cache_directory() -> Path:
    """Return the directory in which builds are kept, of all versions."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "mesh-tests")


def programs() -> Path:
    """Return the directory of the built programs; build them first where they are not there. Raises BuildFailed."""
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "kubernetes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes build once
        log = cache / "kubernetes.log"
        _install_packages(log)
        apt = _AptSources(cache / "apt", log)
        directory = cache / f"kubernetes-{apt.version()}-go{_go_version()}"
        if not all((directory / name).exists() for name in PROGRAMS):
            _build(apt, directory, log)
        return directory


class _AptSources:
    """A private list of apt with the source entries of this machine's Debian."""

    def __init__(self, directory: Path, log: Path) -> None:
        self.directory, self._log = directory, log
        for part in ("lists/partial", "archives/partial"):
            (directory / part).mkdir(parents=True, exist_ok=True)
        found = next((place for place in APT_SOURCES if place.exists()), None)
        if found is None:
            places = " and ".join(map(str, APT_SOURCES))
            raise BuildFailed(f"{places}: there is no such file, from which source entries are made")
        sources = re.sub(r"(?m)^Types:.*$", "Types: deb-src", found.read_text())
        source = directory / f"source{found.suffix}"
        source.write_text(re.sub(r"(?m)^deb(?=[ \t])", "deb-src", sources))
        self._options = [
            f"-oDir::Etc::sourcelist={source}",
            "-oDir::Etc::sourceparts=-",
            f"-oDir::State::lists={directory}/lists",
            f"-oDir::Cache={directory}",
        ]

    def version(self) -> str:
        """Return the version of the source package; ask the archive only where no list is kept."""
        try:
            return self._known()
        except (BuildFailed, IndexError):
            _run(["apt-get", *self._options, "update"], self._log)
            return self._known()

    def fetch(self, into: Path) -> Path:
        """Download and unpack the source package; return its directory."""
        into.mkdir(parents=True)
        _run(["apt-get", *self._options, "source", "-y", PACKAGE], self._log, cwd=into)
        return next(path for path in into.iterdir() if path.is_dir())

    def _known(self) -> str:
        shown = _run(["apt-cache", *self._options, "showsrc", "--only-source", PACKAGE], self._log)
        return re.findall(r"(?m)^Version: (\S+)$", shown)[0]


def _install_packages(log: Path) -> None:
    shown = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${Status}\n", *DEBIAN_PACKAGES], capture_output=True, text=True
    ).stdout
    missing = [name for name in DEBIAN_PACKAGES if f"{name} install ok installed" not in shown]
    if missing:
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", f"-oDPkg::Lock::Timeout={LOCK_S}", "--no-install-recommends", *missing]
        try:
            _run(install, log, environ=environ)
        except BuildFailed:
            _run(["apt-get", "update"], log)
            _run(install, log, environ=environ)


def _go_version() -> str:
    return subprocess.run([GO, "env", "GOVERSION"], check=True, capture_output=True, text=True).stdout.strip()[2:]


def _build(apt: _AptSources, directory: Path, log: Path) -> None:
    """Build all programs at low priority into the directory, one after another.

    What an interrupted build has compiled is kept for the next one.
    """
    work = directory.with_name(f"{directory.name}.work")
    source = work / "go/src/k8s.io/kubernetes"  # as its own makefile has it: this Go refuses the go.mod
    if not source.exists():
        shutil.rmtree(work, ignore_errors=True)
        source.parent.mkdir(parents=True)
        unpacked = apt.fetch(work / "source")
        vendored = unpacked / "vendor/github.com/modern-go/reflect2"
        shutil.rmtree(vendored)
        shutil.copytree(REFLECT2, vendored, symlinks=False)
        unpacked.rename(source)
    environ = {
        **os.environ,
        "GO111MODULE": "off",
        "GOFLAGS": "-p=2",
        "GOPROXY": "off",
        "GOCACHE": str(work / "go-build"),
        "GOPATH": str(work / "go"),
        "GOMAXPROCS": "2",
        "CGO_ENABLED": "1",
    }
    release = re.sub(r".*really", "", apt.version()).partition("-")[0].partition("+")[0]
    package = "k8s.io/kubernetes/vendor/k8s.io/component-base/version"
    major, minor = release.split(".")[:2]
    flags = f"-s -w -X {package}.gitVersion=v{release} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    directory.mkdir(exist_ok=True)
    _generate(source, environ, log)
    for name in PROGRAMS:
        if (directory / name).exists():
            continue
        new = work / name
        build = [*LOW, GO, "build", "-ldflags", flags, "-o", str(new), f"./cmd/{name}"]
        _run(build, log, cwd=source, environ=environ, timeout=BUILD_TIMEOUT_S)
        new.replace(directory / name)
    shutil.rmtree(work, ignore_errors=True)


def _generate(source: Path, environ: dict[str, str], log: Path) -> None:
    """Write the one generated file that the source package lacks: the schema of all objects, in Go."""
    made = source / "pkg/generated/openapi/zz_generated.openapi.go"
    if made.exists():
        return
    generator = source.parents[3] / "openapi-gen"
    package = "./vendor/k8s.io/kube-openapi/cmd/openapi-gen"
    _run([*LOW, GO, "build", "-o", str(generator), package], log, cwd=source, environ=environ, timeout=BUILD_TIMEOUT_S)
    tagged = sorted({file.parent for part in ("staging/src", "pkg") for file in _tagged(source / part)})
    kept = [one for one in tagged if not {"code-generator", "sample-apiserver"} & set(one.parts)]
    names = [str(one.relative_to(source)).replace("staging/src/", "vendor/", 1) for one in kept]
    inputs = ",".join(f"k8s.io/kubernetes/{name}" for name in names)
    output = [
        "-p",
        "k8s.io/kubernetes/pkg/generated/openapi",
        "-O",
        "zz_generated.openapi",
        "-o",
        str(source.parents[1]),
    ]
    header = ["--go-header-file", str(source / "hack/boilerplate/boilerplate.generatego.txt")]
    report = ["-r", str(generator.with_name("violations"))]
    path = {"PATH": f"{Path(GO).parent}:{environ['PATH']}"}
    words = [*LOW, str(generator), "-i", inputs, *output, *header, *report]
    _run(words, log, cwd=source, environ={**environ, **path}, timeout=BUILD_TIMEOUT_S)


def _tagged(directory: Path) -> list[Path]:
    """Return the files that ask for a schema of their package."""
    return [file for file in directory.rglob("*.go") if b"+k8s:openapi-gen=true" in file.read_bytes()]


def _run(
    argv: list[str],
    log: Path,
    *,
    cwd: Path | None = None,
    environ: dict[str, str] | None = None,
    timeout: float = STEP_TIMEOUT_S,
) -> str:
    """Run a command with its output also in the log, and return its standard output. Raises BuildFailed."""
    with log.open("a") as file:
        file.write(f"$ {' '.join(argv)}\n")
        file.flush()
        try:
            done = subprocess.run(
                argv,
                cwd=cwd,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file,
                timeout=timeout,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildFailed(f"{argv[0]}: {error}") from error
        text = done.stdout.decode(errors="replace")
        file.write(text)
    if done.returncode:
        last = log.read_text(errors="replace")[-LOG_BYTES:]
        raise BuildFailed(f"{' '.join(argv)}: exit status {done.returncode}\n{last}")
    return text


if __name__ == "__main__":
    try:
        print(programs())
    except BuildFailed as error:
        sys.exit(str(error))
