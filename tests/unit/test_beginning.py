"""Files that mesh writes for its user, and the places of the values that it reads."""

from __future__ import annotations

import json
import os
import string
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh import api
from mesh.config import schema
from mesh.config.clusters import cluster_text, load_clusters
from mesh.config.project import KEYS, TEMPLATE, load_project
from mesh.config.sources import PROJECT_VALUES, Setting
from mesh.config.templates import TEMPLATES
from mesh.core.errors import UsageError
from tests.conftest import Home


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of the user's cluster.yaml; the working directory is another one."""
    for name in [name for name in os.environ if name.startswith("MESH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "config/mesh"


# ---- mesh init


def test_init_writes_a_first_line_by_which_editors_find_the_schema(config: Path) -> None:
    path = api.init()
    first, rest = path.read_text().split("\n", 1)
    assert rest == TEMPLATE
    assert first == f"# yaml-language-server: $schema={config}/mesh.schema.json"
    assert (config / "mesh.schema.json").read_text() == schema.text("mesh.yaml")


def test_init_brings_an_old_schema_up_to_date(config: Path) -> None:
    config.mkdir(parents=True)
    (config / "mesh.schema.json").write_text("{}\n")
    api.init()
    assert (config / "mesh.schema.json").read_text() == schema.text("mesh.yaml")


def test_init_writes_nothing_where_one_of_the_files_is_there(config: Path) -> None:
    Path("train.py").write_text("mine")
    with pytest.raises(UsageError, match=r"there is a \S*/train.py already"):
        api.init("jax-tpu")
    assert os.listdir() == ["train.py"]


def test_a_template_that_is_none_is_refused_with_the_nearest(config: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'torch-ddp'"):
        api.init("torch-dpd")


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_load_and_bring_what_their_steps_read(config: Path, template: str) -> None:
    directory = api.init(template).parent
    paths = [directory / name for name in TEMPLATES[template]]
    project = load_project(Path.cwd())
    assert (project.named, len(project.commands), "/.venv" in project.ignore) == (True, 1, True)
    (entry,) = [entry for entry in project.prerun if entry.inputs]
    assert template == "maxtext" or entry.inputs[0] in [path.name for path in paths]
    for path in paths:
        if path.suffix == ".py":
            compile(path.read_text(), path.name, "exec")


# ---- mesh clusters --add


def test_a_cluster_is_added_to_a_file_whose_comments_stay(config: Path) -> None:
    config.mkdir(parents=True)
    before = "# mine\npod:  # the old one\n  hosts: [a]\n# the end, without a newline"
    (config / "cluster.yaml").write_text(before)
    (config / "cluster.yaml").chmod(0o600)
    added = api.add_cluster("more", ["me@tpu-[0-1]:22", "[::1]:22"])
    assert [host.name for host in added.hosts] == ["tpu-0", "tpu-1", "::1"]
    text = (config / "cluster.yaml").read_text()
    assert text == before + "\n\n" + cluster_text("more", ["me@tpu-[0-1]:22", "[::1]:22"])
    assert list(load_clusters(config / "cluster.yaml", required=True).clusters) == ["pod", "more"]
    assert (config / "cluster.yaml").stat().st_mode & 0o777 == 0o600
    assert os.listdir(config) == ["cluster.yaml"]


def test_the_first_cluster_makes_the_file_and_names_its_schema(config: Path) -> None:
    api.add_cluster("pod", ["a"])
    text = (config / "cluster.yaml").read_text()
    assert text == "# yaml-language-server: $schema=cluster.schema.json\n" + cluster_text("pod", ["a"])
    assert sorted(os.listdir(config)) == ["cluster.schema.json", "cluster.yaml"]


def test_a_file_behind_a_link_is_changed_and_the_link_stays(config: Path, tmp_path: Path) -> None:
    config.mkdir(parents=True)
    (tmp_path / "dotfiles.yaml").write_text("pod: {hosts: [a]}\n")
    (config / "cluster.yaml").symlink_to(tmp_path / "dotfiles.yaml")
    api.add_cluster("more", ["b"])
    assert (config / "cluster.yaml").is_symlink()
    assert list(load_clusters(tmp_path / "dotfiles.yaml", required=True).clusters) == ["pod", "more"]


REFUSED = {
    "a name that is there": ("pod: {hosts: [a]}\n", "pod", ["b"], "there is a cluster 'pod' in "),
    "a name of a bad cluster": ("pod: {}\n", "pod", ["b"], "there is a cluster 'pod' in "),
    "a built-in name": ("", "local", ["b"], "is the name of a built-in cluster"),
    "no host name": ("", "pod", ["a b"], "'a b' is no host name"),
    "a host twice": ("", "pod", ["a", "a"], "a is listed twice"),
    "no host": ("", "pod", [], "--add pod: expected its hosts"),
    "a file in one pair of braces": ("{pod: {hosts: [a]}}\n", "more", ["b"], "cannot be appended"),
    "a file that is not valid": ("pod: [\n", "more", ["b"], "YAML"),
    "an open text": ("pod:\n  hosts: [a]\n  user: |\n    me\nx: >-\n", "more", ["b"], ""),
}


@pytest.mark.parametrize(("before", "name", "hosts", "message"), REFUSED.values(), ids=REFUSED)
def test_a_cluster_that_is_refused_leaves_the_file_as_it_was(
    config: Path, before: str, name: str, hosts: list[str], message: str
) -> None:
    config.mkdir(parents=True)
    path = config / "cluster.yaml"
    path.write_text(before)
    if message:
        with pytest.raises(UsageError) as raised:
            api.add_cluster(name, hosts)
        assert message in str(raised.value)
        assert path.read_text() == before
    else:
        api.add_cluster(name, hosts)
        assert path.read_text().startswith(before)
    assert [name for name in os.listdir(config) if name.startswith(".")] == []


@given(st.text(string.printable, min_size=1, max_size=12), st.text(string.printable, min_size=1, max_size=12))
def test_any_text_in_a_cluster_is_read_back_as_it_was(name: str, host: str) -> None:
    assert yaml.safe_load(cluster_text(name, [host])) == {name: {"hosts": [host]}}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=12), st.lists(st.text(max_size=12), max_size=3))
def test_no_words_for_a_cluster_give_a_traceback_or_a_bad_file(config: Path, name: str, hosts: list[str]) -> None:
    config.mkdir(parents=True, exist_ok=True)
    path = config / "cluster.yaml"
    path.write_text("pod: {hosts: [a]}\n")
    try:
        api.add_cluster(name, hosts)
    except UsageError:
        assert path.read_text() == "pod: {hosts: [a]}\n"
    else:
        assert list(load_clusters(path, required=True).clusters) == ["pod", name]


# ---- mesh config


def found(name: str, settings: list[Setting]) -> tuple[str, str]:
    """Return the value and the place of a setting."""
    ((value, place),) = [(one.value, one.place) for one in settings if one.name == name]
    return value, place


def test_each_value_has_its_place_flag_before_variable_before_file_before_default(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mesh.yaml").write_text("grace: 7\n\ndefault: pod\nenv:\n  A: b\npass: [SECRET_*]\nspool: 1 MB\n")
    config.mkdir(parents=True)
    (config / "cluster.yaml").write_text("pod:\n  hosts: [a, 'b-[1-2]']\n  python: python3.11\n")
    monkeypatch.setenv("MESH_DRAIN", "3")
    monkeypatch.setenv("MESH_KEEP", "60")
    monkeypatch.setenv("SECRET_KEY", "do not show")
    settings = api.config(options=api.Options(lease=5))
    assert found("clusters", settings) == (f"{config}/cluster.yaml", "default")
    assert found("default", settings) == ("pod", "mesh.yaml:3")
    assert found("lease", settings) == ("5 s", "--lease")
    assert found("drain", settings) == ("3 s", "MESH_DRAIN")
    assert found("grace", settings) == ("7 s", "mesh.yaml:1")
    assert found("host-grace", settings) == ("60 s", "default")
    assert found("spool", settings) == ("1.0 MB", "mesh.yaml:7")
    assert found("workspace", settings) == (str(Path.cwd()), "mesh.yaml")
    assert found("env.A", settings) == ("b", "mesh.yaml:5")
    assert found("env.SECRET_KEY", settings) == ("(not shown)", "environment, by mesh.yaml:6")
    assert found("pod.hosts", settings) == ("[a, b-[1-2]]", "cluster.yaml:2")
    assert found("pod.python", settings) == ("python3.11", "cluster.yaml:3")
    assert found("pod.remote_dir", settings) == ("~/.mesh", "default")
    assert found("pod.keep", settings) == ("60", "MESH_KEEP")
    assert "do not show" not in str(settings)
    monkeypatch.setenv("MESH_GRACE", "8")
    monkeypatch.setenv("MESH_CLUSTER", "local:1")
    settings = api.config(options=api.Options(grace=9))
    assert found("grace", settings) == ("9 s", "--grace")
    assert found("grace", api.config()) == ("8 s", "MESH_GRACE")
    assert found("default", settings) == ("local:1", "MESH_CLUSTER")
    assert found("local:1.backend", settings) == ("local", "built-in")


def test_every_key_of_a_project_is_shown() -> None:
    assert {*PROJECT_VALUES, "env", "grace", "hang_watch", "default"} == set(KEYS)


def test_a_directory_without_any_file_has_defaults(config: Path) -> None:
    settings = api.config()
    assert found("workspace", settings) == (str(Path.cwd()), "working directory")
    assert {one.place for one in settings} == {"default", "working directory"}


def test_the_command_prints_a_table_json_and_schemas(home: Home) -> None:
    home.files(mesh__yaml="prerun: ['echo " + "x" * 100 + "']\n")
    done = home.mesh("config", "--grace", "30", "local")
    rows = done.out.decode().splitlines()
    assert rows[0].split() == ["setting", "from", "value"]
    assert ["grace", "--grace", "30", "s"] in [row.split() for row in rows]
    assert max(map(len, rows)) <= 120
    settings = json.loads(home.mesh("config", "--json").out)
    assert {"name": "prerun", "value": "echo " + "x" * 100, "place": "mesh.yaml:1"} in settings
    for name in schema.SCHEMAS:
        assert home.mesh("config", "--schema", name).out.decode() == schema.text(name)
    assert home.mesh("config", "--schema", "x").status == 2
