"""Steps of modules, run by bash on test hosts and in temporary homes: check, apply and undo of one step."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mesh.core.module import HostFile, Step


@dataclass(frozen=True)
class Place:
    """A host, as steps see it."""

    home: Path  # seen from here
    variables: Mapping[str, str] = field(default_factory=dict)
    enter: Sequence[str] = ()  # words before bash, which enter the host; (): this machine
    inside: str = ""  # the home, seen from the host; "": `home`

    @property
    def environ(self) -> dict[str, str]:
        home = self.inside or str(self.home)
        fixed = {"HOME": home, "PATH": os.environ["PATH"], "MESH_SETUP": "1", "MESH_MODULES": f"{home}/.mesh/modules"}
        return {**fixed, **self.variables}


@dataclass(frozen=True)
class Ran:
    """The end of one text of a step."""

    status: int
    out: str
    err: str
    fact: str = ""


def start(place: Place, text: str, fact: int = -1) -> subprocess.Popen[str]:
    """Start bash with a text in a session of its own. fact: where descriptor 3 goes"""
    environ = [f"{name}={value}" for name, value in place.environ.items()]
    redirected = (
        ["bash", "-c", f'exec 3>&{fact}; exec bash -c "$1"', "bash", text] if fact >= 0 else ["bash", "-c", text]
    )
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [*place.enter, "env", "-i", *environ, *redirected],
        text=True,
        cwd="/" if place.enter else place.home,
        start_new_session=True,
        pass_fds=(fact,) if fact >= 0 else (),
        **pipes,  # type: ignore[call-overload]
    )


def run(place: Place, text: str, within: float = 120.0) -> Ran:
    """Run a text to its end."""
    with tempfile.TemporaryFile("w+") as fact:
        process = start(place, text, fact.fileno())
        out, err = process.communicate(timeout=within)
        fact.seek(0)
        return Ran(process.returncode, out, err, fact.read())


def check(place: Place, step: Step) -> Ran:
    return run(place, step.check)


def apply(place: Place, step: Step) -> Ran:
    write(place, step.files)
    return run(place, step.apply)


def undo(place: Place, step: Step) -> Ran:
    write(place, step.files)
    return run(place, step.undo)


def settle(place: Place, step: Step) -> Ran:
    """Check, apply if that fails, and check again; return the first end that is not good, or the last check."""
    done = check(place, step)
    if step.check and done.status == 0:
        return done
    applied = apply(place, step)
    return applied if applied.status or not step.check else check(place, step)


def write(place: Place, files: Iterable[HostFile]) -> None:
    """Write the files of a step beside, and rename them."""
    for file in files:
        path = place.home / file.path[2:] if file.path.startswith("~/") else Path(file.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.new")
        beside.write_bytes(file.data)
        beside.chmod(file.mode)
        beside.rename(path)
