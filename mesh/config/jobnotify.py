"""The reader of ``notify:`` in job files."""

from __future__ import annotations

from yaml.nodes import Node, SequenceNode

from mesh.config.notify import check_fields, read_moments
from mesh.config.section import Section
from mesh.config.yamlfile import Problems
from mesh.core.job import NOTICE_FIELDS, Format, NotifySpec
from mesh.core.notify import Moment

KEYS = ("on", "command", "url_env", "format")
EXPECTED = "a mapping with command: or url_env:"


def read_job_notify(node: Node, problems: Problems) -> tuple[NotifySpec, ...]:
    """Return the notifications: a list of them, or one alone."""
    entries = node.value if isinstance(node, SequenceNode) else [node]
    return tuple(_entry(entry, f"notify[{index}]", problems) for index, entry in enumerate(entries))


def _entry(node: Node, where: str, problems: Problems) -> NotifySpec:
    section = Section(node, where, KEYS, problems, EXPECTED)
    if section.keys and ("command" in section) == ("url_env" in section):
        problems.add(node, where, "needs one of command: and url_env:")
    command = section.texts("command", "a list of words")
    if "command" in section:
        check_fields(command, section.node("command"), section.where("command"), problems, NOTICE_FIELDS)
    return NotifySpec(
        on=read_moments(section.node("on"), section.where("on"), problems) if "on" in section else (Moment.END,),
        command=command,
        url_env=section.text("url_env", "the name of a variable"),
        format=section.word("format", Format, Format.JSON),
    )
