"""Runs in environments of uv, venv and conda on test hosts, from mesh.yaml to the program's words."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import conda
from tests.conftest import REPOSITORY, Done, Home
from tests.full import IS_FULL
from tests.lab import Lab, eventually
from tests.wheels import write_wheel

pytestmark = [pytest.mark.root, pytest.mark.sshd]

HOSTS = 2
MADE_WITHIN_S = 300.0
IN_PLACE_LIMIT_S = 1.0  # that an environment in place may add to a run
PROJECT = """\
[project]
name = "trainer"
version = "0.1"
requires-python = ">=3.8"
dependencies = ["alpha==1.0"]
[tool.uv]
no-index = true
find-links = ["wheels"]
package = false
"""
SHOW = "import os, sys\nprint(b'\\0'.join(os.fsencode(word) for word in sys.argv[1:]).hex(), sys.prefix)\n"
SHOW_ALPHA = "python -c 'import alpha; print(alpha.VERSION)'"
FIRST = {  # the command that shows the environment of each tool, and what that prints
    "uv": (SHOW_ALPHA, "1.0"),
    "venv": (SHOW_ALPHA, "1.0"),
    "conda": ("greet a", "greet 1.0 a"),
}
WORDS = (
    ["a b", "", "c"],
    ["", ""],
    ["'", '"', "'\"'"],
    ["$HOME", "${HOME}", "$(id)", "`id`"],
    ["\\", "\\\\", "\\n", "a\\"],
    ["line\nline", "\n", "\ttab\t"],
    ["ü", "日本語", "🙂", "e\u0301"],
    ["*", "?", "[a-z]", "~", "{a,b}"],
    ["!", "!!", "#", "# no comment"],
    ["&&", "||", ";", "|", "&", ">", "<", ">>", "2>&1"],
    ["-c", "--", "-", "--flag=a b"],
    ["a=b", "PATH=x", "=", "A B=C"],
    ["%s", "%d%%", "%"],
    ["\x01", "\x7f", "\r", "\x1b[31m"],
    ["{'json': \"yes\"}", '{"lr": 1e-4, "names": ["a", "b"]}'],
    ["lr=1e-4", "model.layers=[1, 2]", "'quoted'"],
    ["EOF", "<<EOF", "$'x'", '$"x"'],
    [" leading", "trailing ", "  "],
    ["$PATH:/x", "$1", "$@", "$$", "$?"],
    ["x" * 5000, "'" * 100, "\udcff"],
)


@pytest.fixture(scope="module")
def module_lab(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    channel = tmp_path_factory.mktemp("channel")
    conda.write_channel(channel)
    conda.index(channel, str(tools))
    channel.chmod(0o755)
    with Lab(HOSTS, visible=[Path(sys.prefix), Path(sys.base_prefix), REPOSITORY, tools, channel]) as lab:
        lab.channel = channel  # type: ignore[attr-defined]
        yield lab


@pytest.fixture
def pod(module_lab: Lab, home: Home, tools: Path, nothing_is_left: None) -> Iterator[Home]:
    """A user with uv, who knows two hosts as ``pod``, and a project that shows its words."""
    home.clusters(module_lab.cluster_yaml())
    home.trust(module_lab)
    home.environ["PATH"] = f"{tools}/bin:{home.environ['PATH']}"
    for version in ("1.0", "2.0"):
        write_wheel(home.project / "wheels", "alpha", version)
    home.files(show__py=SHOW)
    yield home
    try:
        for host in module_lab.hosts:
            assert eventually(lambda h=host: not h.processes(), 60.0), f"left on {host.name}: {host.processes()}"
    finally:
        module_lab.reset()


def configure(home: Home, lab: Lab, tool: str, tools: Path) -> None:
    """Write mesh.yaml and the files that the environment is made from."""
    if tool == "conda":
        channel: Path = lab.channel  # type: ignore[attr-defined]
        described = {"channels": [channel.as_uri()], "dependencies": ["python", "greet=1.0"]}
        home.files(
            mesh__yaml="env:\n  conda:\n    name: train\n    file: environment.yml\n",
            environment__yml=json.dumps(described),
        )
        for host in lab.hosts:
            conda.install(host.path("/root/miniconda3"), rattler=str(tools), at=Path("/root/miniconda3"))
    elif tool == "uv":
        home.files(mesh__yaml="env: uv\n", pyproject__toml=PROJECT)
        subprocess.run(["uv", "lock", "--quiet"], cwd=home.project, env=home.environ, check=True)
    else:
        home.files(mesh__yaml="env: venv\n", requirements__txt="--no-index\n--find-links wheels\nalpha==1.0\n")


def printed(done: Done) -> str:
    """Return the line that both ranks have printed, in one line or in two."""
    assert done.status == 0, done.err
    lines = re.findall(r"^\[(0-1|0|1)\] (.*)$", done.out.decode(), re.MULTILINE)
    assert {ranks for ranks, _ in lines} in ({"0-1"}, {"0", "1"}), done.out
    (text,) = {text for _, text in lines}
    return text


@pytest.mark.parametrize("tool", FIRST)
def test_an_environment_is_made_once_takes_words_byte_for_byte_and_is_undone(
    pod: Home, module_lab: Lab, tools: Path, tool: str
) -> None:
    """Its steps share the environments of two hosts, which take long to make.

    All words are those of one command. With MESH_TEST_FULL=1 there is a command for each line of WORDS, too.
    """
    configure(pod, module_lab, tool, tools)
    assert pod.mesh("push", "pod").status == 0
    before = [files_of(host.script) for host in module_lab.hosts]
    command, expected = FIRST[tool]
    first = pod.mesh("run", "pod", command, within=MADE_WITHIN_S)
    assert (printed(first), f"{tool}: set up on 2 hosts" in first.err) == (expected, True), first.err
    if tool == "uv":  # it is sent where it is needed
        for host in module_lab.hosts:
            assert host.path(f"/root/.mesh/tools/uv-{os.uname().machine}").stat().st_size > 1 << 20
    check_words(pod, module_lab, tool)
    if tool == "venv":
        pod.files(requirements__txt="--no-index\n--find-links wheels\nalpha==2.0\n")
        changed = pod.mesh("run", "pod", command, within=MADE_WITHIN_S)
        assert (printed(changed), "venv: set up on 2 hosts" in changed.err) == ("2.0", True), changed.err
    if IS_FULL:
        costs_little_in_place(pod, tool)
    done = pod.mesh("setup", "--undo", "pod", within=MADE_WITHIN_S)
    assert done.status == 0, done.err
    for host, there in zip(module_lab.hosts, before, strict=True):
        assert sorted(files_of(host.script) ^ there) == []


def check_words(pod: Home, module_lab: Lab, tool: str) -> None:
    """Check that words arrive in an environment that is in place, and that it is left as it is."""
    for host in module_lab.hosts:
        host.script("touch /tmp/made")
    lines = ([word for words in WORDS for word in words], *(WORDS if IS_FULL else ()))
    for words in lines:
        done = pod.mesh("run", "pod", "python", "show.py", *words)
        assert done.status == 0, done.err
        assert f"{tool}: set up" not in done.err, "it is in place"
        shown, prefix = printed(done).split(maxsplit=1)
        assert bytes.fromhex(shown) == b"\0".join(os.fsencode(word) for word in words)
        if tool != "conda":  # the Python of the test's channel is a script
            assert prefix.strip().endswith("/.venv")
    place = "/root/miniconda3/envs/train" if tool == "conda" else prefix.strip()
    for host in module_lab.hosts:
        assert host.script(f"find {place} -maxdepth 0; find {place} -newer /tmp/made").split() == [place]


def costs_little_in_place(pod: Home, tool: str) -> None:
    """Measure the time that an environment in place adds to a run. A busy machine falsifies it: only by hand."""
    times: dict[str, list[float]] = {"with": [], "without": []}
    text = (pod.project / "mesh.yaml").read_text()
    for _ in range(5):
        for kind, written in (("with", text), ("without", "")):
            pod.files(mesh__yaml=written)
            began = time.monotonic()
            assert pod.mesh("run", "pod", "true").status == 0
            times[kind].append(time.monotonic() - began)
    plain, inside = (statistics.median(times[kind]) for kind in ("without", "with"))
    print(f"{tool}: {plain:.2f} s without, {inside:.2f} s with")
    assert inside - plain < IN_PLACE_LIMIT_S


EMPTY_LOCK = {"uv__lock": "", "pyproject__toml": ""}
FAILURES = {
    "no Python": ("env:\n  venv:\n    python: '3.3'\n", {}, "there is no python3.3 here", "apt-get install"),
    "no conda": ("env:\n  conda:\n    name: train\n", {}, "there is no conda here", "install it there"),
    "no uv, and no index": ("env: uv\n", EMPTY_LOCK, "there is no uv here", "astral.sh"),
}


@pytest.mark.parametrize(("text", "files", "message", "hint"), FAILURES.values(), ids=FAILURES)
def test_no_rank_starts_without_its_environment(
    pod: Home, module_lab: Lab, text: str, files: dict[str, str], message: str, hint: str
) -> None:
    pod.environ["PATH"] = "/usr/bin:/bin"  # without uv
    pod.files(mesh__yaml=text, **files)
    done = pod.mesh("run", "pod", "touch /tmp/started", within=MADE_WITHIN_S)
    assert done.status == 125
    errors = [line for line in done.err.splitlines() if message in line]
    assert errors, done.err
    assert all(hint in line for line in errors), done.err
    assert not any(host.path("/tmp/started").exists() for host in module_lab.hosts)


def test_one_host_without_conda_is_named(pod: Home, module_lab: Lab, tools: Path) -> None:
    configure(pod, module_lab, "conda", tools)
    module_lab.hosts[1].script("rm -rf /root/miniconda3")
    done = pod.mesh("run", "pod", "touch /tmp/started", within=MADE_WITHIN_S)
    assert done.status == 125
    assert f"{module_lab.hosts[1].address}: conda: there is no conda here" in done.err
    assert not any(host.path("/tmp/started").exists() for host in module_lab.hosts)


def files_of(script: Callable[[str], str]) -> set[str]:
    """Return all files of a host's home but mesh's own, caches, and what it shows of this machine."""
    listed = script("cd /root && find . -xdev -mindepth 1 -not -path './.cache*' -not -path './.rustup*'").splitlines()
    return {path for path in listed if not any(own in path for own in ("/machines/", "/agents/", "/store/"))}


def test_setup_applies_and_undoes(pod: Home, module_lab: Lab, tools: Path) -> None:
    configure(pod, module_lab, "uv", tools)
    assert pod.mesh("push", "pod").status == 0
    before = [files_of(host.script) for host in module_lab.hosts]
    made = pod.mesh("setup", "pod", within=MADE_WITHIN_S)
    assert made.status == 0, made.err
    assert [files_of(host.script) for host in module_lab.hosts] != before
    done = pod.mesh("setup", "--undo", "pod", within=MADE_WITHIN_S)
    assert done.status == 0, done.err
    assert [files_of(host.script) for host in module_lab.hosts] == before


def test_a_killed_client_leaves_what_the_next_run_repairs(pod: Home, module_lab: Lab, tools: Path) -> None:
    configure(pod, module_lab, "uv", tools)
    for moment in (0.8, 1.2, 1.6):
        process = pod.popen("run", "pod", "python", "show.py")
        time.sleep(moment)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    done = pod.mesh("run", "pod", SHOW_ALPHA, within=MADE_WITHIN_S)
    assert printed(done) == "1.0"


def test_hosts_that_share_their_home_make_it_once(home: Home, tools: Path) -> None:
    visible = [Path(sys.prefix), Path(sys.base_prefix), REPOSITORY, tools]
    with Lab(HOSTS, visible=visible, shared_home=True) as lab:
        home.clusters(lab.cluster_yaml())
        home.trust(lab)
        write_wheel(home.project / "wheels", "alpha", "1.0")
        configure(home, lab, "venv", tools)
        done = home.mesh("run", "pod", SHOW_ALPHA, within=MADE_WITHIN_S)
        assert printed(done) == "1.0"
