"""Specs of runs for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mesh.core.run import Group, Rules, RunSpec

OF_GROUP = set(Group.__struct_fields__)
OF_RULES = set(Rules.__struct_fields__)


def spec_of(**given: Any) -> RunSpec:
    """Return a spec with one group; its fields, those of the group and those of the rules are given together."""
    group = {name: given.pop(name) for name in list(given) if name in OF_GROUP}
    rules = {name: given.pop(name) for name in list(given) if name in OF_RULES}
    run = {"run": "r", "project": "p", "workspace": Path("/w"), **given}
    return RunSpec(groups=(Group(**group),), rules=Rules(**rules), **run)
