"""Containers that ranks start with docker or podman: children of a daemon, so that only a label tells whose they are.

A small script stands in front of the real program on PATH. It labels what is run or created, and leaves a mark that it
was used at all, so that a run without containers asks no daemon anything.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from .processes import find_program

TOOLS = ("docker", "podman")
LABEL = "mesh.run"
ANSWER = 10.0  # seconds for the daemon to answer
# Options of the program itself that take a value, as two words. Others hold it after "=", or have none.
SCRIPT = r"""#!/bin/sh
# Labels the containers of a run of mesh, so that none of them is left when it ends.
: >%(mark)s
done= value=
for word do
    shift
    if [ -n "$value" ]; then value=
    elif [ -z "$done" ]; then
        case $word in
        -c | --config | --context | -H | --host | -l | --log-level | --tlscacert | --tlscert | --tlskey | --url | \
            --connection | --identity | --root | --runroot | --runtime | --storage-driver | --storage-opt | --tmpdir | \
            --cgroup-manager | --conmon | --events-backend | --hooks-dir | --imagestore | --module | --namespace | \
            --network-cmd-path | --network-config-dir | --out | --ssh | --volumepath) value=1 ;;
        -* | container) ;;
        run | create) set -- "$@" "$word"; word=--label=%(label)s; done=1 ;;
        *) done=1 ;;
        esac
    fi
    set -- "$@" "$word"
done
exec %(real)s "$@"
"""


class Containers:
    """The scripts of one run on this host."""

    def __init__(self, directory: str, run: str) -> None:
        """directory: where the scripts are, or will be."""
        self._directory, self._label = directory, f"{LABEL}={run}"

    def cover(self, path: bytes) -> bytes:
        """Put the scripts in front of a PATH on which the real programs are. Raises OSError."""
        for tool in TOOLS:
            try:
                real = os.fsdecode(find_program(tool.encode(), path))
            except FileNotFoundError:
                continue
            os.makedirs(os.path.join(self._directory, "bin"), 0o700, exist_ok=True)
            script = os.path.join(self._directory, "bin", tool)
            given = {"mark": _quote(self._mark(tool)), "real": _quote(real), "label": _quote(self._label)}
            with open(script, "w") as file:
                file.write(SCRIPT % given)
            os.chmod(script, 0o700)
            with open(os.path.join(self._directory, tool + ".path"), "w") as file:
                file.write(real)
        if os.path.isdir(self._directory):
            return os.path.join(self._directory, "bin").encode() + b":" + path
        return path

    def used(self) -> bool:
        return any(os.path.exists(self._mark(tool)) for tool in TOOLS)

    def stop(self, grace: float) -> list[str]:
        """Stop what runs, and remove the scripts; return what is left, one line each. Takes long."""
        left = []
        for tool in TOOLS:
            if os.path.exists(self._mark(tool)):
                try:
                    left += self._stop(tool, grace)
                except (OSError, subprocess.SubprocessError) as error:
                    left.append(f"cannot see whether containers are left: {tool}: {error}")
        if not left:
            shutil.rmtree(self._directory, ignore_errors=True)
        return left

    def _stop(self, tool: str, grace: float) -> list[str]:
        with open(os.path.join(self._directory, tool + ".path")) as file:
            real = file.read()
        running = self._running(real)
        if running:
            stop = [real, "stop", "-t", str(int(grace)), *running]
            subprocess.run(stop, stdin=-3, stdout=-3, stderr=-3, timeout=grace + ANSWER, check=False)  # -3: DEVNULL
        return [f"{tool} container {name} is left" for name in self._running(real)]

    def _running(self, real: str) -> list[str]:
        ask = [real, "ps", "-q", "--filter", f"label={self._label}"]
        done = subprocess.run(ask, stdin=-3, capture_output=True, timeout=ANSWER, check=True)
        return done.stdout.decode("ascii", "replace").split()

    def _mark(self, tool: str) -> str:
        return os.path.join(self._directory, tool + ".used")


def _quote(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"
