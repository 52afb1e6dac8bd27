"""Job files: good ones as values, bad ones with all of their problems."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mesh.config.jobfile import read_job_file
from mesh.core.errors import UsageError
from mesh.core.job import CommandSpec, Format, JobSpec, Keep, MachinesSpec, NotifySpec, RestartOn, RestartSpec
from mesh.core.module import Bucket, Conda, Docker, Gcsfuse, Python, Ssh
from mesh.core.notify import Moment
from mesh.core.run import AUTO, Launch
from mesh.jobs.coding import decode, encode
from tests.conftest import REPOSITORY

NOW = datetime.datetime(2026, 11, 24, 12, 0).timestamp()


def read(directory: Path, text: str, *overrides: str, command: Sequence[str] = ()) -> JobSpec:
    path = directory / "train.yaml"
    path.write_text(text)
    return read_job_file(path, overrides, command, NOW).spec


def problems(directory: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(UsageError) as caught:
        read(directory, text, *overrides)
    return [line.removeprefix(f"{directory}/") for line in str(caught.value).splitlines()]


def test_the_shortest_file(tmp_path: Path) -> None:
    spec = read(tmp_path, "machines: pod\nrun: python train.py --lr 1e-3\n")
    assert spec.name == "train"
    assert spec.machines == MachinesSpec(cluster="pod")
    assert spec.command == CommandSpec(words=("bash", "-c", "python train.py --lr 1e-3"))
    assert (spec.restart, spec.workspace.keep, spec.priority) == (RestartSpec(), Keep.SNAPSHOT, 0)
    assert (spec.after, spec.depends_on, spec.array) == (0.0, (), None)


WHOLE = """\
job:
  name: train-8b
  user: me
  priority: -5
  queue: night
  depends_on: [41, 42]
  after: 22:00
  env: {LR: 1e-3, STEPS: 010, DEBUG: yes, EMPTY: ""}
  pass: [WANDB_*, HF_TOKEN]
machines: {cluster: pod, hosts: 4}
workspace: none
setup: {modules: [command]}
command: {cmd: [python, train.py, 1e-3], workers: [0, 2], nproc: auto, launcher: torchrun, timeout: 20h, grace: 60}
restart:
  on: failure
  failures: 5
  recoveries: 10
  exit_codes: {again: [29], never: 2}
  backoff: [30s, 30m]
results: [checkpoints, "out/*.npz"]
progress: 'step (?P<step>\\d+)'
checkpoint: /data/ckpt
notify:
  - {on: [failed, held], command: [notify-send, "{job} {state}"]}
  - {url_env: SLACK_URL, format: slack}
"""


def test_a_file_with_every_key(tmp_path: Path) -> None:
    spec = read(tmp_path, WHOLE)
    assert (spec.name, spec.user, spec.priority, spec.queue) == ("train-8b", "me", -5, "night")
    assert (spec.depends_on, spec.after - NOW) == ((41, 42), 10 * 3600)
    assert spec.env == {"LR": "1e-3", "STEPS": "010", "DEBUG": "yes", "EMPTY": ""}  # as they are written
    assert spec.passed == ("WANDB_*", "HF_TOKEN")
    assert spec.machines == MachinesSpec(cluster="pod", hosts=4)
    assert spec.workspace.keep is Keep.NONE
    assert spec.command == CommandSpec(
        words=("python", "train.py", "1e-3"),
        workers=(0, 2),
        nproc=AUTO,
        launcher=Launch.TORCHRUN,
        timeout=72000.0,
        grace=60.0,
    )
    assert spec.restart == RestartSpec(
        on=RestartOn.FAILURE, failures=5, recoveries=10, again=(29,), never=(2,), backoff=(30.0, 1800.0)
    )
    assert (spec.results, spec.checkpoint_dir) == (("checkpoints", "out/*.npz"), "/data/ckpt")
    assert spec.notify == (
        NotifySpec(on=(Moment.FAILED, Moment.HELD), command=("notify-send", "{job} {state}")),
        NotifySpec(url_env="SLACK_URL", format=Format.SLACK),
    )
    assert spec.file == WHOLE


@pytest.mark.parametrize(
    ("text", "cluster", "hosts"),
    [
        ("pod:0-3", "pod:0-3", 0),
        ("{cluster: pod, hosts: 'tpu-[0-1]'}", "pod:tpu-0,pod:tpu-1", 0),
        ("{cluster: pod, hosts: 2}", "pod", 2),
        ("local", "local", 0),
    ],
)
def test_machines(tmp_path: Path, text: str, cluster: str, hosts: int) -> None:
    spec = read(tmp_path, f"machines: {text}\nrun: 'true'\n")
    assert (spec.machines.cluster, spec.machines.hosts) == (cluster, hosts)


BAD = {
    "nothing": ("", ["train.yaml: machines: is missing"]),
    "no mapping": ("- pod\n", ["train.yaml:1: : expected the keys of a job file, found a list"]),
    "no command": ("machines: pod\n", ["train.yaml: run: is missing"]),
    "two commands": (
        "machines: pod\nrun: x\ncommand: {run: y}\n",
        ["train.yaml:3: command.run: is there beside run; a job has one command"],
    ),
    "machines that cannot be made": (
        "kubernetes: {cluster: x}\nmachines: pod\nrun: x\n",
        ["train.yaml:1: kubernetes: not yet: name a cluster by `machines:`, or a TPU by `tpu:`"],
    ),
    "modules": (
        "machines: pod\nrun: x\nsetup: {modules: [docker, tpu, ssh, command]}\nconda: {name: x}\n"
        "job: {env_type: venv}\ngcsfuse: {bucket: b}\n",
        [
            "train.yaml:3: setup.modules: docker: has no section docker:",
            "train.yaml:3: setup.modules[1]: unknown module 'tpu'; there are 'ssh', 'gcsfuse', 'uv', 'venv', 'conda', "
            "'docker'",
            "train.yaml:5: job.env_type: venv has no section venv:",
        ],
    ),
    "two environments": (
        "machines: pod\nrun: x\nvenv: {name: v}\nconda: {name: x}\n",
        [
            "train.yaml:4: conda: is a second environment beside venv: a job has one at most; choose it by "
            "job.env_type",
        ],
    ),
    "unknown keys": (
        "machines: {clusters: pod}\nrun: x\njob: {prio: 3}\n",
        [
            "train.yaml:3: job: unknown key 'prio'; did you mean 'priority'?",
            "train.yaml:1: machines: unknown key 'clusters'; did you mean 'cluster'?",
            "train.yaml:1: machines: has no cluster:",
        ],
    ),
    "a git workspace without its repository": (
        "machines: pod\nrun: x\nworkspace: {ref: -main, depth: 1}\n",
        [
            "train.yaml:3: workspace: unknown key 'depth'; there are 'git', 'ref'",
            "train.yaml:3: workspace: has no git:",
            "train.yaml:3: workspace.ref: begins with a dash",
        ],
    ),
    "a git workspace with a password": (
        "machines: pod\nrun: x\nworkspace: {git: 'https://me:secret@example.org/a.git'}\n",
        [
            "train.yaml:3: workspace.git: holds a password; use an SSH address, or a credential helper of git",
        ],
    ),
    "values of wrong kinds": (
        "machines: pod\nrun: []\njob: {priority: 101, depends_on: [a], after: noon, name: 42}\n"
        "restart: {on: success, failures: -1, backoff: [30m, 30s]}\nresults: out\nprogress: '('\n"
        "command: {timeout: long, nproc: 0, workers: first}\nnotify: [{on: [start], command: [a]}]\n",
        [
            "train.yaml:3: job.name: expected up to 64 letters, digits, dots, dashes and underscores, and no number "
            "alone, found 42",
            "train.yaml:2: run: is empty",
            "train.yaml:7: command.workers: expected all, or numbers of hosts such as [0, 2], found 'first'",
            "train.yaml:7: command.nproc: expected a number from 1 to 1024, or auto, found 0",
            "train.yaml:7: command.timeout: expected seconds, or a time such as 30s, 5m or 2h, found 'long'",
            "train.yaml:3: job.priority: expected a whole number from -100 to 100, found 101",
            "train.yaml:3: job.depends_on: expected the numbers of jobs, as [41, 42], found a list",
            "train.yaml:3: job.after: expected a time of day, a date, or a date and time: 22:00, 2026-12-24, "
            "2026-12-24T22:00, found 'noon'",
            "train.yaml:4: restart.on: expected never or preemption or failure or always, found 'success'",
            "train.yaml:4: restart.failures: expected a whole number from 0 to 1000000, found -1",
            "train.yaml:4: restart.backoff: expected two times, the first and the longest, as [30s, 30m], found a list",
            "train.yaml:5: results: expected a list of paths and patterns, found 'out'",
            "train.yaml:6: progress: no regular expression of Python: missing ), unterminated subpattern at position 0",
            "train.yaml:8: notify[0].on[0]: expected "
            "end, done, failed, held, preempted, stuck, cost, left, found 'start'",
        ],
    ),
    "secrets": (
        "machines: pod\nrun: echo ${oc.env:HF_TOKEN}\njob: {env: {API_KEY: x, TOKENIZERS_PARALLELISM: 'false'}}\n",
        [
            "train.yaml:2: run: HF_TOKEN would be written to the job's files; hand it on by `pass:`",
            "train.yaml:3: job.env: API_KEY would be written to the job's files; hand it on by `pass:`",
        ],
    ),
    "references": (
        "machines: pod\nrun: [a, '${HOME}', '${x:-3}', '${job.nam}', '${oc.env:MESH_NO_SUCH}', 'a ${b']\n",
        [
            "train.yaml:2: run[2]: unknown reference ${x:-3}; for the shell of the ranks write `\\${x:-3}`",
            "train.yaml:2: run[5]: cannot be resolved: 'a ${b'; a `${` for the shell of the ranks is written as `\\${`",
            "train.yaml:2: run[1]: unknown reference ${HOME}; for a variable of the ranks write `$HOME` or `\\${HOME}`",
            "train.yaml:2: run[3]: unknown reference ${job.nam}",
            "train.yaml:2: run[4]: the variable MESH_NO_SUCH is not set here",
        ],
    ),
}


@pytest.mark.parametrize(("text", "expected"), BAD.values(), ids=BAD)
def test_all_problems_are_told(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert sorted(problems(tmp_path, text)) == sorted(expected)


MODULES: dict[str, tuple[str, tuple[tuple[str, object], ...]]] = {
    "in the order of the list": (
        "setup: {modules: [docker, ssh, gcsfuse, command]}\ndocker: {image: a:1}\ngcsfuse: {bucket: b, path: /m}\n"
        "conda: {name: unused}\n",
        (
            ("docker", Docker(image="a:1")),
            ("ssh", Ssh()),
            ("gcsfuse", Gcsfuse(buckets=(Bucket(name="b", path="/m"),))),
        ),
    ),
    "by their sections": (
        "ssh: {}\nvenv: {name: v}\ngcsfuse:\n",
        (("ssh", Ssh()), ("venv", Python(tool="venv", path="~/v"))),
    ),
    "by the type of the environment": (
        "job: {env_type: conda}\nconda: {name: c}\ndocker: {image: a}\n",
        (("conda", Conda(name="c")),),
    ),
    "without an environment": ("job: {env_type: none}\nconda: {name: c}\n", ()),
    "a bucket at two places": (
        "gcsfuse: {bucket: b, path: /m, extra_mounts: [{path: /n, cache: {prefix: mkdir /c}}]}\n",
        (
            (
                "gcsfuse",
                Gcsfuse(
                    buckets=(Bucket(name="b", path="/m"), Bucket(name="b", path="/n", cache={"prefix": "mkdir /c"}))
                ),
            ),
        ),
    ),
}


@pytest.mark.parametrize(("text", "expected"), MODULES.values(), ids=MODULES)
def test_modules(tmp_path: Path, text: str, expected: tuple[tuple[str, object], ...]) -> None:
    spec = read(tmp_path, f"machines: pod\nrun: x\n{text}")
    assert spec.modules == expected
    assert decode(encode(spec), JobSpec) == spec  # as the store keeps it


def test_references_are_resolved_and_shells_keep_theirs(tmp_path: Path) -> None:
    text = (
        "machines: pod\njob: {name: lr3, priority: 5}\n"
        "run: echo ${job.name}-${job.priority} $HOME \\${HOME} ${oc.env:MESH_NO_SUCH,none}\n"
        "results: ['${job.name}.npz']\n"
    )
    spec = read(tmp_path, text)
    assert spec.command.words[-1] == "echo lr3-5 $HOME ${HOME} none"
    assert spec.results == ("lr3.npz",)


def test_overrides_win_and_have_their_own_place(tmp_path: Path) -> None:
    text = "machines: pod\nrun: x\nrestart: {on: never}\n"
    spec = read(
        tmp_path,
        text,
        "machines.hosts=2",
        "restart.on=always",
        "job.name=${job.queue}",
        "job.queue=q",
        "results=[a, b]",
    )
    assert (spec.machines, spec.restart.on, spec.name) == (
        MachinesSpec(cluster="pod", hosts=2),
        RestartOn.ALWAYS,
        "q",
    )
    assert spec.results == ("a", "b")
    assert read(tmp_path, text, "machines.cluster=local:2").machines.cluster == "local:2"
    assert problems(tmp_path, text, "restart.on=sometimes", "rum=y", "run.x=1") == [
        "--set run.x: x: there is nothing below it in the file",
        "--set rum: rum: unknown key 'rum'; did you mean 'run'?",
        "--set restart.on: restart.on: expected never or preemption or failure or always, found 'sometimes'",
    ]
    for wrong in ("restart", "=3", ".on=x"):
        assert problems(tmp_path, text, wrong) == [f"--set: expected KEY=VALUE, found {wrong!r}"]


def test_words_win_over_the_command_of_the_file(tmp_path: Path) -> None:
    assert read(tmp_path, "machines: pod\nrun: x\n", command=["a", "b c"]).command.words == ("a", "b c")
    spec = read_job_file(None, ["machines.cluster=pod"], ["/usr/bin/python3", "x"], NOW).spec
    assert (spec.name, spec.machines.cluster, spec.command.words) == ("python3", "pod", ("/usr/bin/python3", "x"))


def test_the_file_of_the_documents(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs/jobs.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    spec = read(tmp_path, text)
    assert (spec.name, spec.machines.hosts, spec.command.timeout) == ("train-8b", 4, 72000.0)


def test_omegaconf_is_imported_for_references_alone(tmp_path: Path) -> None:
    (tmp_path / "plain.yaml").write_text("machines: pod\nrun: echo $HOME\n")
    (tmp_path / "refers.yaml").write_text("machines: pod\nrun: echo ${job.name}\njob: {name: x}\n")
    script = (
        "import sys; from pathlib import Path; from mesh.config.jobfile import read_job_file\n"
        "read_job_file(Path(sys.argv[1]), [], [], 0.0); print('omegaconf' in sys.modules, 'sqlalchemy' in sys.modules)"
    )
    for name, found in (("plain", "False False"), ("refers", "True False")):
        argv = [sys.executable, "-c", script, str(tmp_path / f"{name}.yaml")]
        assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip() == found
