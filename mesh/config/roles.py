"""Roles: which hosts of a run execute which command (``--role``)."""

from __future__ import annotations

import re

from msgspec import Struct

from mesh.core.errors import UsageError

SHAPE = "LABEL@HOSTS: COMMAND"
_ROLE = re.compile(r"([^@]*)@(.*?):\s+(.*)", re.DOTALL)
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


class Role(Struct, frozen=True, kw_only=True):
    """A group of ranks as the user writes it."""

    label: str
    hosts: str  # as --hosts takes them
    text: str  # shell text


def read_role(place: str, text: str) -> tuple[Role, ...]:
    """Read one role. Raises UsageError that names its place.

    >>> read_role("--role", "actor@tpu-[1-3]: python3 actor.py")
    (Role(label='actor', hosts='tpu-[1-3]', text='python3 actor.py'),)
    """
    found = _ROLE.fullmatch(text)
    if not found or not found[2].strip() or not found[3].strip():
        hint = f"{place} 'actor@tpu-[1-3]: python3 actor.py'"
        raise UsageError(f"{place}: expected {SHAPE}, found {text!r}", hint=hint)
    if not _LABEL.fullmatch(found[1]):
        hint = "a label has letters, digits and any of _.- , and begins with a letter"
        raise UsageError(f"{place}: {found[1]!r} is no label", hint=hint)
    if "\0" in found[3]:
        raise UsageError(f"{place}: the command of {found[1]} holds a zero byte")
    return (Role(label=found[1], hosts=found[2].strip(), text=found[3]),)
