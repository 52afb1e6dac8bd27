"""``mesh repl --install-kernel``: the description of a kernel, by which Jupyter starts it."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mesh.cli import dailyoptions as d
from mesh.cli import options as o
from mesh.cli.command import COMMANDS
from mesh.cli.options import Given
from mesh.cli.parser import split
from mesh.cli.speech import say
from mesh.cli.wishes import PROMPT
from mesh.core.errors import MeshError
from mesh.core.installing import extra_line

# The directory of the notebook must not hide modules of Python, and of mesh.
START = "import sys; sys.path[:1] = []; from mesh.cli.kernel import main; sys.exit(main(sys.argv[1:]))"
CONNECTION = "{connection_file}"  # Jupyter puts the path in its place


def install(given: Given) -> int:
    """Write the kernel to this user's Jupyter directory. Raises UsageError, and MeshError without ipykernel."""
    from mesh.api.choosing import choose_cluster, default_cluster
    from mesh.hosts.interfaces import Purpose

    try:
        import ipykernel  # noqa: F401  # which the kernel needs
        from jupyter_client.kernelspec import KernelSpecManager
    except ImportError as error:
        hint = extra_line("notebook")
        raise MeshError("--install-kernel: ipykernel is not installed here", hint=hint) from error
    assert given.typed is not None
    name, cluster = given[d.INSTALL_KERNEL], given[o.CLUSTER] or default_cluster()[0]
    choose_cluster(cluster, given.options(), given[o.CLUSTERS], purpose=Purpose.PLAN)  # it must be there
    options, _ = split(COMMANDS[PROMPT], given.typed.before[given.typed.task + 1 :])
    with tempfile.TemporaryDirectory(prefix="mesh-kernel-") as place:
        text = json.dumps(specification(options, cluster), indent=2)
        Path(place, "kernel.json").write_text(f"{text}\n")
        path = KernelSpecManager().install_kernel_spec(place, name, user=True)
    say(f"{path}: the kernel {name.lower()}; `jupyter kernelspec remove {name.lower()}` removes it")
    return 0


def specification(options: Sequence[str], cluster: str) -> dict[str, object]:
    """Return the content of kernel.json. options: as ``--name=value``; the default cluster may stand in none

    >>> specification(["--nproc=2", "--install-kernel=two", "--cluster=pod"], "pod")["argv"][3:]
    ['{connection_file}', '--nproc=2', '--cluster=pod']
    """
    own = [_absolute(one) for one in options if _flag(one) not in (d.INSTALL_KERNEL.flag, o.CLUSTER.flag)]
    return {
        "argv": [sys.executable, "-c", START, CONNECTION, *own, f"{o.CLUSTER.flag}={cluster}"],
        "display_name": f"mesh {cluster}",
        "language": "python",
        "interrupt_mode": "signal",
    }


def _flag(option: str) -> str:
    return option.partition("=")[0]


def _absolute(option: str) -> str:
    """Return an option for other directories than this one: a notebook's kernel starts beside its file."""
    flag, _, value = option.partition("=")
    return f"{flag}={os.path.abspath(value)}" if flag in (o.CLUSTERS.flag, o.ENV_FILES.flag) else option
