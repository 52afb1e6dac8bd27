"""The batch script of an allocation, and the words for sbatch and srun. Pure."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from mesh.backends.slurm.commands import MARK
from mesh.config.slurm import Allocation, MadeAllocation, Warn
from mesh.core.interpreter import interpreter
from mesh.hosts.slurm.task import TASK

HOLDER = Path(__file__).with_name("holder.py")
DIGEST_CHARACTERS = 16
NAME_DIGEST_CHARACTERS = 8
NAME_PREFIX = "mesh-"
# Compiles the rest of the file, behind the two lines for the shell. The arguments hold no secret.
START = 'import sys; exec(compile("\\n\\n" + open(sys.argv[1]).read().split("\\n", 2)[2], "mesh-holder", "exec"))'
START_FROM_STDIN = 'import sys; exec(compile(sys.stdin.read(), "mesh-holder", "exec"))'
# Options of sbatch that srun needs as well, because a step does not have them by itself. It has all CPUs of the job on
# each node: with --cpus-per-task it would have only so many.
STEP_KEYS = ("gres", "gpus_per_node")
CALL = re.compile(r"^main\(Given\(\*\*(\{.*\})\)\)$", re.MULTILINE)


class Written(Struct, frozen=True, kw_only=True):
    """The values in a batch script that a client needs."""

    key: str
    digest: str = ""
    hold: float = 0.0
    until: float = 0.0


def job_name(cluster: str) -> str:
    """Return the name of the job of a cluster.

    Names that differ only in other characters have different jobs.

    >>> job_name("big"), job_name("my-pod"), job_name("my pod")
    ('mesh-big', 'mesh-my-pod', 'mesh-my-pod-04924522')
    """
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", cluster)
    digest = hashlib.sha256(cluster.encode()).hexdigest()[:NAME_DIGEST_CHARACTERS]
    return NAME_PREFIX + plain + (f"-{digest}" if plain != cluster else "")


def digest_of(source: MadeAllocation, python: str) -> str:
    """Return the digest of a request, and of what its holder was given."""
    parts = [sorted(source.request.items()), source.exclusive, source.extra, source.hold, python]
    parts.append(msgspec.to_builtins(source.warn))
    parts += ["local"] if source.local else []
    parts += ["ssh"] if source.is_by_ssh else []
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:DIGEST_CHARACTERS]


def local_directory(key: str) -> str:
    """Return mesh's directory on the nodes of an allocation with ``local``, which others cannot foresee."""
    return f"/tmp/mesh-slurm-{hashlib.sha256(key.encode()).hexdigest()[:DIGEST_CHARACTERS]}"


def submit_words(source: MadeAllocation, cluster: str, *, is_test: bool = False) -> list[str]:
    """Return the argv of sbatch, which reads the script from its standard input. is_test: ask only whether it may"""
    words = ["sbatch", *(["--test-only"] if is_test else ["--parsable"])]
    words += [f"--job-name={job_name(cluster)}", "--no-requeue", "--export=NONE", "--output=/dev/null", "--chdir=/"]
    words += [f"--{key.replace('_', '-')}={value}" for key, value in source.request.items() if key != "comment"]
    words += ["--ntasks-per-node=1"]
    words += ["--exclusive"] if source.exclusive else []
    return [*words, *source.extra]


def step_words(nodes: int, request: Mapping[str, str], job: str = "", *, reports: bool = False) -> list[str]:
    """Return the options of srun for the step that has a program on each node.

    nodes: how many; 0: the holder adds the number of the job's nodes; job: "" within the batch script
    reports: the holder reads what the programs print
    """
    words = [f"--jobid={job}"] if job else []
    words += [
        "--overlap",
        *([f"--nodes={nodes}", f"--ntasks={nodes}"] if nodes else []),
        "--ntasks-per-node=1",
        "--mem=0",
    ]
    words += ["--kill-on-bad-exit=0", "--wait=0", "--cpu-bind=none", "--export=ALL", "--input=all"]
    words += [] if reports else ["--output=none"]
    words += [f"--{key.replace('_', '-')}={request[key]}" for key in STEP_KEYS if key in request]
    return words


def values(
    source: MadeAllocation | Allocation, key: str, program: bytes, python: str, srun: Sequence[str], **more: object
) -> dict[str, object]:
    """Return what the holder is given. key: of the switchboard, as PEM; program: the zip of the switchboard"""
    return {
        "mark": MARK,
        "job": "",
        "comment": source.request.get("comment", "") if isinstance(source, MadeAllocation) else "",
        "hold": source.hold,
        "until": 0.0,
        "warn": _warning(source.warn),
        "digest": "",
        "ports": [0, 0],
        "python": interpreter(python),
        "task": TASK,
        "srun": list(srun),
        "program": base64.b64encode(program).decode(),
        "key": key,
        "file": "",
        "is_by_ssh": int(isinstance(source, MadeAllocation) and source.is_by_ssh),  # Python reads this JSON
        "local": local_directory(key) if isinstance(source, MadeAllocation) and source.local else "",
        **more,
    }


def text_of(given: Mapping[str, object]) -> str:
    """Return the holder's program with its values."""
    return f"{HOLDER.read_text()}\n\nmain(Given(**{json.dumps(given)}))\n"


def script_of(given: Mapping[str, object], python: str) -> str:
    """Return the batch script. Its text is readable by its owner and by operators, and so is the key in it."""
    return f'#!/bin/sh\nexec {shlex.join(interpreter(python))} -I -S -c {shlex.quote(START)} "$0"\n{text_of(given)}'


def request_script(
    source: MadeAllocation, key: str, program: bytes, python: str, until: float = 0.0, home: str = "~/.mesh"
) -> str:
    """Return the batch script of an allocation that mesh asks for.

    until: as in ``values``, seconds since the epoch; home: mesh's directory on the nodes
    """
    srun = step_words(source.nodes, source.request, reports=source.is_by_ssh)
    given = values(source, key, program, python, srun, until=until, digest=digest_of(source, python), home=home)
    return script_of(given, python)


def read_script(text: str) -> Written | None:
    """Return what a batch script of mesh holds; None for another one."""
    found = CALL.findall(text)
    try:
        return msgspec.json.decode(found[-1], type=Written) if found else None
    except msgspec.MsgspecError:
        return None


def _warning(warn: Warn | None) -> list[float]:
    return [warn.signal, warn.before] if warn else []
