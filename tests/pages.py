"""Pages of docs/ that programs write, a section each: the others stay as they are."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


@dataclass(frozen=True)
class Page:
    """One page; its sections follow the introduction in this order."""

    path: Path
    introduction: str  # "": what stands there before the first section
    sections: Sequence[str]

    def write(self, section: str, text: str) -> None:
        """Put one section in its place; the others stay."""
        old = self.path.read_text() if self.path.exists() else ""
        parts = []
        for name in self.sections:
            found = re.search(_mark(name) + r"\n(.*?)(?=\n<!-- |\Z)", old, re.S)
            body = text if name == section else found.group(1) if found else ""
            parts.append(f"{_mark(name)}\n{body.strip()}\n")
        introduction = self.introduction or re.split(r"^<!-- ", old, maxsplit=1, flags=re.M)[0].rstrip("\n") + "\n"
        self.path.write_text("\n".join([introduction, *parts]))


def _mark(name: str) -> str:
    return f"<!-- {name} -->"


def today() -> str:
    return time.strftime("%Y-%m-%d")


def machine() -> str:
    """What the numbers of a page were measured on.

    >>> machine().split(",")[0].split()[1]
    'cores'
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    system = f"Linux {platform.release()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores{_processor()}, {memory:.0f} GB, {system}, {_openssh()}"


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return f" ({' '.join(found.group(1).split())})" if found else ""


def _openssh() -> str:
    done = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False)
    return done.stderr.partition(",")[0].strip()
