"""The page of every public name, from the sources of mesh.api: ``python -m tests.api_page`` writes docs/api.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path

from mesh import api
from tests.pages import DOCS

PAGE = DOCS / "api.md"
INTRODUCTION = """\
# Python, every name

Made from the docstrings of `mesh.api` by `python -m tests.api_page`; a test fails where they differ.
[Python, by examples](python.md) shows how the names are used.
"""


def page() -> str:
    """Return docs/api.md."""
    return INTRODUCTION + "".join(f"{line}\n" for name in api.__all__ for line in _section(name))


def _section(name: str) -> Iterator[str]:
    node = _definition(name)
    yield ""
    yield f"## {name}"
    if isinstance(node, ast.FunctionDef):
        yield from ("", "```python", *_signature(node), "```")
        yield from _text(node)
    elif isinstance(node, ast.ClassDef):
        yield from _class(node)
    else:
        yield from ("", "```python", _source(node), "```")


def _definition(name: str) -> ast.stmt:
    spec = find_spec(getattr(getattr(api, name), "__module__", api._PLACES[name]))
    assert spec
    assert spec.origin
    for node in ast.parse(Path(spec.origin).read_text()).body:
        named = isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
        if named or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name):
            return node
    raise KeyError(f"{spec.origin} does not define {name}")


def _signature(node: ast.FunctionDef) -> Iterator[str]:
    """Yield ``name(arguments) -> result``, an argument a line where that is long."""
    arguments = [one for one in _arguments(node.args) if one != "self"]
    result = f" -> {_source(node.returns)}" if node.returns else ""
    whole = f"{node.name}({', '.join(arguments)}){result}"
    yield from [whole] if len(whole) < 90 else [f"{node.name}(", *(f"    {one}," for one in arguments), f"){result}"]


def _arguments(found: ast.arguments) -> Iterator[str]:
    defaults = [None] * (len(found.args) - len(found.defaults)) + found.defaults
    for argument, default in zip(found.args, defaults, strict=True):
        yield _argument(argument, default)
    if found.kwonlyargs:
        yield "*"
    for argument, default in zip(found.kwonlyargs, found.kw_defaults, strict=True):
        yield _argument(argument, default)


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    annotation = f": {_source(argument.annotation)}" if argument.annotation else ""
    return f"{argument.arg}{annotation}{f' = {_source(default)}' if default else ''}"


def _source(node: ast.AST) -> str:
    return ast.unparse(node).replace("'", '"')


def _class(node: ast.ClassDef) -> Iterator[str]:
    yield from _text(node)
    fields = [
        one for one in node.body if isinstance(one, ast.AnnAssign) and not ast.unparse(one.target).startswith("_")
    ]
    if fields:
        yield from ("", "```python", *(_source(one) for one in fields), "```")
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and not one.name.startswith("_") and ast.get_docstring(one):
            yield from ("", f"### {node.name}.{one.name}", "", "```python", *_signature(one), "```")
            yield from _text(one)


def _text(node: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    """Yield the docstring after an empty line: code in single backticks, and arguments as a list."""
    is_item = False
    yield ""
    for line in cleandoc(ast.get_docstring(node) or "").split("\n"):
        text = re.sub(r"``([^`]*)``", r"`\1`", line.strip())
        named = re.match(r"(\w+(?:, \w+)*): (?=\S)", text)
        if named:
            text = f"* `{named[1]}`: {text[named.end() :]}"
        elif is_item and text and (line.startswith(" ") or not text[0].isupper()):
            text = f"  {text}"
        elif is_item and text:
            yield ""
        is_item = text.startswith(("* ", "  "))
        yield text


if __name__ == "__main__":
    PAGE.write_text(page())
