"""Every command line of JOBMAN's documents runs by ``mesh jobman``, as docs/from-jobman.md lists them."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.cli.parser import parse
from mesh.cli.program import COMMANDS
from tests import conda
from tests.conftest import REPOSITORY, Home
from tests.desk import Desk, desk_of
from tests.gcs import FakeGcs, missing, own_address

WITHIN_S = 300.0
PAGE = REPOSITORY / "docs/from-jobman.md"
ROW = re.compile(r"^\| (`jobman .*) \| (`mesh jobman .*) \| (.*) \|$", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
FILE = """\
job: {name: here, loop: false, worker_num: auto}
tpu: {allocation_mode: tpu-vm, accelerator: v6e-1, zone: us-east1-d, version: v2-alpha-tpuv6e, name: x}
ssh: null
command:
  cmd: |
    echo "completed step: 7, loss: 1.5"
    echo to stderr >&2
    [ ! -e "$HOME/stays" ] || sleep 600
  workers: [0]
"""


def lines(column: int) -> Iterator[str]:
    """Yield the command lines of a column of the table of commands."""
    for row in ROW.findall(PAGE.read_text()):
        yield from CODE.findall(row[column])


def words_of(line: str) -> list[str]:
    """Return the words after ``mesh``, with something in place of ID, F and ``...``."""
    return shlex.split(line.replace(" ...", " 43").replace("=F", "=f.yaml").replace(" F", " f.yaml"))[1:]


@pytest.mark.parametrize("line", [*lines(1), *lines(2)])
def test_each_command_line_of_the_page_is_read(line: str) -> None:
    words = words_of(line)
    if words[0] == "ssh":
        return
    name = " ".join(words[:2])
    if name in ("job quota", "job cost") and name not in COMMANDS:
        pytest.skip("of another part")
    parse(COMMANDS[name], words[2:])


def test_the_page_has_every_command() -> None:
    named = {line.split()[2] for line in lines(1)}
    theirs = {name.split()[1] for name in COMMANDS if name.startswith("jobman ")}
    assert named == theirs


@pytest.fixture
def desk(home: Home) -> Iterator[Desk]:
    with desk_of(home) as found:
        yield found


def test_a_job_by_the_commands_of_jobman(desk: Desk) -> None:
    mesh, project = desk.mesh, desk.home.project
    (project / "f.yaml").write_text(FILE)
    (desk.home.path / "stays").touch()
    plan = mesh("jobman", "create", "f.yaml", "--cluster", "local:2", "--dry-run").out.decode()
    assert "workers    0" in plan
    assert "job        here_1" in plan
    made = mesh("jobman", "create", "f.yaml", "--cluster", "local:2")
    assert made.status == 0, made.err
    user = desk.show(1)["user"]
    place = project / f"jobs/{user}/000001"
    assert made.out.decode().splitlines()[0] == f"job 000001 here_1: jobs/{user}/000001"
    assert mesh("jobman", "create", "f.yaml", "--cluster", "local:2").out.startswith(b"job 000002 here_2: ")
    desk.until(1, "running", within=WITHIN_S)
    listed = mesh("jobman", "list").out.decode().splitlines()
    assert [line.split()[0] for line in listed[1:]] == ["000001", "000002"]
    assert listed[1].split()[-1] == "RUNNING"
    tpu = mesh("jobman", "tpu", "000001")
    assert tpu.status == 125
    assert "has no TPU of its own" in tpu.err
    assert mesh("jobman", "ssh", "000001", "--force").status == 2  # the file has no module
    login = mesh("jobman", "ssh", "000001")
    assert "logging in to worker 0, because its file has job.worker_num" in login.err
    assert "job:1:0 is this machine" in login.err
    assert mesh("jobman", "reboot", "000001", "--force", "--force-prefix").status == 0
    assert desk.until(1, "running", within=WITHIN_S)["attempt"] in (1, 2)
    assert mesh("jobman", "stop", "1", "2").status == 0
    for job in (1, 2):
        desk.until(job, "stopped", within=WITHIN_S)
    assert [line.split()[-1] for line in mesh("jobman", "list").out.decode().splitlines()[1:]] == ["DEAD", "DEAD"]
    (desk.home.path / "stays").unlink()
    ran = mesh("jobman", "run", "000001")
    assert ran.status == 0, ran.err
    assert b"completed step: 7, loss: 1.5" in ran.out
    log = place / "logs/main_command_worker_0.log"
    assert log.read_text() == "completed step: 7, loss: 1.5\nto stderr\n"
    assert (place / "logs/command_worker_0.log").read_text() == log.read_text()
    assert "Job Name" in mesh("jobman", "status").out.decode()
    assert mesh("jobman", "status", "1").out.decode().splitlines()[-2:] == log.read_text().splitlines()
    directory = Path(str(desk.show(2)["directory"]))
    assert mesh("jobman", "clean", "000002").out == b"job 000002 here_2: removed\n"
    assert not directory.exists()
    assert mesh("jobman", "clean", "--all").out == b"job 000001 here_1: removed\n"
    assert sorted(path.name for path in (project / "jobs").rglob("*")) == [".gitignore", str(user)]
    assert mesh("jobman", "list").out.decode().splitlines()[1:] == []


VENV = """\
job: {name: tools, env_type: venv}
tpu: {allocation_mode: tpu-vm, accelerator: v6e-1, zone: us-east1-d, version: v2-alpha-tpuv6e, name: x}
ssh: null
venv: {name: train}
command: {cmd: "echo $VIRTUAL_ENV", workers: [0]}
"""


# Leaves pip out of new environments, which would take most of the time of the test.
PYTHON = f"""#!/bin/sh
[ "$1 $2" != "-m venv" ] || {{ shift 2; set -- -m venv --without-pip "$@"; }}
exec {sys.executable} "$@"
"""


def test_an_environment_is_made_anew_by_force_alone(desk: Desk) -> None:
    mesh, place = desk.mesh, desk.home.path / "train"
    python = desk.home.path / "bin/python3"
    python.parent.mkdir()
    python.write_text(PYTHON)
    python.chmod(0o755)
    desk.home.environ["PATH"] = f"{python.parent}:{desk.home.environ['PATH']}"
    (desk.home.project / "f.yaml").write_text(VENV)
    made = mesh("jobman", "create", "f.yaml", "--cluster", "local:1")
    assert made.status == 0, made.err
    assert mesh("job", "wait", "1", within=WITHIN_S).status == 0, desk.show(1)
    for words, is_made_anew in ((("venv",), False), (("venv", "--force"), True), (("run", "--force"), True)):
        (place / "mine").touch()
        done = mesh("jobman", *words, "000001", within=WITHIN_S)
        assert done.status == 0, done.err
        assert (place / "bin/python").exists()
        assert (place / "mine").exists() is not is_made_anew, words
    assert done.out.decode().splitlines()[-1].endswith(f" {place}")
    refused = mesh("jobman", "conda", "000001")
    assert (refused.status, "has no module 'conda'; it has venv" in refused.err) == (2, True), refused.err


CONDA = """\
job: {name: tools, env_type: conda}
tpu: {allocation_mode: tpu-vm, accelerator: v6e-1, zone: us-east1-d, version: v2-alpha-tpuv6e, name: x}
ssh: null
conda: {name: train, config_file: environment.yml}
command: {cmd: "greet $CONDA_DEFAULT_ENV", workers: [0]}
"""


def test_an_environment_of_conda_is_the_one_of_the_command(desk: Desk) -> None:
    mesh, base, channel = desk.mesh, desk.home.path / "miniconda3", desk.home.path / "channel"
    conda.write_channel(channel)
    conda.install(base)
    wanted = {"channels": [f"file://{channel}"], "dependencies": ["python", "greet=1.0"]}
    desk.home.files(f__yaml=CONDA, environment__yml=json.dumps(wanted))
    made = mesh("jobman", "create", "f.yaml", "--cluster", "local:1")
    assert made.status == 0, made.err
    assert mesh("job", "wait", "1", within=WITHIN_S).status == 0, desk.show(1)
    assert desk.output(1).splitlines()[-1] == b"greet 1.0 train"
    for words, is_made_anew in ((("conda",), False), (("conda", "--force"), True)):
        (base / "envs/train/mine").touch()
        done = mesh("jobman", *words, "000001", within=WITHIN_S)
        assert done.status == 0, done.err
        assert (base / "envs/train/bin/greet").exists()
        assert (base / "envs/train/mine").exists() is not is_made_anew, words
    refused = mesh("jobman", "venv", "000001")
    assert (refused.status, "has no module 'venv'; it has conda" in refused.err) == (2, True), refused.err


def test_a_job_without_credentials_for_its_tpu(desk: Desk) -> None:
    desk.home.environ |= {"CLOUDSDK_CONFIG": str(desk.home.path / "none"), "GOOGLE_APPLICATION_CREDENTIALS": "/none"}
    desk.home.environ["MESH_SERVE"] = "0"
    (desk.home.project / "f.yaml").write_text(FILE)
    refused = desk.mesh("jobman", "create", "f.yaml")
    assert refused.status == 2
    assert "no project is set" in refused.err
    assert "or project: below tpu: in the job file" in refused.err
    made = desk.mesh("jobman", "create", "f.yaml", "--set", "tpu.project=lab")
    assert made.status == 0, made.err
    assert "this machine cannot request the TPU: File /none was not found.: gcloud auth application-default" in made.err
    listed = desk.mesh("jobman", "list").out.decode().splitlines()
    assert listed[1].split()[3:] == ["v6e-1", "us-east1-d", "N/A", "QUEUEING"]
    assert listed[2] == "us-east1-d v6e: 0 chips held, 1 asked for"
    assert desk.mesh("jobman", "delete", "1").status == 0
    assert desk.mesh("jobman", "list").out.decode().splitlines()[1:] == []


@pytest.mark.skipif(bool(missing()), reason=missing() or "nothing")
def test_the_sizes_of_buckets(desk: Desk) -> None:
    with FakeGcs(own_address()) as gcs:
        gcs.bucket("other")
        gcs.bucket("mine", a__txt="hello", b__txt="0123456789")
        desk.home.environ["STORAGE_EMULATOR_HOST"] = gcs.url
        nothing = desk.mesh("job", "storage")
        assert nothing.status == 2
        assert "no job mounts a bucket" in nothing.err
        done = desk.mesh("job", "storage", "gs://mine", "gs://none", "--json")
        assert done.status == 1
        assert b'"bucket":"mine"' in done.out
        assert b'"objects":2,"bytes":15' in done.out
        assert b"there is no such bucket" in done.out
        job = "setup: {modules: [gcsfuse]}\ngcsfuse: {bucket: mine, path: /srv/data}\ncommand: {run: 'true'}\n"
        tpu = "tpu: {accelerator: v4-8, version: v, project: lab, pricing: spot, zone: ZONE}\n"
        # At this address no credentials are needed: gcloud is not asked for any.
        desk.home.environ |= {"MESH_SERVE": "0", "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": "http://127.0.0.1:9/"}
        for name, zone in (("far", "us-east1-d"), ("near", "us-central1-a")):
            (desk.home.project / f"{name}.yaml").write_text(tpu.replace("ZONE", zone) + job)
        warning = "gs://mine is in US-CENTRAL1, but the machines are in us-east1-d: reads are slow"
        far = desk.mesh("jobman", "create", "far.yaml")
        assert far.status == 0, far.err
        assert warning in far.err
        assert "gs://mine" not in desk.mesh("jobman", "create", "near.yaml").err
        listed = desk.mesh("job", "storage")
        assert listed.status == 0, listed.err
        assert listed.err.splitlines() == [f"==> job 1: {warning}, and traffic between regions costs money"]
        every = desk.mesh("jobman", "storage", "--all").out.decode().splitlines()
        assert [line.split()[0] for line in every] == ["bucket", "mine", "other"]
        assert every[1].split()[2] == "2"
        assert desk.mesh("jobman", "delete", "1", "2").status == 0
