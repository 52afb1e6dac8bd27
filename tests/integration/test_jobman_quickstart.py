"""JOBMAN's quick start on test hosts: modules on all of them, docker around the command of worker 0, logs by name."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import engines
from tests.conftest import Home
from tests.desk import Desk, desk_of
from tests.gcs import PROGRAM, FakeGcs, missing
from tests.integration.test_docker_module import IMAGE, Cluster, engine_on
from tests.integration.test_ssh_keys import BOTH_FILES
from tests.lab import Lab, TestHost

pytestmark = [
    pytest.mark.root,
    pytest.mark.sshd,
    pytest.mark.skipif(bool(missing()), reason=missing() or "nothing"),
]
WITHIN_S = 300.0
OUTPUT = ["in /home/zephyr: hello it's", "to stderr"]  # the container has two streams: either may come first
BUCKET = "llm_pruning_us_east1_d"
QUICK_START = f"""\
job:
  name: test-v6

tpu:
  allocation_mode: "queued-resources"    # tpu-vm | queued-resources
  accelerator: v6e-1
  name: yufeng-${{tpu.accelerator}}
  zone: us-east1-d
  version: v2-alpha-tpuv6e
  pricing: spot
  startup_script: null
  tags: ["jobman", "experiment"]
  metadata:
    owner: "yufeng"
    purpose: "testing jobman"

setup:
  modules:
    - gcsfuse
    - ssh
    - docker
    - command

gcsfuse:
  bucket_name: {BUCKET}
  mount_path: /home/zephyr/gcs-bucket

ssh:
  tpu_private_key: ~/keys/id_rsa
  tpu_public_key: ~/keys/id_rsa.pub

docker:
  image: {IMAGE}
  mount_dirs:
    - /home/zephyr
    - /dev
    - /run
    - /home/zephyr/.ssh:/root/.ssh
  workdir: /home/zephyr
  flags: ["--network=host"]  # the engine of a test host has no right to --privileged

command:
  run: |
    echo "in $PWD: $(cat gcs-bucket/a.txt)" "it's"
    echo to stderr >&2
    [ -e /home/zephyr/go ] || sleep 600
  workers: [0]
"""


class World:
    """A user, two hosts with docker and gcsfuse, and a bucket."""

    def __init__(self, desk: Desk, lab: Lab) -> None:
        self.desk, self.lab, self.mesh = desk, lab, desk.mesh
        self.project = desk.home.project

    def mounts(self) -> list[int]:
        return [host.index for host in self.lab.hosts if mounts_of(host)]


def mounts_of(host: TestHost) -> list[str]:
    return [line for line in host.run("cat", "/proc/self/mountinfo").splitlines() if " - fuse.gcsfuse " in line]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Cluster]:
    if reason := engines.why_not():
        pytest.skip(reason)
    with Lab(2, sshd=[BOTH_FILES]) as lab, contextlib.ExitStack() as stack:
        network = ".".join(lab.hosts[0].address.split(".")[:2])
        gcs = stack.enter_context(FakeGcs(f"{network}.0.1"))
        gcs.bucket(BUCKET, a__txt="hello")
        for host in lab.hosts:
            host.path(PROGRAM).write_text(gcs.program())
            host.path(PROGRAM).chmod(0o755)
            host.script("mkdir -p /home/zephyr/.ssh")
        yield Cluster(lab, [stack.enter_context(engine_on(host)) for host in lab.hosts])


@pytest.fixture
def world(home: Home, hosts: Cluster) -> Iterator[World]:
    home.clusters(hosts.lab.cluster_yaml())
    home.trust(hosts.lab)
    (home.path / "keys").mkdir()
    (home.path / "keys/id_rsa").write_text("a private key\n")
    (home.path / "keys/id_rsa.pub").write_text("a public key\n")
    home.files(**{"quick-start__yaml": QUICK_START})
    with desk_of(home) as desk:
        yield World(desk, hosts.lab)
    assert hosts.containers() == []
    for host in hosts.lab.hosts:
        host.script("rm -f /home/zephyr/go")
        for line in mounts_of(host):
            host.run("umount", "-l", line.split()[4])
    hosts.reset()


def test_the_quick_start_by_the_commands_of_mesh(world: World) -> None:
    desk = world.desk
    for host in world.lab.hosts:
        host.script("touch /home/zephyr/go")
    done = desk.mesh("job", "submit", "quick-start.yaml", "--cluster", "pod")
    assert done.status == 0, done.err
    assert "tpu.tags, tpu.metadata, docker.mount_dirs, docker.workdir: used here" in done.err
    assert desk.mesh("job", "wait", "1", within=WITHIN_S).status == 0, desk.show(1)
    logs = Path(str(desk.show(1)["directory"])) / "logs"
    assert sorted((logs / "main_command_worker_0.log").read_text().splitlines()) == OUTPUT
    assert sorted(path.name for path in logs.iterdir() if path.name.startswith("gcsfuse_worker")) == [
        "gcsfuse_worker_0.log",
        "gcsfuse_worker_1.log",
    ]
    assert all((logs / f"{name}_worker_1.log").exists() for name in ("gcsfuse", "ssh", "docker"))
    shown = desk.mesh("job", "logs", "1", "--module", "gcsfuse").out.decode().splitlines()
    told = [(logs / f"gcsfuse_worker_{worker}.log").read_text().splitlines() for worker in (0, 1)]
    assert shown == [f"[{worker}] {line}" for worker in (0, 1) for line in told[worker]] != []
    unknown = desk.mesh("job", "logs", "1", "--module", "conda")
    assert unknown.status == 2
    assert "job 1 has no log of a module 'conda'; there are those of docker, gcsfuse, " in unknown.err
    assert not (logs / "main_command_worker_1.log").exists()
    assert re.search(r" run \S+ sets up gcsfuse, ssh, docker on ", (logs / "job.log").read_text())
    assert world.mounts() == []  # the job has given its hosts back
    assert (logs / "gcsfuse_undo_worker_1.log").exists()
    assert "test-v6" in desk.mesh("job", "list").out.decode()


def test_the_quick_start_by_the_commands_of_jobman(world: World) -> None:
    mesh, project = world.mesh, world.project
    done = mesh("jobman", "create", "--config=quick-start.yaml", "--cluster", "pod")
    assert done.status == 0, done.err
    assert done.out.decode().splitlines() == ["job 000001 test-v6: jobs/000001", "logs: jobs/000001/logs"]
    place = project / "jobs/000001"
    assert (place / "job.yaml").read_text() == QUICK_START  # at once: the steward may be busy
    assert "allocation_mode" not in (place / "config.yaml").read_text()
    assert (project / "jobs/.gitignore").read_text() == "*\n"
    world.desk.until(1, "running", within=WITHIN_S)
    listed = mesh("jobman", "list").out.decode().splitlines()
    assert listed[0].split() == ["Job", "ID", "User", "Name", "Accelerator", "Zone", "Host0", "IP", "Status"]
    address = world.lab.hosts[0].address
    assert listed[1].split()[-1] == "RUNNING"
    assert listed[1].split()[0] == "000001"
    assert address in listed[1].split()
    assert [one["worker"] for one in json.loads((place / "ips.json").read_text())] == [0, 1]
    assert (place / "start_time.txt").exists()
    assert world.mounts() == [host.index for host in world.lab.hosts]  # the command runs on one of them alone
    assert (place / "logs/gcsfuse_worker_0.log").exists()
    assert (place / "logs/gcsfuse_worker_1.log").exists()
    world.desk.home.own_known_hosts()
    assert mesh("jobman", "ssh", "000001", "--", "hostname").out.decode().strip() == world.lab.hosts[0].name
    for module in ("ssh", "gcsfuse"):
        again = mesh("jobman", module, "000001", within=WITHIN_S)
        assert again.status == 0, again.err
    assert mesh("jobman", "conda", "1").status == 2
    pulled = mesh("jobman", "docker", "000001", within=WITHIN_S)
    assert pulled.status == 0, pulled.err
    assert mesh("jobman", "cancel", "000001").status == 0
    world.desk.until(1, "stopped", within=WITHIN_S)
    assert mesh("jobman", "list").out.decode().splitlines()[1].split()[-1] == "DEAD"
    for host in world.lab.hosts:
        host.script("touch /home/zephyr/go")
    assert mesh("jobman", "resume", "000001").out.decode().startswith("job 000001 test-v6: QUEUEING")
    assert mesh("job", "wait", "1", within=WITHIN_S).status == 0
    assert sorted((place / "logs/main_command_worker_0.log").read_text().splitlines()) == OUTPUT
    status = mesh("jobman", "status", "000001").out.decode()
    assert "Job Name" in status
    assert sorted(status.splitlines()[-2:]) == OUTPUT
    ran = mesh("jobman", "run", "000001", "--cmd-only", within=WITHIN_S)
    assert ran.status == 0
    assert b"hello it's" in ran.out
    log = (place / "logs/job.log").read_text()
    # For the third attempt mesh sets up only what it has removed at the end of the second one.
    assert (log.count("sets up gcsfuse, ssh, docker"), log.count("sets up gcsfuse, ssh on")) == (2, 1)
    assert world.mounts() == []
    assert all(not host.script("cat .ssh/authorized_keys 2>/dev/null || true") for host in world.lab.hosts)
    gone = mesh("jobman", "delete", "000001")
    assert gone.status == 0, gone.err
    assert not place.is_symlink()
    assert mesh("jobman", "list").out.decode().splitlines()[1:] == []
