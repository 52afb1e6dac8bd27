"""The change log: a section for the version, with short entries in three groups."""

from __future__ import annotations

import re

import mesh
from tests.conftest import REPOSITORY

ENTRY_LINES_MAX = 2


def test_the_newest_section_is_that_of_the_version_with_three_groups() -> None:
    text = (REPOSITORY / "CHANGELOG.md").read_text()
    version, section = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:3]
    assert version == mesh.__version__
    assert re.findall(r"^### (.+)$", section, flags=re.MULTILINE) == ["Added", "Changed", "Fixed"]


def test_entries_have_at_most_two_lines() -> None:
    text = (REPOSITORY / "CHANGELOG.md").read_text()
    entries = re.split(r"^\* ", text, flags=re.MULTILINE)[1:]
    long = [entry for entry in entries if len(re.split(r"\n\n|\n#", entry)[0].strip().splitlines()) > ENTRY_LINES_MAX]
    assert long == []


def test_no_two_entries_begin_alike() -> None:
    text = (REPOSITORY / "CHANGELOG.md").read_text()
    found = [" ".join(entry.replace("`", "").split()[:6]) for entry in re.split(r"^\* ", text, flags=re.MULTILINE)[1:]]
    assert [one for one in set(found) if found.count(one) > 1] == []
