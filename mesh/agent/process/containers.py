"""Containers that ranks start with docker or podman: children of a daemon, so that only a label shows their run.

A small script stands in front of the real program on PATH. It labels what is run or created, and takes a note of the
engine that was meant, so that a run without containers asks no daemon anything.
"""

from __future__ import annotations

import os
import time

from mesh.agent.base.directories import machine_directory
from mesh.agent.base.light import quote
from mesh.agent.process.spawning import find_program

TOOLS = ("docker", "podman")
LABEL = "mesh.run"
RANK_LABEL = "mesh.rank"  # of a container that the module docker has started for a rank: it is removed as well
SUDO = ("sudo", "-n", "env")  # before an engine that this user may not use, then its variables
DAEMON_ANSWER_TIMEOUT_S = 10.0
ERROR_CHARACTERS = 200  # of a daemon's error that are shown
# Variables that, beside the options, decide which engine is meant.
VARIABLES = ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "CONTAINER_HOST")
# Options before the subcommand whose value is the next word: docker(1), podman(1).
VALUED = (
    "-H|-c|-l|-D[Hcl]|--config|--context|--host|--log-level|--tlscacert|--tlscert|--tlskey|--cdi-spec-dir|"
    "--cgroup-manager|--connection|--conmon|--db-backend|--default-mounts-file|--events-backend|--hooks-dir|--identity|"
    "--imagestore|--module|--namespace|--network-cmd-path|--network-config-dir|--out|--root|--runroot|--runtime|"
    "--runtime-flag|--ssh|--storage-driver|--storage-opt|--tmpdir|--url|--volumepath"
)
# The words go through variables, as "$@" can only be cut at its beginning; with odd names, since what the user exports
# must reach the real program as it was. A note is one write, so that those of several ranks do not mix.
SCRIPT = r"""#!/bin/sh
# Labels the containers of a run of mesh, so that none of them is left when it ends.
_mesh_real={real} _mesh_n=0 _mesh_all= _mesh_before= _mesh_valued= _mesh_label=
while [ $# -gt 0 ]; do
    _mesh_n=$((_mesh_n + 1))
    eval "_mesh_$_mesh_n=\$1"
    _mesh_all="$_mesh_all \"\$_mesh_$_mesh_n\""
    case $_mesh_valued$1 in
    run | create) _mesh_label='--label {label}'; shift; break ;;
    container) shift; continue ;;
    esac
    _mesh_before="$_mesh_before \"\$_mesh_$_mesh_n\""
    case $_mesh_valued$1 in
    =*) _mesh_valued= ;;
    {valued}) _mesh_valued== ;;
    -*) ;;
    *) shift; break ;;
    esac
    shift
done
[ -z "$_mesh_label" ] ||
    eval "printf '%s\\t' \"\$_mesh_real\" {variables} $_mesh_before '
'" >>{note} || echo "mesh: this container is not noted, and does not end with the run" >&2
eval "exec \"\$_mesh_real\" $_mesh_all $_mesh_label \"\$@\""
"""


def containers_of(remote_dir: str, run: str, node: int) -> Containers:
    """Return the containers of a run on this host."""
    return Containers(os.path.join(machine_directory(remote_dir), f"bin-{run}-{node}"), run)


class Containers:
    """The scripts of one run on this host, and the containers that they have labelled."""

    def __init__(self, directory: str, run: str) -> None:
        """directory: where the scripts are, or will be."""
        self._directory, self._label = directory, f"{LABEL}={run}"
        self._note = os.path.join(directory, "note")
        self._covered: dict[str, str] = {}  # the real program behind each script

    def cover(self, path: bytes) -> bytes:
        """Put the scripts in front of a PATH on which the real programs are. Raises OSError.

        A tool that was covered may be covered again: another program may be the first one now.
        """
        ours = os.fsencode(os.path.join(self._directory, "bin"))
        others = b":".join(place for place in path.split(b":") if place != ours)
        covered = others
        for tool in TOOLS:
            try:
                real = os.path.abspath(os.fsdecode(find_program(tool.encode(), others)))
            except FileNotFoundError:
                continue
            if self._covered.get(tool) != real:
                os.makedirs(ours, 0o700, exist_ok=True)
                self._write(os.path.join(self._directory, "bin", tool), real)
                self._covered[tool] = real
            covered = ours + b":" + others
        return covered

    def _write(self, path: str, real: str) -> None:
        given = {
            "label": self._label,
            "valued": VALUED,
            "note": quote(self._note),
            "real": quote(real),
            "variables": " ".join(f'\\"\\${name}\\"' for name in VARIABLES),
        }
        text = SCRIPT
        for name, value in given.items():
            text = text.replace("{" + name + "}", value)
        with open(path + ".new", "w", errors="surrogateescape") as file:
            file.write(text)
        os.chmod(path + ".new", 0o700)
        os.replace(path + ".new", path)  # a shell may be reading the one that is there

    def used(self) -> bool:
        """Return True once a rank has run or created a container."""
        return os.path.exists(self._note)

    def stop(self, grace: float) -> list[str]:
        """Stop the containers and remove the scripts. Return lines about those that are left. May take long."""
        if not os.path.isdir(self._directory):
            return []
        left = self._stop_all(grace) if self.used() else []
        if not left:
            self._remove()
        return left

    def _remove(self) -> None:
        try:
            for place, _, names in os.walk(self._directory, topdown=False):
                for name in names:
                    os.unlink(os.path.join(place, name))
                os.rmdir(place)
        except OSError:  # the sweep of `mesh clean` may do the same
            pass

    def _stop_all(self, grace: float) -> list[str]:
        import subprocess  # most runs have no containers

        left = []
        deadline = time.monotonic() + grace
        for real, given, options in self._engines():
            try:
                left += self._stop_permitted([real, *options], given, deadline)
            except (OSError, subprocess.SubprocessError) as error:
                stderr = error.stderr if isinstance(error, subprocess.CalledProcessError) else b""
                text = (stderr or b"").decode("utf-8", "replace").strip()[:ERROR_CHARACTERS]
                name = os.path.basename(real)
                left.append(f"cannot see whether containers are left: {name}: {text or error}")
        return left

    def _stop_permitted(self, engine: list[str], given: dict[str, str], deadline: float) -> list[str]:
        """Stop the containers of one engine, by sudo if this user has no right to it. given: its variables"""
        import subprocess

        environment = {**os.environ, **given}
        try:
            return self._stop(engine, environment, deadline)
        except subprocess.CalledProcessError as error:
            if b"permission denied" not in error.stderr:
                raise
            words = [f"{name}={value}" for name, value in given.items()]
            return self._stop([*SUDO, *words, *engine], environment, deadline)

    def _engines(self) -> list[tuple[str, dict[str, str], list[str]]]:
        """Return program, variables and options of each engine that was used."""
        with open(self._note, errors="surrogateescape") as file:
            lines = {line.lstrip("\t") for line in file.read().split("\n")}
        found = []
        for line in sorted(lines):
            real, *fields = line.split("\t")[:-1] or [""]
            if real and len(fields) >= len(VARIABLES):
                given = {name: value for name, value in zip(VARIABLES, fields) if value}
                found.append((real, given, fields[len(VARIABLES) :]))
        return found

    def _stop(self, engine: list[str], environment: dict[str, str], deadline: float) -> list[str]:
        """Stop the containers with the run's label. Return lines about those that are left."""
        # A container that is being started goes on to run though its client was killed. Only "stop" waits for that; it
        # does nothing to one that was never started.
        found = self._list(engine, environment, "-aq", "--filter", "status=created")
        for verb in ("stop", "kill", "rm"):
            found += self._list(engine, environment, "-q")
            is_clear = not found
            if is_clear:
                break
            patience = max(0.0, deadline - time.monotonic()) if verb == "stop" else 0.0
            how = {"stop": ["-t", str(int(patience))], "rm": ["-f"]}.get(verb, [])
            self._end([*engine, verb, *how, *found], environment, patience)
            found = []
        # Engines remove a container at its end, but not one that never started, nor one whose processes were killed
        # together with podman's own.
        ended = self._list(engine, environment, "-aq", "--filter", f"label={RANK_LABEL}")
        if ended:
            self._end([*engine, "rm", "-f", "-v", *ended], environment)
        elif is_clear:
            return []
        name = next(os.path.basename(word) for word in engine if os.path.basename(word) in TOOLS)
        return [f"{name} container {container} is left" for container in self._list(engine, environment, "-q")]

    def _end(self, words: list[str], environment: dict[str, str], patience: float = 0.0) -> None:
        import subprocess

        limit = patience + DAEMON_ANSWER_TIMEOUT_S
        subprocess.run(words, env=environment, stdin=-3, stdout=-3, stderr=-3, timeout=limit, check=False)  # DEVNULL

    def _list(self, engine: list[str], environment: dict[str, str], *which: str) -> list[str]:
        import subprocess

        ask = [*engine, "ps", *which, "--filter", f"label={self._label}"]
        done = subprocess.run(
            ask, env=environment, stdin=-3, capture_output=True, timeout=DAEMON_ANSWER_TIMEOUT_S, check=True
        )
        return done.stdout.decode("ascii", "replace").split()
