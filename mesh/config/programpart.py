"""The reader of ``program:`` in mesh.yaml: hosts, GPUs, interpreter and environment of nodes, by label."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from yaml.nodes import Node, ScalarNode, SequenceNode

from mesh.config import yamlfile
from mesh.config.yamlfile import Problems

LABEL_KEYS = ("on", "gpus", "python", "env")
GPUS_LIMIT = 1024  # of one node


class NodePlace(Struct, frozen=True, kw_only=True):
    """The place of the nodes of a label."""

    on: tuple[str, ...] = ()  # names or ranges of hosts; (): all hosts
    gpus: int = 0  # for each node
    python: str = ""  # the interpreter on the hosts; "": python3
    env: Mapping[str, str] = field(default_factory=dict)
    line: int = 0  # of the label


def read_program(node: Node, problems: Problems) -> dict[str, NodePlace]:
    """Return the places of nodes, by label."""
    if yamlfile.found(node) == "nothing":
        return {}
    labels = yamlfile.mapping(node, "program", problems, "labels of nodes, as actor: {on: tpu-[1-3]}")
    return {label: _place(label, key, value, problems) for label, (key, value) in labels.items()}


def _place(label: str, key: Node, node: Node, problems: Problems) -> NodePlace:
    where = f"program.{label}"
    keys = yamlfile.mapping(node, where, problems, f"a mapping with {', '.join(LABEL_KEYS)}")
    yamlfile.known(keys, LABEL_KEYS, where, problems)
    given = {name: value for name, (_, value) in keys.items()}
    python = "an interpreter, as python3.11"
    return NodePlace(
        on=_hosts(given["on"], f"{where}.on", problems) if "on" in given else (),
        gpus=_gpus(given["gpus"], f"{where}.gpus", problems) if "gpus" in given else 0,
        python=yamlfile.text(given["python"], f"{where}.python", problems, python) if "python" in given else "",
        env=_env(given["env"], f"{where}.env", problems) if "env" in given else {},
        line=key.start_mark.line + 1,
    )


def _hosts(node: Node, where: str, problems: Problems) -> tuple[str, ...]:
    expected = "names or ranges of hosts, as tpu-[1-3]"
    if isinstance(node, SequenceNode):
        return yamlfile.texts(node, where, problems, expected)
    written = yamlfile.text(node, where, problems, expected)
    return (written,) if written else ()


def _gpus(node: Node, where: str, problems: Problems) -> int:
    text = str(node.value) if isinstance(node, ScalarNode) else ""
    if not text.isdecimal() or int(text) > GPUS_LIMIT:
        problems.unexpected(node, where, f"a whole number from 0 to {GPUS_LIMIT}")
        return 0
    return int(text)


def _env(node: Node, where: str, problems: Problems) -> dict[str, str]:
    expected = 'a text (an empty one is "")'
    variables = yamlfile.mapping(node, where, problems, "variables, NAME: VALUE")
    return {
        name: yamlfile.scalar(value, f"{where}.{name}", problems, expected) for name, (_, value) in variables.items()
    }
