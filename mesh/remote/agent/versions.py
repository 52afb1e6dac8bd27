"""Which Python, frameworks and driver ranks would find, without importing any of them."""

from __future__ import annotations

import json
import os
import subprocess

from .frames import to_bytes
from .processes import find_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Those that must be the same on all hosts, or collectives crash or hang.
PACKAGES = ("jax", "jaxlib", "libtpu", "libtpu-nightly", "torch", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
DRIVER = "/proc/driver/nvidia/version"
PROBE = """
import json, sys
found = {"python": ".".join(str(number) for number in sys.version_info[:3])}
try:
    from importlib import metadata
except ImportError:
    names = ()
else:
    names = sys.argv[1:]
for name in names:
    try:
        found[name] = str(metadata.version(name))
    except Exception:
        pass
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
    argv = [os.fsdecode(program), "-c", PROBE, *PACKAGES]
    done = subprocess.run(argv, env=environment, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, check=False)
    told = {"program": os.fsdecode(program)}
    try:
        return {**told, **json.loads(done.stdout.splitlines()[-1])}
    except (ValueError, IndexError):
        words = done.stderr.decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(words) if line.strip()), f"exit {done.returncode}")
        return {**told, "error": f"{os.fsdecode(program)} does not run: {last}", "hint": "install it there anew"}


def driver(path: str = DRIVER) -> str:
    """The version of NVIDIA's driver; "" if there is none."""
    try:
        with open(path) as file:
            words = file.readline().split()
    except OSError:
        return ""
    return next((word for word in words if word[0].isdigit() and "." in word), "")
