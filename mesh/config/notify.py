"""The reader of ``notify:`` in mesh.yaml."""

from __future__ import annotations

import string
from collections.abc import Sequence

from yaml.nodes import MappingNode, Node, SequenceNode

from mesh.config import yamlfile
from mesh.config.yamlfile import Problems
from mesh.core.notify import Moment, Notification, Short

ENTRY_KEYS = ("on", "command", "url_env")
SHORTS = tuple(short.value for short in Short if short.value)
MOMENTS = {moment.value: moment for moment in Moment}
# The words that a command may have in braces.
FIELDS = ("job", "run", "name", "cluster", "command", "state", "exit_code", "duration", "verdict")
EXPECTED = f"{' or '.join(SHORTS)}, or a mapping with command: or url_env:"


def read_notify(node: Node, problems: Problems) -> tuple[Notification, ...]:
    """Return the notifications: a list of them, or one alone."""
    if yamlfile.found(node) == "nothing":
        return ()
    if not isinstance(node, SequenceNode):
        return (_entry(node, "notify", problems),)
    listed = yamlfile.items(node, "notify", problems, EXPECTED)
    return tuple(_entry(item, where, problems) for where, item in listed)


def _entry(node: Node, where: str, problems: Problems) -> Notification:
    if not isinstance(node, MappingNode):
        word = yamlfile.text(node, where, problems, EXPECTED)
        if word and word not in SHORTS:
            problems.unexpected(node, where, EXPECTED)
        return Notification(short=Short(word) if word in SHORTS else Short.NONE)
    keys = yamlfile.mapping(node, where, problems, "a notification")
    yamlfile.known(keys, ENTRY_KEYS, where, problems)
    if ("command" in keys) == ("url_env" in keys):
        problems.add(node, where, "needs one of command: and url_env:")
    command: tuple[str, ...] = ()
    url_env = ""
    if "command" in keys:
        command = yamlfile.texts(keys["command"][1], f"{where}.command", problems, "a list of words")
        check_fields(command, keys["command"][1], f"{where}.command", problems)
    if "url_env" in keys:
        url_env = yamlfile.text(keys["url_env"][1], f"{where}.url_env", problems, "the name of a variable")
    on = read_moments(keys["on"][1], f"{where}.on", problems) if "on" in keys else (Moment.END,)
    return Notification(on=on, command=command, url_env=url_env)


def read_moments(node: Node, where: str, problems: Problems) -> tuple[Moment, ...]:
    """Return the moments of a list."""
    expected = f"a list of {', '.join(MOMENTS)}"
    moments = []
    for place, item in yamlfile.items(node, where, problems, expected):
        word = yamlfile.text(item, place, problems, expected)
        if word in MOMENTS:
            moments.append(MOMENTS[word])
        elif word:
            problems.unexpected(item, place, ", ".join(MOMENTS))
    return tuple(moments)


def check_fields(
    words: tuple[str, ...], node: Node, where: str, problems: Problems, fields: Sequence[str] = FIELDS
) -> None:
    """Note words in braces that are none of the fields, which are those of a run unless others are given."""
    if not words:
        problems.add(node, where, "is empty")
    for word in words:
        try:
            names = [name for _, name, _, _ in string.Formatter().parse(word) if name is not None]
        except ValueError as error:
            problems.add(node, where, f"{word}: {error}")
            continue
        for name in names:
            if name not in fields:
                problems.add(node, where, f"{{{name}}}: expected one of {', '.join(fields)}")
