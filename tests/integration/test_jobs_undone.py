"""Keys and mounts of a job on hosts that stay: they are removed before the job has ended, whoever dies meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.conftest import Home
from tests.desk import Desk, desk_of
from tests.gcs import PROGRAM, FakeGcs, missing
from tests.integration.test_ssh_keys import BOTH_FILES
from tests.lab import Lab, TestHost, eventually

pytestmark = [pytest.mark.root, pytest.mark.sshd]
JOBS_MAX = 12
WITHIN_S = 240.0
JOB = "machines: pod\nworkspace: none\nsetup: {modules: [ssh]}\n"


@pytest.fixture(scope="module")
def two() -> Iterator[Lab]:
    with Lab(2, sshd=[BOTH_FILES]) as lab:
        yield lab


@pytest.fixture
def desk(home: Home, two: Lab) -> Iterator[Desk]:
    home.clusters(two.cluster_yaml())
    home.trust(two)
    try:
        with desk_of(home) as found:
            yield found
    finally:
        two.reset()


def kept(host: TestHost) -> list[str]:
    """All files of the host's user but mesh's own."""
    return [line for line in host.script("find . -not -path './.mesh*' | sort").splitlines() if line != "."]


def keys(hosts: Sequence[TestHost]) -> list[bool]:
    """Return for each host if it has a job's key."""
    return [any("mesh-job" in line for line in kept(host)) for host in hosts]


def test_keys_are_there_while_a_job_runs_and_removed_before_it_has_ended(desk: Desk, two: Lab) -> None:
    before = [kept(host) for host in two.hosts]
    go = "touch ~/began; until [ -e ~/go ]; do sleep 0.1; done; rm ~/began ~/go"
    job = desk.submit(JOB + f"run: '{go}'\n")
    assert eventually(lambda: all(host.path("/root/began").exists() for host in two.hosts), WITHIN_S), desk.show(job)
    assert keys(two.hosts) == [True, True]
    for host in two.hosts:
        host.path("/root/go").touch()
    assert desk.mesh("job", "wait", str(job), "--timeout", str(WITHIN_S), within=WITHIN_S + 60).status == 0
    assert [kept(host) for host in two.hosts] == before
    logs = desk.place / str(job) / "logs"
    assert (logs / "ssh_worker_0.log").exists()
    assert (logs / "ssh_undo_worker_1.log").exists()
    assert desk.show(job)["left_on"] == []
    # The command alone needs its keys too, and they are removed again.
    assert desk.mesh("job", "restart", str(job), "--skip-setup").status == 0
    assert eventually(lambda: all(host.path("/root/began").exists() for host in two.hosts), WITHIN_S), desk.show(job)
    assert keys(two.hosts) == [True, True]
    assert desk.mesh("job", "stop", str(job)).status == 0
    desk.until(job, "stopped", within=WITHIN_S)
    assert keys(two.hosts) == [False, False]


def test_modules_of_mesh_yaml_are_undone_too(desk: Desk, two: Lab) -> None:
    desk.home.files(mesh__yaml="modules: [ssh]\n")
    job = desk.submit("machines: pod\nrun: ls ~/.ssh/mesh-job*\n")
    assert desk.mesh("job", "wait", str(job), "--timeout", str(WITHIN_S), within=WITHIN_S + 60).status == 0
    assert b"mesh-job" in desk.output(job)
    assert keys(two.hosts) == [False, False]


def killed_while_it_undoes(desk: Desk) -> int:
    """Kill the steward and its hand while they remove the keys of a job; return the job."""
    for _ in range(JOBS_MAX):  # the removal is short, so it may be over before it is seen
        job = desk.submit(JOB + "run: 'true'\n")
        victims: list[int] = []

        def is_over(job: int = job, victims: list[int] = victims) -> bool:
            victims[:] = desk.processes("mesh-hand\0undo") or desk.processes("mesh-hand undo")
            return bool(victims) or desk.rows(job)[0]["state"] == "succeeded"

        assert eventually(is_over, WITHIN_S), desk.show(job)
        if not victims:
            continue
        desk.kill([*desk.processes("mesh\0serve"), *victims])
        return job
    raise AssertionError("no removal was seen")


def test_a_steward_and_its_hand_die_while_keys_are_removed(desk: Desk, two: Lab) -> None:
    job = killed_while_it_undoes(desk)
    assert desk.mesh("job", "list").status == 0  # it starts a steward
    assert desk.mesh("job", "wait", str(job), "--timeout", str(WITHIN_S), within=WITHIN_S + 60).status == 0
    assert keys(two.hosts) == [False, False], desk.show(job)
    events = desk.mesh("job", "show", str(job), "--events", "--json").out
    assert events.count(b'"event":"undone"') >= 1
    assert events.count(b'"event":"run-started"') == 1


def test_a_host_on_which_keys_are_left_is_named_with_the_command(desk: Desk, two: Lab) -> None:
    job = desk.submit(JOB + "run: 'touch ~/began; until [ -e ~/go ]; do sleep 0.1; done'\n")
    assert eventually(lambda: all(host.path("/root/began").exists() for host in two.hosts), WITHIN_S), desk.show(job)
    bad = two.hosts[1]
    bad.script("mount --bind .ssh .ssh; mount -o remount,ro,bind .ssh")
    try:
        for host in two.hosts:
            host.path("/root/go").touch()
        assert desk.mesh("job", "wait", str(job), "--timeout", str(WITHIN_S), within=WITHIN_S + 60).status == 0
    finally:
        bad.script("umount .ssh")
    found = desk.show(job)
    assert found["left_on"] == [bad.address]
    assert f"keys or mounts may be left on {bad.address}" in str(found["reason"])
    assert found["hint"] == f"mesh job setup {job} --undo"
    assert keys(two.hosts) == [False, True]
    assert desk.mesh("job", "setup", str(job), "--undo").status == 0
    assert keys(two.hosts) == [False, False]
    assert desk.show(job)["left_on"] == []


@pytest.mark.skipif(bool(missing()), reason=missing() or "nothing")
def test_a_bucket_is_unmounted(desk: Desk, two: Lab, tmp_path: Path) -> None:
    network = ".".join(two.hosts[0].address.split(".")[:2])
    with FakeGcs(f"{network}.0.1") as gcs:
        gcs.bucket("mine", a__txt="hello\n")
        for host in two.hosts:
            host.path(PROGRAM).write_text(gcs.program())
            host.path(PROGRAM).chmod(0o755)
        text = "setup: {modules: [gcsfuse]}\ngcsfuse: {bucket: mine, path: /srv/data}\n"
        job = desk.submit(
            f"machines: pod\nworkspace: none\n{text}run: 'cat /srv/data/a.txt; echo $RANK >/srv/data/$RANK'\n"
        )
        assert desk.mesh("job", "wait", str(job), "--timeout", str(WITHIN_S), within=WITHIN_S + 60).status == 0
        assert desk.output(job) == b"hello\n"
        assert [gcs.read("mine", name) for name in "01"] == ["0\n", "1\n"]
        for host in two.hosts:
            assert "fuse.gcsfuse" not in host.run("cat", "/proc/self/mountinfo")
            host.path(PROGRAM).unlink()
