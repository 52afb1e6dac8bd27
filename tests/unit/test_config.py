"""Configuration files: what loads, and the exact words about what does not."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mesh.cli.parser import given_of
from mesh.cli.program import COMMANDS
from mesh.config import spares
from mesh.config.clusters import find_cluster, load_clusters
from mesh.config.hosts import NoHost, expand, split
from mesh.config.places import clusters_path
from mesh.config.project import TEMPLATE, check_workspace, load_project
from mesh.config.selectors import select_hosts
from mesh.config.settings import Client, Options, given_command, run_spec
from mesh.core.cluster import Cluster, Host, HostKeys
from mesh.core.errors import UsageError
from mesh.core.prefix import filled
from mesh.core.run import AUTO, PrerunEntry, RunSpec
from tests.full import times

REPOSITORY = Path(__file__).parent.parent.parent

SEED_CLUSTER = """
testWatch:
  user: me
  identity_file: {key}
  hosts:
    - 35.186.108.225

testReal:
  user: me
  identity_file: {key}
  hosts:
    - 34.75.233.113
    - 35.237.15.216
"""
SEED_PROJECT = """
commands:
  - curl -LsSf https://astral.sh/uv/install.sh | sh

ignore:
  - "*.pyc"
  - "*/__pycache__/*"
  - "./git/*"
  - ".env"
  - "mesh.yaml"
  - "*/prerun/*"

prerun:
  - uv venv --python 3.12 --clear
  - source .venv/bin/activate
  - uv pip install loguru 'jax[tpu]'
"""


def cluster(tmp_path: Path, text: str, name: str = "pod") -> Cluster:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    return find_cluster(name, load_clusters(file, required=True))


def complaint(tmp_path: Path, text: str, name: str = "pod") -> str:
    with pytest.raises(UsageError) as raised:
        cluster(tmp_path, text, name)
    return str(raised.value).replace(f"{tmp_path}/", "")


def test_the_seeds_formats_load(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("")
    found = cluster(tmp_path, SEED_CLUSTER.format(key=key), "testReal")
    assert [(host.name, host.user, host.identity_file) for host in found.hosts] == [
        ("34.75.233.113", "me", str(key)),
        ("35.237.15.216", "me", str(key)),
    ]
    (tmp_path / "mesh.yaml").write_text(SEED_PROJECT)
    project = load_project(tmp_path)
    assert [command.run for command in project.commands] == ["curl -LsSf https://astral.sh/uv/install.sh | sh"]
    assert len(project.ignore) == 6
    assert project.prerun[2].run == "uv pip install loguru 'jax[tpu]'"


def test_everything_that_can_stand_in_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("")
    found = cluster(
        tmp_path,
        f"""
pod:
  user: me
  port: 2200
  gateway: jump@bastion:22
  python: ~/bin/python3
  remote_dir: /mnt/mesh
  workspace_links: true
  password_env: SECRET
  host_keys: strict
  hosts:
    - plain
    - you@other:23
    - tpu-[8-10]
    - "[2001:db8::7]:24"
    - 2001:db8::8
    - host: inner
      user: root
      port: 25
      internal_ip: 10.0.0.9
      identity_file: {tmp_path}/key
""",
    )
    assert replace(found, hosts=()) == Cluster(
        name="pod",
        hosts=(),
        gateway="jump@bastion:22",
        python="~/bin/python3",
        remote_dir="/mnt/mesh",
        workspace_links=True,
        password_env="SECRET",
        host_keys=HostKeys.STRICT,
    )
    assert [(host.user, host.address, host.port) for host in found.hosts] == [
        ("me", "plain", 2200),
        ("you", "other", 23),
        ("me", "tpu-8", 2200),
        ("me", "tpu-9", 2200),
        ("me", "tpu-10", 2200),
        ("me", "2001:db8::7", 24),
        ("me", "2001:db8::8", 2200),
        ("root", "inner", 25),
    ]
    assert found.hosts[-1].internal_ip == "10.0.0.9"


WRONG_CLUSTERS = {
    "a number for a host": (
        "pod:\n  hosts: [a, 10.5]\n",
        "cluster.yaml:2: pod.hosts[1]: expected a host name, found 10.5",
    ),
    "no hosts": ("pod:\n  user: me\n", "cluster.yaml:2: pod: has no hosts:"),
    "an empty list": ("pod:\n  hosts: []\n", "cluster.yaml:2: pod.hosts: is empty"),
    "nothing at all": ("pod:\n", "cluster.yaml:1: pod: expected a mapping with hosts:, found nothing"),
    "a list for a cluster": ("pod: [a]\n", "cluster.yaml:1: pod: expected a mapping with hosts:, found a list"),
    "an unknown key": (
        "pod:\n  hosts: [a]\n  identityfile: x\n",
        "cluster.yaml:3: pod: unknown key 'identityfile'; did you mean 'identity_file'?",
    ),
    "a key twice": ("pod:\n  hosts: [a]\n  hosts: [b]\n", "cluster.yaml:3: pod.hosts: is there twice"),
    "a port that is none": (
        "pod:\n  port: 70000\n  hosts: [a]\n",
        "cluster.yaml:2: pod.port: expected a port (1 to 65535), found 70000",
    ),
    "an empty port": (
        "pod:\n  port: ''\n  hosts: [a]\n",
        "cluster.yaml:2: pod.port: expected a port (1 to 65535), found ''",
    ),
    "yes for a user": (
        "pod:\n  user: yes\n  hosts: [a]\n",
        "cluster.yaml:2: pod.user: expected a user name, found yes",
    ),
    "an option for a host": (
        "pod:\n  hosts: ['-oProxyCommand=x']\n",
        "cluster.yaml:2: pod.hosts[0]: expected a host name, found '-oProxyCommand=x': "
        "'-oProxyCommand=x' is no host name",
    ),
    "a key file that is not there": (
        "pod:\n  identity_file: /no/key\n  hosts: [a]\n",
        "cluster.yaml:2: pod.identity_file: there is no file /no/key",
    ),
    "a host twice": ("pod:\n  hosts: [a, b, a]\n", "cluster.yaml:2: pod.hosts[2]: a is listed twice"),
    "a range that goes backwards": (
        "pod:\n  hosts: ['t[3-1]']\n",
        "cluster.yaml:2: pod.hosts[0]: expected a host name, found 't[3-1]': the range 3-1 goes backwards",
    ),
    "a date for a host": (
        "pod:\n  hosts: [2026-01-01]\n",
        "cluster.yaml:2: pod.hosts[0]: expected a host name, found 2026-01-01",
    ),
    "a policy that is none": (
        "pod:\n  host_keys: no\n  hosts: [a]\n",
        "cluster.yaml:2: pod.host_keys: expected accept-new or strict, found no",
    ),
    "a host mapping without a host": ("pod:\n  hosts:\n    - port: 22\n", "cluster.yaml:3: pod.hosts[0]: has no host:"),
    "all at once": (
        "pod:\n  prot: 1\n  hosts: [null, 'a b']\n",
        "cluster.yaml:2: pod: unknown key 'prot'; did you mean 'port' or 'ports'?\n"
        "cluster.yaml:3: pod.hosts[0]: expected a host name, found nothing\n"
        "cluster.yaml:3: pod.hosts[1]: expected a host name, found 'a b': 'a b' is no host name",
    ),
    "a list at the top": ("- a\n", "cluster.yaml:1: expected clusters by name, found a list"),
    "a tab": (
        "pod:\n\thosts: [a]\n",
        "cluster.yaml:2: not valid YAML: found character '\\t' that cannot start any token",
    ),
    "no end": ("pod: {hosts: [a\n", "cluster.yaml:2: not valid YAML: expected ',' or ']', but got '<stream end>'"),
    "the reserved name": (
        "local:\n  hosts: [a]\n",
        None,
    ),
}


@pytest.mark.parametrize(("text", "message"), WRONG_CLUSTERS.values(), ids=WRONG_CLUSTERS)
def test_wrong_clusters(tmp_path: Path, text: str, message: str | None) -> None:
    if message is None:
        (tmp_path / "cluster.yaml").write_text(text)
        file = load_clusters(tmp_path / "cluster.yaml", required=True)
        assert "is the name of a built-in cluster" in file.problems["local"][0]
    else:
        assert complaint(tmp_path, text) == message


def test_a_bad_cluster_does_not_stop_another_one(tmp_path: Path) -> None:
    assert cluster(tmp_path, "bad:\n  hosts: 5\npod:\n  hosts: [a]\n").hosts[0].name == "a"


WRONG_COMMANDS = {
    "a key of SSH": (
        "command: [x]\n  port: 22\n  hosts: [a]",
        ":4: pod.port: has no meaning beside backend: command, unless",
    ),
    "keep": ("command: [x]\n  keep: 9\n  hosts: [a]", ":4: pod.keep: has no meaning beside backend: command"),
    "a user of a host": ("command: [x]\n  hosts: [me@a]", ":4: pod.hosts[0]: user: has no meaning beside backend"),
    "no port": ('command: [x, "{port}"]\n  hosts: [a]', ":4: pod.hosts[0]: has no port, and command: holds {port}"),
    "a placeholder": (
        'command: [x, "{nme}"]\n  hosts: [a]',
        ":3: pod.command: unknown placeholder {nme}; there are {name}",
    ),
    "no command": ("hosts: [a]", ":2: pod.backend: needs command: beside it"),
    "an empty one": ("command: []\n  hosts: [a]", ":3: pod.command: is empty"),
}


@pytest.mark.parametrize(("text", "message"), WRONG_COMMANDS.values(), ids=WRONG_COMMANDS)
def test_wrong_commands(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(f"pod:\n  backend: command\n  {text}\n")
    with pytest.raises(UsageError) as raised:
        find_cluster("pod", load_clusters(path, required=True))
    assert message in str(raised.value)


def test_hosts_behind_a_command(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        'pod:\n  backend: command\n  command: [x, "{user}@{name}", "{port}"]\n  user: me\n  hosts: ["a-[1-2]:5"]\n'
    )
    found = find_cluster("pod", load_clusters(path, required=True))
    assert [filled(found.command, host) for host in found.hosts] == [["x", "me@a-1", "5"], ["x", "me@a-2", "5"]]
    assert find_cluster("local", load_clusters(path, required=True)).command == ()


def test_unknown_clusters(tmp_path: Path) -> None:
    assert complaint(tmp_path, "pod-a:\n  hosts: [a]\n", "pod-b") == (
        "no cluster 'pod-b' in cluster.yaml; did you mean 'pod-a'?"
    )
    missing = load_clusters(tmp_path / "none.yaml", required=False)
    with pytest.raises(UsageError) as raised:
        find_cluster("pod", missing)
    assert "there is no" in str(raised.value)
    assert "hosts:\n" in raised.value.hint


def test_built_in_clusters(tmp_path: Path) -> None:
    file = load_clusters(tmp_path / "none.yaml", required=False)
    assert [host.name for host in find_cluster("local", file).hosts] == ["local-0", "local-1"]
    assert len(find_cluster("local:5", file).hosts) == 5
    assert len({host.remote_dir for host in find_cluster("local:5", file).hosts}) == 5
    for wrong in ("local:0", "local:x", "local:", "local:65", "local:-1"):
        with pytest.raises(UsageError):
            find_cluster(wrong, file)


def test_where_the_clusters_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert clusters_path("", {}) == tmp_path / ".config/mesh/cluster.yaml"
    assert clusters_path("", {"XDG_CONFIG_HOME": "/xdg"}) == Path("/xdg/mesh/cluster.yaml")
    assert clusters_path("", {"XDG_CONFIG_HOME": "/xdg", "MESH_CLUSTERS": "/own"}) == Path("/own")
    assert clusters_path("/flag", {"MESH_CLUSTERS": "/own"}) == Path("/flag")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*Is a directory"):
        load_clusters(tmp_path, required=True)
    (tmp_path / "latin").write_bytes(b"pod: \xff\n")
    with pytest.raises(UsageError, match="not UTF-8 text"):
        load_clusters(tmp_path / "latin", required=True)
    (tmp_path / "empty").write_text("")
    assert load_clusters(tmp_path / "empty", required=True).names == ()


WRONG_PROJECTS = {
    "an unknown key": ("ignroe: []\n", "mesh.yaml:1: ignroe: unknown key 'ignroe'; did you mean 'ignore'?"),
    "text for a list": ("prerun: make\n", "mesh.yaml:1: prerun: expected a list, found 'make'"),
    "a number in a list": ("prerun: [1]\n", "mesh.yaml:1: prerun[0]: expected a text, or a mapping with run:, found 1"),
    "a list for env": ("env: [A=1]\n", "mesh.yaml:1: env: expected variables, NAME: VALUE, found a list"),
    "nothing for a variable": (
        "env:\n  A:\n",
        'mesh.yaml:2: env.A: expected a text (an empty one is ""), found nothing',
    ),
    "no variable": ("env:\n  1A: x\n", "mesh.yaml:2: env: '1A' is no name of a variable"),
    "an unknown key of a label": (
        "program:\n  actor: {gpu: 1}\n",
        "mesh.yaml:2: program.actor: unknown key 'gpu'; did you mean 'gpus'?",
    ),
    "no number of GPUs": (
        "program:\n  actor: {gpus: -1}\n",
        "mesh.yaml:2: program.actor.gpus: expected a whole number from 0 to 1024, found -1",
    ),
    "no places of nodes": (
        "program: [actor]\n",
        "mesh.yaml:1: program: expected labels of nodes, as actor: {on: tpu-[1-3]}, found a list",
    ),
    "no number": ("grace: soon\n", "mesh.yaml:1: grace: expected a number of seconds, found 'soon'"),
    "a negative number": ("grace: -1\n", "mesh.yaml:1: grace: expected a number of seconds, found -1"),
    "a number for a command": (
        "commands: [1]\n",
        "mesh.yaml:1: commands[0]: expected a command in quotes, or a mapping with run:, found 1",
    ),
    "a command without run": ("commands: [{unless: x}]\n", "mesh.yaml:1: commands[0]: has no run:"),
    "an unknown key of a command": (
        "commands:\n  - run: x\n    root: true\n",
        "mesh.yaml:3: commands[0]: unknown key 'root'; there are 'run', 'unless', 'sudo'",
    ),
    "text for true or false": (
        "commands:\n  - {run: x, sudo: please}\n",
        "mesh.yaml:2: commands[0].sudo: expected true or false, found 'please'",
    ),
    "no directory": ("workspace: nowhere\n", "mesh.yaml:1: workspace: there is no directory nowhere"),
}


@pytest.mark.parametrize(("text", "message"), WRONG_PROJECTS.values(), ids=WRONG_PROJECTS)
def test_wrong_projects(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mesh.yaml").write_text(text)
    with pytest.raises(UsageError) as raised:
        load_project(tmp_path)
    assert str(raised.value).replace(f"{tmp_path}/", "") == message


def test_values_of_variables_are_taken_as_written(tmp_path: Path) -> None:
    (tmp_path / "mesh.yaml").write_text("env: {LR: 1e-3, N: 010, F: 1.50, B: yes, S: 'a b', E: ''}\n")
    assert load_project(tmp_path).env == {"LR": "1e-3", "N": "010", "F": "1.50", "B": "yes", "S": "a b", "E": ""}


def test_the_nearest_project_file_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a/b"
    inner.mkdir(parents=True)
    (tmp_path / "mesh.yaml").write_text("grace: 3\n")
    assert load_project(inner).workspace == tmp_path
    (tmp_path / "mesh.yaml").write_text("workspace: a\n")
    assert load_project(inner).workspace == tmp_path / "a"
    (tmp_path / "mesh.yaml").write_text("")
    assert load_project(inner).workspace == tmp_path


def test_a_home_directory_is_not_sent_by_accident(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with pytest.raises(UsageError, match="would be sent to every host"):
        check_workspace(load_project(home), home)
    with pytest.raises(UsageError):
        check_workspace(load_project(tmp_path), home)
    (home / "mesh.yaml").write_text("")
    check_workspace(load_project(home), home)


def test_the_examples_load_and_are_what_init_writes(tmp_path: Path) -> None:
    assert (REPOSITORY / "configs/mesh.yaml").read_text() == TEMPLATE
    (tmp_path / "mesh.yaml").write_text(TEMPLATE)
    assert load_project(tmp_path).ignore == ("*.pyc", ".env")
    text = (REPOSITORY / "configs/cluster.yaml").read_text()
    for path in ("~/.ssh/id_ed25519", "~/.ssh/google_compute_engine"):
        key = tmp_path / path.rpartition("/")[2]
        key.write_text("")
        text = text.replace(path, str(key))
    assert len(cluster(tmp_path, text).hosts) == 8


# ---- one run


def client(environ: dict[str, str]) -> Client:
    return Client(user="me", machine="laptop", environ=environ)


def spec(typed: dict[str, object], words: list[str], environ: dict[str, str] | None = None, tmp: str = "/") -> RunSpec:
    project = replace(load_project(Path(tmp)), env={"A": "file", "B": "file"}, passed=("WANDB_*",), grace=7.0)
    options = given_of(COMMANDS["run"], typed, ()).options()
    return run_spec(project, options, given_command(words, "usage"), "r", client(environ or {}))


def test_precedence(tmp_path: Path) -> None:
    made = spec({"env": ["B=flag", "C=x=y"]}, ["true"], {"WANDB_KEY": "k", "A": "environment", "HOME": "/"})
    assert made.groups[0].env == {"WANDB_KEY": "k", "A": "file", "B": "flag", "C": "x=y"}
    assert spec({}, ["true"]).rules.grace == 7.0
    assert spec({}, ["true"], {"MESH_GRACE": "3"}).rules.grace == 3.0
    assert spec({"grace": "2m"}, ["true"], {"MESH_GRACE": "3"}).rules.grace == 120.0
    assert spec({"grace": "0"}, ["true"], {"MESH_GRACE": "3"}).rules.grace == 0.0
    assert spec({}, ["true"]).rules.lease == 60.0
    assert spec({"lease": "15m"}, ["true"], {"MESH_LEASE": "3"}).rules.lease == 900.0
    assert spec({}, ["true"], {"MESH_LEASE": "3"}).rules.lease == 3.0


@pytest.mark.parametrize(
    ("typed", "words", "message"),
    [
        ({"stacks_on_timeout": True}, ["true"], "--stacks-on-timeout needs --timeout"),
        (
            {"stacks_on_timeout": True, "timeout": "5", "detach": True},
            ["true"],
            "--stacks-on-timeout needs a client that is there, and --detach leaves",
        ),
        ({"detach": True, "stdin": "all"}, ["true"], "--detach leaves, so that there is no standard input to give"),
        ({"env": ["X"]}, ["true"], "--env: expected NAME=VALUE, found 'X'"),
        ({"nproc": "0"}, ["true"], "--nproc: expected a number from 1 to 1024, or auto, found '0'"),
        ({"nproc": "two"}, ["true"], "--nproc: expected a number from 1 to 1024, or auto, found 'two'"),
        ({"grace": "-1"}, ["true"], "--grace: expected seconds, or a time such as 30s, 5m or 2h, found '-1'"),
        ({"host_grace": "0.5"}, ["true"], "--host-grace: expected at least 1 s, found 0.5"),
        ({"lease": "0"}, ["true"], "--lease: expected at least 1 s, found 0"),
        ({"stdin": "some"}, ["true"], "--stdin: expected none, rank0 or all, found 'some'"),
        ({}, [], "no command was given"),
        ({}, ["-c"], "no command was given"),
    ],
)
def test_wrong_options(typed: dict[str, object], words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        spec(typed, words)
    assert str(raised.value) == message


def test_values_of_options_that_no_flag_can_have() -> None:
    project = load_project(Path("/"))
    for options in (Options(timeout=float("nan")), Options(grace=-1.0), Options(drain=float("inf"))):
        with pytest.raises(UsageError, match="expected at least 0 s"):
            run_spec(project, options, ["true"], "r", client({}))


HOSTS = Cluster(name="pod", hosts=tuple(Host(name=f"tpu-{n}", address=f"tpu-{n}") for n in range(6)))


@pytest.mark.parametrize(
    ("options", "picked"),
    [
        (Options(), "012345"),
        (Options(hosts="tpu-4,tpu-1"), "14"),
        (Options(hosts="tpu-[0-2,5]"), "0125"),
        (Options(ranks="0-3", exclude="tpu-2"), "013"),
        (Options(exclude="0,5"), "1234"),
    ],
)
def test_picked_hosts(options: Options, picked: str) -> None:
    assert "".join(host.name[-1] for host in select_hosts(HOSTS, options).hosts) == picked


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(hosts="tpu-9"), "--hosts: no host 'tpu-9' in pod; did you mean"),
        (Options(ranks="7"), "--ranks: no host 7 in pod: its hosts are 0-5"),
        (Options(ranks="x"), "--ranks: 'x' is no set of numbers"),
        (Options(exclude="0-5"), "no host of pod is left"),
    ],
)
def test_hosts_that_cannot_be_picked(options: Options, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        select_hosts(HOSTS, options)
    assert str(raised.value).startswith(message)


# ---- whatever stands in a file

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates()
KEYS = st.sampled_from(["hosts", "user", "port", "prerun", "env", "ignore", "pod", "host", "grace", "<<"]) | SCALARS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def load_both(tmp_path: Path, text: str) -> None:
    """Whatever stands there: a value comes out, or a UsageError."""
    for name in ("cluster.yaml", "mesh.yaml"):
        (tmp_path / name).write_text(text, encoding="utf-8", errors="surrogatepass")
    with contextlib.suppress(UsageError):
        file = load_clusters(tmp_path / "cluster.yaml", required=True)
        for cluster_name in file.names:
            with contextlib.suppress(UsageError):
                assert find_cluster(cluster_name, file).hosts
    with contextlib.suppress(UsageError):
        assert load_project(tmp_path).workspace


@settings(max_examples=times(50, full=150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES)
def test_no_value_gives_a_traceback(tmp_path: Path, value: object) -> None:
    load_both(tmp_path, yaml.safe_dump({"pod": value}) if value else yaml.safe_dump(value))


@settings(max_examples=times(50, full=150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet="abc:-[]{}&*!|>'\"%@`#,?\n \t0.~<", max_size=60))
def test_no_text_gives_a_traceback(tmp_path: Path, text: str) -> None:
    load_both(tmp_path, "pod:\n  hosts:\n  " + text)


def test_an_anchor_that_holds_itself(tmp_path: Path) -> None:
    load_both(tmp_path, "pod: &a\n  hosts: [*a]\n  user: *a\n")
    load_both(tmp_path, "&a [*a]\n")


@given(first=st.integers(0, 500), count=st.integers(1, 40), width=st.integers(1, 5))
def test_ranges(first: int, count: int, width: int) -> None:
    begin = str(first).zfill(width)
    names = expand(f"n[{begin}-{first + count - 1}]x")
    assert [int(name[1:-1]) for name in names] == list(range(first, first + count))
    assert len(names[0]) == len(begin) + 2


@given(st.text(max_size=30))
def test_any_text_is_a_host_or_none(text: str) -> None:
    try:
        user, host, port = split(text)
    except NoHost:
        return
    assert host
    assert not host.startswith("-")
    assert not any(c.isspace() or c in "/@" for c in host + user)
    assert 0 <= port <= 65535


def entries(tmp_path: Path, text: str) -> tuple[PrerunEntry, ...]:
    (tmp_path / "mesh.yaml").write_text(text)
    return load_project(tmp_path).prerun


def test_prerun_entries_with_and_without_inputs(tmp_path: Path) -> None:
    assert entries(
        tmp_path,
        "prerun:\n"
        "  - source x\n"
        "  - run: make\n"
        "  - {run: uv sync, inputs: [uv.lock, ./src/, 'a/../b/*.txt', uv.lock, .]}\n",
    ) == (
        PrerunEntry(run="source x"),
        PrerunEntry(run="make"),
        PrerunEntry(run="uv sync", inputs=("uv.lock", "src", "b/*.txt", ".")),
    )
    assert entries(tmp_path, "prerun:\n") == ()


def test_all_that_is_wrong_with_prerun_entries_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        entries(
            tmp_path,
            "prerun:\n"
            "  - inputs: [a]\n"
            "  - run: [x]\n"
            "    input: [a]\n"
            "  - run: make\n"
            "    inputs:\n"
            "      - /etc/passwd\n"
            "      - ../other\n"
            "      - a/../../b\n"
            "      - ~/x\n"
            "      - 7\n"
            "  - {run: make, inputs: uv.lock}\n"
            "  - {run: make, inputs: []}\n"
            "  - {run: make, inputs: }\n",
        )
    assert str(raised.value).replace(f"{tmp_path}/mesh.yaml:", "").split("\n") == [
        "2: prerun[0]: has no run:",
        "4: prerun[1]: unknown key 'input'; did you mean 'inputs'?",
        "3: prerun[1].run: expected a text, found a list",
        "7: prerun[2].inputs[0]: /etc/passwd is not in the workspace",
        "8: prerun[2].inputs[1]: ../other is not in the workspace",
        "9: prerun[2].inputs[2]: a/../../b is not in the workspace",
        "10: prerun[2].inputs[3]: ~/x is not in the workspace",
        "11: prerun[2].inputs[4]: expected a path in the workspace, found 7",
        "12: prerun[3].inputs: expected a list of paths, found 'uv.lock'",
        "13: prerun[4].inputs: is empty: name what the entry reads, or leave it out, and the entry always runs",
        "14: prerun[5].inputs: expected a list of paths, found nothing",
    ]


@pytest.mark.parametrize("kind", ["uv", "pip", "conda"])
def test_the_examples_of_environments_load(kind: str) -> None:
    (entry,) = [one for one in load_project(REPOSITORY / "configs" / kind).prerun if one.inputs]
    assert kind in entry.run


def test_slices(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "pod:\n  user: me\n  interface: ens8\n  ports: 40000-40100\n"
        "  slices:\n    - hosts: ['a-[0-1]']\n    - hosts: [b-0, x@b-1:23, b-2]\n"
    )
    pod = find_cluster("pod", load_clusters(path, required=True))
    assert [host.name for host in pod.hosts] == ["a-0", "a-1", "b-0", "b-1", "b-2"]
    assert (pod.slices, pod.interface, pod.ports) == ((2, 3), "ens8", (40000, 40100))
    picked = select_hosts(pod, Options(exclude="a-[0-1],b-1"))
    assert ([host.name for host in picked.hosts], picked.slices) == (["b-0", "b-2"], (2,))


def test_spare_hosts_are_the_last_ones_unless_hosts_are_named(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("pod:\n  spares: 2\n  hosts: ['a-[0-4]']\n")
    pod = find_cluster("pod", load_clusters(path, required=True))
    spared = {
        "all": pod,
        "without one of the others": select_hosts(pod, Options(exclude="a-1")),
        "without a spare one": select_hosts(pod, Options(exclude="a-3")),
        "named": select_hosts(pod, Options(hosts="a-[2-4]")),
    }
    assert {name: found.spares for name, found in spared.items()} == {
        "all": 2,
        "without one of the others": 2,
        "without a spare one": 1,
        "named": 0,
    }
    rest, spare = spares.divide(spared["without one of the others"])
    assert ([host.name for host in rest.hosts], [host.name for host in spare]) == (["a-0", "a-2"], ["a-3", "a-4"])


BAD_SLICES = {
    "hosts: [a]\n  slices: [{hosts: [b]}]": "3: pod.slices: has hosts: beside it; a cluster has one of the two",
    "slices: []": "2: pod.slices: is empty",
    "slices: [{hosts: []}]": "2: pod.slices[0].hosts: is empty",
    "slices: [{}, {hosts: [a]}]": "2: pod.slices[0]: has no hosts:",
    "slices: [a, b]": "2: pod.slices[0]: expected a slice with hosts:, found 'a'",
    "slices: {hosts: [a]}": "2: pod.slices: expected a list of slices, each with hosts:, found a mapping",
    "slices: [{hosts: [a]}, {hosts: [b, a]}]": "2: pod.slices[1].hosts[1]: a is listed twice",
    "slices: [{host: [a]}]": "2: pod.slices[0]: unknown key 'host'; did you mean 'hosts'?",
    "hosts: [a]\n  interface: 'eth0 eth1'": "3: pod.interface: expected the name of a network interface, as eth0",
    "hosts: [a]\n  ports: 40100-40000": "3: pod.ports: expected a range of ports, as 40000-40100, found '40100-40000'",
    "hosts: [a]\n  ports: 40000": "3: pod.ports: expected a range of ports, as 40000-40100, found 40000",
    "hosts: [a, b]\n  spares: 2": "3: pod.spares: expected a number of hosts below 2, found 2",
    "hosts: [a, b]\n  spares: -1": "3: pod.spares: expected a number of hosts below 2, found -1",
    "hosts: [a, b]\n  spares: one": "3: pod.spares: expected a number of hosts below 2, found 'one'",
    "slices: [{hosts: [a, b]}]\n  spares: 1": "3: pod.spares: counts hosts of a list, and there is no hosts: beside it",
    "hosts: [a]\n  ports: [1-2]": "3: pod.ports: expected a range of ports, as 40000-40100, found a list",
}


@pytest.mark.parametrize("text", BAD_SLICES)
def test_wrong_slices(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(f"pod:\n  {text}\n")
    with pytest.raises(UsageError) as raised:
        find_cluster("pod", load_clusters(path, required=True))
    assert str(raised.value).startswith(f"{path}:{BAD_SLICES[text]}")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({"master_port": "0"}, "--master-port: expected a port (1 to 65535), found '0'"),
        ({"master_port": "70000"}, "--master-port: expected a port (1 to 65535), found 70000"),
        ({"launcher": "mpirun"}, "--launcher: expected one of torchrun, accelerate, deepspeed, found 'mpirun'"),
        ({"launcher": "torchrun", "bind": True}, "--bind would leave torchrun one GPU for all processes of its host"),
        (
            {"bind": True, "nproc": "3", "env": ["CUDA_VISIBLE_DEVICES=4,5"]},
            "--bind: CUDA_VISIBLE_DEVICES names 2 GPUs for 3 ranks on each host",
        ),
    ],
)
def test_wrong_options_of_the_rendezvous(typed: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        spec(typed, ["true"])
    assert str(raised.value) == message


def test_gpus_that_the_user_has_named_are_all_there_are() -> None:
    assert spec({"nproc": "auto", "env": ["CUDA_VISIBLE_DEVICES=4,5"]}, ["true"]).groups[0].nproc == 2
    assert spec({"nproc": "auto"}, ["true"]).groups[0].nproc == AUTO


def test_the_words_for_a_launcher_are_no_shell_text() -> None:
    assert given_command(["--", "my train.py"], "", launcher="torchrun") == ("my train.py",)
    assert given_command(["my train.py"], "", launcher="torchrun") == ("my train.py",)
