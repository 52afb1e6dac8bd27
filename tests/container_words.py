"""The words with which the module docker calls an engine, recorded by a program that plays one.

``python -m tests.container_words --write`` writes tests/golden/docker.txt anew.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mesh.core.module import Docker
from mesh.modules.docker import DockerEnvironment

GOLDEN = Path(__file__).with_name("golden") / "docker.txt"
RUN = "20261124-101500-3f9c2a"
# It answers every question with success, and notes how it was run: words, environment and the file of variables.
PROGRAM = """#!/bin/sh
[ "$1" = run ] || exit 0
printf '%s\\0' "$@" >"{place}/words"
env -0 >"{place}/environ"
: >"{place}/variables"
while [ $# -gt 0 ]; do
    [ "$1" != --env-file ] || cat "$2" >"{place}/variables"
    shift
done
"""
HOST = {"PATH": "", "HOME": "", "LANG": "C.UTF-8", "SSH_CLIENT": "10.0.0.1", "CUDA_HOME": "/usr/local/cuda"}
GIVEN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "MESH_RUN_ID": RUN}
IMAGE = "box:1"


@dataclass(frozen=True)
class Call:
    """A call of the engine."""

    words: list[str]
    environ: dict[str, str]
    variables: str  # the lines of the file of variables
    status: int
    err: str


class Desk:
    """A host of one directory, on which a program plays the engine."""

    def __init__(self, place: Path, engine: str = "docker", workspace: str = "work space") -> None:
        self.place, self.home, self.workspace = place, place / "home", place / workspace
        for directory in (self.home / "data", self.workspace / "data", place / "bin"):
            directory.mkdir(parents=True)
        for name in engine.split():
            program = place / "bin" / name
            program.write_text(PROGRAM.replace("{place}", str(place)))
            program.chmod(0o755)

    def call(
        self,
        description: Docker,
        words: Sequence[str] = ("python3", "train.py"),
        given: Mapping[str, str] | None = None,
        prerun: str = "",
    ) -> Call:
        """Do as mesh does: run ``enter`` and prerun in one session, and start a rank with what that leaves."""
        module = DockerEnvironment(description)
        given = {**GIVEN, **(given or {})}
        path = f"{self.place}/bin:/usr/bin:/bin"
        environ = {**HOST, "PATH": path, "HOME": str(self.home), "PWD": str(self.workspace), **given}
        session = f"{module.enter}{prerun}\nexec env -0"
        left = subprocess.run(
            ["bash", "-c", session], cwd=self.workspace, env=environ, capture_output=True, check=False
        )
        if left.returncode:
            return Call([], {}, "", left.returncode, left.stderr.decode())
        rank = pairs(left.stdout)
        argv = module.wrap(words, tuple(given), RUN)
        for file in ("words", "environ", "variables"):
            (self.place / file).unlink(missing_ok=True)
        done = subprocess.run(argv, cwd=rank["PWD"], env=rank, capture_output=True, check=False)
        if done.returncode:
            return Call([], {}, "", done.returncode, done.stderr.decode())
        return Call(
            (self.place / "words").read_bytes().decode().split("\0")[:-1],
            pairs((self.place / "environ").read_bytes()),
            (self.place / "variables").read_text(),
            0,
            done.stderr.decode(),
        )

    def plain(self, text: str) -> str:
        """Return a text with short names for the host's directories."""
        return text.replace(str(self.workspace), "/WORKSPACE").replace(str(self.home), "/HOME")


def pairs(environ: bytes) -> dict[str, str]:
    """Return what ``env -0`` has printed."""
    return dict(pair.split("=", 1) for pair in environ.decode().split("\0")[:-1])


@dataclass(frozen=True)
class Case:
    """A configuration, and what else a host has."""

    description: Docker
    given: Mapping[str, str]
    prerun: str


def _case(given: Mapping[str, str] | None = None, prerun: str = "", **keys: object) -> Case:
    return Case(Docker(**{"image": IMAGE, **keys}), given or {}, prerun)  # type: ignore[arg-type]


CASES: dict[str, Case] = {
    "image": _case(),
    "image with registry": _case(image="reg.example:5000/a/b:1.2"),
    "image by digest": _case(image="box@sha256:" + "a" * 64),
    "mount absolute": _case(mounts=("/usr",)),
    "mount with target": _case(mounts=("/usr:/opt/usr",)),
    "mount with options": _case(mounts=("/usr:/opt/usr:ro,z",)),
    "mount of the home": _case(mounts=("~",)),
    "mount below the home": _case(mounts=("~/data:/data",)),
    "mount of the workspace in place": _case(mounts=(".",)),
    "mount of the workspace elsewhere": _case(mounts=(".:/work",)),
    "mount relative": _case(mounts=("./data",)),
    "mount relative with target": _case(mounts=("data/:/data:ro",)),
    "mount with spaces and quotes": _case(mounts=("data:/a b'c\"d$(e)",)),
    "two mounts": _case(mounts=("/usr:/u", "/etc:/e:ro")),
    "workdir absolute": _case(workdir="/srv/app"),
    "workdir relative": _case(workdir="src"),
    "workdir at home": _case(workdir="~/data"),
    "workdir with quotes": _case(workdir="/a 'b' \"c\" $d `e`"),
    "workdir that prerun leaves": _case(prerun="cd data"),
    "value": _case(env=("MODE=train",)),
    "value that is empty": _case(env=("MODE=",)),
    "value with an equals sign": _case(env=("ARGS=a=b",)),
    "value with newlines and quotes": _case(env=("TEXT=a\n'b' \"c\" $d `e` \\",)),
    "value of PATH": _case(env=("PATH=/opt/bin:/bin", "HOME=/root")),
    "value of a name with a dot": _case(env=("a.b=c d",)),
    "value of the run wins": _case(given={"MODE": "1"}, env=("MODE=2",)),
    "name of a host's variable": _case(env=("CUDA_HOME", "LANG")),
    "name that is not set": _case(env=("ABSENT",)),
    "name that stays outside otherwise": _case(env=("HOME",)),
    "variable of the user": _case(given={"LR": "1e-3", "TEXT": "a\nb"}),
    "variable of the user that the host has": _case(given={"CUDA_HOME": "/mine"}),
    "SHELL of the user stays outside": _case(given={"EDITOR": "vi", "SHELL": "/bin/zsh"}),
    "variables of prerun": _case(prerun="export NEW=1 VIRTUAL_ENV=/x CUDA_HOME=/y PATH=$PATH:/x"),
    "PYTHONPATH of the user": _case(given={"PYTHONPATH": "src"}),
    "flags": _case(flags=("--gpus", "all", "--ipc=host")),
    "flags of ROCm": _case(flags=("--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "video")),
    "flags of a TPU": _case(flags=("--privileged", "--shm-size=16g")),
    "flags with quotes": _case(flags=("--label", 'a=it\'s "x" $y', "")),
    "network of its own": _case(flags=("--network", "none")),
    "network in one word": _case(flags=("--net=bridge",)),
    "init and log by flags": _case(flags=("--init=false", "--log-driver=json-file")),
    "podman": _case(engine="podman"),
    "everything": _case(
        mounts=("~/data:/data:ro", "."), env=("A=1", "LANG"), workdir="~", flags=("--gpus=all",), given={"B": "2"}
    ),
}


def recorded(place: Path) -> str:
    """Return the words of all configurations, each as a line for a shell."""
    parts = []
    for number, (name, case) in enumerate(CASES.items()):
        desk = Desk(place / str(number), case.description.engine or "docker")
        call = desk.call(case.description, given=case.given, prerun=case.prerun)
        assert call.status == 0, (name, call.err)
        line = re.sub(r"/dev/fd/\d+", "/dev/fd/N", desk.plain(shlex.join(call.words)))
        lines = [f"# {name}", line, *(f"N: {one}" for one in call.variables.splitlines())]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        text = recorded(Path(directory))
    if "--write" in sys.argv:
        GOLDEN.write_text(text)
    else:
        os.write(1, text.encode())
