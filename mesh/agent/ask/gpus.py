"""The number of GPUs of a host and its memory, found without any framework."""

from __future__ import annotations

import glob
import os

from mesh.protocol.replies import Gpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh.agent.ask.context import Context
    from mesh.protocol.questions import AskGpus

NVIDIA_SMI = ["nvidia-smi", "--list-gpus"]
NVIDIA_SMI_TIMEOUT_S = 15.0  # it may have to wake the driver


def gpus(question: AskGpus, context: Context) -> Gpus:
    """Answer with the number of GPUs, and the memory."""
    return Gpus(gpus=count_gpus(), memory=memory_bytes())


def memory_bytes(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> int:
    """Return the bytes of memory that processes here can have: of the machine, or of a container's control group.

    proc, cgroups: the paths of these directories. 0: the system does not show it
    """
    found = 0
    try:
        with open(f"{proc}/meminfo") as file:
            found = next((int(line.split()[1]) << 10 for line in file if line.startswith("MemTotal:")), 0)
    except (OSError, ValueError, IndexError):
        pass
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # of version 2 and of version 1
        try:
            with open(f"{cgroups}/{name}") as file:
                limit = int(file.read())  # version 2 has "max" where there is no limit, and version 1 a huge number
        except (OSError, ValueError):
            continue
        found = min(found, limit) if found else 0
    return found


def count_gpus(dev: str = "/dev", sys: str = "/sys") -> int:
    """Count NVIDIA's GPUs by device files, and AMD's by the nodes of the kernel's compute driver. May block.

    dev, sys: the paths of these directories
    """
    files = [path for path in glob.glob(f"{dev}/nvidia[0-9]*") if path.rpartition("nvidia")[2].isdigit()]
    return len(files) or _count_amd(dev, sys) or _count_by_driver()


def _count_amd(dev: str, sys: str) -> int:
    """Count AMD's GPUs that have a render node: a container may have been given only some of them."""
    if not os.path.exists(f"{dev}/kfd"):
        return 0
    count = 0
    for path in glob.glob(f"{sys}/class/kfd/kfd/topology/nodes/*/properties"):
        try:
            with open(path) as file:
                values = dict(line.split(None, 1) for line in file if " " in line)
        except OSError:  # it belongs to another container
            continue
        minor = int(values.get("drm_render_minor", 0))
        count += int(values.get("simd_count", 0)) > 0 and os.path.exists(f"{dev}/dri/renderD{minor}")
    return count


def _count_by_driver() -> int:
    """Count GPUs by nvidia-smi: before its first use, a driver may have made no device files yet."""
    import subprocess

    try:
        done = subprocess.run(
            NVIDIA_SMI, stdin=subprocess.DEVNULL, capture_output=True, timeout=NVIDIA_SMI_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith(b"GPU ") for line in done.stdout.splitlines()) if not done.returncode else 0
