"""Plans of JOBMAN's files, which are in ``tests/data/jobman``, written anew key for key.

``python -m tests.jobman_files`` writes the plans.
The three folders have the files of the three versions, ``blocks`` the examples of their documents, each with the rest
of a job added, and ``wrong`` files that JOBMAN cannot use either.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from msgspec import json, to_builtins

from mesh.config.jobfile import JobFile, read_job_file
from mesh.core.errors import UsageError

DATA = Path(__file__).parent / "data/jobman"
ASSETS = ("fms.yaml", "requirements.txt", "requirements_train.txt", "requirements_torch.txt")
TASKS = "accelerators: {v6e-64: {tasks: [{id: first, run: bash train.sh}]}}\n"
REST = {
    "job": {"name": "block", "loop": False},
    "tpu": {"accelerator": "v6e-1", "version": "v2-alpha-tpuv6e", "zone": "us-east1-d"},
    "command": {"run": "true"},
}


def files() -> Iterator[Path]:
    """Yield all files."""
    yield from sorted(DATA.glob("*/*.yaml"))


def text_of(path: Path) -> str:
    """Return the text of a file; to a block of a document the rest of a job is added."""
    text = path.read_text()
    if path.parent.name != "blocks":
        return text
    there = yaml.safe_load(text)
    is_worker = "queue" in there.get("job", {})
    rest = {key: value for key, value in REST.items() if key not in there and not (is_worker and key == "command")}
    return text + yaml.safe_dump(rest)


def read(path: Path, directory: Path) -> JobFile:
    """Read a file in a directory that has the assets. Raises UsageError."""
    (directory / "assets").mkdir(exist_ok=True)
    for name in ASSETS:
        (directory / "assets" / name).touch()
    (directory / "queue_machines").mkdir(exist_ok=True)
    (directory / "queue_machines/tasks.yaml").write_text(TASKS)
    copy = directory / path.name
    copy.write_text(text_of(path))
    return read_job_file(copy, (), (), 0.0, directory)


def plan(path: Path, directory: Path) -> str:
    """Return all that is understood of a file as JSON, or its problems."""
    try:
        found = read(path, directory)
    except UsageError as error:
        return f"{error}\n{error.hint}\n".replace(f"{directory}/", "")
    spec = to_builtins(found.spec, enc_hook=str)
    facts = {key: value for key, value in spec.items() if key not in ("file", "config")}
    facts |= {"notices": found.notices, "files": found.files, "jobman": to_builtins(found.jobman)}
    facts["jobman"].pop("notices")
    facts = with_values(facts)
    text = json.format(json.encode(facts, order="sorted"), indent=1).decode() + "\n"
    return text.replace(f"{directory}/", "")


def with_values(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts without those that are empty, so that a new key of mesh changes no plan."""
    found = {key: with_values(value) if isinstance(value, dict) else value for key, value in facts.items()}
    return {key: value for key, value in found.items() if value}


def main() -> None:
    """Write the plan of each file beside it."""
    with tempfile.TemporaryDirectory() as place:
        for path in files():
            path.with_suffix(".plan").write_text(plan(path, Path(place)))


if __name__ == "__main__":
    os.umask(0o022)
    main()
