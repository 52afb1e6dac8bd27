"""The module docker with real engines: words and variables, signals, what is left, and what goes wrong."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from mesh.agent.process.containers import Containers
from mesh.core.cluster import Host
from mesh.core.module import Docker, ModuleError
from mesh.modules.docker import DockerEnvironment
from tests import engines
from tests.engines import Engine
from tests.lab import eventually
from tests.ports import free_port

pytestmark = pytest.mark.root
IMAGE = "localhost/box:1"
RUN = "20261124-101500-3f9c2a"
HOSTS = [Host(name=name, address=name) for name in ("h0", "h1")]
PLAIN_USER = ["setpriv", "--reuid", "34567", "--regid", "34567", "--clear-groups"]
PRINTER = ("sh", "-c", 'for word in "$@"; do printf "%s\\0" "$word"; done', "sh")
WORDS = (
    *("", " ", "  a  ", "a b", "'", '"', "''", '""', "'a'", '"a"', "it's", 'a"b', "\\", "\\\\", "\\n", "\\'", '\\"'),
    *(
        "$",
        "$$",
        "$HOME",
        "${HOME}",
        "$(id)",
        "`id`",
        "$((1+1))",
        "$'a'",
        "!",
        "!!",
        "a!b",
        "#",
        "#a",
        "a #b",
        "~",
        "~/x",
    ),
    *(
        "*",
        "?",
        "[a]",
        "{a,b}",
        "/*",
        "&",
        "&&",
        "|",
        "||",
        ";",
        ";;",
        "<",
        ">",
        "2>&1",
        "(",
        ")",
        "a=b",
        "-",
        "--",
        "-e",
    ),
    *(
        "--rm",
        "--env=A",
        "\n",
        "a\nb\n",
        "\t",
        "\r\n",
        "\x01\x1b[0m",
        "%s",
        "%",
        "{{.Id}}",
        "é ß 漢字 🚀",
        "\u202e",
        "x" * 5000,
    ),
)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    reason = engines.why_not()
    if reason:
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="me-") as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def docker(place: Path) -> Iterator[Engine]:
    (place / "docker").mkdir()
    with engines.dockerd(place / "docker") as engine:
        engine.make_image(IMAGE)
        yield engine


@pytest.fixture(scope="module")
def podman(place: Path) -> Iterator[Engine]:
    if reason := engines.lacks_libraries("podman"):
        pytest.skip(reason)
    (place / "podman").mkdir()
    with engines.podman(place / "podman") as engine:
        engine.make_image(IMAGE)
        yield engine


@pytest.fixture(scope="module", params=["docker", "podman"])
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def host(engine: Engine, tmp_path: Path) -> Iterator[Place]:
    yield Place(engine, tmp_path)
    assert eventually(lambda: engine.containers() == [], engines.START_S)


@dataclass
class Place:
    """This machine as a host: an engine, a workspace, and the scripts of a run in front of the engine."""

    engine: Engine
    workspace: Path

    @property
    def containers(self) -> Containers:
        return Containers(str(self.workspace / "bin"), RUN)

    def environ(self, variables: Mapping[str, str] | None = None) -> dict[str, str]:
        found = {**self.engine.environ, "PWD": str(self.workspace), "RANK": "0", **(variables or {})}
        found.setdefault("HOME", str(self.workspace))
        found["PATH"] = os.fsdecode(self.containers.cover(found["PATH"].encode()))
        return found

    def start(
        self,
        module: DockerEnvironment,
        words: Sequence[str],
        variables: Mapping[str, str] | None = None,
        stdin: int = -3,
    ) -> subprocess.Popen[bytes]:
        """Start a rank as mesh does: with what ``enter`` leaves."""
        given = self.environ(variables)
        session = ["bash", "-c", f"{module.enter}\nexec env -0"]
        left = subprocess.run(session, cwd=self.workspace, env=given, stdout=subprocess.PIPE, check=True).stdout
        rank = dict(pair.split("=", 1) for pair in left.decode().split("\0")[:-1])
        argv = module.wrap(words, ["RANK", *(variables or {})], RUN)
        return subprocess.Popen(
            argv, cwd=self.workspace, env=rank, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def output(
        self, module: DockerEnvironment, words: Sequence[str], variables: Mapping[str, str] | None = None
    ) -> bytes:
        process = self.start(module, words, variables)
        out, err = process.communicate(timeout=engines.START_S)
        assert process.returncode == 0, err.decode()
        return out

    def step(self, module: DockerEnvironment, text: str, prefix: Sequence[str] = ()) -> tuple[int, str, str]:
        """Run the check or apply of the module's step; return its status, its last line and its fact."""
        (step,) = module.steps(HOSTS, 0)
        with tempfile.TemporaryFile("w+") as fact:
            argv = ["bash", "-c", f"exec 3>&{fact.fileno()}; {getattr(step, text)}"]
            done = subprocess.run(
                [*prefix, *argv],
                env=self.environ(),
                capture_output=True,
                text=True,
                check=False,
                pass_fds=[fact.fileno()],
            )
            fact.seek(0)
            return done.returncode, (done.stdout + done.stderr).strip().rpartition("\n")[2], fact.read()


def module(engine: Engine, **keys: object) -> DockerEnvironment:
    return DockerEnvironment(Docker(**{"image": IMAGE, "engine": engine.name, **keys}))  # type: ignore[arg-type]


def test_words_arrive_byte_for_byte(host: Place) -> None:
    assert len(WORDS) >= 60
    out = host.output(module(host.engine), [*PRINTER, *WORDS])
    assert out.decode().split("\0")[:-1] == list(WORDS)


def test_variables_arrive_byte_for_byte(host: Place) -> None:
    values = {f"V{number}": word for number, word in enumerate(WORDS)}
    made = module(host.engine, env=("PATH=/bin:/mine", "TEXT=a\n'b' $c", "a.b=c", "HOST"))
    out = host.output(made, ["cat", "/proc/self/environ"], {**values, "TMPDIR": "/tmp"})
    found = dict(pair.split("=", 1) for pair in out.decode().split("\0")[:-1])
    assert {name: found[name] for name in values} == values
    assert (found["PATH"], found["TEXT"], found["a.b"], found["RANK"]) == ("/bin:/mine", "a\n'b' $c", "c", "0")
    assert not {"TMPDIR", "LD_LIBRARY_PATH", "DOCKER_HOST", "MESH_ENGINE"} & found.keys()


def test_it_runs_in_the_workspace_and_writes_there(host: Place) -> None:
    (host.workspace / "data").mkdir()
    made = module(host.engine, mounts=("data:/other:ro",))
    text = "pwd; echo made >here; echo x >/other/no; cat /proc/1/comm; exit 0"
    out = host.output(made, ["sh", "-c", text]).decode().splitlines()
    assert out[0] == str(host.workspace)
    assert (host.workspace / "here").read_text() == "made\n"
    assert list((host.workspace / "data").iterdir()) == []
    assert out[-1] != "sh"  # an init hands signals on


def test_stdin_is_a_pipe_or_nothing(host: Place) -> None:
    made = module(host.engine)
    assert host.output(made, ["cat"]) == b""
    process = host.start(made, ["cat"], stdin=subprocess.PIPE)
    out, _ = process.communicate(b"a\0b\n" * 10000, timeout=engines.START_S)
    assert out == b"a\0b\n" * 10000


def test_the_exit_status_is_the_commands(host: Place) -> None:
    process = host.start(module(host.engine), ["sh", "-c", "exit 7"])
    process.communicate(timeout=engines.START_S)
    assert process.returncode == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_command(host: Place, number: signal.Signals) -> None:
    text = "trap 'echo caught; exit 3' TERM INT; while read line; do echo $line; done; while :; do sleep 0.1; done"
    process = host.start(module(host.engine), ["sh", "-c", text], stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    for word in (b"up\n", b"on\n"):  # the client, which hands both ways on, has come so far
        process.stdin.write(word)
        process.stdin.flush()
        assert process.stdout.readline() == word
    process.stdin.close()
    process.stdin = None
    if host.engine.name == "podman":
        time.sleep(0.5)  # its client ends by a signal before it has begun to hand signals on
    process.send_signal(number)
    out, _ = process.communicate(timeout=engines.START_S)
    assert (out, process.returncode) == (b"caught\n", 3)


@pytest.mark.parametrize("delay", [None, 0.05, 0.1, 0.2])
def test_a_killed_client_leaves_no_container(host: Place, delay: float | None) -> None:
    """delay: seconds from the client's start to its end; None: the command runs"""
    process = host.start(module(host.engine), ["sh", "-c", "trap '' TERM; echo up; sleep 1000"])
    assert process.stdout is not None
    if delay is None:
        process.stdout.readline()
    else:
        with contextlib.suppress(subprocess.TimeoutExpired):  # it fails by itself on a machine with too much to do
            process.wait(delay)
    process.kill()
    process.communicate()
    given = {name: os.environ.get(name) for name in host.engine.environ}
    try:  # the agent has the environment of its host
        os.environ.update(host.engine.environ)
        assert host.containers.stop(0.0) == []
    finally:
        for name, value in given.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    assert eventually(lambda: host.engine.containers() == [], engines.START_S)  # the daemon may be removing one


# ---- images


def test_check_reports_the_image(host: Place) -> None:
    status, _, fact = host.step(module(host.engine), "check")
    shown = host.engine("image", "inspect", "--format", "{{.Id}}", IMAGE).strip()
    assert (status, fact.split()[0]) == (0, shown)
    assert host.step(module(host.engine, image="localhost/other:1"), "check")[0] == 1


def test_another_image_of_the_same_name_is_refused(host: Place) -> None:
    name = "localhost/twin:1"
    facts = []
    for content in (b"1", b"2"):
        host.engine.make_image(name, ("version", content))
        facts.append([host.step(module(host.engine, image=name), "check")[2]])
    made = module(host.engine, image=name)
    assert made.join(HOSTS, [facts[0], facts[0]]) == ()
    with pytest.raises(ModuleError, match=r"localhost/twin:1 is not the same on all hosts: \w{12} on h0; \w{12} on h1"):
        made.join(HOSTS, facts)


def test_an_image_is_pulled(docker: Engine, place: Path, tmp_path: Path) -> None:
    host = Place(docker, tmp_path)
    (tmp_path / "registry").mkdir()
    with engines.registry(tmp_path / "registry", free_port()) as address:
        name = f"{address}/box:1"
        docker("tag", IMAGE, name)
        docker("push", name)
        docker("rmi", name)
        made = module(docker, image=name)
        assert host.step(made, "check")[0] == 1
        status, last, _ = host.step(made, "apply")
        assert (status, last) == (0, name)
        status, _, fact = host.step(made, "check")
        assert status == 0
        assert f"{address}/box@sha256:" in fact
        assert host.step(module(docker, image=f"{address}/box:2"), "apply")[:2] == (
            125,
            f"the registry has no image {address}/box:2: docker pull {address}/box:2",
        )
        docker("rmi", name)


def test_a_registry_that_is_not_there(host: Place) -> None:
    name = f"127.0.0.1:{free_port()}/box:1"
    status, last, _ = host.step(module(host.engine, image=name), "apply")
    assert status == 125
    assert last.startswith(f"the registry of {name} does not answer (")
    assert last.endswith(f"connection refused): {host.engine.name} pull {name}")


def test_a_disk_that_is_full(place: Path, tmp_path: Path, tiny_disk: Path) -> None:
    (tmp_path / "registry").mkdir()
    (place / "tiny").mkdir()
    with engines.registry(tmp_path / "registry", free_port()) as address:
        name = f"{address}/large:1"
        (place / "pusher").mkdir()
        with engines.dockerd(place / "pusher") as pusher:
            pusher.make_image(name, ("data", os.urandom(12 << 20)))
            pusher("push", name)
        with engines.dockerd(place / "tiny", data=tiny_disk) as docker:
            status, last, _ = Place(docker, tmp_path).step(module(docker, image=name), "apply")
            text = f"the disk of this host is full, there is no room for {name}: docker system df; df -h"
            assert (status, last) == (125, text)


def test_a_daemon_that_is_not_there(docker: Engine, tmp_path: Path) -> None:
    gone = Engine("docker", {"DOCKER_HOST": f"unix://{tmp_path}/none"})
    status, last, _ = Place(gone, tmp_path).step(module(gone), "apply")
    assert status == 125
    assert last.startswith("docker's daemon does not answer on this host (")
    assert last.endswith("sudo systemctl start docker")


def test_a_user_without_the_right(docker: Engine, place: Path, tmp_path: Path) -> None:
    for directory in (place, place / "docker"):
        directory.chmod(0o755)
    for text in ("check", "apply"):
        status, last, _ = Place(docker, tmp_path).step(module(docker), text, PLAIN_USER)
        assert status in (1, 125)
        assert last == (
            "34567 may not use docker on this host, and sudo asks for a password: "
            "sudo usermod -aG docker 34567, then log in anew"
        )
