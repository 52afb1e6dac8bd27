"""The site of docs/: its index, its pictures, its generated pages, and the tests that its pages name."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from benchmarks import plots
from tests import api_page, pictures
from tests.conftest import REPOSITORY
from tests.site_hooks import OUTSIDE

DOCS = REPOSITORY / "docs"
PAGES = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
IMAGE = re.compile(r"!\[[^\]]+\]\(([^)]+)\)")
DRAWN = {"run.svg", "guardian.svg", "lease.svg", "sync.svg"}


def listed(nav: object) -> Iterator[str]:
    """Yield the pages of a part of mkdocs.yml's nav."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for part in nav.values():
            yield from listed(part)
    elif isinstance(nav, list):
        for part in nav:
            yield from listed(part)


def test_the_navigation_lists_every_page_once() -> None:
    settings = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())
    assert sorted(listed(settings["nav"])) == sorted(PAGES | set(OUTSIDE))


def test_the_index_links_every_page_and_schema() -> None:
    targets = set(re.findall(r"\]\(([^)#]+)\)", (DOCS / "README.md").read_text()))
    schemas = {path.name for path in DOCS.glob("*.json")}
    missing = {name for name in PAGES if "/" not in name} - {"README.md"} | schemas
    assert missing - targets == set()


def test_every_picture_is_an_svg_that_a_page_shows() -> None:
    shown = {(DOCS / page).parent / target for page in PAGES for target in IMAGE.findall((DOCS / page).read_text())}
    files = set((DOCS / "pictures").iterdir())
    screens = {path.resolve() for path in shown if path.suffix == ".png"}
    assert {path.resolve() for path in shown} - screens == files
    assert screens == set((DOCS / "screens").iterdir())
    assert all(path.stat().st_size < 150_000 for path in screens)
    assert {path.name for path in files} >= DRAWN
    for path in files:
        assert xml.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        assert path.stat().st_size < 20_000


@pytest.mark.parametrize("name", pictures.SOURCES)
def test_a_terminal_picture_has_the_text_that_mesh_prints(name: str) -> None:
    """The text is compared with what mesh prints by test_docs.py (pages) and test_screen.py (golden files)."""
    path, _ = pictures.made(name)
    lines = ["".join(line.itertext()) for line in xml.parse(path).getroot().findall("{*}text")]
    assert "\n".join(lines) == pictures.text_of(name), "python -m tests.pictures draws them"


@pytest.mark.parametrize("name", plots.PLOTS)
def test_a_plot_has_the_numbers_of_its_table(name: str) -> None:
    path, content = plots.made(name)
    assert path.read_text() == content, "python -m benchmarks.plots draws them"


def test_the_page_of_every_public_name_is_what_the_docstrings_say() -> None:
    assert api_page.PAGE.read_text() == api_page.page(), "python -m tests.api_page writes it"


NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (DOCS / "security.md").read_text())))


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_test_that_the_page_of_security_names_exists(path: str, name: str) -> None:
    tree = ast.parse((REPOSITORY / path).read_text())
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert not name or name in names


def test_each_claim_of_the_page_of_security_names_a_test() -> None:
    rows = [line for line in (DOCS / "security.md").read_text().split("\n") if line.startswith("| ")]
    claims = [row for row in rows if not re.match(r"\| ---", row) and not row.endswith("| test |")]
    assert len(claims) > 20
    assert [row for row in claims if not re.search(r"`tests/[\w/]+\.py::test_\w+` \|$", row)] == []
    assert "docs/security.md" in (REPOSITORY / "SECURITY.md").read_text()


BROKEN = {
    "nowhere.md": "[nowhere](nowhere.md)",
    "no-such-heading": "[no heading](sync.md#no-such-heading)",
    "no-such-file": "[no file](../configs/no-such-file)",
}


def test_each_broken_link_of_the_site_fails_and_there_is_no_other(tmp_path: Path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    (tmp_path / "tests").mkdir()
    for name in ("mkdocs.yml", "tests/site_hooks.py", "SECURITY.md", *OUTSIDE.values()):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    for name in ("configs", "examples", "LICENSE"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    with (tmp_path / "docs/terminal.md").open("a") as page:
        page.write("".join(f"\n{link}\n" for link in BROKEN.values()))
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=tmp_path,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    assert done.returncode == 1, done.stderr  # each warning fails a strict build
    assert all(any(reason in line for line in warnings) for reason in BROKEN), done.stderr
    assert all(any(reason in line for reason in BROKEN) for line in warnings), done.stderr
