"""The JSON Schemas of mesh.yaml and cluster.yaml: they have every key of the readers and refuse no right file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from mesh.config import clusters, kubernetes, notify, programpart, project, schema, slurm, tpu
from mesh.config.clusters import load_clusters
from mesh.config.project import load_project
from mesh.config.templates import TEMPLATES
from mesh.core.errors import UsageError
from tests.conftest import REPOSITORY
from tests.unit.test_config import BAD_SLICES, WRONG_CLUSTERS, WRONG_COMMANDS, WRONG_PROJECTS
from tests.unit.test_tpus import WRONG_FILES

VALIDATORS = {name: jsonschema.Draft7Validator(json.loads(schema.text(name))) for name in schema.SCHEMAS}


class Loader(yaml.SafeLoader):
    """Reads YAML as editors do, where a date and the key ``on`` are texts."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, _ in node.value:
            key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def problems(name: str, text: str) -> list[str]:
    return [error.message for error in VALIDATORS[name].iter_errors(yaml.load(text, Loader))]


def kind_of(path: Path) -> str:
    return "cluster.yaml" if "cluster" in path.name else "mesh.yaml"


def files() -> Iterator[Path]:
    """Yield the example files of clusters and projects; those of tests/data/jobman are job files."""
    for place in ("configs", "examples", "tests/data"):
        found = sorted((REPOSITORY / place).rglob("*.yaml"))
        yield from (path for path in found if "jobman" not in path.parts)


def takes(name: str, text: str, directory: Path) -> bool:
    """Return True if the reader takes a file."""
    path = directory / name
    path.write_text(text)
    try:
        if name == "mesh.yaml":
            load_project(directory)
            return True
        return not load_clusters(path, required=True).problems
    except UsageError:
        return False


@pytest.mark.parametrize("name", schema.SCHEMAS)
def test_docs_have_the_schemas_that_the_command_prints(name: str) -> None:
    path = REPOSITORY / "docs" / f"{name.partition('.')[0]}.schema.json"
    jsonschema.Draft7Validator.check_schema(json.loads(path.read_text()))
    assert path.read_text() == schema.text(name), f"mesh config --schema {name} > {path}"


def test_every_key_of_the_readers_is_in_the_schema_and_explained() -> None:
    of_project, of_cluster = schema.of_project(), schema.cluster_schema()
    for shape, keys in ((of_project, project.KEYS), (of_cluster, clusters.CLUSTER_KEYS)):
        properties = shape["properties"]
        assert isinstance(properties, dict)
        assert list(properties) == list(keys)
        assert all("description" in one for one in properties.values())
    found = [json.loads(schema.text(name)) for name in schema.SCHEMAS]
    of_items = (project.COMMAND_KEYS, project.ENTRY_KEYS, notify.ENTRY_KEYS, clusters.SLICE_KEYS, clusters.HOST_KEYS)
    for keys in (*of_items, tpu.KEYS, programpart.LABEL_KEYS):
        assert list(keys) in [list(properties) for properties in all_properties(found)]


def all_properties(node: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the properties of every mapping in a schema."""
    if isinstance(node, list):
        for item in node:
            yield from all_properties(item)
    elif isinstance(node, dict):
        if "additionalProperties" in node and "properties" in node:
            yield node["properties"]
        for item in node.values():
            yield from all_properties(item)


@pytest.mark.parametrize("path", [*files()], ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_the_example_files_are_right_by_the_schema(path: Path) -> None:
    assert problems(kind_of(path), path.read_text()) == []


def test_the_files_in_the_documents_are_right_by_the_schema() -> None:
    count = 0
    for page in (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))):
        for text in re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            if page.name in (
                "jobs.md",
                "machines.md",
            ):  # job files and others, which test_jobfile and test_tpuspec read
                continue
            if {"users", "dev"} <= yaml.safe_load(text).keys():  # test_podusers reads it
                continue
            is_project = bool(yaml.safe_load(text).keys() & set(project.KEYS))
            assert problems("mesh.yaml" if is_project else "cluster.yaml", text) == [], text
            count += 1
    assert count > 5


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_templates_are_right_by_the_schema(template: str) -> None:
    assert problems("mesh.yaml", TEMPLATES[template]["mesh.yaml"]) == []


# Faults that only the reader can see: files, hosts that are named twice, keys that contradict each other.
ONLY_THE_READER = {
    *("a key twice", "an option for a host", "a key file that is not there", "a host twice"),
    *("a range that goes backwards", "a date for a host", "a tab", "no end", "no directory"),
    *("a key of SSH", "keep", "a user of a host", "no port", "a placeholder", "two ways"),
}
# In texts of BAD_SLICES that only the reader refuses: it counts, and compares keys.
ONLY_READ = ("b, a", "40100-40000", "spares: 1", "spares: 2")
WRONG = [
    *((name, "cluster.yaml", text) for name, (text, _) in WRONG_CLUSTERS.items()),
    *((name, "cluster.yaml", f"pod:\n  backend: command\n  {text}\n") for name, (text, _) in WRONG_COMMANDS.items()),
    *(
        (text, "cluster.yaml", f"pod:\n  {text}\n")
        for text in BAD_SLICES
        if not any(part in text for part in ONLY_READ)
    ),
    *((name, "cluster.yaml", f"pod:\n  {text}\n") for name, (text, _) in WRONG_FILES.items()),
    *((name, "mesh.yaml", text) for name, (text, _) in WRONG_PROJECTS.items()),
]


@pytest.mark.parametrize(
    ("name", "text"),
    [(name, text) for fault, name, text in WRONG if fault not in ONLY_THE_READER],
    ids=[fault for fault, _, _ in WRONG if fault not in ONLY_THE_READER],
)
def test_wrong_files_are_wrong_by_the_schema(name: str, text: str) -> None:
    assert problems(name, text) != []


VALUES = (
    *(
        ".",
        "",
        "a",
        "''",
        "'1'",
        "1",
        "0",
        "-1",
        "1.5",
        "70000",
        "'22'",
        "true",
        "yes",
        "null",
        "~",
        "2026-01-01",
        "1e3",
    ),
    *("[]", "[a]", "[a, 1]", "[null]", "['']", "[/dev/x]", "[{run: x}]", "[{run: x, sudo: true, unless: y}]"),
    *("[{run: x, inputs: [a]}]", "[{run: x, inputs: []}]", "[{unless: x}]", "[{host: a, port: 22, user: u}]"),
    *("{nodes: 4}", "{nodes: '4', time: 2:00:00, exclusive: true, extra: [--x], hold: 5s}", "{jobid: 12, hold: 0}"),
    *("{selector: app=x}", "{selector: app=x, namespace: team, order: name}", "{selector: '', container: B}"),
    *("[{hosts: [a]}]", "{}", "{A: x}", "{A: 1, B: yes, C: 1.5, D: 2026-01-01}", "{1: x}", "{A: null}", "{A: [x]}"),
    *("10 GB", "500mb", "1.5 kB", "' 10 '", "10 XB", "strict", "accept-new", "ssh", "command", "me@host", "eth0"),
    *("'a b'", "{name: a}", "{prefix: a, zone: us-central2-b, project: 'x.org:lab', iap: on}", "{name: a, prefix: b}"),
    *("{name: a, internal_ip: auto}", "{name: a, internal_ip: true}", "{name: a, internal_ip: 'false'}", "600", "601"),
    *("uv", "venv", "docker", "[ssh]", "[ssh, gcsfuse, uv]", "{uv: {}}", "{venv: {python: '3.11'}}", "{image: x}"),
    *("{image: x, flags: [--gpus all], mounts: [a:b], env: [A=B], engine: podman}", "{name: x, accept_tos: true}"),
    *("{bucket_name: b, mount_path: /b, cache: {dir: /c, metadata_ttl_secs: -1, enable_parallel_downloads: true}}",),
    *("{bucket: b, path: ~/b, extra_mounts: [{bucket: c, path: /c}]}", "{identities: [{private_key: ~/.ssh/x}]}"),
    *(
        "bell",
        "[bell, desktop]",
        "[{command: [x]}]",
        "[{url_env: X, on: [failed]}]",
        "{url_env: X}",
        "[{on: [end]}]",
        "'[::1]:22'",
        "40000-40100",
    ),
)


@pytest.mark.parametrize("key", project.KEYS)
def test_no_value_that_the_reader_of_projects_takes_is_wrong_by_the_schema(key: str, tmp_path: Path) -> None:
    taken = [text for value in VALUES if takes("mesh.yaml", text := f"{key}: {value}\n", tmp_path)]
    assert taken
    assert [text for text in taken if problems("mesh.yaml", text)] == []


@pytest.mark.parametrize("key", clusters.CLUSTER_KEYS)
def test_no_value_that_the_reader_of_clusters_takes_is_wrong_by_the_schema(key: str, tmp_path: Path) -> None:
    listed = key in ("hosts", "slices", tpu.KEY, kubernetes.KEY, slurm.KEY)
    beside = [""] if listed else ["  hosts: [a]\n"]
    beside += [f"  hosts: [a]\n  {other}\n" for other in ("backend: command", "command: [x]") if key in other]
    texts = [f"pod:\n{more}  {key}: {value}\n" for more, value in product(beside, VALUES) if f"  {key}:" not in more]
    taken = [text for text in texts if takes("cluster.yaml", text, tmp_path)]
    assert taken or key == "identity_file"
    assert [text for text in taken if problems("cluster.yaml", text)] == []


@pytest.mark.parametrize("key", clusters.HOST_KEYS)
def test_no_value_that_the_reader_of_hosts_takes_is_wrong_by_the_schema(key: str, tmp_path: Path) -> None:
    host = "" if key == "host" else "host: a, "
    texts = [f"pod:\n  hosts: [{{{host}{key}: {value}}}]\n" for value in VALUES]
    taken = [text for text in texts if takes("cluster.yaml", text, tmp_path)]
    assert taken or key == "identity_file"
    assert [text for text in taken if problems("cluster.yaml", text)] == []
