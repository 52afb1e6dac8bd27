"""Results of nodes that are started again, and the program that "last" means on a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mesh.agent.nodes.files import NodeFiles
from mesh.core.cluster import Host, Placement, Rank
from mesh.core.errors import UsageError
from mesh.core.nodes import NodeResult
from mesh.program import connect
from mesh.program.ledger import Ledger, Rules, State
from mesh.program.running import Running
from mesh.rundir.noderesults import ResultFiles, result_path


def test_the_result_of_a_node_that_was_started_again_is_that_of_its_last_process() -> None:
    rules = {"actor": Rules(runs=True, on_failure="restart")}
    running = Running({"actor": "h"}, Ledger(rules), decides=lambda label, stop: False)
    running.keep_failure("actor", KeyError("the first attempt"))
    running.note_attempt("actor", 2)
    running.keep_result("actor", 7)
    running.note("actor", State.ENDED)
    assert running.result("actor", 0.0) == 7
    running.keep_failure("actor", KeyError("the last attempt"))
    with pytest.raises(KeyError, match="the last attempt"):
        running.result("actor", 0.0)


def test_the_failure_of_a_node_that_is_started_again_is_not_kept(tmp_path: Path) -> None:
    placement = Placement(hosts=(Host(name="h", address="h"),), table=(Rank(node=0, local=0),), labels=("actor",))
    files = ResultFiles(tmp_path, placement)
    path = result_path(tmp_path, "actor/0")
    files.forget(0)  # there is none
    for data in (b"failure", b"value"):
        files.add(NodeResult(time=0.0, node=0, rank=0, data=data, is_last=True))
        assert path.read_bytes() == data
        if data == b"failure":
            files.forget(0)
            assert not path.exists()
    files.close()


def test_a_host_forgets_the_result_of_an_earlier_attempt() -> None:
    files = NodeFiles("20260101-000000-abcde0", 0)
    files.make()
    try:
        path = Path(files.place("kept-0"))
        path.write_bytes(b"failure")
        files.forget("kept-0")
        assert not path.exists()
        files.forget("kept-0")
    finally:
        files.remove()


def test_the_last_program_of_a_cluster_is_not_the_last_run_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    directory = tmp_path / "mesh/runs/20261121-100000-aaaaaa"
    directory.mkdir(parents=True)
    (directory / "events.jsonl").touch()
    about = {"run": directory.name, "hosts": ["a"], "ended": 1.0, "kind": "run", "cause": "completed"}
    (directory / "run.json").write_text(json.dumps(about))
    with pytest.raises(UsageError, match="elsewhere"):
        connect(cluster="elsewhere")
