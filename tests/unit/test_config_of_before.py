"""Every cluster.yaml and mesh.yaml of configs/, README and docs/ of version 69040be loads to the same values as there.

The files lie in tests/data/config-69040be, with the values that the loader of 69040be read. They were written by
``PYTHONPATH=CHECKOUT_OF_69040be python tests/unit/test_config_of_before.py``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import pytest

FILES = Path(__file__).parent.parent / "data" / "config-69040be"
VALUES = FILES / "values.json"
KEYS = (".ssh/id_ed25519", ".ssh/google_compute_engine")  # private keys that the files name
RENAMED = {"tpu": "source", "worker": "slice_index"}  # fields


def plain(value: object, home: Path) -> object:
    """Return a value as JSON has it, with the home directory as ~."""
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", None)
    if isinstance(value, Enum):
        return value.value
    if names is not None:
        return {name: plain(getattr(value, name), home) for name in names}
    if isinstance(value, Mapping):
        return {str(key): plain(one, home) for key, one in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(one, home) for one in value]
    if isinstance(value, (str, Path)):
        return str(value).replace(str(home), "~")
    return value


def load(name: str, home: Path) -> object:
    """Load one of the files with the loader of the mesh that is imported. home: holds the keys"""
    from mesh.config.clusters import load_clusters
    from mesh.config.project import load_project

    text = (FILES / name).read_text()
    if name.endswith(".cluster.yaml"):
        path = home / "cluster.yaml"
        path.write_text(text)
        file = load_clusters(path, required=True)
        assert not file.problems, file.problems
        return plain(file.clusters, home)
    project = home / "project"
    project.mkdir(exist_ok=True)
    (project / "mesh.yaml").write_text(text)
    return plain(load_project(project), home)


def prepare(home: Path) -> None:
    (home / ".ssh").mkdir()
    for key in KEYS:
        (home / key).touch()


def differences(before: object, now: object, place: str) -> list[str]:
    """Return the places where a value has changed; fields that are new do not count."""
    if isinstance(before, dict) and isinstance(now, dict):
        renamed = {key if key in now else RENAMED.get(key, key): one for key, one in before.items()}
        found = [line for key, one in renamed.items() for line in differences(one, now.get(key), f"{place}.{key}")]
        return [*found, *(f"{place}: no {key}" for key in renamed.keys() - now.keys())]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [line for i, one in enumerate(before) for line in differences(one, now[i], f"{place}[{i}]")]
    return [] if before == now else [f"{place}: {before!r} became {now!r}"]


def all_values(home: Path) -> dict[str, object]:
    return {path.name: load(path.name, home) for path in sorted(FILES.glob("*.yaml"))}


def test_files_of_before_load_to_the_same_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    prepare(tmp_path)
    before, now = json.loads(VALUES.read_text()), all_values(tmp_path)
    assert len(before) > 10
    assert differences(before, now, "") == []


def test_a_difference_is_found() -> None:
    before = {"a": [1, {"tpu": 2, "gone": None}]}
    assert differences(before, {"a": [1, {"source": 2, "new": 5}]}, "") == [".a[1]: no gone"]
    assert differences(before, {"a": [3, {"source": 4, "gone": None}]}, "") == [
        ".a[0]: 1 became 3",
        ".a[1].source: 2 became 4",
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        os.environ["HOME"] = directory
        prepare(Path(directory))
        json.dump(all_values(Path(directory)), VALUES.open("w"), indent=1, sort_keys=True)
        sys.stdout.write(f"{VALUES}\n")
