"""Containers that a run starts: they are children of a daemon, so that they are marked, and ended by that mark.

A small script stands before docker and podman on PATH. It adds a label to what is run or created, and takes a note of
that. At the end what carries the label is stopped. Runs that start no container pay nothing.
"""

from __future__ import annotations

import os
import shlex
import signal
import time

from .frames import to_bytes
from .processes import Setting, find_program, first_environment, spawn
from .state import machine_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

PROGRAMS = (b"docker", b"podman")
LIMIT = 4.0  # seconds for the engine to answer, beyond what a container has to end by itself
SAID = 200  # characters of an engine's complaint that are told
# Which engine is meant depends on these, beside the options.
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
# Of mesh: marks the containers of a run, so that they end with it.
_mesh_real={real} _mesh_n=0 _mesh_all= _mesh_before= _mesh_valued= _mesh_label=
while [ $# -gt 0 ]; do
    _mesh_n=$((_mesh_n + 1))
    eval "_mesh_$_mesh_n=\$1"
    _mesh_all="$_mesh_all \"\$_mesh_$_mesh_n\""
    case $_mesh_valued$1 in
    run|create) _mesh_label='--label mesh.run={run}'; shift; break;;
    container) shift; continue;;
    esac
    _mesh_before="$_mesh_before \"\$_mesh_$_mesh_n\""
    case $_mesh_valued$1 in
    =*) _mesh_valued=;;
    {valued}) _mesh_valued==;;
    -*) ;;
    *) shift; break;;
    esac
    shift
done
[ -z "$_mesh_label" ] ||
    eval "printf '%s\\t' \"\$_mesh_real\" {variables} $_mesh_before '
'" >>{note} || echo "mesh: this container is not noted, and does not end with the run" >&2
eval "exec \"\$_mesh_real\" $_mesh_all $_mesh_label \"\$@\""
"""


class Containers:
    """The scripts of one run on this host, and the end of what was marked by them."""

    def __init__(self, remote_dir: str, run: str, node: int) -> None:
        self._filter = f"label=mesh.run={run}"
        self._script = SCRIPT.replace("{run}", run).replace("{valued}", VALUED)
        self._directory = os.path.join(machine_directory(remote_dir), f"bin-{run}-{node}")
        self._note = os.path.join(self._directory, "note")
        self._steps: Generator[None, None, None] | None = None
        self.pid = 0  # of the command that runs now; 0 if none does
        self._status = 0  # of the last one, from waitpid; -1: it took too long
        self._output = -1  # the file that it writes to
        self._limit = 0.0  # when it is given up, monotonic
        self._until = 0.0  # when it ends what has not ended by itself, monotonic; 0: it does not wait for that
        self.left: list[Container] = []  # what could not be ended

    # ---- the scripts

    def stand_before(self, environment: dict[bytes, bytes]) -> None:
        """Put the scripts first on PATH, where the programs are. Raises OSError if they cannot be written."""
        ours = os.fsencode(self._directory)
        places = environment.get(b"PATH", os.defpath.encode()).split(b":")
        others = b":".join(place for place in places if place != ours)
        for name in PROGRAMS:
            try:
                real = os.path.abspath(find_program(name, others))
            except OSError:
                continue
            os.makedirs(self._directory, 0o700, exist_ok=True)
            path = os.path.join(self._directory, os.fsdecode(name))
            self._write(path, os.fsdecode(real))
            environment[b"PATH"] = ours + b":" + others

    def _write(self, path: str, real: str) -> None:
        variables = " ".join(f'\\"\\${name}\\"' for name in VARIABLES)
        text = self._script.replace("{variables}", variables).replace("{note}", shlex.quote(self._note))
        with open(path + ".new", "w", errors="surrogateescape") as file:
            file.write(text.replace("{real}", shlex.quote(real)))
        os.chmod(path + ".new", 0o700)
        os.replace(path + ".new", path)  # a shell may be reading the one that is there

    # ---- the end

    def step(self, kill_at: float) -> bool:
        """Do what is due, without waiting for it; True once no marked container is left, or all are named.

        kill_at: until then they may end by themselves, monotonic
        """
        if self._steps is None:
            self._steps = self._end(kill_at)
        if self.pid and kill_at < self._until - 0.5:  # somebody has lost patience; a second is how exact it is
            self._limit = 0.0
        if self.pid and not self._has_ended():
            return False
        return next(self._steps, "done") == "done"

    def next(self) -> float:
        """When step() is to be called again at the latest, monotonic, beside the end of its command."""
        return self._limit if self.pid else 0.0

    def reaped(self, pid: int, status: int) -> None:
        """A child has ended: is it our command?"""
        if pid == self.pid:
            self.pid, self._status = 0, status

    def end_now(self) -> list[str]:
        """Kill all; return what is left. It waits: not for the agent."""
        while not self.step(0.0):
            time.sleep(0.005)
        self.remove()
        return [container.told() for container in self.left]

    def remove(self) -> None:
        """Remove the scripts."""
        try:
            for name in os.listdir(self._directory):
                os.unlink(os.path.join(self._directory, name))
            os.rmdir(self._directory)
        except OSError:
            pass

    def _has_ended(self) -> bool:
        try:
            self.reaped(*os.waitpid(self.pid, os.WNOHANG))
        except ChildProcessError:  # somebody else has told us, or will
            pass
        if self.pid and time.monotonic() > self._limit:
            os.kill(self.pid, signal.SIGKILL)
            self.pid, self._status = 0, -1
        return not self.pid

    def _end(self, kill_at: float) -> Generator[None, None, None]:
        """End what is marked; a step is over when its command is."""
        for real, environment, options in self._engines():
            engine = [real, *options]
            # One that is being started goes on to run though its client was killed; only "stop" waits for that, and
            # does nothing to one that was never started.
            found: list[str] = []
            looks = [["-aq", "--filter", "status=created"], ["-q"]]
            for verb in (["stop"], ["kill"], ["rm", "-f"], []):
                for look in looks:
                    self._call([*engine, "ps", *look, "--filter", self._filter], environment, 0.0)
                    yield
                    said = self._said()
                    if self._status:
                        why = "did not answer" if self._status < 0 else " ".join(said)[:SAID]
                        self.left.append(Container(f"containers of the run: {os.path.basename(real)} ps: {why}"))
                        break
                    found += [word for word in said if word.isalnum()]
                if self._status or not found:
                    break
                if not verb:
                    self.left += [Container(f"{os.path.basename(real)} container {name}") for name in found]
                    break
                patience = max(0.0, kill_at - time.monotonic()) if verb == ["stop"] else 0.0
                seconds = ["-t", str(int(patience))] if verb == ["stop"] else []
                self._call([*engine, *verb, *seconds, *found], environment, patience)
                yield
                os.close(self._output)
                found, looks = [], looks[-1:]

    def _engines(self) -> list[tuple[str, dict[bytes, bytes], list[str]]]:
        """Program, environment and options of each engine that was used."""
        try:
            with open(self._note, errors="surrogateescape") as file:
                lines = sorted({line.lstrip("\t") for line in file.read().split("\n")})
        except OSError:  # nothing was
            return []
        found = []
        for line in lines:
            real, *fields = line.split("\t")[:-1] or [""]
            if real and len(fields) >= len(VARIABLES):
                given = {name.encode(): to_bytes(value) for name, value in zip(VARIABLES, fields) if value}
                found.append((real, {**first_environment(), **given}, fields[len(VARIABLES) :]))
        return found

    def _call(self, argv: list[str], environment: dict[bytes, bytes], patience: float) -> None:
        """Start a command of the engine, which has LIMIT seconds to answer, and patience."""
        now = time.monotonic()
        self._limit, self._until = now + patience + LIMIT, now + patience if patience else 0.0
        self._output = os.memfd_create("mesh-engine")
        null = os.open(os.devnull, os.O_RDONLY)
        try:
            words = [to_bytes(word) for word in argv]
            self.pid = spawn(words, Setting(environment, "/"), null, self._output, self._output)
        except OSError:  # no process is left to have
            self._status = -1
        finally:
            os.close(null)

    def _said(self) -> list[str]:
        """The lines that the command has written; they are read once."""
        os.lseek(self._output, 0, os.SEEK_SET)
        with open(self._output, errors="replace") as file:
            return [line.strip() for line in file.read(65536).split("\n") if line.strip()]


class Container:
    """What could not be ended."""

    def __init__(self, what: str) -> None:
        self._what = what

    def told(self) -> str:
        """For people."""
        return self._what
