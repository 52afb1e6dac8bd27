"""Which runs have no client any more, as far as this machine records it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mesh.app.owner import Owners
from mesh.protocol.answers import Owner

RUN = "20261123-142831-cadcd3"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run on this machine."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place = tmp_path / "mesh/runs" / RUN
    place.mkdir(parents=True)
    return place


@pytest.mark.parametrize(
    ("about", "is_over"),
    [
        ({"ended": 1000.0, "exit_code": 76}, True),
        ({"ended": None}, False),  # its client may live: a file system may have no locks
        ({"ended": 1000.0, "detached": True}, False),  # the hosts decide when it ends
        ({"ended": None, "detached": True}, False),
    ],
)
def test_a_recorded_end_is_the_end(directory: Path, about: dict[str, object], is_over: bool) -> None:
    (directory / "run.json").write_text(json.dumps(about))
    assert Owners().is_dead(Owner(run=RUN)) is is_over


def test_runs_of_other_machines_are_not_known(directory: Path) -> None:
    assert not Owners().is_dead(Owner(run="20261123-142831-000000"))


def test_a_name_that_is_no_run_is_looked_for_nowhere(directory: Path) -> None:
    (directory / "run.json").write_text('{"ended": 1000.0}')
    assert not Owners().is_dead(Owner(run=f"../runs/{RUN}"))
    assert not Owners().is_dead(Owner())


def test_one_command_reads_each_run_once(directory: Path) -> None:
    (directory / "run.json").write_text('{"ended": 1000.0}')
    owners = Owners()
    assert owners.is_dead(Owner(run=RUN))
    (directory / "run.json").unlink()
    assert owners.is_dead(Owner(run=RUN))
