"""``docker:`` in mesh.yaml, on test hosts with a real engine in each: what runs, what is refused, what is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import engines
from tests.conftest import Done, Home
from tests.engines import Engine
from tests.integration.test_docker_engine import WORDS
from tests.integration.test_survivors import kill_together
from tests.lab import Lab, TestHost, eventually, is_agent

pytestmark = [pytest.mark.root, pytest.mark.sshd]
IMAGE = "localhost/box:1"
PLACE = Path("/run/d")
PODMAN_PLACE = Path("/run/p")
PLAIN = "plain"
DOCKER = f"""#!/bin/sh
export DOCKER_HOST=${{DOCKER_HOST-unix://{PLACE}/sock}}
exec {engines.CACHE}/usr/bin/docker "$@"
"""
STAYS = "trap '' TERM INT; echo up; sleep 1000"


@contextlib.contextmanager
def engine_on(host: TestHost) -> Iterator[Engine]:
    """Run docker on a test host."""
    enter = words_to_enter(host)
    host.script(f"mkdir {PLACE}; chmod 755 {PLACE}; ip link set lo up")
    program = host.path("/usr/local/bin/docker")
    program.unlink(missing_ok=True)
    program.write_text(DOCKER)
    program.chmod(0o755)
    with engines.dockerd(PLACE, enter=enter) as engine:
        yield engine


@contextlib.contextmanager
def podman_on(host: TestHost) -> Iterator[Engine]:
    """Have podman on a test host."""
    host.script(f"mkdir {PODMAN_PLACE}")
    with engines.podman(PODMAN_PLACE, words_to_enter(host), host.path("/")) as engine:
        settings = "".join(f"export {word}\n" for word in _words(engine) if not word.startswith("PATH="))
        program = host.path("/usr/local/bin/podman")
        program.write_text(f'#!/bin/sh\n{settings}exec {engines.CACHE}/usr/bin/podman "$@"\n')
        program.chmod(0o755)
        yield engine


def words_to_enter(host: TestHost) -> list[str]:
    return ["nsenter", "-t", str(host.pid), "-m", "-u", "-i", "-n", "-p", "-w", "--"]


class Cluster:
    """Test hosts with an engine each, whose image is the same one."""

    def __init__(self, lab: Lab, found: list[Engine]) -> None:
        self.lab, self.engines = lab, found
        found[0].make_image(IMAGE)
        saved = subprocess.run(
            [*found[0].enter, "env", *_words(found[0]), "docker", "save", IMAGE], capture_output=True, check=True
        ).stdout
        for engine in found[1:]:
            engine("load", stdin=saved)

    def containers(self) -> list[str]:
        return [container for engine in self.engines for container in engine.containers()]

    def reset(self) -> None:
        for host, engine in zip(self.lab.hosts, self.engines, strict=True):
            if left := engine.containers():
                engine("rm", "-f", *left)
            host.script(f"rm -rf {host.home}/.mesh")


def _words(engine: Engine) -> list[str]:
    return [f"{name}={value}" for name, value in engine.environ.items()]


@contextlib.contextmanager
def cluster_of(user: str) -> Iterator[Cluster]:
    if reason := engines.why_not():
        pytest.skip(reason)
    with Lab(2, user=user) as lab, contextlib.ExitStack() as stack:
        yield Cluster(lab, [stack.enter_context(engine_on(host)) for host in lab.hosts])


@pytest.fixture(scope="module")
def session_cluster() -> Iterator[Cluster]:
    with cluster_of("root") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def session_plain_cluster() -> Iterator[Cluster]:
    with cluster_of(PLAIN) as cluster:
        yield cluster


def begin(home: Home, cluster: Cluster, more: str = "") -> None:
    home.clusters(cluster.lab.cluster_yaml())
    home.trust(cluster.lab)
    home.files(mesh__yaml=f"docker:\n  image: {IMAGE}\n{more}")


@pytest.fixture
def cluster(home: Home, session_cluster: Cluster) -> Iterator[Cluster]:
    begin(home, session_cluster)
    yield session_cluster
    check_end(session_cluster)


def check_end(cluster: Cluster) -> None:
    """Check that no container is left; a daemon may be removing one."""
    try:
        assert eventually(lambda: not cluster.containers(), engines.START_S), cluster.containers()
    finally:
        cluster.reset()


@pytest.fixture
def plain_cluster(home: Home, session_plain_cluster: Cluster) -> Iterator[Cluster]:
    """Hosts whose user has no right to docker, but sudo without a password."""
    begin(home, session_plain_cluster)
    for host in session_plain_cluster.lab.hosts:
        host.script(f"echo '{PLAIN} ALL=(ALL) NOPASSWD:ALL' >/etc/sudoers.d/plain; chmod 440 /etc/sudoers.d/plain")
    yield session_plain_cluster
    check_end(session_plain_cluster)


def succeeded(done: Done) -> list[str]:
    assert done.status == 0, done.err
    return done.lines


def up(home: Home, *words: str, said: bytes = b"up") -> subprocess.Popen[bytes]:
    """Start a run on both hosts, and wait until both ranks have printed a line in their containers."""
    process = home.popen("run", *words)
    assert process.stdout is not None
    for _ in range(2):
        line = process.stdout.readline()
        assert line.endswith(said + b"\n"), (line, process.stderr and process.stderr.read())
    return process


def test_each_rank_runs_in_a_container_in_the_workspace(home: Home, cluster: Cluster) -> None:
    home.files(data="from here\n")
    text = 'echo $RANK $LOCAL_RANK $WORLD_SIZE $(cat data); echo $RANK >"made-$RANK"; [ ! -e /etc/debian_version ]'
    lines = succeeded(home.mesh("run", "--nproc", "2", "pod", text))
    assert lines == [f"[{rank}] {rank} {rank % 2} 4 from here" for rank in range(4)]


def test_words_arrive_byte_for_byte(home: Home, cluster: Cluster) -> None:
    printer = ["sh", "-c", 'for word in "$@"; do printf "%s\\0" "$word"; done >words', "sh"]
    succeeded(home.mesh("run", "pod", *printer, *WORDS))
    for host in cluster.lab.hosts:
        (file,) = host.path("/root/.mesh").rglob("words")
        assert file.read_bytes().decode().split("\0")[:-1] == list(WORDS)


def test_variables_of_all_sources(home: Home, cluster: Cluster) -> None:
    begin(home, cluster, "  env: [A=file, B=file, PATH=/bin:/mine]\nprerun: ['export C=prerun']\n")
    lines = succeeded(home.mesh("run", "--env", "B=option", "--ranks", "0", "pod", "echo $A $B $C $PATH"))
    assert lines == ["[0] file option prerun /bin:/mine"]


def test_no_value_is_in_an_argv_of_a_host(home: Home, cluster: Cluster) -> None:
    begin(home, cluster, "  env: [TOKEN=hidden-1]\n")
    words = ("--env", "KEY=hidden-2", "--grace", "1", "pod", "echo $TOKEN $KEY; exec sleep 1000")
    process = up(home, *words, said=b"hidden-1 hidden-2")
    seen = [command for host in cluster.lab.hosts for _, command in host.processes()]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=engines.START_S)
    assert any("docker run" in command for command in seen)
    assert not [command for command in seen if "hidden" in command]


def test_stdin_reaches_rank_0(home: Home, cluster: Cluster) -> None:
    done = home.mesh("run", "-i", "pod", "cat", stdin=b"a\nb\n")
    assert succeeded(done) == ["[0] a", "[0] b"]


def test_the_exit_status_is_the_commands(home: Home, cluster: Cluster) -> None:
    done = home.mesh("run", "pod", "sh", "-c", "[ $RANK = 0 ] || exit 7; sleep 1000")
    assert done.status == 7, done.err


def test_grace_is_for_the_command_in_the_container(home: Home, cluster: Cluster) -> None:
    text = "trap 'sleep 0.5; echo saved; exit 0' TERM INT; echo up; while :; do sleep 0.1; done"
    process = up(home, "--grace", "30", "pod", "sh", "-c", text)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=engines.START_S)
    assert out.count(b"saved") > 0, err.decode()
    assert cluster.containers() == []


def test_sigkill_after_the_grace_leaves_no_container(home: Home, cluster: Cluster) -> None:
    process = up(home, "--grace", "1", "pod", "sh", "-c", STAYS)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=engines.START_S)
    assert "2/2 hosts clean" in err.decode()
    assert cluster.containers() == []


def test_a_killed_client_of_mesh_leaves_no_container(home: Home, cluster: Cluster) -> None:
    process = up(home, "--grace", "1", "--lease", "2", "pod", "sh", "-c", STAYS)
    process.kill()
    process.communicate()
    assert eventually(lambda: cluster.containers() == [], engines.START_S)


@pytest.mark.parametrize("who", ["agent", "agent and guardian"])
def test_killed_agents_leave_no_container(home: Home, cluster: Cluster, who: str) -> None:
    process = up(home, "--grace", "1", "pod", "sh", "-c", STAYS)
    for host in cluster.lab.hosts:
        agents = [pid for pid, command in host.processes() if is_agent(command)]
        kill_together(*(agents if who != "agent" else [max(agents, key=started)]))
    _, err = process.communicate(timeout=engines.START_S)
    assert process.returncode == 76, err.decode()
    assert eventually(lambda: cluster.containers() == [], engines.START_S), err.decode()
    assert "not verified" not in err.decode()


def started(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


# ---- podman


@pytest.fixture(scope="module")
def podmans(session_cluster: Cluster) -> Iterator[list[Engine]]:
    if reason := engines.lacks_libraries("podman"):
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(podman_on(host)) for host in session_cluster.lab.hosts]
        saved = subprocess.run(
            [*session_cluster.engines[0].enter, "env", *_words(session_cluster.engines[0]), "docker", "save", IMAGE],
            capture_output=True,
            check=True,
        ).stdout
        for engine in found:
            engine("load", stdin=saved)
        yield found


@pytest.mark.parametrize("end", ["by itself", "by SIGINT", "agent and guardian killed"])
def test_podman_leaves_no_container(home: Home, cluster: Cluster, podmans: list[Engine], end: str) -> None:
    begin(home, cluster, "  engine: podman\n")
    if end == "by itself":
        assert succeeded(home.mesh("run", "pod", "echo $RANK")) == ["[0] 0", "[1] 1"]
    else:
        process = up(home, "--grace", "1", "pod", "sh", "-c", STAYS)
        if end == "by SIGINT":
            process.send_signal(signal.SIGINT)
        else:
            for host in cluster.lab.hosts:
                kill_together(*(pid for pid, command in host.processes() if is_agent(command)))
        _, err = process.communicate(timeout=engines.START_S)
        assert "not verified" not in err.decode()
        assert end != "by SIGINT" or "2/2 hosts clean" in err.decode(), err.decode()
    assert eventually(lambda: not any(engine.containers() for engine in podmans), engines.START_S)


# ---- refusals: no rank starts


def test_another_image_of_the_same_name_is_refused(home: Home, cluster: Cluster) -> None:
    name = "localhost/twin:1"
    for number, engine in enumerate(cluster.engines):
        engine.make_image(name, ("version", str(number).encode()))
    home.files(mesh__yaml=f"docker: {{image: '{name}'}}\n")
    done = home.mesh("run", "pod", "echo started")
    assert (done.status, done.out) == (125, b"")
    first, second = (host.address for host in cluster.lab.hosts)
    assert f"image {name} is not the same on all hosts: " in done.err
    assert f" on {first}; " in done.err
    assert f" on {second}" in done.err


def test_a_registry_that_is_not_there(home: Home, cluster: Cluster) -> None:
    home.files(mesh__yaml="docker: {image: '127.0.0.1:9/box:1'}\n")
    done = home.mesh("run", "pod", "echo started")
    assert (done.status, done.out) == (125, b"")
    assert "docker: the registry of 127.0.0.1:9/box:1 does not answer (" in done.err


def test_a_host_without_docker(home: Home, cluster: Cluster) -> None:
    begin(home, cluster, "  engine: docker\n")
    programs = [cluster.lab.hosts[1].path(f"/usr/local/bin/{name}") for name in ("docker", "gone")]
    os.rename(*programs)
    try:
        done = home.mesh("run", "pod", "echo started")
    finally:
        os.rename(*reversed(programs))
    assert (done.status, done.out) == (125, b"")
    assert "docker: this host has no docker: sudo apt-get install docker.io" in done.err


# ---- a user without the right to docker


def test_sudo_is_used_and_told(home: Home, plain_cluster: Cluster) -> None:
    begin(home, plain_cluster, "  env: ['TEXT=a b']\n")
    done = home.mesh("run", "--env", "KEY=c d", "pod", "echo $RANK $TEXT $KEY")
    assert succeeded(done) == ["[0] 0 a b c d", "[1] 1 a b c d"]
    assert (
        f"docker: {PLAIN} may not use {PLACE}/sock: sudo is used; for good: sudo usermod -aG docker {PLAIN}" in done.err
    )


def test_grace_through_sudo(home: Home, plain_cluster: Cluster) -> None:
    text = "trap 'sleep 0.5; echo saved; exit 0' TERM INT; echo up; while :; do sleep 0.1; done"
    process = up(home, "--grace", "30", "pod", "sh", "-c", text)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=engines.START_S)
    assert out.count(b"saved") > 0, err.decode()


@pytest.mark.parametrize("who", ["nobody", "agent and guardian"])
def test_sigkill_through_sudo_leaves_no_container(home: Home, plain_cluster: Cluster, who: str) -> None:
    process = up(home, "--grace", "1", "pod", "sh", "-c", STAYS)
    if who == "nobody":
        process.send_signal(signal.SIGINT)
    else:
        for host in plain_cluster.lab.hosts:
            kill_together(*(pid for pid, command in host.processes() if is_agent(command)))
    _, err = process.communicate(timeout=engines.START_S)
    assert eventually(lambda: plain_cluster.containers() == [], engines.START_S), err.decode()
    assert "not verified" not in err.decode()
    assert "left there" not in err.decode()
    assert who != "nobody" or "2/2 hosts clean" in err.decode(), err.decode()


def test_a_user_without_sudo_is_refused(home: Home, plain_cluster: Cluster) -> None:
    for host in plain_cluster.lab.hosts:
        host.script("rm /etc/sudoers.d/plain")
    done = home.mesh("run", "pod", "echo started")
    assert (done.status, done.out) == (125, b"")
    assert f"docker: {PLAIN} may not use docker on this host, and sudo asks for a password: sudo usermod" in done.err
