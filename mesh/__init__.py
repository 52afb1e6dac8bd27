"""mesh makes a cluster of hosts reached over SSH feel like one machine."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh.cli.magic import Interpreter

__version__ = "0.2.0"


def load_ipython_extension(ipython: Interpreter) -> None:
    """Have ``%load_ext mesh`` define the magic ``%%mesh``. IPython calls it."""
    from mesh.cli.magic import load

    load(ipython)


def unload_ipython_extension(ipython: Interpreter) -> None:
    """Have ``%unload_ext mesh`` end all ranks. IPython calls it."""
    from mesh.cli.magic import unload

    unload()
