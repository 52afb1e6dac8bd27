"""A fixed sample of the matrix, less what test_supervision.py tests as well.

MESH_CHAOS=all runs all of it, with storms of 200 processes; ``inv dev.chaos --all`` also writes its table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.chaos.faults import BEHAVIOURS, FAULTS
from tests.chaos.trial import Cell, attempt
from tests.lab import Lab

pytestmark = [pytest.mark.root, pytest.mark.sshd]

IS_WHOLE = os.environ.get("MESH_CHAOS") == "all"
STORM = 200 if IS_WHOLE else 40  # processes on each host
WORST = "all of these"
SAMPLE = [
    Cell(fault=fault, ranks=WORST)
    for fault in (
        "client: SIGKILL",
        "guardian killed",
        "disk full, client stopped for 4 s",
        "connections reset, a link cut for 2 s, client stopped for 1 s",
        "client and agent killed, connection reset, link cut for good",
    )
]
SAMPLE.append(Cell(fault="sshd times out a stopped client", ranks="print nothing"))  # sshd counts only silence
AS_PLAIN_USER = [
    Cell(fault="agent and guardian killed", ranks="cleared environment"),
    Cell(fault="agent and guardian killed", ranks=WORST),
    Cell(fault="client: SIGKILL", ranks=WORST),
]
EVERY = [Cell(fault=fault, ranks=ranks) for fault in FAULTS for ranks in BEHAVIOURS]


@pytest.mark.parametrize("cell", EVERY if IS_WHOLE else SAMPLE, ids=lambda cell: f"{cell.fault}-{cell.ranks}")
def test_what_dies_and_what_ranks_do(lab: Lab, cell: Cell) -> None:
    result = attempt(lab, cell, STORM)
    assert not result.problems


@pytest.fixture(scope="module")
def plain_user_lab() -> Iterator[Lab]:
    with Lab(4, user="plain") as lab:
        yield lab


@pytest.mark.parametrize(
    "cell",
    EVERY if IS_WHOLE else AS_PLAIN_USER,
    ids=lambda cell: f"{cell.fault}-{cell.ranks}",
)
def test_matrix_as_plain_user(plain_user_lab: Lab, cell: Cell) -> None:
    result = attempt(plain_user_lab, cell, STORM)
    assert not result.problems
