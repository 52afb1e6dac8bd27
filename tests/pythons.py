"""The Pythons of this machine that an agent can run on; ``python -m tests.pythons`` prints their versions.

MESH_TEST_PYTHON=3.8 has every test of an agent run on that version alone, as ``.ci/run`` does for each version.
"""

from __future__ import annotations

import functools
import glob
import os
import subprocess
import sys

OLDEST, NEWEST = (3, 8), (3, 14)
PATTERNS = (
    "/usr/bin/python3.?",
    "/usr/bin/python3.??",
    "/usr/local/bin/python3.??",
    os.path.expanduser("~/.pyenv/versions/3.*/bin/python3"),
)


@functools.cache
def pythons() -> dict[str, str]:
    """Return a path for each minor version; the one of these tests comes first."""
    found = {}
    for path in [sys.executable, *(path for pattern in PATTERNS for path in sorted(glob.glob(pattern)))]:
        asked = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        version = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        if version and OLDEST <= tuple(map(int, version.split("."))) <= NEWEST:
            found.setdefault(version, path)
    only = os.environ.get("MESH_TEST_PYTHON")
    return {only: found[only]} if only else found


def outermost() -> dict[str, str]:
    """Return the oldest and the newest one, for tests of an agent that ``.ci/run`` repeats on each."""
    found = pythons()
    in_order = sorted(found, key=lambda version: tuple(map(int, version.split("."))))
    return {version: found[version] for version in dict.fromkeys((in_order[0], in_order[-1]))}


if __name__ == "__main__":
    print(*sorted(pythons(), key=lambda version: tuple(map(int, version.split(".")))))
