"""Jobs whose machines are made: whole lives on a stand-in for the TPU API, with sshd hosts behind its addresses."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Home, new_home
from tests.desk import Desk, desk_of
from tests.lab import eventually
from tests.tpu_desk import (
    NAP,
    WITHIN_S,
    end_of,
    is_replaced_after,
    job_file,
    jobs_end,
    make_user,
    name_of,
    place_of,
    served,
    wait_for_naps,
)
from tests.tpu_steward import steward
from tests.tpuemulator.client import ZONES, Emulator

pytestmark = pytest.mark.root
PLACE = "echo $MESH_ATTEMPT $RANK of $WORLD_SIZE slice $SLICE_ID worker $WORKER_ID"
FIRST_SLEEPS = f"echo $MESH_ATTEMPT; [ $MESH_ATTEMPT != 1 ] || {NAP}"


@pytest.fixture(scope="module")
def lasting_desk(session_emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A user with one steward, for the jobs of all tests here, one after another."""
    home = new_home(tmp_path_factory.mktemp("user"))
    make_user(home, session_emulator)
    with served(home) as found:
        yield found


@pytest.fixture
def desk(lasting_desk: Desk, tpus: Emulator, tmp_path: Path) -> Iterator[Desk]:
    """A user with a steward, and a project without files."""
    lasting_desk.home.project = tmp_path
    with jobs_end(lasting_desk):
        yield lasting_desk


LIVES = (("tpu-vm", 1, "ondemand"), ("queued-resources", 1, "spot"), ("queued-resources", 2, "best-effort"))


def test_whole_lives_of_three_jobs_with_machines_of_each_kind(desk: Desk, tpus: Emulator) -> None:
    """Together they want more hosts than there are, so that a slice of the last one may wait for the others' end."""
    before = len(tpus.journal())
    jobs = [
        desk.submit(job_file(PLACE, allocation_mode=mode, slices=slices, pricing=pricing, accelerator="v4-16"))
        for mode, slices, pricing in LIVES
    ]
    for job, (mode, slices, _) in zip(jobs, LIVES, strict=True):
        shown = end_of(desk, job)
        assert (shown["state"], shown["exit_code"]) == ("succeeded", 0), shown
        hosts = 2 * slices
        lines = desk.mesh("job", "logs", str(job)).out.decode().splitlines()
        assert sorted(line.partition("] ")[2] for line in lines) == [
            f"1 {rank} of {hosts} slice {rank // 2} worker {rank % 2}" for rank in range(hosts)
        ]
        what = "create-node" if mode == "tpu-vm" else "create-request"
        made = [one for one in tpus.journal()[before:] if one["what"] == what]
        (created,) = [one for one in made if one["labels"]["mesh-job"] == str(job)]
        assert created["name"].startswith("train-")
        assert created["zone"] == ZONES[0]
    assert not tpus.nodes
    assert not tpus.requests


def test_an_idle_worker_gives_its_machines_back_and_asks_for_others_once_there_is_a_task(
    desk: Desk, tpus: Emulator
) -> None:
    tasks, place = desk.home.project / "tasks.yaml", desk.place / "tasks"
    task = "accelerators:\n  v4-8:\n    tasks:\n      - {id: first, run: echo first on $(hostname)}\n"
    tasks.write_text(task)
    queue = "job: {queue: {config: tasks.yaml, idle: 3s, enabled: true}}"
    worker = desk.submit(f"tpu: {{accelerator: v4-8, version: tpu-ubuntu2204-base, zone: {ZONES[0]}}}\n{queue}\n")
    logs = place / "first"
    assert eventually(lambda: [*logs.glob("run_001_*_worker_0.log")], WITHIN_S), desk.show(worker)
    desk.until(worker, "queued", within=WITHIN_S)
    assert eventually(lambda: not tpus.nodes and not tpus.requests, WITHIN_S), tpus.state
    made = len(tpus.effects("create-node"))
    beside = tasks.with_suffix(".new")
    beside.write_text(f"{task}      - {{id: second, run: echo second}}\n")
    beside.rename(tasks)
    assert eventually(lambda: [*(place / "second").glob("run_001_*_worker_0.log")], WITHIN_S), desk.show(worker)
    assert len(tpus.effects("create-node")) == made + 1
    desk.mesh("job", "stop", str(worker))
    assert end_of(desk, worker)["state"] == "stopped"
    assert not tpus.nodes


WAYS = ("vanished", "suspended")  # beside those of the tests below


def test_preempted_while_it_runs(desk: Desk, tpus: Emulator) -> None:
    """A job loses its machines, in one way after another. The quota is full until a suspended request is deleted."""
    tpus.set(quota={ZONES[0]: 4})
    last = len(WAYS) + 1
    command = f"echo $MESH_ATTEMPT; [ $MESH_ATTEMPT = {last} ] || {NAP}"
    job = desk.submit(job_file(command, zones=f"[{ZONES[0]}]"))
    for attempt, how in enumerate(WAYS, 1):
        wanted = ("running", attempt)
        desk.until_row(job, lambda row, wanted=wanted: (row["state"], row["attempt"]) == wanted, WITHIN_S)  # type: ignore[misc]
        (ready,) = [name for name, one in tpus.nodes.items() if one["state"] == "READY"]
        zone, _, name = ready.partition("/")
        tpus.control("preempt", zone=zone, name=name, how=how)
    shown = end_of(desk, job)
    counts = (shown["state"], shown["attempt"], shown["preemptions"], shown["failures"])
    assert counts == ("succeeded", last, len(WAYS), 0), shown
    assert desk.output(job).endswith(b"%d\n" % last)
    assert is_replaced_after(tpus)


def test_the_output_of_a_slice_that_is_still_there_is_fetched(desk: Desk, tpus: Emulator) -> None:
    job = desk.submit(job_file(FIRST_SLEEPS, slices=2))
    desk.until(job, "running", within=WITHIN_S)
    wait_for_naps(2)
    first, second = sorted(tpus.nodes)
    assert second.endswith("-1")
    zone, _, name = second.partition("/")
    tpus.control("preempt", zone=zone, name=name, how="PREEMPTED")
    shown = end_of(desk, job)
    assert (shown["state"], shown["attempt"], shown["preemptions"]) == ("succeeded", 2, 1), shown
    assert desk.output(job) == b"1\n2\n", first
    assert is_replaced_after(tpus)


def test_eager_machines_are_asked_for_at_once_and_no_rank_starts_beside_the_lost_ones(
    desk: Desk, tpus: Emulator
) -> None:
    tpus.set(hold=["DELETING"])
    job = desk.submit(job_file(f"date +%s.%N; {FIRST_SLEEPS}", recreate="eager", zones=f"[{ZONES[0]}]"))
    desk.until(job, "running", within=WITHIN_S)
    tpus.control("preempt", **place_of(tpus, "READY"), how="PREEMPTED")
    desk.until_row(job, lambda row: "-g1 is gone" in str(row["reason"]), WITHIN_S)  # the others are ready
    tpus.set(hold=[])
    shown = end_of(desk, job)
    assert (shown["state"], shown["attempt"], shown["preemptions"]) == ("succeeded", 2, 1), shown
    times = {
        (one["what"], one["name"].rpartition("-")[2]): one["time"]
        for one in tpus.journal()
        if f"-{job}-g" in one["name"]
    }
    assert times["create-request", "g2"] < times["gone-request", "g1"]
    begun, attempt = desk.output(job).split()[-2:]
    assert attempt == b"2"
    assert float(begun) > times["gone-request", "g1"]


def test_preempted_in_prerun(desk: Desk, tpus: Emulator) -> None:
    desk.home.files(mesh__yaml="prerun:\n  - '[ $MESH_PREEMPTIONS != 0 ] || sleep 300'\n")
    job = desk.submit(job_file("echo $MESH_ATTEMPT"))
    desk.until(job, "preparing", within=WITHIN_S)
    tpus.control("preempt", **place_of(tpus, "READY"), how="TERMINATED")
    shown = end_of(desk, job)
    assert (shown["state"], shown["preemptions"], shown["failures"]) == ("succeeded", 1, 0), shown
    assert is_replaced_after(tpus)


def test_lost_in_the_queue_and_while_booting(desk: Desk, tpus: Emulator) -> None:
    tpus.set(hold=["WAITING_FOR_RESOURCES", "CREATING"])
    job = desk.submit(job_file("echo $MESH_ATTEMPT"))
    zone, _, name = name_of(tpus).partition("/")
    assert zone == ZONES[0]
    tpus.control("fail", zone=zone, name=name, error="no more of it today")
    second, _, _ = name_of(tpus, 2).partition("/")
    assert second == ZONES[1]
    assert [row["state"] for row in desk.rows(job)] == ["requesting"]
    tpus.set(hold=["CREATING"])
    tpus.control("preempt", **place_of(tpus, "CREATING", 2), how="PREEMPTED")
    tpus.set(hold=[])
    shown = end_of(desk, job)
    assert (shown["state"], shown["attempt"], shown["failures"]) == ("succeeded", 1, 0), shown
    assert is_replaced_after(tpus)


def test_no_quota_in_the_first_zone(desk: Desk, tpus: Emulator) -> None:
    tpus.set(quota={ZONES[0]: 0})
    job = desk.submit(job_file("true", allocation_mode="tpu-vm"))
    assert end_of(desk, job)["state"] == "succeeded"
    assert {one["zone"] for one in tpus.journal() if f"-{job}-g" in one["name"]} >= {ZONES[1]}
    wrong = desk.submit(job_file("true", version="wrong"), name="wrong")
    shown = end_of(desk, wrong)
    assert shown["state"] == "held", shown
    assert "runtime_version is not known" in str(shown["reason"])
    assert "gcloud compute tpus versions list" in str(shown["hint"])


def test_no_rank_starts_before_every_address_is_there(desk: Desk, tpus: Emulator) -> None:
    tpus.set(times={"endpoints": 1.0, "CREATING": 0.1})
    job = desk.submit(job_file("echo $WORLD_SIZE", accelerator="v4-24"))
    shown = desk.until(job, "preparing", "running", "succeeded", within=WITHIN_S)
    assert end_of(desk, job)["state"] == "succeeded", shown
    assert desk.output(job) == b"3\n"


SILENCES = {
    "no permission": [{"verb": "*", "status": "PERMISSION_DENIED"}],
    "silent": [{"verb": "*", "hang": 0.5, "status": "DEADLINE_EXCEEDED"}],
}


def test_an_api_that_gives_no_answer_changes_nothing(desk: Desk, tpus: Emulator) -> None:
    """The same two jobs meet each way to give no answer, one after another."""
    first = desk.submit(job_file("while [ ! -e /tmp/go ]; do sleep 0.1; done"), name="runs")
    desk.until(first, "running", within=WITHIN_S)
    tpus.set(hold=["WAITING_FOR_RESOURCES"])
    second = desk.submit(job_file("true"), name="waits")
    assert eventually(lambda: len(tpus.requests) == 2, WITHIN_S)
    desk.until_row(second, lambda row: "WAITING" in str(row["reason"]), WITHIN_S)
    for what in (*SILENCES, "holes and unknown states"):
        changes_nothing(desk, tpus, what, (first, second))
        tpus.faults()
        tpus.control("holes")
        tpus.control("future")
        desk.until_row(second, lambda row: not row["api_silent_since"], WITHIN_S)
    tpus.calm()
    assert desk.mesh("exec", f"job:{first}", "touch", "/tmp/go", within=WITHIN_S).status == 0
    assert (end_of(desk, first)["state"], end_of(desk, second)["state"]) == ("succeeded", "succeeded")


def changes_nothing(desk: Desk, tpus: Emulator, what: str, jobs: tuple[int, int]) -> None:
    """Look that a way to give no answer changes neither the job that runs nor the one that waits for machines."""
    node = place_of(tpus, "READY")
    before = len(tpus.journal())
    tpus.faults(*SILENCES.get(what, []))
    if what not in SILENCES:
        tpus.control("holes", holes={"ListNodes": "half"})
        tpus.control("future", **{node["name"]: 77})
    # Longer than any evidence takes: two looks, 2 s apart.
    looks = "ListQueuedResources"
    assert eventually(lambda: tpus.state["counts"].get(looks, 0) >= 8, WITHIN_S), (what, tpus.state)
    counts = tpus.state["counts"]
    assert not {verb for verb in counts if verb.startswith(("Create", "Delete"))}, what
    assert len(tpus.journal()) == before, what
    shown = desk.until_row(jobs[1], lambda row: row["api_silent_since"], WITHIN_S)
    assert shown["api_silence"], what
    assert not shown["silent_since"], what
    assert [row["state"] for row in desk.rows(*jobs)] == ["running", "requesting"], what
    assert len(tpus.journal()) == before, what


def test_another_machine_at_the_same_address(desk: Desk, tpus: Emulator) -> None:
    """The key of another TPU is accepted, and it is not taken for the one before."""
    keys = desk.home.path / ".ssh/known_hosts"
    known = len(keys.read_text().splitlines()) if keys.exists() else 0
    job = desk.submit(job_file(FIRST_SLEEPS))
    desk.until(job, "running", within=WITHIN_S)
    tpus.control("replace_id", **place_of(tpus, "READY"))
    shown = end_of(desk, job)
    assert (shown["state"], shown["preemptions"]) == ("succeeded", 1), shown
    assert len(keys.read_text().splitlines()) == known + 2  # by the ids of their TPUs


def test_nodes_whose_request_has_vanished_are_deleted(desk: Desk, tpus: Emulator) -> None:
    job = desk.submit(job_file(NAP, slices=2))
    desk.until(job, "running", within=WITHIN_S)
    zone, _, name = name_of(tpus).partition("/")
    tpus.control("lose_request", zone=zone, name=name)
    assert len(tpus.nodes) == 2
    assert desk.mesh("job", "stop", str(job)).status == 0
    assert end_of(desk, job)["state"] == "stopped"
    assert not tpus.nodes


def test_a_job_that_is_stopped_while_machines_are_made(desk: Desk, tpus: Emulator) -> None:
    tpus.set(hold=["CREATING"])
    job = desk.submit(job_file("true"))
    place_of(tpus, "CREATING")
    assert desk.mesh("job", "stop", str(job)).status == 0
    assert end_of(desk, job)["state"] == "stopped"
    assert not tpus.nodes
    assert not tpus.requests


def test_machines_that_boot_slowly_are_waited_for(desk: Desk, tpus: Emulator) -> None:
    tpus.set(times={"boot": 5.0})
    job = desk.submit(job_file("echo $MESH_ATTEMPT"))
    shown = end_of(desk, job)
    assert (shown["state"], shown["attempt"], shown["failures"]) == ("succeeded", 1, 0), shown
    assert not tpus.nodes


def test_an_attempt_that_fails_is_followed_by_another_one_on_the_same_machines(desk: Desk, tpus: Emulator) -> None:
    text = job_file("echo $MESH_ATTEMPT; [ $MESH_ATTEMPT = 2 ]").replace("on: preemption", "on: failure")
    job = desk.submit(text)
    shown = end_of(desk, job)
    assert (shown["state"], shown["attempt"], shown["failures"]) == ("succeeded", 2, 1), shown
    assert desk.output(job) == b"1\n2\n"
    newest = tpus.effects("create-request")[-1]
    assert newest.endswith("-g1")


class Greeting(socketserver.BaseRequestHandler):
    """A greeting as an SSH server has it."""

    def handle(self) -> None:
        self.request.sendall(b"SSH-2.0-probe\r\n")


@contextlib.contextmanager
def answers(server: socketserver.ThreadingTCPServer) -> Iterator[None]:
    """Have a server answer."""
    server.server_activate()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


def test_silent_hosts_that_are_ready_are_lost_only_while_a_server_elsewhere_answers(desk: Desk, tpus: Emulator) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Greeting, bind_and_activate=False) as server:
        server.server_bind()  # the port is ours, and refuses connections
        probe = f"'127.0.0.1:{server.server_address[1]}'"
        job = desk.submit(job_file(FIRST_SLEEPS, unreachable_for="1s", probe=probe))
        desk.until(job, "running", within=WITHIN_S)
        tpus.control("preempt", **place_of(tpus, "READY"), how="dead")
        desk.until_row(job, lambda row: row["silent_since"], WITHIN_S)
        tpus.faults()
        assert eventually(lambda: tpus.state["counts"].get("ListNodes", 0) >= 4, WITHIN_S)  # each tries the hosts
        assert [row["state"] for row in desk.rows(job)] == ["running"]
        assert not {verb for verb in tpus.state["counts"] if verb.startswith(("Create", "Delete"))}
        with answers(server):
            shown = end_of(desk, job)
    assert (shown["state"], shown["attempt"], shown["preemptions"], shown["failures"]) == ("succeeded", 2, 1, 0), shown
    assert "silent for" in desk.mesh("job", "show", str(job), "--events").out.decode()
    assert is_replaced_after(tpus)


def test_a_cost_limit_outlives_the_steward_and_gives_the_machines_back(tpu_user: Home, tpus: Emulator) -> None:
    """A price of 3600 for the hour of a chip is one a second: 4 chips spend the limit in some 4 seconds."""
    prices = tpu_user.path / ".config/mesh/prices.yaml"
    prices.parent.mkdir(parents=True, exist_ok=True)
    tpu_user.environ["MESH_SERVE"] = "0"
    text = job_file(f"echo kept >out; {NAP}", "results: [out]", "cost: {limit: 16}", pricing="spot")
    with desk_of(tpu_user) as desk:
        with steward(desk) as process:
            (tpu_user.project / "train.yaml").write_text(text)
            planned = desk.mesh("job", "submit", "train.yaml", "--dry-run").out.decode()
            assert "price      unknown for v4/us-central2/spot, v4/us-east1/spot" in planned
            assert "machines of v4/us-central2/spot, v4/us-east1/spot are not counted" in planned
            job = desk.submit(text)
            desk.until(job, "running", within=WITHIN_S)
            wait_for_naps()
            process.kill()
        prices.write_text("currency: USD\nchip_hour: {v4/us-central2/spot: 3600}\n")
        with steward(desk):
            shown = desk.until(job, "held", within=WITHIN_S)
            assert "cost limit reached" in str(shown["reason"]), shown
            assert eventually(lambda: not tpus.nodes and not tpus.requests, WITHIN_S)
            desk.until_row(job, lambda row: not row["machines"], WITHIN_S)
            assert (tpu_user.path / f".local/state/mesh/jobs/{job}/results/rank-0000/out").read_text() == "kept\n"
            assert desk.mesh("job", "wait", str(job)).status == 75
            listed = desk.mesh("job", "list", "--columns", "id,cost").out.decode().splitlines()
            assert listed[1].endswith(" of 16"), listed
            (bill,) = map(json.loads, desk.mesh("job", "cost", "--json").out.splitlines())
            assert float(listed[1].split()[1]) == pytest.approx(bill["amount"], abs=0.01)
            assert bill["amount"] >= 16
            assert desk.mesh("job", "stop", str(job)).status == 0
            assert end_of(desk, job)["state"] == "stopped"
