"""Steps of modules on this machine: their texts run by bash, in a workspace, as core/module.py describes it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mesh.core.module import Step

STEP_TIMEOUT_S = 600.0  # on a machine with much to do
# Descriptor 3 is a pipe to a file, so that a test needs no thread.
WITH_FACT = 'exec 3>"$STEP_FACT"; unset STEP_FACT; eval "$STEP_TEXT"'


@dataclass
class Place:
    """A host of one directory: its home, a workspace and the marks of modules."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for directory in (self.home, self.workspace, self.marks):
            directory.mkdir(parents=True, exist_ok=True)
        base = {"PATH": os.environ["PATH"], "HOME": str(self.home), "MESH_MODULES": str(self.marks), "MESH_SETUP": "1"}
        self.environ = {**base, **self.environ}

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    @property
    def marks(self) -> Path:
        return self.root / "marks"


@dataclass(frozen=True)
class Ended:
    """The end of a text."""

    status: int
    out: str
    err: str
    fact: str


def start(text: str, place: Place, **more: str) -> subprocess.Popen[str]:
    """Start a text in a session of its own."""
    return subprocess.Popen(
        ["bash", "-c", WITH_FACT],
        cwd=place.workspace,
        env={**place.environ, "STEP_TEXT": text, "STEP_FACT": os.devnull, **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(text: str, place: Place) -> Ended:
    """Run a text to its end."""
    fact = place.root / "fact"
    process = start(text, place, STEP_FACT=str(fact))
    out, err = process.communicate(timeout=STEP_TIMEOUT_S)
    return Ended(process.returncode, out, err, fact.read_text())


def check(step: Step, place: Place) -> Ended:
    return run(step.check, place)


def apply(step: Step, place: Place) -> Ended:
    send(step, place)
    return run(step.apply, place)


def undo(step: Step, place: Place) -> Ended:
    return run(step.undo, place) if step.undo else Ended(0, "", "", "")


def send(step: Step, place: Place) -> None:
    """Write the step's files."""
    for file in step.files:
        path = Path(file.path.replace("~", str(place.home), 1) if file.path.startswith("~/") else file.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)
        path.chmod(file.mode)


def prepare(steps: Sequence[Step], place: Place) -> tuple[list[int], Ended]:
    """Apply the steps whose check fails; return their indices, and the first end that was no success or the last."""
    applied: list[int] = []
    ended = Ended(0, "", "", "")
    for index, step in enumerate(steps):
        if step.check and (ended := check(step, place)).status == 0:
            continue
        applied.append(index)
        ended = apply(step, place)
        if ended.status == 0 and step.check:
            assert check(step, place).status == 0, "the check fails after a successful apply"
        if ended.status:
            break
    return applied, ended


def tree(place: Place, without: Mapping[str, str] | Sequence[str] = ()) -> set[str]:
    """Return all paths of a host but its caches."""
    found = {str(path.relative_to(place.root)) for path in place.root.rglob("*")}
    return {path for path in found if not path.startswith(("home/.cache", "fact", *without))}
