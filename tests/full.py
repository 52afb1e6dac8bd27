"""The size of tests that repeat what they do: small in each run of the suite, and full with MESH_TEST_FULL=1.

Tests of random inputs (hypothesis) then try new ones, and the same in each other run.
"""

from __future__ import annotations

import os

IS_FULL = os.environ.get("MESH_TEST_FULL", "") == "1"


def times(usual: int, full: int) -> int:
    """Return how often a test repeats what it does."""
    return full if IS_FULL else usual
