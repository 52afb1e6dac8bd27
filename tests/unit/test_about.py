"""run.json of a run with one command, beside the bytes that it had before there were programs."""

from __future__ import annotations

import json
from pathlib import Path

from mesh.core.cluster import Host, place_ranks
from mesh.core.events import Exited
from mesh.core.outcome import Cause, Outcome
from mesh.rundir.writer import StoreSink
from tests.specs import spec_of

BEFORE = Path(__file__).parents[1] / "golden/run-before-programs.json"  # written by mesh of 25 November 2026
PLACEMENT = place_ranks(tuple(Host(name=f"tpu-{n}", address=f"10.0.0.{n}") for n in range(2)), (2, 2))
SPEC = spec_of(
    run="r1", project="p", workspace=Path("/w"), command=("python3", "train.py"), env={"TOKEN": "x"}, nproc=2
)
ENDS = ({"code": 0}, {"code": 0}, {"code": 3}, {"signal": 15})


def only(found: object, like: object) -> object:
    """Return a value without the fields that another one does not have, in the order that it has."""
    if isinstance(found, dict) and isinstance(like, dict):
        return {name: only(value, like[name]) for name, value in found.items() if name in like}
    if isinstance(found, list) and isinstance(like, list):
        return [only(one, other) for one, other in zip(found, like, strict=True)]
    return found


def test_a_run_with_one_command_has_the_bytes_of_before_but_for_new_fields(tmp_path: Path) -> None:
    sink = StoreSink(directory=tmp_path / "r1", spec=SPEC, cluster_name="pod", placement=PLACEMENT)
    exits = tuple(Exited(time=5.0 + rank, node=rank // 2, rank=rank, **how) for rank, how in enumerate(ENDS))
    sink.close()
    sink.finish(
        Outcome(
            run="r1",
            exit_code=3,
            cause=Cause.RANK,
            started=4.0,
            ended=9.0,
            first=exits[2],
            exits=exits,
            stopped=(3,),
        )
    )
    before = BEFORE.read_text()
    like = json.loads(before)
    found = json.loads((sink.directory / "run.json").read_text()) | {"created": like["created"]}
    assert json.dumps(only(found, like), indent=1) == before.rstrip()
