"""Roles: how they are read, where their ranks are, how they are labelled, and the spec that is written down."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.config.roles import Role, read_role
from mesh.config.selectors import assign_roles
from mesh.core.cluster import Cluster, Host, place_ranks
from mesh.core.errors import UsageError
from mesh.core.ranks import choose_ranks
from mesh.core.run import Group, Kind, Launch, PrerunEntry, Rules, RunSpec, SetupCommand
from mesh.engine.environment import Rendezvous, host_environment, rank_environment
from mesh.engine.wrapping import host_command
from mesh.rundir.records import read_spec
from mesh.screen.labels import Labels
from tests.specs import spec_of

HOSTS = tuple(Host(name=f"tpu-{n}", address=f"10.0.0.{n}") for n in range(4))
POD = Cluster(name="pod", hosts=HOSTS, slices=(2, 2))
ACTORS, LEARNER = read_role("--role", "actor@tpu-[1-3]: ./act"), read_role("--role", "learner@tpu-0: ./learn --lr 1")

# ---- the spec, written and read

WORDS = st.binary(max_size=8).map(lambda data: os.fsdecode(data.replace(b"\0", b"")))
NAMES = st.from_regex(r"\A[A-Z_][A-Z0-9_]{0,3}\Z")
SECONDS = st.floats(0, 1e9)
RULES = st.builds(
    Rules, grace=SECONDS, drain=SECONDS, timeout=SECONDS, keep_going=st.booleans(), spool=st.integers(0, 1 << 60)
)


@st.composite
def specs(draw: st.DrawFn) -> RunSpec:
    env = draw(st.dictionaries(NAMES, WORDS, max_size=3))
    labels = draw(st.lists(st.from_regex(r"\A[a-z][a-z0-9_.-]{0,5}\Z"), unique=True, max_size=3)) or [""]
    groups = tuple(
        Group(
            label=label,
            command=tuple(draw(st.lists(WORDS, max_size=3))),
            env={name: env[name] for name in draw(st.sets(st.sampled_from(sorted(env)))) if env} if env else {},
            nproc=draw(st.integers(0, 1024)),
            hosts=tuple(draw(st.lists(WORDS, max_size=3))),
        )
        for label in labels
    )
    return RunSpec(
        run="r",
        project=draw(WORDS),
        workspace=Path("/") / draw(WORDS),
        groups=groups,
        rules=draw(RULES),
        kind=draw(st.sampled_from(Kind)),
        commands=tuple(
            draw(st.lists(st.builds(SetupCommand, run=WORDS, unless=WORDS, sudo=st.booleans()), max_size=2))
        ),
        prerun=tuple(draw(st.lists(st.builds(PrerunEntry, run=WORDS), max_size=2))),
        launcher=draw(st.sampled_from(Launch)),
        wait=draw(st.sampled_from([0.0, 30.0, math.inf])),
        detach=draw(st.booleans()),
    )


@given(specs())
def test_a_spec_is_read_as_it_was_written(spec: RunSpec) -> None:
    written = json.dumps(spec.to_json(), allow_nan=False)
    env = {name: value for group in spec.groups for name, value in group.env.items()}
    assert RunSpec.from_json(json.loads(written), env) == spec


def test_values_of_variables_are_not_written() -> None:
    spec = spec_of(env={"WANDB_API_KEY": "hunter2", "MODE": "fast"})
    written = json.dumps(spec.to_json())
    assert "hunter2" not in written
    assert "fast" not in written
    (group,) = RunSpec.from_json(json.loads(written), {"MODE": "slow"}).groups
    assert group.env == {"MODE": "slow"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"groups": []},
        {"groups": [{"label": "\x1b[2J", "env": []}]},
        {"groups": [{"label": "a\n", "env": []}]},
        {"groups": [{"nproc": 1025, "env": []}]},
        {"rules": {"grace": -1}},
        {"rules": {"host_grace": 1e999}},
        {"kind": "party"},
        {"workspace": 7},
        {"groups": 1},
    ],
)
def test_what_is_no_spec_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        RunSpec.from_json({**spec_of().to_json(), **wrong})


def test_a_run_of_the_version_before_has_the_rules_that_it_wrote() -> None:
    rules = {"grace": 3.0, "drain": 1, "keep_going": True, "host_grace": 90.0, "logs": 5000}
    about = {"command": ["x", "y"], "nproc": 2, "workspace": "/home/me/p", "rules": rules}
    spec = read_spec(about, "r")
    assert spec.groups == (Group(command=("x", "y"), nproc=2),)
    assert spec.rules == Rules(grace=3.0, drain=1.0, keep_going=True, host_grace=90.0, logs=5000)
    assert spec.workspace == Path("/home/me/p")
    for broken in ({}, {"spec": None}, {"spec": {"groups": 1}}, {"rules": [], "nproc": "x"}):
        assert read_spec(broken, "r").rules == Rules()


# ---- roles as they are typed


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("a@h: x", Role(label="a", hosts="h", text="x")),
        ("a-1.b@tpu-[1-3],7: echo 'a: b' | cat", Role(label="a-1.b", hosts="tpu-[1-3],7", text="echo 'a: b' | cat")),
        ("a@h: one\ntwo", Role(label="a", hosts="h", text="one\ntwo")),
    ],
)
def test_a_role_is_read(text: str, role: Role) -> None:
    assert read_role("--role", text) == (role,)


@pytest.mark.parametrize("text", ["", "a", "a@h", "a@h:x", "a@h: ", "@h: x", "1@h: x", "a/b@h: x", "a@: x", "a@h: x\0"])
def test_what_is_no_role_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--role"):
        read_role("--role", text)


def test_roles_take_their_hosts_and_leave_out_others() -> None:
    spec, cluster = assign_roles(spec_of(nproc=2), POD, (*read_role("--role", "a@tpu-3: x"), *LEARNER))
    assert [host.name for host in cluster.hosts] == ["tpu-0", "tpu-3"]
    assert cluster.slices == (1, 1)
    assert [(group.label, group.hosts, group.nproc) for group in spec.groups] == [
        ("a", ("tpu-3",), 2),
        ("learner", ("tpu-0",), 2),
    ]
    placement = spec.placed(cluster.hosts, cluster.slices)
    assert [placement.role(rank) for rank in range(4)] == ["learner/0", "learner/1", "a/0", "a/1"]


def test_roles_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match="host tpu-0 has two roles, actor and learner"):
        assign_roles(spec_of(), POD, (*read_role("--role", "actor@0-1: x"), *LEARNER))
    with pytest.raises(UsageError, match="two roles are called learner"):
        assign_roles(spec_of(), POD, (*LEARNER, *LEARNER))
    with pytest.raises(UsageError, match="no host 'tpu-9'"):
        assign_roles(spec_of(), POD, read_role("--role", "a@tpu-9: x"))
    with pytest.raises(UsageError, match="--launcher"):
        assign_roles(spec_of(launcher=Launch.TORCHRUN), POD, LEARNER)


# ---- their ranks


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=20))
def test_ranks_are_numbered_host_after_host(hosts: list[tuple[int, int]]) -> None:
    named = [Host(name=f"h{n}", address="") for n in range(len(hosts))]
    nprocs, groups = zip(*hosts, strict=True)
    placement = place_ranks(named, nprocs, groups=groups, labels=("a", "b", "c"))
    assert placement.world_size == sum(nprocs)
    assert [rank for node in range(len(hosts)) for rank in placement.ranks(node)] == list(range(sum(nprocs)))
    for node, (nproc, group) in enumerate(hosts):
        assert len(placement.ranks(node)) == nproc
        assert placement.group(node) == group
        for local, rank in enumerate(placement.ranks(node)):
            assert (placement.node(rank), placement.table[rank].local) == (node, local)
    for label in "abc":
        of_group = [placement.role(rank) for rank in range(placement.world_size) if placement.label(rank) == label]
        assert of_group == [f"{label}/{index}" for index in range(len(of_group))]


def test_ranks_get_the_command_and_variables_of_their_role() -> None:
    spec, cluster = assign_roles(spec_of(nproc=2, env={"MODE": "x"}), POD, (*ACTORS, *LEARNER))
    placement = spec.placed(cluster.hosts)
    rendezvous = Rendezvous(addresses=[host.address for host in HOSTS], ports=[29500])
    of_host = [host_environment(spec, placement, rendezvous, node) for node in range(4)]
    assert [env["MESH_LABEL"] for env in of_host] == ["learner", "actor", "actor", "actor"]
    assert {(env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"], env["MODE"]) for env in of_host} == {("8", "2", "x")}
    of_ranks = [rank_environment(spec, placement, rank) for rank in range(8)]
    assert [env["MESH_GROUP_RANK"] for env in of_ranks] == list("01012345")
    assert [env["RANK"] for env in of_ranks] == list("01234567")
    assert host_command(spec, placement, 0, {}) == ("bash", "-c", "./learn --lr 1")
    assert host_command(spec, placement, 3, {}) == ("bash", "-c", "./act")


def test_a_run_without_roles_has_no_label() -> None:
    placement = spec_of().placed(HOSTS)
    rendezvous = Rendezvous(addresses=["a"] * 4, ports=[1])
    env = {**host_environment(spec_of(), placement, rendezvous, 1), **rank_environment(spec_of(), placement, 1)}
    assert not {"MESH_LABEL", "MESH_GROUP_RANK"} & env.keys()
    assert Labels(placement, with_hosts=False).of_rank(1) == b"[1] "


def test_labels_name_roles() -> None:
    spec, cluster = assign_roles(spec_of(), POD, (*ACTORS, *LEARNER))
    placement = spec.placed(cluster.hosts)
    labels = Labels(placement, with_hosts=False)
    assert [labels.of_rank(rank) for rank in (0, 1)] == [b"[learner/0] ", b"[actor/0]   "]
    assert labels.of_set(0b1111, is_short=False) == b"[learner/0,actor/0-2] "
    assert Labels(placement, with_hosts=True).of_rank(1) == b"[tpu-1:actor/0]   "


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("2", {2}),
        ("0,2-3", {0, 2, 3}),
        ("actor", {1, 2, 3}),
        ("actor/1", {2}),
        ("actor/1-2,learner", {0, 2, 3}),
        ("act*", {1, 2, 3}),
        ("*/0", {0, 1}),
        ("*", {0, 1, 2, 3}),
    ],
)
def test_ranks_are_chosen_by_number_label_and_pattern(text: str, ranks: set[int]) -> None:
    spec, cluster = assign_roles(spec_of(), POD, (*ACTORS, *LEARNER))
    assert choose_ranks("--rank", text, spec.placed(cluster.hosts)) == ranks


def test_a_rank_that_there_is_not_is_refused() -> None:
    spec, cluster = assign_roles(spec_of(), POD, (*ACTORS, *LEARNER))
    for text in ("critic", "actor/9", "learner/x", ""):
        with pytest.raises(UsageError) as refused:
            choose_ranks("--rank", text, spec.placed(cluster.hosts))
        assert "its labels are actor, learner" in refused.value.hint
    with pytest.raises(UsageError, match="--rank: 'actor' names no rank"):
        choose_ranks("--rank", "actor", None)
    assert len(choose_ranks("--rank", "0-999999999999", spec.placed(cluster.hosts))) == 5
