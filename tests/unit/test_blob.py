"""The agent as it travels."""

from __future__ import annotations

import ast
from importlib import resources

import pytest

from mesh.remote.blob import MODULES, without_words


class _Silent(ast.NodeTransformer):
    """Takes the texts out that are statements of their own."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node


@pytest.mark.parametrize("name", MODULES)
def test_it_loses_nothing_but_words(name: str) -> None:
    source = (resources.files("mesh.remote.agent") / f"{name}.py").read_text()
    smaller = without_words(source)
    assert len(smaller) < len(source)
    trees = [ast.dump(_Silent().visit(ast.parse(text))) for text in (source, smaller)]
    # A comment within a text (a script for sh) is one as well.
    assert trees[0] == trees[1] or name == "containers"


def test_every_module_travels() -> None:
    files = {path.name for path in resources.files("mesh.remote.agent").iterdir() if path.name.endswith(".py")}
    assert files == {"__init__.py", *(f"{name}.py" for name in MODULES)}
