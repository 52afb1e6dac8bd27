"""Modules in mesh.yaml: sections in our words and in JOBMAN's, environments under ``env:``, and wrong files."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.config.project import Project, load_project
from mesh.core.errors import UsageError
from mesh.core.module import Bucket, Conda, Docker, Gcsfuse, Identity, Python, Ssh


def project(text: str, directory: Path) -> Project:
    (directory / "mesh.yaml").write_text(text)
    return load_project(directory)


def modules(text: str, directory: Path) -> tuple[tuple[str, object], ...]:
    return project(text, directory).modules.descriptions


RIGHT: dict[str, tuple[tuple[str, object], ...]] = {
    "env: uv": (("uv", Python(tool="uv")),),
    "env: {venv: {python: python3.11}}": (("venv", Python(tool="venv", python="3.11")),),
    "env: {A: b}": (),
    "env: {docker: x}": (),  # a variable of this name
    "env: {A: b}\nuv:": (("uv", Python(tool="uv")),),
    "env: docker\ndocker: {image: a:1}": (("docker", Docker(image="a:1")),),
    "env: {docker: {image: a:1, flags: ['--gpus all', '-v \"a b\":/c']}}": (
        ("docker", Docker(image="a:1", flags=("--gpus", "all", "-v", "a b:/c"))),
    ),
    "docker: {image: a, env_vars: [A=B], mount_dirs: [/x:/y], work_dir: /w}": (
        ("docker", Docker(image="a", env=("A=B",), mounts=("/x:/y",), workdir="/w")),
    ),
    "conda: {env_name: e, config_file: env.yml, accept_tos: true}": (
        ("conda", Conda(name="e", file="env.yml", accept_tos=True)),
    ),
    "venv: {name: v, requirements_file: ./env.yml, python: '3.10'}": (
        ("venv", Python(tool="venv", path="~/v", requirements="env.yml", python="3.10")),
    ),
    "modules: [ssh, uv]": (("ssh", Ssh()), ("uv", Python(tool="uv"))),
    "modules: [uv, ssh]\nssh: {}": (("uv", Python(tool="uv")), ("ssh", Ssh())),
    "env: uv\nmodules: [ssh]": (("ssh", Ssh()), ("uv", Python(tool="uv"))),
    "gcsfuse: {bucket_name: gs://b/, mount_path: /m, cache: {dir: /c, stat_cache_max_size_mb: -1}}": (
        ("gcsfuse", Gcsfuse(buckets=(Bucket(name="b", path="/m", cache={"dir": "/c", "stat_cache_max_size_mb": -1}),))),
    ),
    "gcsfuse: {bucket: b, path: ~/m, extra_mounts: [{bucket: c, path: /n}]}": (
        ("gcsfuse", Gcsfuse(buckets=(Bucket(name="b", path="~/m"), Bucket(name="c", path="/n")))),
    ),
    "ssh: {tpu_private_key: ~/.ssh/a, tpu_public_key: ~/.ssh/a.pub}": (
        ("ssh", Ssh(identities=(Identity(private_key="~/.ssh/a", public_key="~/.ssh/a.pub"),))),
    ),
    "ssh: {identities: [{private_key: k, config_entry: 'Host x'}]}": (
        ("ssh", Ssh(identities=(Identity(private_key="k", config_entry="Host x"),))),
    ),
}


@pytest.mark.parametrize("text", RIGHT)
def test_sections_are_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "env.yml").write_text("")
    assert modules(text, tmp_path) == RIGHT[text]


@pytest.mark.parametrize(
    ("text", "env"),
    [
        ("env: {A: b}\nuv: {}", {"A": "b"}),
        ("env: {docker: x}", {"docker": "x"}),
        ("env: {uv: {}}", {}),
        ("env: venv", {}),
    ],
)
def test_env_is_an_environment_or_variables(text: str, env: dict[str, str], tmp_path: Path) -> None:
    assert project(text, tmp_path).env == env


WRONG = {
    "env: docker": "mesh.yaml:1: env: docker has no section docker:",
    "env: {uv: {}}\nuv: {}": "mesh.yaml:1: env.uv: stands beside a section uv: of its own",
    "uv:\nvenv:": "venv: is a second environment beside uv: a run has one at most",
    "env: uv\ndocker: {image: a}": "is a second environment beside",
    "modules: [gcsfuse]": "mesh.yaml:1: modules: gcsfuse: has no section gcsfuse:",
    "modules: [doker]": "unknown module 'doker'; did you mean 'docker'?",
    "modules: [ssh, ssh]": "ssh is there twice",
    "docker: {}": "mesh.yaml:1: docker: has no image:",
    "docker: {imag: a}": "unknown key 'imag'; did you mean 'image'",
    "docker: {image: a, mounts: [a], mount_dirs: [b]}": "docker.mount_dirs: means the same as mounts:",
    "docker: {image: a, flags: ['\"x']}": "No closing quotation",
    "docker: {image: a, engine: lxc}": "docker.engine: expected docker or podman, found 'lxc'",
    "venv: {requirements: /etc/passwd}": "/etc/passwd is not in the workspace, which is all that hosts get",
    "uv: {requirements: no.txt}": "there is no file no.txt",
    "gcsfuse: {bucket: b, path: m}": "expected an absolute path, or one with a leading ~/, found 'm'",
    "gcsfuse: {bucket: b, path: /m, extra_mounts: {bucket: c, path: /n}}": (
        "gcsfuse.extra_mounts: expected a list of mounts, each with bucket_name: and mount_path:"
    ),
    "gcsfuse: {bucket: b, path: /m, cache: {dirs: /c}}": "unknown key 'dirs'; did you mean 'dir'?",
    "ssh: {identities: [{}]}": "ssh.identities[0]: has no private_key:",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_sections_are_named(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        modules(text, tmp_path)
    assert WRONG[text] in str(caught.value)


@pytest.mark.parametrize(
    ("text", "ignore"),
    [("env: uv", ()), ("venv: {path: envs/a}", ("/envs/a/",)), ("venv: {path: ~/a}", ()), ("venv: {name: a}", ())],
)
def test_a_local_environment_where_hosts_make_theirs_is_not_sent(
    text: str, ignore: tuple[str, ...], tmp_path: Path
) -> None:
    found = project(f"ignore: [x]\n{text}", tmp_path)
    assert found.ignore == ("x", *ignore)
    assert len(found.ignore_places) == len(found.ignore)
