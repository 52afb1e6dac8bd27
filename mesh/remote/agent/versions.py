"""Which Python, frameworks and driver ranks would find, without importing any of them."""

from __future__ import annotations

import json
import os

from .frames import to_bytes
from .spawning import Setting, find_program, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Those that must be the same on all hosts, or collectives crash or hang.
PACKAGES = ("jax", "jaxlib", "libtpu", "libtpu-nightly", "torch", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
MOST_SAID = 1 << 20  # bytes
DRIVER = "/proc/driver/nvidia/version"
# Run by the user's interpreter, of whatever age. importlib.metadata would take four times as long as all else in it.
PROBE = """
import json, os, sys
found = {"python": ".".join(str(number) for number in sys.version_info[:3])}
for place in sys.path:
    try:
        names = os.listdir(place)
    except OSError:
        continue
    for name in names:
        words = os.path.splitext(name)[0].split("-")
        package = words[0].lower().replace("_", "-")
        if name.endswith((".dist-info", ".egg-info")) and len(words) > 1 and package in sys.argv:
            found.setdefault(package, words[1])
print()
print(json.dumps(found))
"""


def versions(environment: dict[bytes, bytes], venv: str) -> dict[str, Any]:
    """ "program", the Python that ranks find, with "python" and what it has of PACKAGES by name, each with its version.

    venv: a directory whose Python it is; "": the first one on PATH
    "missing" where there is no venv yet, "error" and "hint" where there is no Python, or it does not run.
    It runs the user's interpreter: it may take long.
    """
    names = [os.path.join(venv, "bin/python")] if venv else ["python3", "python"]
    path = environment.get(b"PATH", os.defpath.encode())
    program = b""
    for name in names:
        try:
            program = program or find_program(to_bytes(name), path)
        except OSError:
            continue
    if venv and not os.path.exists(names[0]):
        return {"missing": venv}
    if not program:
        hint = "install Python there, or have prerun put it on PATH"
        return {"error": "no python3 on the PATH of the ranks", "hint": hint}
    told = {"program": os.fsdecode(program)}
    said = _said([program, b"-c", PROBE.encode(), *(name.encode() for name in PACKAGES)], environment)
    try:
        return {**told, **json.loads(said[-1])}
    except (ValueError, IndexError):
        why = said[-1].strip() if said else "it says nothing"
        return {**told, "error": f"{os.fsdecode(program)} does not run: {why}", "hint": "install it there anew"}


def _said(argv: list[bytes], environment: dict[bytes, bytes]) -> list[str]:
    """The lines that a program prints, less empty ones. It is killed when we are."""
    ours, theirs = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    spawn(argv, Setting(environment, "/"), null, theirs, theirs)
    os.close(theirs)
    with open(ours, "rb") as file:
        lines = file.read(MOST_SAID).decode("utf-8", "replace").splitlines()
    return [line for line in lines if line.strip()]


def driver(path: str = DRIVER) -> str:
    """The version of NVIDIA's driver; "" if there is none."""
    try:
        with open(path) as file:
            words = file.readline().split()
    except OSError:
        return ""
    return next((word for word in words if word[0].isdigit() and "." in word), "")
