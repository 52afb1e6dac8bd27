"""What the ranks are told about each other, and the words that launchers of frameworks get."""

from __future__ import annotations

import base64
import json
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from mesh.agent.ask import gpus
from mesh.agent.run import network
from mesh.api.inquiries import agreed
from mesh.core.cluster import Cluster, Host, Placement, place_ranks
from mesh.core.errors import MeshError
from mesh.core.run import Group, Launch, RunSpec
from mesh.engine.environment import Rendezvous, host_environment, ports_wanted, rank_environment
from mesh.engine.wrapping import host_command
from mesh.remote import meshrun
from mesh.rundir.about import describe
from tests.specs import spec_of


def made(**changes: object) -> RunSpec:
    return spec_of(run="r", project="p", workspace=Path("/w"), **{"command": ("train.py", "a b"), **changes})


def placed(hosts: int, nproc: int = 1, slices: tuple[int, ...] = ()) -> Placement:
    named = tuple(Host(name=f"h{n}", address=f"h{n}") for n in range(hosts))
    return place_ranks(named, [nproc] * hosts, slices=slices)


def variables(spec: RunSpec, placement: Placement, rank: int, first: str = "10.0.0.1") -> dict[str, str]:
    addresses = [first, *(f"10.0.0.{n + 1}" for n in range(1, len(placement.hosts)))]
    meeting = Rendezvous(addresses=addresses, ports=(29500, 8081)[: len(ports_wanted(spec, placement))])
    environment = host_environment(spec, placement, meeting, placement.node(rank))
    return {**environment, **rank_environment(spec, placement, rank)}


def test_every_process_of_jax_has_a_number_of_its_own() -> None:
    found = [variables(made(), placed(2, nproc=2), rank) for rank in range(4)]
    assert [one["JAX_PROCESS_ID"] for one in found] == ["0", "1", "2", "3"]
    assert {(one["JAX_NUM_PROCESSES"], one["JAX_COORDINATOR_ADDRESS"]) for one in found} == {("4", "10.0.0.1:29500")}
    assert {one["MESH_ATTEMPT"] for one in found} == {"0"}
    assert not any(name.startswith(("MEGASCALE", "SLICE", "WORKER")) for name in found[0])


def test_an_ipv6_address_is_told_as_each_of_them_reads_it() -> None:
    found = variables(made(), placed(1), 0, first="fd00::1")
    assert (found["MASTER_ADDR"], found["JAX_COORDINATOR_ADDRESS"]) == ("fd00::1", "[fd00::1]:29500")


def test_the_users_own_variables_win() -> None:
    own = {"MASTER_PORT": "1", "JAX_PROCESS_ID": "7", "MEGASCALE_PORT": "2", "WORKER_ID": "9"}
    found = variables(made(env=own), placed(2, slices=(1, 1)), 1)
    assert {name: found[name] for name in own} == own


def test_slices_of_different_sizes() -> None:
    """Ranks run over all of them; workers are counted from 0 in each."""
    found = [variables(made(), placed(3, nproc=2, slices=(2, 1)), rank) for rank in range(6)]
    told = [(one["SLICE_ID"], one["MEGASCALE_SLICE_ID"], one["WORKER_ID"]) for one in found]
    assert told == [("0", "0", str(n)) for n in range(4)] + [("1", "1", str(n)) for n in range(2)]
    assert {one["MEGASCALE_NUM_SLICES"] for one in found} == {"2"}
    assert {one["MEGASCALE_COORDINATOR_ADDRESS"] for one in found} == {"10.0.0.1"}
    assert {one["MEGASCALE_PORT"] for one in found} == {"8081"}


def test_one_slice_needs_no_megascale() -> None:
    found = variables(made(), placed(2, slices=(2,)), 1)
    assert (found["SLICE_ID"], found["WORKER_ID"]) == ("0", "1")
    assert not any(name.startswith("MEGASCALE") for name in found)


@pytest.mark.parametrize(
    ("env", "devices"),
    [({}, ["0", "1"]), ({"CUDA_VISIBLE_DEVICES": "4,6"}, ["4", "6"]), ({"HIP_VISIBLE_DEVICES": "5, 7"}, ["5", "7"])],
)
def test_each_rank_is_bound_to_a_gpu(env: dict[str, str], devices: list[str]) -> None:
    found = [variables(made(bind=True, env=env), placed(2, nproc=2), rank) for rank in range(4)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == devices * 2
    assert [one["HIP_VISIBLE_DEVICES"] for one in found] == devices * 2


def test_a_rank_has_no_variable_that_only_another_rank_of_its_host_has() -> None:
    common = {"command": ("x",), "hosts": ("h0",), "counts": (1,), "sockets": 1, "payloads": ("x",)}
    first = Group(label="first", devices=("0,1",), env={"COLOUR": "blue"}, **common)  # type: ignore[arg-type]
    groups = (first, Group(label="other", **common))  # type: ignore[arg-type]
    spec = replace(made(), groups=groups)
    placement = spec.placed((Host(name="h0", address="h0"),), ())
    found = [variables(spec, placement, rank) for rank in range(2)]
    names = ("MESH_LABEL", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "COLOUR")
    assert [[one.get(name) for name in names] for one in found] == [
        ["first/0", "0,1", "0,1", "blue"],
        ["other/0", None, None, None],
    ]


WORDS = {
    Launch.NONE: [],
    Launch.TORCHRUN: [
        *("torchrun", "--nnodes=3", "--node_rank=1", "--nproc_per_node=4"),
        *("--master_addr=10.0.0.1", "--master_port=29500"),
    ],
    Launch.ACCELERATE: [
        *("accelerate", "launch", "--num_machines=3", "--machine_rank=1", "--num_processes=12"),
        *("--main_process_ip=10.0.0.1", "--main_process_port=29500"),
    ],
}


@pytest.mark.parametrize("launcher", WORDS)
def test_the_words_of_a_launcher(launcher: Launch) -> None:
    spec = made(launcher=launcher, nproc=4)
    found = host_command(spec, placed(3), 1, {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"})
    assert list(found) == [*WORDS[launcher], "train.py", "a b"]


def test_deepspeed_is_told_the_processes_of_all_hosts() -> None:
    spec = made(launcher=Launch.DEEPSPEED, nproc=2)
    words = host_command(spec, placed(3), 2, {"MASTER_ADDR": "fd00::1", "MASTER_PORT": "29500"})
    assert words[:3] == ("python3", "-m", "deepspeed.launcher.launch")
    given = dict(word.split("=", 1) for word in words[3:-2])
    slots = json.loads(base64.urlsafe_b64decode(given.pop("--world_info")))
    assert list(slots.values()) == [[0, 1]] * 3
    assert given == {"--node_rank": "2", "--master_addr": "fd00::1", "--master_port": "29500"}


def amd(place: Path, nodes: dict[int, int], given: list[int]) -> None:
    """A kernel with these nodes (SIMD units by render minor, 0 for a processor), some of them given to us."""
    (place / "dev/dri").mkdir(parents=True)
    (place / "dev/kfd").touch()
    for number, (minor, units) in enumerate(nodes.items()):
        node = place / f"sys/class/kfd/kfd/topology/nodes/{number}"
        node.mkdir(parents=True)
        (node / "properties").write_text(f"cpu_cores_count 0\nsimd_count {units}\ndrm_render_minor {minor}\n")
    for minor in given:
        (place / f"dev/dri/renderD{minor}").touch()


def test_gpus_are_counted_by_their_device_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # nobody else is to be asked
    dev, sys_ = str(tmp_path / "dev"), str(tmp_path / "sys")
    assert gpus.count_gpus(dev, sys_) == 0
    amd(tmp_path, {0: 0, 128: 256, 129: 256, 130: 256}, given=[128, 130])
    assert gpus.count_gpus(dev, sys_) == 2
    for name in ("nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    assert gpus.count_gpus(dev, sys_) == 3


def test_hosts_with_different_numbers_of_gpus_are_named() -> None:
    assert agreed({"a": 8, "b": 8}) == 8
    with pytest.raises(MeshError, match=r"the hosts differ: no GPU on b; 8 GPUs on a, c\b"):
        agreed({"a": 8, "b": 0, "c": 8})
    with pytest.raises(MeshError, match=r"no GPU on h0, .*, h7 and 2 more\b"):
        agreed({f"h{n}": 0 for n in range(10)})


def test_a_driver_that_was_not_used_yet_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: A (UUID: x)'\necho '  MIG 1g.5gb Device 0: (UUID: y)'\necho 'GPU 1: A'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert gpus.count_gpus(str(tmp_path / "dev"), str(tmp_path / "sys")) == 2


def test_a_port_that_was_found_is_kept_from_everybody() -> None:
    ports = network.Ports()
    try:
        (number,) = ports.hold([0])
        with open(network.GIVEN_PORTS) as file:
            first, last = map(int, file.read().split())
        assert not first <= number <= last  # nobody gets it by connecting to somewhere
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "")):
            with socket.socket(family) as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with pytest.raises(OSError, match="in use"):
                    other.bind((address, number))
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", number), timeout=5)
        ports.release()
        with socket.create_server(("127.0.0.1", number)):
            pass
    finally:
        ports.release()


def test_a_named_port_can_be_had_while_old_connections_fade_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", number)):
            accepted, _ = server.accept()
            accepted.close()  # ours ends first, and waits for stragglers
    ports = network.Ports()
    assert ports.hold([number]) == [number]
    ports.release()
    with socket.create_server(("127.0.0.1", number)), pytest.raises(network.Unavailable, match=str(number)):
        ports.hold([number])


def test_the_interface_towards_a_host() -> None:
    assert network.interface_towards(["127.0.0.1"]) == "lo"
    with pytest.raises(network.Unavailable, match=r"no-such-host.*cannot be resolved"):
        network.interface_towards(["no-such-host.invalid"])


class Jax:
    """Stands for the real one, which would open connections: says how it was called, and in which environment."""

    def __init__(self, platforms: str | None) -> None:
        self.config = SimpleNamespace(jax_platforms=platforms)
        self.distributed = SimpleNamespace(initialize=self.initialize)
        self.called: list[tuple[dict[str, object], str | None]] = []

    def initialize(self, **given: object) -> None:
        self.called.append((given, os.environ.get("JAX_COORDINATOR_ADDRESS")))


@pytest.fixture
def in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("COORDINATOR_ADDRESS", "h0:1"), ("NUM_PROCESSES", "4"), ("PROCESS_ID", "3")):
        monkeypatch.setenv(f"JAX_{name}", value)


EXPLICIT = {"coordinator_address": "h0:1", "num_processes": 4, "process_id": 3}


@pytest.mark.usefixtures("in_a_run")
@pytest.mark.parametrize(
    ("platforms", "chips", "given", "address"),
    [
        (None, False, EXPLICIT, "h0:1"),
        ("cpu", True, EXPLICIT, "h0:1"),
        (None, True, {}, None),  # JAX knows better
        ("tpu,cpu", True, {}, None),
    ],
)
def test_initialize_jax(
    monkeypatch: pytest.MonkeyPatch,
    platforms: str | None,
    chips: bool,
    given: dict[str, object],
    address: str | None,
) -> None:
    jax = Jax(platforms)
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setenv("TPU_LIBRARY_PATH", "/lib/libtpu.so")
    monkeypatch.setattr(meshrun.glob, "glob", lambda pattern: ["/dev/accel0"] if chips else [])
    meshrun.initialize_jax(initialization_timeout=5)
    assert jax.called == [({**given, "initialization_timeout": 5}, address)]
    assert os.environ["JAX_COORDINATOR_ADDRESS"] == "h0:1"


def test_initialize_jax_outside_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", Jax("cpu"))
    monkeypatch.delenv("JAX_NUM_PROCESSES", raising=False)
    with pytest.raises(RuntimeError, match="not started by mesh"):
        meshrun.initialize_jax()


def test_who_attaches_to_a_run_finds_its_ranks_where_a_launcher_was_the_only_one_of_each_host() -> None:
    cluster = Cluster(name="pod", hosts=(Host(name="a", address="a"),))
    for launcher, ranks in ((Launch.TORCHRUN, 1), (Launch.NONE, 4)):
        spec = spec_of(run="r", project="p", workspace=Path("/w"), command=("x",), nproc=4, launcher=launcher)
        placement = spec.placed(cluster.hosts)
        assert describe(spec, "pod", placement)["nproc"] == ranks == placement.world_size
