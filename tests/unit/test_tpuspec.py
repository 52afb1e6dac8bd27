"""`tpu:` of a job file: what it asks for, and all of its problems."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.config.clusters import find_cluster, load_clusters
from mesh.config.prices import read_prices
from mesh.config.quotas import read_quotas
from mesh.config.tpuflags import INSTEAD, WORDS, read_flags
from mesh.config.tpusource import TpuMade
from mesh.core.errors import UsageError
from mesh.core.job import JobSpec, MachinesSpec
from mesh.core.tpu import MAKE_FOR_S, Pricing, Provision, TpuSpec
from tests.conftest import REPOSITORY
from tests.unit.test_jobfile import problems, read

LEAST = "accelerator: v6e-8, version: tpu-ubuntu2204-base, zone: us-east1-d"


def tpu(directory: Path, text: str) -> TpuSpec:
    found = machines(directory, text).tpu
    assert found is not None
    return found


def machines(directory: Path, text: str) -> MachinesSpec:
    spec: JobSpec = read(directory, f"tpu: {{{text}}}\nrun: x\n")
    return spec.machines


def wrong(directory: Path, text: str) -> list[str]:
    return [line.removeprefix("train.yaml:1: tpu.") for line in problems(directory, f"tpu: {{{text}}}\nrun: x\n")]


def test_the_least_that_a_file_says(tmp_path: Path) -> None:
    found = machines(tmp_path, LEAST)
    asked = TpuSpec(accelerator="v6e-8", runtime="tpu-ubuntu2204-base", zones=("us-east1-d",))
    assert found == MachinesSpec(maker="tpu", pool="v6e/us-east1-d/ondemand", units=8, tpu=asked)
    assert asked.make_for == MAKE_FOR_S


def test_a_file_of_jobman(tmp_path: Path) -> None:
    (tmp_path / "start.sh").write_text("#!/bin/bash\necho hello\n")
    spec = read(
        tmp_path,
        "job: {name: tpu_1}\n"
        "tpu:\n"
        "  allocation_mode: tpu-vm\n"
        "  accelerator: v4-16\n"
        "  name: zephyr_${job.name}\n"
        "  zone: us-central2-b\n"
        "  project: vision-mix\n"
        "  version: tpu-ubuntu2204-base\n"
        "  pricing: spot\n"
        "  startup_script: start.sh\n"
        "  tags: [keep-alive]\n"
        "  metadata: {a: 1}\n"
        "  flags: null\n"
        "  num_workers: 2\n"
        "  ips: [{worker: 0, internal_ip: 10.0.0.1}]\n"
        "command: {cmd: 'true', workers: all}\n",
    )
    assert spec.machines.tpu == TpuSpec(
        accelerator="v4-16",
        runtime="tpu-ubuntu2204-base",
        zones=("us-central2-b",),
        project="vision-mix",
        provision=Provision.TPU_VM,
        pricing=Pricing.SPOT,
        prefix="zephyr-tpu-1",
        startup_script="#!/bin/bash\necho hello\n",
        tags=("keep-alive",),
        metadata={"a": "1"},
    )
    assert (spec.machines.pool, spec.machines.units) == ("v4/us-central2-b/spot", 8)


def test_keys_of_mesh(tmp_path: Path) -> None:
    found = tpu(
        tmp_path,
        "accelerator: v5litepod-16, runtime: v2-alpha, zones: [us-east1-d, us-east5-b], slices: 2, reservation: r1, "
        "labels: {team: a}, network: n, subnetwork: s, external_ips: false, service_account: a@b, scopes: [x], "
        "data_disks: [d1, 'd2:read-only'], valid_for: 6h, make_for: 30m, keep: 10m, autocheckpoint: true, "
        "startup_script: '#!/bin/sh'",
    )
    assert found == TpuSpec(
        accelerator="v5litepod-16",
        runtime="v2-alpha",
        zones=("us-east1-d", "us-east5-b"),
        slices=2,
        reservation="r1",
        pricing=Pricing.RESERVED,
        labels={"team": "a"},
        network="n",
        subnetwork="s",
        external_ips=False,
        service_account="a@b",
        scopes=("x",),
        data_disks=("d1", "d2:read-only"),
        valid_for=21600.0,
        make_for=1800.0,
        keep=600.0,
        autocheckpoint=True,
        startup_script="#!/bin/sh",
    )


def test_flags_are_read_as_keys(tmp_path: Path) -> None:
    (tmp_path / "s.sh").write_text("echo x")
    words = [
        "--spot --tags=b",
        "'--labels=x=1,y=2'",
        "--network n",
        "--internal-ips",
        f"'--metadata-from-file=startup-script={tmp_path}/s.sh,other={tmp_path}/s.sh'",
        "'--data-disk=source=projects/p/zones/z/disks/d,mode=read-only'",
        "--valid-until-duration=2h",
        "--async",
        "-q",
    ]
    found = tpu(tmp_path, f"{LEAST}, pricing: spot, tags: [a], labels: {{z: 3}}, flags: [{', '.join(words)}]")
    assert (found.pricing, found.tags, found.labels) == (Pricing.SPOT, ("a", "b"), {"z": "3", "x": "1", "y": "2"})
    assert (found.network, found.external_ips, found.valid_for) == ("n", False, 7200.0)
    assert (found.startup_script, found.metadata, found.data_disks) == ("echo x", {"other": "echo x"}, ("d:read-only",))


BAD = {
    "nothing": ("", ["accelerator: is missing", "version: is missing"]),
    "unknown": (
        f"{LEAST}, acceleratr: v4-8",
        ["train.yaml:1: tpu: unknown key 'acceleratr'; did you mean 'accelerator'?"],
    ),
    "twice": (
        f"{LEAST}, runtime: x, zones: [us-east1-d]",
        ["runtime: is there beside version; they are one thing", "zones: is there beside zone; they are one thing"],
    ),
    "kinds": (
        "accelerator: v6e, version: x, zones: [here], pricing: cheap, slices: 0, labels: {mesh-job: a, Team: b}, "
        "tags: [A], data_disks: [D], startup_script: missing.sh",
        [
            "accelerator: expected a type, as v6e-32 or v5litepod-16, found 'v6e'",
            "zones: expected zones, as us-central2-b, found 'here'",
            "pricing: expected ondemand or spot or preemptible or reserved or best-effort, found 'cheap'",
            "slices: expected a whole number from 1 to 256, found 0",
            "labels: mesh-job: labels that begin with mesh- are mesh's own",
            "labels: Team: 'b': expected lower-case letters, digits, dashes and underscores",
            "tags: expected tags: lower-case letters, digits and dashes, found 'A'",
            "data_disks: expected names of disks, each with :read-only behind it where it is, found 'D'",
            "startup_script: there is no file missing.sh; a text begins with #!, or has several lines",
        ],
    ),
    "a tpu-vm": (
        f"{LEAST}, allocation_mode: tpu-vm, slices: 2, pricing: best-effort, valid_for: 1h",
        [
            "slices: several slices are for allocation_mode: queued-resources",
            "pricing: best-effort is for allocation_mode: queued-resources",
            "valid_for: is for allocation_mode: queued-resources, as a tpu-vm does not wait",
        ],
    ),
    "flags": (
        f"{LEAST}, flags: [--spot --lables=a=b, --preemptible, --topology=2x2, x, --zone=us-east5-b, --labels=a]",
        [
            "flags: --lables: mesh reads no such word; did you mean '--labels'?",
            "flags: --preemptible: contradicts the words before it (pricing: spot)",
            "flags: --topology: mesh does not read it; write accelerator:, as v4-16",
            "flags: 'x': expected a word that begins with --",
            "flags: --labels: expected NAME=VALUE, found 'a'",
            "flags: say zone: us-east5-b, and the key zone: says us-east1-d",
        ],
    ),
    "machines that stay": (
        f"{LEAST}, keep: long",
        ["keep: expected seconds, or a time such as 30s, 5m or 2h, found 'long'"],
    ),
    "a reservation": (f"{LEAST}, reservation: r, pricing: spot", ["pricing: is spot, and reservation: needs reserved"]),
}


@pytest.mark.parametrize(("text", "expected"), BAD.values(), ids=BAD)
def test_all_problems_are_told(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert sorted(wrong(tmp_path, text)) == sorted(expected)


def test_a_job_has_machines_or_a_tpu(tmp_path: Path) -> None:
    text = f"machines: pod\ntpu: {{{LEAST}}}\nrun: x\n"
    assert problems(tmp_path, text) == ["train.yaml:2: tpu: is there beside machines:; a job has one of the two"]


def test_overrides_reach_the_request(tmp_path: Path) -> None:
    spec = read(tmp_path, f"tpu: {{{LEAST}}}\nrun: x\n", "tpu.zone=us-east5-b", "tpu.slices=3")
    assert spec.machines.tpu is not None
    assert (spec.machines.tpu.zones, spec.machines.tpu.slices, spec.machines.units) == (("us-east5-b",), 3, 24)


@pytest.mark.parametrize("name", [*WORDS])
def test_every_word_without_a_value_is_told(name: str) -> None:
    found, wrong = read_flags([name])
    assert bool(wrong) == (WORDS[name].read is not None)
    assert not wrong or wrong[0].startswith(f"{name}: expected")
    assert found == ({WORDS[name].key: WORDS[name].value} if WORDS[name].key and not wrong else {})


def test_words_with_another_way_are_refused_with_it() -> None:
    for name, advice in INSTEAD.items():
        assert read_flags([name, "value", "--spot"]) == (
            {"pricing": "spot"},
            [f"{name}: mesh does not read it; {advice}"],
        )


def test_quotas(tmp_path: Path) -> None:
    path = tmp_path / "quotas.yaml"
    assert dict(read_quotas(path)) == {}
    path.write_text("v6e/us-east1-d/spot: 64\nv6e/us-east5-b/spot: 32\n")
    limits = read_quotas(path)
    assert limits["v6e/us-east1-d/spot"] == 64
    assert limits["v6e/us-east5-b/spot"] == 32
    assert limits.get("v4/us-central2-b/spot") is None
    path.write_text("v6e/spot: 64\nv6e/us-east1-d/cheap: 1\nv6e/us-east1-d/spot: some\n")
    with pytest.raises(UsageError) as caught:
        read_quotas(path)
    assert len(str(caught.value).splitlines()) == 3


# ---- cluster.yaml, and the page


def test_a_cluster_that_is_made(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "pod:\n  user: me\n  tpu: {accelerator: v4-8, version: x, slices: 2, pricing: reserved, zone: us-central2-b}\n"
        "old:\n  tpu: {prefix: pod}\n"
        "bad:\n  tpu: {accelerator: v4, slices: 0}\n  hosts: [a]\n"
    )
    file = load_clusters(path, required=True)
    asked = TpuSpec(
        accelerator="v4-8", runtime="x", zones=("us-central2-b",), slices=2, pricing=Pricing.RESERVED, user="me"
    )
    assert find_cluster("pod", file).source == TpuMade(spec=asked)
    assert not isinstance(find_cluster("old", file).source, TpuMade)
    assert [line.partition(": bad.")[2] for line in file.problems["bad"]] == [
        "tpu: has hosts: beside it; the hosts of a TPU are asked of its API",
        "tpu.accelerator: expected a type, as v6e-32 or v5litepod-16, found 'v4'",
        "tpu.version: is missing",
        "tpu.slices: expected a whole number from 1 to 256, found 0",
    ]


def test_the_files_of_the_page(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs/machines.md").read_text()
    job, cluster, prices, bill, quotas = [part.partition("```")[0] for part in page.split("```yaml\n")[1:]]
    found = read(tmp_path, job).machines.tpu
    assert found is not None
    assert (found.zones, found.pricing) == (("us-east1-d", "us-east5-b"), Pricing.SPOT)
    for name, text in {"cluster.yaml": cluster, "prices.yaml": prices, "quotas.yaml": quotas}.items():
        (tmp_path / name).write_text(text)
    assert isinstance(find_cluster("pod", load_clusters(tmp_path / "cluster.yaml", required=True)).source, TpuMade)
    assert read_prices(tmp_path / "prices.yaml").of("v6e", "us-east1-d", "spot") == 0.01
    (tmp_path / "bill.yaml").write_text(bill)
    found_bill = read_prices(tmp_path / "bill.yaml").billing
    assert found_bill is not None
    assert found_bill.category("Compute Engine", "TPU v6e") == "tpu"
    assert read_quotas(tmp_path / "quotas.yaml")["v5e/us-west4-a/ondemand"] == 16
