"""Clusters of pods that ``mesh tlaunchrun --image`` makes, each in a file of its own that other commands find."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from mesh.core.paths import runs_directory

PREFIX = "lpjob"  # of their names
_NAME = re.compile(rf"{PREFIX}(-[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?")


def lpjob_path(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the file of a cluster, which ``is_lpjob_name`` takes."""
    return runs_directory(environ).parent / "tlaunchrun" / f"{name}.yaml"


def is_lpjob_name(name: str) -> bool:
    """Return True for a name that such a cluster may have.

    >>> is_lpjob_name("lpjob"), is_lpjob_name("lpjob-mnist"), is_lpjob_name("lpjob-../x"), is_lpjob_name("lpjobs")
    (True, True, False, False)
    """
    return bool(_NAME.fullmatch(name))


def is_lpjob(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return True for the name of such a cluster that was made on this machine."""
    return is_lpjob_name(name) and lpjob_path(name, environ).exists()
