"""``--set KEY=VALUE``: values that win over those of a job file."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import yaml
from yaml.error import Mark
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from mesh.config.yamlfile import Problems
from mesh.core.errors import UsageError

FLAG = "--set"
MAPPING_TAG = "tag:yaml.org,2002:map"


@dataclass
class JobProblems(Problems):
    """Problems of a job file and of its overrides, which have no line."""

    def add(self, node: Node, where: str, text: str) -> None:
        if str(node.start_mark.name).startswith(FLAG):
            self.lines.append(f"{node.start_mark.name}: {where}: {text}")
        else:
            super().add(node, where, text)


def overridden(node: Node | None, overrides: Sequence[str], problems: Problems) -> Node | None:
    """Return the tree of a file with other values. overrides: as KEY.KEY=VALUE, in which VALUE is YAML

    Raises UsageError for an override that is none.
    """
    for text in overrides:
        path, equals, value = text.partition("=")
        if not equals or not all(path.split(".")):
            raise UsageError(f"{FLAG}: expected KEY=VALUE, found {text!r}", hint=f"{FLAG} command.timeout=2h")
        name = f"{FLAG} {path}"
        node = _with(node, path.split("."), _value(value, name), problems)
    return node


def _value(text: str, name: str) -> Node:
    """Parse a value. name: of its place, for messages. Raises UsageError."""
    loader = yaml.SafeLoader(text)
    loader.name = name
    try:
        node: Node | None = loader.get_single_node()
    except yaml.YAMLError as error:
        raise UsageError(f"{name}: not valid YAML: {text!r}") from error
    finally:
        loader.dispose()
    return node or ScalarNode("tag:yaml.org,2002:str", "", *_marks(name))


def _marks(name: str) -> tuple[Mark, Mark]:
    mark = Mark(name, 0, 0, 0, None, 0)
    return mark, mark


def _with(node: Node | None, path: Sequence[str], value: Node, problems: Problems) -> Node:
    """Return a copy of a tree in which the value at a path is another one."""
    if not path:
        return value
    step, *rest = path
    if node is None:
        node = MappingNode(MAPPING_TAG, [], value.start_mark, value.end_mark)
    new = copy(node)
    if isinstance(node, SequenceNode) and step.isdecimal() and int(step) < len(node.value):
        new.value = list(node.value)
        new.value[int(step)] = _with(node.value[int(step)], rest, value, problems)
    elif isinstance(node, MappingNode):
        old = next((child for key, child in node.value if key.value == step), None)
        pairs = [(key, child) for key, child in node.value if key.value != step]
        key = ScalarNode("tag:yaml.org,2002:str", step, value.start_mark, value.end_mark)
        new.value = [*pairs, (key, _with(old, rest, value, problems))]
    elif step in ("cluster", "hosts"):  # `machines: pod` is short for a mapping
        short = MappingNode(MAPPING_TAG, [], node.start_mark, node.end_mark)
        return _with(_with(short, ["cluster"], node, problems), path, value, problems)
    else:
        problems.add(value, step, "there is nothing below it in the file")
    return new
