"""Hooks of mkdocs: pages from outside docs/, and links that lead out of it."""

from __future__ import annotations

import logging
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Pages of the site that lie outside docs/: their names there, and their files.
OUTSIDE = {"overview.md": "README.md", "changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LOG = logging.getLogger("mkdocs.hooks.site")


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages that lie outside docs/."""
    from mkdocs.structure.files import File

    for name, path in OUTSIDE.items():
        with open(os.path.join(REPOSITORY, path)) as file:
            files.append(File.generated(config, name, content=file.read()))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text with links as the site needs them."""
    text, missing = for_site(markdown, page.file.src_uri)
    for target in missing:
        LOG.warning("%s: no such file: %s", page.file.src_uri, target)
    return text


def for_site(text: str, uri: str) -> tuple[str, list[str]]:
    """Return the text of a page with the links of the site, and the targets that do not exist.

    >>> for_site("[all](docs/README.md), [more](configs)", "overview.md")
    ('[all](README.md), more (`configs`)', [])
    >>> for_site("[start](../../README.md) [none](none.md)", "decisions/README.md")
    ('[start](../overview.md) [none](none.md)', ['none.md'])
    """
    source = OUTSIDE.get(uri, f"docs/{uri}")
    missing = []

    def follow(found: re.Match[str]) -> str:
        words, target, anchor = found[1], found[2], found[3] or ""
        if re.match(r"\w+:", target):
            return found[0]
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        if not os.path.exists(os.path.join(REPOSITORY, path)):
            missing.append(target)
            return found[0]
        names = {file: name for name, file in OUTSIDE.items()}
        if path not in names and not path.startswith("docs/"):
            return f"{words} (`{path}`)"  # a file of the repository that is no page
        name = names.get(path, path.removeprefix("docs/"))
        return f"[{words}]({os.path.relpath(name, os.path.dirname(uri) or '.')}{anchor})"

    parts = FENCED.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(follow, part) for part in parts), missing
