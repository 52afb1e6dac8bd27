"""The agent as it travels: one zip of all its modules, and its first program."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import mesh
from mesh.remote import blob


def test_every_module_travels() -> None:
    root = Path(mesh.__file__).parent
    with zipfile.ZipFile(io.BytesIO(blob.blob())) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    there = [path for room in ("agent", "protocol") for path in (root / room).rglob("*.py")]
    there = [path for path in there if path.parent.name not in blob.ELSEWHERE]  # programs of their own
    assert found == {
        "mesh/__init__.py": b"",
        **{str(path.relative_to(root.parent)): path.read_bytes() for path in there},
    }


def test_the_zip_of_the_same_modules_is_the_same_in_another_process() -> None:
    command = "import zlib; from mesh.remote.blob import blob, opening; print(zlib.crc32(blob() + opening()))"
    seen = {
        subprocess.run(
            [sys.executable, "-c", command], check=True, capture_output=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_a_host_that_has_this_version_is_sent_at_most_8_kilobytes_to_start_it() -> None:
    assert len(blob.opening()) <= 8 << 10
