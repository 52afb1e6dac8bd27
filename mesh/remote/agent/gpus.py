"""How many GPUs a host has, told without any framework."""

from __future__ import annotations

import glob
import os

NVIDIA_SMI = ["nvidia-smi", "--list-gpus"]
PATIENCE = 15.0  # seconds for nvidia-smi, which may have to wake the driver


def count_gpus(dev: str = "/dev", sys: str = "/sys") -> int:
    """NVIDIA's by their device files, AMD's by the nodes of the kernel's compute driver. May block.

    dev, sys: where these are
    """
    files = [path for path in glob.glob(f"{dev}/nvidia[0-9]*") if path.rpartition("nvidia")[2].isdigit()]
    return len(files) or _amd(dev, sys) or _asked()


def _amd(dev: str, sys: str) -> int:
    """In a container only some of them may be given to us: those whose render node is there."""
    if not os.path.exists(f"{dev}/kfd"):
        return 0
    count = 0
    for path in glob.glob(f"{sys}/class/kfd/kfd/topology/nodes/*/properties"):
        try:
            with open(path) as file:
                known = dict(line.split(None, 1) for line in file if " " in line)
        except OSError:  # the kernel lets nobody read those of other containers
            continue
        minor = int(known.get("drm_render_minor", 0))
        count += int(known.get("simd_count", 0)) > 0 and os.path.exists(f"{dev}/dri/renderD{minor}")
    return count


def _asked() -> int:
    """Before its first use, a driver may have made no device files yet."""
    import subprocess

    try:
        done = subprocess.run(NVIDIA_SMI, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith(b"GPU ") for line in done.stdout.splitlines()) if not done.returncode else 0
