"""Jobs whose workspace is a commit of a git repository."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from mesh.jobs.reading import read_job
from tests.desk import Desk

SHOW = "run: cat data; cat sub/deep; ls -A; echo $MESH_GIT_COMMIT $MESH_GIT_DIRTY\n"


class Repository:
    """A git repository with a submodule."""

    def __init__(self, desk: Desk, place: Path) -> None:
        config = desk.home.path / ".gitconfig"
        config.write_text('[user]\nname = me\nemail = me@here\n[protocol "file"]\nallow = always\n')
        self._environ = {**desk.home.environ, "GIT_CONFIG_GLOBAL": str(config)}
        self.path, inner = place / "outer", place / "inner"
        for path in (self.path, inner):
            path.mkdir()
            self.git("init", "--quiet", "--initial-branch=main", where=path)
        (inner / "deep").write_text("deep\n")
        self.commit(where=inner)
        self.git("submodule", "--quiet", "add", str(inner), "sub")
        (self.path / ".gitignore").write_text("*.log\n")
        (self.path / "kept.log").write_text("tracked all the same\n")
        self.git("add", "--force", "kept.log")

    def git(self, *words: str, where: Path | None = None) -> str:
        argv = ["git", "-C", str(where or self.path), *words]
        return subprocess.run(argv, env=self._environ, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, text: str = "", where: Path | None = None) -> str:
        if text:
            (self.path / "data").write_text(text)
        self.git("add", "--all", where=where)
        self.git("commit", "--quiet", "-m", "a change", where=where)
        return self.git("rev-parse", "HEAD", where=where)


@pytest.fixture
def repository(desk: Desk, tmp_path: Path) -> Repository:
    return Repository(desk, tmp_path)


def submitted(desk: Desk, repository: Repository, ref: str, *words: str) -> int:
    wanted = json.dumps({"git": str(repository.path), **({"ref": ref} if ref else {})})
    return desk.submit(f"machines: local:1\n{SHOW}workspace: {wanted}\n", *words)


def waiting(desk: Desk, repository: Repository, ref: str) -> tuple[str, str]:
    """Submit a job that does not start; return its commit and its tree."""
    job = read_job(desk.store, submitted(desk, repository, ref, "--set", "job.after='2099-01-01'"))
    assert job is not None
    return job.spec.workspace.ref, job.spec.workspace.tree


def test_a_job_starts_from_the_commit_that_its_branch_had_at_submit(desk: Desk, repository: Repository) -> None:
    (desk.home.project / "local").write_text("of the working directory")
    first = repository.commit("first\n")
    repository.git("tag", "v1")
    older = submitted(desk, repository, "main")
    found = [waiting(desk, repository, ref) for ref in ("", "v1")]
    second = repository.commit("second\n")
    newer = submitted(desk, repository, "main")
    found += [waiting(desk, repository, ref) for ref in (first, first[:12])]
    assert desk.mesh("job", "wait", str(older), str(newer)).status == 0
    for job, text, commit in ((older, "first", first), (newer, "second", second)):
        files = [".gitignore", ".gitmodules", "data", "kept.log", "sub"]
        assert desk.output(job).decode().splitlines() == [text, "deep", *files, f"{commit} 0"]
    assert found == [found[0]] * 4
    assert found[0][0] == first
    assert len(os.listdir(desk.place / "trees")) == 2  # jobs of one commit share one tree
    assert not list((desk.home.path / ".cache/mesh").glob("checkout-*"))


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"git": "/nowhere/at/all"}, "git fetch failed"),
        ({"git": ".", "ref": "no-such-branch"}, "there is no such branch, tag or commit"),
    ],
)
def test_a_commit_that_cannot_be_had_is_named_and_nothing_is_submitted(
    desk: Desk, repository: Repository, wanted: dict[str, str], told: str
) -> None:
    repository.commit("first\n")
    wanted = {**wanted, "git": str(repository.path) if wanted["git"] == "." else wanted["git"]}
    (desk.home.project / "train.yaml").write_text(f"machines: local:1\nrun: x\nworkspace: {json.dumps(wanted)}\n")
    done = desk.mesh("job", "submit", "train.yaml")
    assert done.status == 2
    assert told in done.err
    assert wanted["git"] in done.err
    assert "git ls-remote" in done.err
    assert not (desk.place / "store.db").exists()


def test_a_plan_names_the_repository(desk: Desk, repository: Repository) -> None:
    text = f"machines: local:1\nrun: x\nworkspace: {{git: '{repository.path}', ref: main}}\n"
    (desk.home.project / "train.yaml").write_text(text)
    done = desk.mesh("job", "submit", "train.yaml", "--dry-run")
    assert f"workspace  git {repository.path} at main" in done.out.decode().splitlines()
