"""The result of a node for a client that has not started its run."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from mesh.agent.nodes.files import NodeFiles
from tests.conftest import PATIENCE

ASK = """
import sys
from mesh.agent.nodes.reaching import reach
from mesh.protocol.first import Reach
reach(Reach(marker="m", run=sys.argv[1], node=0, remote_dir=sys.argv[2], rank=int(sys.argv[3]), wants="result"))
"""


@pytest.mark.parametrize(("rank", "answer"), [(0, b"\nvalue"), (1, b"it has ended without a result")])
def test_a_node_that_has_ended_without_a_result_is_not_waited_for(rank: int, answer: bytes, tmp_path: Path) -> None:
    run = f"20260101-000000-{uuid.uuid4().hex[:6]}"
    files = NodeFiles(run, 0)
    files.make()
    try:
        with open(files.place("kept-0"), "wb") as file:
            file.write(b"value")
        for ended in range(2):
            files.note_end(ended)
        argv = [sys.executable, "-c", ASK, run, str(tmp_path), str(rank)]
        done = subprocess.run(argv, stdin=subprocess.PIPE, capture_output=True, timeout=PATIENCE, check=False)
    finally:
        files.remove()
    assert done.returncode == 0, done.stderr
    assert answer in done.stdout
