"""Pods of a real cluster of Kubernetes, reached by mesh and by ``kubectl exec``."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.figures import Sample
from benchmarks.rows import Chosen, told
from benchmarks.stage import OURS, BenchmarkError, User
from tests.kubecluster.cluster import ADMIN, NODES, Cluster

LINES, LINE = 200_000, "x" * 78  # a pod; with a number and a newline 88 bytes
FILES, FILE_BYTES = 2000, 10_000
LONGEST_S = 900.0  # of one command
LABEL = "app=bench"
HEAD = """\
## Pods of Kubernetes

A real cluster on this machine: etcd, an API server of version 1.20, two nodes with containerd and runc. The pods are
there already. `kubectl exec` is started for all pods at once, or for one after another; its output has no labels. The
files are sent to all pods at once, by mesh and by a tar through `kubectl exec`.
"""
# Each word is one pod; $1: what each runs; the rest: the pods.
AT_ONCE = 'run=$1; shift; for pod; do sh -c "$run" sh "$pod" & done; wait'
IN_TURN = 'run=$1; shift; for pod; do sh -c "$run" sh "$pod"; done'


def timed(user: User, argv: Sequence[str], output: Path) -> Sample:
    """Run a command with its output in a file. Raises BenchmarkError."""
    environ = {**user.environ, "MESH_KEEP": "0"}
    with output.open("wb") as out, output.with_suffix(".err").open("wb") as err:
        began = time.monotonic()
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environ, cwd=user.project
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise BenchmarkError(f"{shlex.join(argv)[:200]}: {output.with_suffix('.err').read_text()[-1000:]}")
    return Sample(seconds=seconds, cpu=usage.ru_utime + usage.ru_stime)


def race(user: User, contestants: Mapping[str, Sequence[str]], rounds: int, check: int = 0) -> dict[str, list[Sample]]:
    """Let commands take turns. check: lines that each must print, or 0"""
    samples: dict[str, list[Sample]] = {name: [] for name in contestants}
    output = user.home / "output"
    for _ in range(rounds):
        for name, argv in contestants.items():
            samples[name].append(timed(user, argv, output))
            if check and (found := _lines(output)) != check:
                raise BenchmarkError(f"{name}: {found} lines of {check}")
    return samples


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def carriers(chosen: Chosen) -> str:
    """Compare mesh and kubectl on pods."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise BenchmarkError("kubectl is not installed, which mesh is compared with")
    parts = [HEAD]
    with Cluster() as cluster, tempfile.TemporaryDirectory() as scratch:
        user = User(variant=OURS, home=Path(scratch, "home"), project=Path(scratch, "project"))
        user.home.mkdir()
        user.project.mkdir()
        cluster.write_kubeconfig(user.home, ADMIN)
        made: list[str] = []
        for count in chosen.hosts:
            for number in range(len(made), count):
                made.append(f"w-{number}")
                cluster.make_pod(made[-1], {"app": "bench"}, NODES[number % len(NODES)])
            cluster.wait_for_pods(LABEL, count)
            parts.append(_hostname(chosen, user, kubectl, made))
            if count == min(chosen.hosts):
                parts += [_output(chosen, user, kubectl, made), _files(chosen, user, kubectl, made)]
        cluster.clear()
    return "\n".join(parts)


def _mesh(*words: str) -> list[str]:
    return [sys.executable, "-m", "mesh", *words]


def _shell(how: str, run: str, pods: Sequence[str]) -> list[str]:
    return ["sh", "-c", how, "sh", run, *pods]


def _hostname(chosen: Chosen, user: User, kubectl: str, pods: Sequence[str]) -> str:
    run = f'{kubectl} exec "$1" -- hostname'
    contestants = {
        "mesh exec": _mesh("exec", f"k8s:{LABEL}", "hostname"),
        "kubectl exec, at once": _shell(AT_ONCE, run, pods),
        "kubectl exec, in turn": _shell(IN_TURN, run, pods),
    }
    samples = race(user, contestants, chosen.rounds, len(pods))
    return told(chosen, f"`hostname` on {len(pods)} pods", "to the end", samples, _seconds, ["client CPU, s"])


def _output(chosen: Chosen, user: User, kubectl: str, pods: Sequence[str]) -> str:
    text = f"seq -f '%08.0f {LINE}' {LINES}"
    run = f'{kubectl} exec "$1" -- {text} >"$HOME/$1"'
    contestants = {
        "mesh exec": _mesh("exec", f"k8s:{LABEL}", "sh", "-c", text),
        "kubectl exec, at once": _shell(AT_ONCE, run, pods),
    }
    samples: dict[str, list[Sample]] = {name: [] for name in contestants}
    for _ in range(chosen.rounds):
        for name, argv in contestants.items():
            samples[name] += race(user, {name: argv}, 1, LINES * len(pods) if name == "mesh exec" else 0)[name]
        if {_lines(user.home / pod) for pod in pods} != {LINES}:
            raise BenchmarkError("kubectl exec has lost lines")
    title = f"{LINES * len(pods) * 88 / 1e6:.0f} MB of lines from {len(pods)} pods"
    return told(chosen, title, "to the end", samples, _seconds, ["client CPU, s"])


def _files(chosen: Chosen, user: User, kubectl: str, pods: Sequence[str]) -> str:
    run = f'{kubectl} exec -i "$1" -- tar -xf - -C /tmp <"$HOME/files.tar"'
    tar = f'tar -cf "$HOME/files.tar" . && {AT_ONCE}'
    contestants = {"mesh run": _mesh("run", f"k8s:{LABEL}", "true"), "tar by kubectl exec": _shell(tar, run, pods)}
    whole: dict[str, list[Sample]] = {name: [] for name in contestants}
    edit: dict[str, list[Sample]] = {name: [] for name in contestants}
    for number in range(chosen.rounds):
        user.fill(FILES, FILE_BYTES)
        (user.project / "round").write_bytes(os.urandom(8) + bytes((number,)))
        timed(
            user, _shell(AT_ONCE, f'{kubectl} exec "$1" -- rm -rf /root/.mesh/workspaces', pods), user.home / "output"
        )
        for name, argv in contestants.items():
            whole[name] += race(user, {name: argv}, 1)[name]
        for name, argv in contestants.items():
            user.edit()
            edit[name] += race(user, {name: argv}, 1)[name]
    title = f"{FILES} files, {FILES * FILE_BYTES / 1e6:.0f} MB, to {len(pods)} pods"
    parts = [
        told(chosen, title, "to the end", whole, _seconds, ["client CPU, s"]),
        told(chosen, "The same after one edit", "to the end", edit, _seconds, ["client CPU, s"]),
    ]
    return "\n".join(parts)


def _seconds(sample: Sample) -> float:
    return sample.seconds
