"""References in a job file, as ``${job.name}`` and ``${oc.env:USER}``, resolved by OmegaConf, which is imported here.

Values without a reference stay as they are written. So does ``$NAME``, which the shell of the ranks reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, cast

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from mesh.config.secretnames import is_secret_name
from mesh.config.yamlfile import MAX_DEPTH, Problems

if TYPE_CHECKING:
    from omegaconf import DictConfig

OPENING = "${"
TEXT_TAG = "tag:yaml.org,2002:str"
_VARIABLE = re.compile(r"oc\.env:\s*['\"]?([A-Za-z_][A-Za-z0-9_]*)")
_PLAIN = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")  # as a shell has it
_DOTTED = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_.]*\}")
_SHELL = re.compile(r"(?<!\\)\$\{([A-Za-z_][A-Za-z0-9_]*[^A-Za-z0-9_.}][^}]*)\}")  # as ${NAME:-default}
Place = tuple[str | int, ...]  # keys and indices from the top of the file


def resolved(node: Node, problems: Problems) -> Node:
    """Return the tree with the values that references stand for, each at the line of its reference."""
    texts = {place: leaf for place, leaf in _leaves(node, ()) if OPENING in leaf.value}
    good = {place for place, leaf in texts.items() if _is_allowed(leaf, place, problems)}
    if not texts:
        return node
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    for place in list(good):
        try:
            OmegaConf.create({"value": texts[place].value})
        except OmegaConfBaseException:
            problems.add(texts[place], _where(place), _advice(texts[place].value))
            good.discard(place)
    plain = _plain(node, (), texts.keys() - good)
    assert isinstance(plain, dict)
    config = OmegaConf.create(plain)
    found: dict[Place, object] = {}
    for place in sorted(good, key=str):
        try:
            found[place] = _value_at(config, place)
        except OmegaConfBaseException:
            problems.add(texts[place], _where(place), _advice(texts[place].value))
    return _replaced(node, (), found)


def _leaves(node: Node, place: Place) -> Iterator[tuple[Place, ScalarNode]]:
    """Yield all scalars with their places."""
    if isinstance(node, ScalarNode):
        yield place, node
    elif len(place) < MAX_DEPTH:
        for key, child in _children(node):
            yield from _leaves(child, (*place, key))


def _children(node: Node) -> Iterator[tuple[str | int, Node]]:
    if isinstance(node, MappingNode):
        yield from ((str(key.value), value) for key, value in node.value if isinstance(key, ScalarNode))
    elif isinstance(node, SequenceNode):
        yield from enumerate(node.value)


def _is_allowed(leaf: ScalarNode, place: Place, problems: Problems) -> bool:
    """Note a reference to a variable that is probably a secret, as the store keeps what the file has."""
    secret = next((name for name in _VARIABLE.findall(leaf.value) if is_secret_name(name)), "")
    if secret:
        problems.add(leaf, _where(place), f"{secret} would be written to the job's files; hand it on by `pass:`")
        problems.hints.append(f"job: {{pass: [{secret}]}}")
    return not secret


def _plain(node: Node, place: Place, without: set[Place]) -> object:
    """Return the values as Python has them; those at the places of ``without`` are empty."""
    if isinstance(node, MappingNode):
        return {key: _plain(child, (*place, key), without) for key, child in _children(node)}
    if isinstance(node, SequenceNode):
        return [_plain(child, (*place, index), without) for index, child in _children(node)]
    return "" if place in without else _scalar(str(node.tag).rpartition(":")[2], str(node.value))


def _scalar(kind: str, text: str) -> object:
    """Return a number or a truth value as Python has it, everything else as its text."""
    try:
        if kind in ("int", "float"):
            return int(text) if kind == "int" else float(text)
    except ValueError:  # as 1_000, 0x1F or 12:30
        return text
    if kind == "bool":
        return text.lower() in ("yes", "true", "on")
    return None if kind == "null" else text


def _value_at(config: DictConfig, place: Place) -> object:
    """Return the resolved value at a place. Raises OmegaConfBaseException."""
    from omegaconf import OmegaConf

    found: object = config
    for step in place:
        found = cast("Mapping[str | int, object]", found)[step]
    return OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else found


def _replaced(node: Node, place: Place, found: dict[Place, object]) -> Node:
    if place in found:
        return as_node(found[place], node)
    if isinstance(node, ScalarNode) or len(place) >= MAX_DEPTH:
        return node
    new = copy(node)
    if isinstance(node, MappingNode):
        new.value = [(key, _replaced(value, (*place, str(key.value)), found)) for key, value in node.value]
    else:
        new.value = [_replaced(value, (*place, index), found) for index, value in enumerate(node.value)]
    return new


def as_node(value: object, at: Node) -> Node:
    """Return a value as YAML has it, at the line of another one."""
    marks = (at.start_mark, at.end_mark)
    if isinstance(value, dict):
        pairs = [(as_node(str(key), at), as_node(one, at)) for key, one in value.items()]
        return MappingNode("tag:yaml.org,2002:map", pairs, *marks)
    if isinstance(value, list):
        return SequenceNode("tag:yaml.org,2002:seq", [as_node(one, at) for one in value], *marks)
    if isinstance(value, bool):
        return ScalarNode("tag:yaml.org,2002:bool", str(value).lower(), *marks)
    if isinstance(value, int | float):
        return ScalarNode(f"tag:yaml.org,2002:{type(value).__name__}", str(value), *marks)
    if value is None:
        return ScalarNode("tag:yaml.org,2002:null", "null", *marks)
    return ScalarNode(TEXT_TAG, str(value), *marks)


def _advice(text: str) -> str:
    """Return the problem with a reference, with the spelling for one that is meant for the shell of the ranks.

    >>> _advice("cd ${HOME}")
    'unknown reference ${HOME}; for a variable of the ranks write `$HOME` or `\\\\${HOME}`'
    """
    if found := _PLAIN.search(text):
        name = found.group(1)
        return f"unknown reference ${{{name}}}; for a variable of the ranks write `${name}` or `\\${{{name}}}`"
    if variable := _VARIABLE.search(text):
        return f"the variable {variable.group(1)} is not set here"
    if found := _SHELL.search(text):
        return f"unknown reference {found.group()}; for the shell of the ranks write `\\{found.group()}`"
    if found := _DOTTED.search(text):
        return f"unknown reference {found.group()}"
    return f"cannot be resolved: {text[:60]!r}; a `${{` for the shell of the ranks is written as `\\${{`"


def _where(place: Sequence[str | int]) -> str:
    """Return a place as messages have it.

    >>> _where(("notify", 0, "on"))
    'notify[0].on'
    """
    parts = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in place]
    return "".join(parts).removeprefix(".")
