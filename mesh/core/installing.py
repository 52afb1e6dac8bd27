"""Commands that add packages to the Python that runs mesh, for hints.

mesh is installed from a clone, and the package index may have another project of its name. So a hint names the packages
of an extra, and never mesh itself.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Sequence

MESH = "mesh"  # the name of this distribution, whose metadata have the extras
_OF_EXTRA = re.compile(r"""\bextra\s*==\s*['"]([\w.-]+)['"]""")


def install_line(*packages: str) -> str:
    """Return the command that installs packages for this Python, which may have no pip of its own."""
    from importlib.util import find_spec

    with_pip = [sys.executable, "-m", "pip", "install"]
    with_uv = ["uv", "pip", "install", "--python", sys.executable]  # in the environment of `uv tool install`
    return shlex.join([*(with_pip if find_spec("pip") else with_uv), *packages])


def extra_line(extra: str) -> str:
    """Return the command that installs the packages of an extra of mesh."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        packages = packages_of(extra, requires(MESH) or ())
    except PackageNotFoundError:  # it runs from its sources
        packages = []
    return install_line(*packages) if packages else f"in the clone of mesh: {install_line(f'.[{extra}]')}"


def packages_of(extra: str, requirements: Iterable[str]) -> Sequence[str]:
    """Return the packages of an extra, as metadata name them.

    >>> packages_of("ui", ["fabric>=3", 'starlette>=0.40; extra == "ui"', 'ruff>=0.14; extra == "dev"'])
    ['starlette>=0.40']
    """
    parts = (one.partition(";") for one in requirements)
    return [name.strip() for name, _, marker in parts if extra in _OF_EXTRA.findall(marker)]
