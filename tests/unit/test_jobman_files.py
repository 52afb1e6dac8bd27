"""JOBMAN's files of all versions load unchanged, and mean what they are expected to mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.config.jobman import third_version_key
from mesh.core.errors import UsageError
from mesh.core.job import Keep, RestartOn
from mesh.core.module import Docker, Ssh
from mesh.core.run import SHELL
from tests import jobman_files
from tests.jobman_files import DATA, plan, read, text_of

FILES = {f"{path.parent.name}/{path.stem}": path for path in jobman_files.files()}


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_its_plan(name: str, tmp_path: Path) -> None:
    path = FILES[name]
    assert plan(path, tmp_path) == path.with_suffix(".plan").read_text(), "python -m tests.jobman_files writes it"


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith("wrong/")])
def test_a_file_loads_unchanged(name: str, tmp_path: Path) -> None:
    found = read(FILES[name], tmp_path)
    assert found.jobman.is_jobman
    assert found.spec.workspace.keep is Keep.NONE
    assert found.spec.machines.tpu is not None
    assert found.spec.worker or found.spec.command.words[:2] == SHELL


def test_the_files_of_the_third_version_are_known_by_their_keys() -> None:
    second = [third_version_key(text_of(path)) for name, path in FILES.items() if name.startswith(("s/", "v2/"))]
    third = {name: third_version_key(text_of(path)) for name, path in FILES.items() if name.startswith("v3/")}
    assert not any(second)
    every_version_reads = {"v3/quick_start", "v3/test_conda", "v3/test_docker", "v3/test_venv"}
    assert {name for name, key in third.items() if not key} == every_version_reads


def test_a_misplaced_key_has_a_hint(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read(FILES["wrong/tpus-v6e"], tmp_path)
    assert "tpus-v6e.yaml:1: loop: unknown key 'loop'" in str(caught.value)
    assert "loop: belongs to job:, as job.loop" in caught.value.hint
    assert "unknown key 'acceleratorType'; did you mean 'accelerator'?" in str(caught.value)


def test_a_loop_ends_with_success(tmp_path: Path) -> None:
    found = read(FILES["v3/v4-us-central2-b"], tmp_path)
    assert found.spec.restart.on is RestartOn.FAILURE
    assert any(line.startswith("job.loop: ") for line in found.notices)
    assert (found.spec.machines.login, found.spec.machines.login_key) == ("anna", "~/.ssh/id_rsa")
    assert [name for name, _ in found.spec.modules] == ["ssh", "gcsfuse", "venv"]
    assert "conda, docker: not used, as job.env_type does not name them" in found.notices


def test_both_spellings_of_docker_mean_the_same(tmp_path: Path) -> None:
    second = dict(read(FILES["v2/v6-europe-west4-a"], tmp_path).spec.modules)["docker"]
    third = dict(read(FILES["v3/docker-alone"], tmp_path).spec.modules)["docker"]
    assert isinstance(second, Docker)
    assert isinstance(third, Docker)
    assert (second.workdir, second.env, second.mounts[0]) == ("/home/anna", ("HOME=/home/anna",), "/home/anna")
    assert third.flags[2:6] == ("--env", "HOME=/home/anna", "-v", "/home/anna:/home/anna")
    assert third.flags[-2:] == ("-w", "/home/anna")


def test_keys_of_the_first_version_go_to_the_hosts_and_login_keys_do_not(tmp_path: Path) -> None:
    first = dict(read(FILES["s/quick-start"], tmp_path).spec.modules)["ssh"]
    third = dict(read(FILES["v3/test_docker"], tmp_path).spec.modules)["ssh"]
    assert isinstance(first, Ssh)
    assert [one.private_key for one in first.identities] == ["/u/anna/.ssh/id_rsa"]
    assert third == Ssh()


def test_every_plan_belongs_to_a_file() -> None:
    assert {path.with_suffix("") for path in DATA.glob("*/*.plan")} == {path.with_suffix("") for path in FILES.values()}
