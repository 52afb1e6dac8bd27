"""Collectives between processes: on hosts of this machine and of the lab, with members that are killed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import cast

import numpy
import pytest

from mesh.program import Future, Group, Handle, NodeLost, Program
from tests.conftest import PATIENCE, Home
from tests.integration import program_members
from tests.integration.program_members import Member
from tests.integration.test_program import (
    _new_user,  # noqa: F401
    _nothing_is_left,  # noqa: F401
    launch,
    new_program,
    pod_names,
)
from tests.lab import Lab, eventually

BYTES = 8_000_000  # so many that they go from host to host


def check(program: Program, group: Group[Member], hosts: list[str]) -> None:
    """Run a value from the client to all members, sums, and a list of all."""
    futures = cast("list[Future[object]]", group.futures.receive())
    program.broadcast(numpy.ones(BYTES // 8), group, timeout=PATIENCE)
    assert [one.result(PATIENCE) for one in futures] == [(host, BYTES / 8) for host in hosts]
    count = len(hosts)
    for size in (3, BYTES // 8):
        assert group.sums(size) == [count * (count + 1) / 2] * count
    assert group.labels() == [[(f"member/{number}", host) for number, host in enumerate(hosts)]] * count


def test_collectives_between_processes_and_a_member_that_is_killed() -> None:
    program = new_program()
    group = cast(
        "Group[Member]",
        program.add(Member, on="a,b,c", per_host=2, label="member", concurrency=3, on_failure="restart", restarts=1),
    )
    with launch(program):
        check(program, group, ["a", "a", "b", "b", "c", "c"])
        futures = [cast("Future[object]", one.futures.meet()) for one in group[:4]]  # type: ignore[union-attr]
        killed = cast("Handle[Member]", group[3])
        assert eventually(lambda: cast("Handle[Member]", group[0]).waiting() == 4, PATIENCE)
        killed.tell.kill()
        errors = [one.exception(PATIENCE) for one in futures]
        assert all(isinstance(one, NodeLost) and "member/3 on b: " in str(one) for one in errors), errors
        for late in group[4:]:  # those that had not come get the same failure
            with pytest.raises(NodeLost, match="member/3 on b: "):
                late.meet()
        check(program, group, ["a", "a", "b", "b", "c", "c"])  # with the new process


def test_a_member_that_is_lost_for_good_is_named_to_those_that_come_later() -> None:
    program = new_program()
    group = cast(
        "Group[Member]", program.add(Member, on="a,b", per_host=1, label="member", concurrency=2, on_failure="ignore")
    )
    with launch(program):
        group[1].tell.kill()  # type: ignore[union-attr]
        with pytest.raises(NodeLost, match="member/1 on b: "):
            group[0].meet()  # type: ignore[union-attr]
        with pytest.raises(NodeLost, match="member/1 on b: "):
            program.broadcast(1, group)


@pytest.mark.root
@pytest.mark.sshd
def test_collectives_over_four_hosts(pod: Home, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(pod.path))
    monkeypatch.chdir(pod.project)
    pod.files(members_of_a_project__py=Path(program_members.__file__).read_text())
    monkeypatch.syspath_prepend(pod.project)
    module = importlib.import_module("members_of_a_project")
    try:
        names = pod_names(pod)
        program = Program("collectives", cluster="pod", python=sys.executable)
        group = program.add(module.Member, on=",".join(names), per_host=2, label="member", concurrency=2)
        with program.launch():
            check(program, cast("Group[Member]", group), [name for name in names for _ in range(2)])
    finally:
        del sys.modules["members_of_a_project"]
