"""Wheels of one module each, written by tests so that they need no index."""

from __future__ import annotations

import zipfile
from pathlib import Path


def write_wheel(directory: Path, name: str, version: str) -> None:
    """Write a wheel whose module has its version as VERSION."""
    directory.mkdir(parents=True, exist_ok=True)
    information = f"{name}-{version}.dist-info"
    texts = {
        # Python takes a cached module for the new one if its time and size are the same.
        f"{name}.py": f"VERSION = {version!r}\n" + "#" * int(float(version)),
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    texts[f"{information}/RECORD"] = "".join(f"{path},,\n" for path in [*texts, f"{information}/RECORD"])
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in texts.items():
            archive.writestr(path, text)
