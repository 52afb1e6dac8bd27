"""Task files: what is read, and every problem with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.config.tasksfile import read_tasks
from mesh.core.errors import UsageError
from mesh.core.tasks import TaskList, TaskSpec

WHOLE = """\
repos:
  maxtext: https://example.org/maxtext
  tools: {url: git@example.org:tools, branch: stable}
defaults:
  env: maxtext_env
  repo: maxtext
  branch: main
  workdir: maxtext
  zone: us-central2-b
  max_retries: 5
accelerators:
  v4-128:
    tasks:
      - id: a
        run: bash train/a.sh
      - {id: b, run: bash b.sh, depends_on: a, repo: tools, env: {LR: 1e-4}, workers: all, priority: 3}
  v6e-64:
    zone: europe-west4-a
    workers: [0, 1]
    max_jobs: 2
    tasks:
      - {id: c, run: c, depends_on: [a, b], hide: true, zone: us-east5-b, max_retries: 0}
      - {id: d, run: d, branch: dev}
  v5e-8:
"""


def read(tmp_path: Path, text: str) -> TaskList:
    path = tmp_path / "tasks.yaml"
    path.write_text(text)
    return read_tasks(path)


def test_every_key_is_read_and_the_nearest_one_holds(tmp_path: Path) -> None:
    found = read(tmp_path, WHOLE)
    a, b, c, d = found.tasks
    assert a == TaskSpec(
        id="a",
        run="bash train/a.sh",
        accelerator="v4-128",
        zone="us-central2-b",
        environment="maxtext_env",
        url="https://example.org/maxtext",
        branch="main",
        workdir="maxtext",
        max_retries=5,
    )
    assert (b.depends_on, b.url, b.branch, b.workers, b.priority) == (("a",), "git@example.org:tools", "stable", (), 3)
    assert (b.variables, b.environment) == ({"LR": "1e-4"}, "")
    assert (c.zone, c.workers, c.max_jobs, c.max_retries, c.is_hidden) == ("us-east5-b", (0, 1), 2, 0, True)
    assert (d.zone, d.branch, d.depends_on) == ("europe-west4-a", "dev", ())
    assert found.accelerators == ("v4-128", "v6e-64", "v5e-8")
    lines = [notice.removeprefix(f"{tmp_path}/").partition(": holds")[0] for notice in found.notices]
    assert lines == ["tasks.yaml:18: accelerators.v6e-64.zone", "tasks.yaml:19: accelerators.v6e-64.workers"]


def test_the_documented_shortest_file_has_jobmans_defaults(tmp_path: Path) -> None:
    (task,) = read(tmp_path, "accelerators:\n  v6e-8:\n    tasks:\n      - {id: x, run: y}\n").tasks
    assert (task.max_jobs, task.max_retries, task.workers, task.zone) == (1, 3, (0,), "")


def test_an_accelerator_below_defaults_is_named_and_not_read(tmp_path: Path) -> None:
    found = read(tmp_path, "defaults:\n  max_jobs: 1\n  v4-128:\n    tasks:\n      - {id: x, run: y}\n")
    assert found.tasks == ()
    (notice,) = found.notices
    assert "tasks.yaml:3: defaults.v4-128: its tasks are not read" in notice


PROBLEMS = {
    "unknown key": ("accelerators: {v4-8: {tasks: [{id: a, run: x, zones: y}]}}", "unknown key 'zones'; did you mean"),
    "no id": ("accelerators: {v4-8: {tasks: [{run: x}]}}", "tasks[0].id: is missing"),
    "no run": ("accelerators: {v4-8: {tasks: [{id: x}]}}", "tasks[0].run: is missing"),
    "no tasks": ("accelerators: {v4-8: {zone: x}}", "accelerators.v4-8: has no tasks:"),
    "twice": ("accelerators: {v4-8: {tasks: [{id: a, run: x},\n {id: a, run: y}]}}", "a is there twice"),
    "unknown dependency": (
        "accelerators: {v4-8: {tasks: [{id: pre-a, run: x}, {id: b, run: y, depends_on: pre_a}]}}",
        "b.depends_on: there is no task pre_a; did you mean 'pre-a'?",
    ),
    "circle": (
        "accelerators: {v4-8: {tasks: [{id: z, run: x, depends_on: a}, {id: a, run: x, depends_on: [q, b]},"
        " {id: b, run: y, depends_on: [q, a]}, {id: q, run: x}]}}",
        "a.depends_on: is a circle: a -> b -> a",
    ),
    "of itself": ("accelerators: {v4-8: {tasks: [{id: a, run: x, depends_on: a}]}}", "is a circle: a -> a"),
    "unknown repo": ("repos: {one: u}\naccelerators: {v4-8: {tasks: [{id: a, run: x, repo: two}]}}", "there is no two"),
    "workers": ("accelerators: {v4-8: {tasks: [{id: a, run: x, workers: some}]}}", "workers: expected all, or numbers"),
    "id": ("accelerators: {v4-8: {tasks: [{id: 'a b', run: x}]}}", "id: expected up to 64 letters"),
    "reference": ("accelerators: {v4-8: {tasks: [{id: a, run: 'x ${HOME}'}]}}", "unknown reference ${HOME}"),
    "list": ("accelerators: [v4-8]", "expected tasks by accelerator"),
}


@pytest.mark.parametrize(("text", "expected"), PROBLEMS.values(), ids=PROBLEMS)
def test_a_problem_has_its_line(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert expected in str(caught.value)
    assert f"{tmp_path}/tasks.yaml:" in str(caught.value)


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, "repo: x\naccelerators: {v4-8: {tasks: [{id: a}, {id: b, run: x, depends_on: c}]}}")
    assert str(caught.value).count("tasks.yaml:") == 3


def test_a_diamond_of_dependencies_is_no_circle(tmp_path: Path) -> None:
    tasks = "{id: a, run: x, depends_on: [b, c]}, {id: b, run: x, depends_on: d}, {id: c, run: x, depends_on: d}"
    assert len(read(tmp_path, f"accelerators: {{v: {{tasks: [{tasks}, {{id: d, run: x}}]}}}}").tasks) == 4
