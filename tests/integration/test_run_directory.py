"""docs/run-directory.md and its schema tell what real runs leave."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.conftest import REPOSITORY, Home

SCHEMA = json.loads((REPOSITORY / "docs/run-directory.schema.json").read_text())
PAGE = (REPOSITORY / "docs/run-directory.md").read_text()


def closed(node: Any) -> Any:
    """The schema, with no field but those that it names."""
    if isinstance(node, list):
        return [closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    made = {key: closed(value) for key, value in node.items()}
    return {**made, "additionalProperties": False} if "properties" in node and node.get("type") == "object" else made


RUN = jsonschema.Draft202012Validator(closed(SCHEMA))
EVENT = jsonschema.Draft202012Validator({"$ref": "#/$defs/event", "$defs": closed(SCHEMA["$defs"])})


def only_run(home: Home) -> Path:
    (directory,) = (home.path / ".local/state/mesh/runs").iterdir()
    return directory


def problems(directory: Path) -> list[str]:
    """What is not as documented."""
    found = [error.message for error in RUN.iter_errors(json.loads((directory / "run.json").read_text()))]
    for line in (directory / "events.jsonl").read_text().splitlines():
        found += [f"{line}: {error.message}" for error in EVENT.iter_errors(json.loads(line))]
    return found


RUNS = {
    "completed": (["run", "local", "true"], "grace: 5\n", 0),
    "a rank fails": (
        ["run", "--nproc", "2", "local", "sh", "-c", "test $RANK != 1 || exit 3; sleep 60"],
        "env: {}\n",
        3,
    ),
    "killed": (["exec", "local", "sh", "-c", "kill -9 $$"], "", 137),
    "an exception": (["exec", "local:1", "python3", "-c", "raise MemoryError('too much')"], "", 1),
    "prerun fails": (["run", "local", "true"], "prerun: ['false']\n", 125),
    "timeout": (["run", "--timeout", "0.5", "--stacks-on-timeout", "local", "sleep", "60"], "grace: 5\n", 124),
    "setup": (["setup", "local"], "commands: [echo hi, exit 4]\n", 4),
    "push": (["push", "local"], "grace: 5\n", 0),
    "more than the logs may have": (
        ["exec", "local", "python3", "-c", "print('x' * 9_000_000)"],
        "logs: 1 MB\n",
        0,
    ),
}


@pytest.mark.parametrize(("words", "project", "status"), RUNS.values(), ids=RUNS)
def test_what_runs_write_is_documented(home: Home, words: list[str], project: str, status: int) -> None:
    home.files(mesh__yaml=project)
    assert home.mesh(*words).status == status
    directory = only_run(home)
    assert problems(directory) == []
    about = json.loads((directory / "run.json").read_text())
    assert about["exit_code"] == status
    assert not list(directory.glob("*.new"))
    kept = sum(path.stat().st_size for path in directory.joinpath("logs").glob("rank-*"))
    if "logs:" in project:
        lacks = sum(item["bytes"] - item["marker"] for item in about["left_out"])
        assert kept < 1_100_000
        assert kept + lacks == 2 * 9_000_001


def test_a_run_that_is_on_and_one_whose_client_was_killed(home: Home) -> None:
    process = home.popen("exec", "local", "sh", "-c", "echo up; sleep 60")
    assert process.stdout is not None
    process.stdout.readline()
    assert problems(only_run(home)) == []
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert problems(only_run(home)) == []


def names(node: Any) -> Iterator[str]:
    """Every field of the schema."""
    for key, value in node.items() if isinstance(node, dict) else ():
        if key == "properties":
            yield from value
        yield from names(value)


def test_the_page_tells_every_field_and_event() -> None:
    fields = {*names(SCHEMA)} | {one["$ref"].rpartition("/")[2] for one in SCHEMA["$defs"]["event"]["anyOf"]}
    assert len(fields) > 50
    # The schema names its parts with underscores, also for an event such as rank-ready.
    assert fields - {name.replace("-", "_") for name in re.findall(r"`([\w-]+)`", PAGE)} == set()


def test_the_schema_can_refuse() -> None:
    assert list(EVENT.iter_errors({"event": "started", "time": 1, "rank": 0, "host": "a"}))
    assert list(EVENT.iter_errors({"event": "ready", "time": 1, "rank": 0, "host": "a", "more": 1}))
    assert list(RUN.iter_errors({"version": 2, "run": "x"}))
