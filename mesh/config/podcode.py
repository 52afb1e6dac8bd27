"""Reader of ``source:`` below ``kubernetes:``: where pods get the workspace without a client."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from msgspec import Struct
from yaml.nodes import MappingNode

from mesh.config.section import Section

GIT, CONFIG_MAP = "git", "config_map"
GIT_KEYS = (GIT, "ref", "secret")
EXPECTED = f"{CONFIG_MAP}, or a mapping with {GIT}:"
_REF = re.compile(r"[A-Za-z0-9][\w./+@-]*")
_SECRET = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


class Code(Struct, frozen=True, kw_only=True):
    """The place where pods get their workspace from."""

    kind: str  # GIT or CONFIG_MAP
    url: str = ""
    ref: str = ""  # a commit, tag or branch; "": the default branch
    secret: str = ""  # the name of a Secret with credentials; "": none are needed

    @property
    def line(self) -> str:
        """The place in one line, for people.

        >>> Code(kind="git", url="https://x/y.git", ref="v1").line, Code(kind="config_map").line
        ('git https://x/y.git at v1', 'a ConfigMap')
        """
        return f"{self.kind} {self.url}" + f" at {self.ref}" * bool(self.ref) if self.url else "a ConfigMap"


def read_code(section: Section, key: str) -> Code | None:
    """Return the place that ``source:`` names; None without it. Problems are noted."""
    if key not in section:
        return None
    node = section.node(key)
    if not isinstance(node, MappingNode):
        if section.text(key, EXPECTED) != CONFIG_MAP:
            section.unexpected(key, EXPECTED)
        return Code(kind=CONFIG_MAP)
    own = Section(node, section.where(key), GIT_KEYS, section.problems, EXPECTED)
    if GIT not in own:
        section.unexpected(key, EXPECTED)
    return Code(kind=GIT, url=_url(own, GIT), ref=_ref(own), secret=_secret(own))


def _url(section: Section, key: str) -> str:
    found = section.text(key, "a URL")
    if not is_url(found):
        if key in section:
            section.unexpected(key, "a URL")
    elif has_credentials(found):
        section.add(key, "has credentials in it; put them into a Secret of the namespace, and name that by secret:")
    return found


def is_url(text: str) -> bool:
    """Return True for a text that git takes for the place of a repository, and not for an option."""
    return bool(text) and not text.startswith("-") and not any(one.isspace() for one in text)


def has_credentials(url: str) -> bool:
    """Return True if a URL has a password, or for HTTP a user, which may be a token.

    >>> [has_credentials(url) for url in ("https://TOKEN@forge/x.git", "ssh://git@forge/x.git", "a:b.git")]
    [True, False, False]
    """
    try:
        found = urlsplit(url)
        return found.password is not None or (found.scheme in ("http", "https") and found.username is not None)
    except ValueError:
        return False


def _ref(section: Section) -> str:
    found = section.text("ref", "a commit, tag or branch")
    if found and not _REF.fullmatch(found):
        section.unexpected("ref", "a commit, tag or branch")
    return found


def _secret(section: Section) -> str:
    found = section.text("secret", "the name of a Secret")
    if found and not _SECRET.fullmatch(found):
        section.unexpected("secret", "the name of a Secret")
    return found
