"""The versions of Python, frameworks and driver that ranks would find, read without importing any of them."""

from __future__ import annotations

import json
import os

from mesh.agent.process.spawning import Setting, find_program, spawn
from mesh.protocol.frames import to_bytes
from mesh.protocol.kinds import Wrong, as_it_is
from mesh.protocol.replies import VERSIONS, PythonFailure, PythonMissing

# Packages that must be the same on all hosts, or collectives crash or hang.
PACKAGES = ("jax", "jaxlib", "libtpu", "libtpu-nightly", "torch", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
OUTPUT_BYTES = 1 << 20
DRIVER = "/proc/driver/nvidia/version"
# The program runs in the user's interpreter, of whatever age. importlib.metadata would take four times as long.
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


def versions(environment: dict[bytes, bytes], venv: str) -> PythonMissing | PythonFailure | dict[str, str]:
    """Return "program", the Python that ranks find, its version in "python", and those of its PACKAGES by name.

    venv: a directory whose Python it is; "": the first one on PATH
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
        return PythonMissing(missing=venv)
    if not program:
        hint = "install Python there, or have prerun put it on PATH"
        return PythonFailure(error="no python3 on the PATH of the ranks", hint=hint)
    name = os.fsdecode(program)
    lines = _output([program, b"-c", PROBE.encode(), *(name.encode() for name in PACKAGES)], environment)
    try:
        return VERSIONS.check({"program": name, **json.loads(lines[-1])}, as_it_is)
    except (ValueError, TypeError, IndexError, Wrong):
        why = lines[-1].strip() if lines else "it prints nothing"
        return PythonFailure(program=name, error=f"{name} does not run: {why}", hint="install it there anew")


def _output(argv: list[bytes], environment: dict[bytes, bytes]) -> list[str]:
    """Return the lines that a program prints, less empty ones. It is killed with this process."""
    ours, theirs = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    spawn(argv, Setting(environment, "/"), null, theirs, theirs)
    os.close(theirs)
    with open(ours, "rb") as file:
        lines = file.read(OUTPUT_BYTES).decode("utf-8", "replace").splitlines()
    return [line for line in lines if line.strip()]


def driver(path: str = DRIVER) -> str:
    """Return the version of NVIDIA's driver; "" if there is none."""
    try:
        with open(path) as file:
            words = file.readline().split()
    except OSError:
        return ""
    return next((word for word in words if word[0].isdigit() and "." in word), "")
