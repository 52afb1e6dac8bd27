"""The agent as it travels."""

from __future__ import annotations

import ast
import json
import os
from importlib import resources
from pathlib import Path

import pytest

from mesh.remote.agent import loader, starter
from mesh.remote.agent.starter import FUTURE
from mesh.remote.blob import LOADER, MODULES, STARTER, _loader, without_words


class _Silent(ast.NodeTransformer):
    """Takes the texts out that are statements of their own, and how a module is to be compiled."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom | None:
        return None if node.module == "__future__" else node

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node


@pytest.mark.parametrize("name", [STARTER, LOADER, *MODULES])
def test_it_loses_nothing_but_words(name: str) -> None:
    source = (resources.files("mesh.remote.agent") / f"{name}.py").read_text()
    smaller = without_words(source)
    assert len(smaller) < len(source)
    trees = [ast.dump(_Silent().visit(ast.parse(text))) for text in (source, smaller)]
    # A comment within a text (a script for sh) is one as well.
    assert trees[0] == trees[1] or name == "containers"


def test_every_module_travels() -> None:
    files = {path.name for path in resources.files("mesh.remote.agent").iterdir() if path.name.endswith(".py")}
    assert files == {"__init__.py", *(f"{name}.py" for name in (STARTER, LOADER, *MODULES))}


def test_the_loader_imports_nothing_of_ours() -> None:
    """It stands below the starter, and nobody could give it anything."""
    body = ast.parse(_loader()).body
    assert not [node for node in body if isinstance(node, ast.ImportFrom)]


@pytest.mark.parametrize("name", [LOADER, *MODULES])
def test_every_module_is_compiled_alike(name: str) -> None:
    """The hosts add it to all of them."""
    assert f"\n{FUTURE}" in (resources.files("mesh.remote.agent") / f"{name}.py").read_text()


SOURCES = json.dumps({"one": "NUMBER = 1", "two": "from one import NUMBER"}).encode()
HEAD = b"the key and the interpreter\n"


def test_what_was_compiled_is_read_again(tmp_path: Path) -> None:
    path = str(tmp_path / "code")
    assert starter.find(path, HEAD) is None
    loader.keep(path, HEAD, loader.to_bytes(loader.made(SOURCES)))
    found = starter.find(path, HEAD)
    assert found is not None
    assert {name: found.read(name) for name in found.index} == loader.made(SOURCES)
    os.close(found.file)
    assert starter.find(path, b"another key" + HEAD) is None
    assert [file.name for file in tmp_path.iterdir()] == ["code"]


def test_what_is_damaged_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "code"
    loader.keep(str(path), HEAD, loader.to_bytes(loader.made(SOURCES)))
    whole = path.read_bytes()
    for place in range(len(whole)):
        for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]):
            path.write_bytes(damaged)
            assert starter.find(str(path), HEAD) is None


def test_a_full_disk_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()  # no file can be put in its place
    loader.keep(str(tmp_path / "code"), HEAD, b"code")
    assert [file.name for file in tmp_path.iterdir()] == ["code"]


def test_only_a_directory_that_is_ours_alone_is_trusted(tmp_path: Path) -> None:
    place, places = tmp_path / f"mesh-{os.geteuid()}", ("/nowhere", str(tmp_path))
    assert starter.find_place(places) == ""
    place.touch()
    assert starter.find_place(places) == ""
    place.unlink()
    (tmp_path / "elsewhere").mkdir(0o700)
    place.symlink_to("elsewhere")
    assert starter.find_place(places) == ""
    place.unlink()
    place.mkdir()
    place.chmod(0o770)
    assert starter.find_place(places) == ""
    place.chmod(0o700)
    assert starter.find_place(places) == str(place)
