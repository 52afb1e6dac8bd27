"""Functions that a program of a run may import. Travels with the run; Python 3.8, and nothing but JAX."""

from __future__ import annotations

import glob
import importlib.util
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ADDRESS = "JAX_COORDINATOR_ADDRESS"


def initialize_jax(**more: Any) -> None:
    """Call jax.distributed.initialize for this rank, before anything else of JAX is used.

    more: handed on, as initialization_timeout=600
    On TPU JAX finds address, number and index by itself, and is left to. Raises RuntimeError outside of a run.
    """
    import jax

    if _uses_tpu(getattr(jax.config, "jax_platforms", None) or ""):
        ours = os.environ.pop(ADDRESS, None)  # TPU workers may be numbered in another order than the run's hosts
        try:
            jax.distributed.initialize(**more)
        finally:
            if ours is not None:
                os.environ[ADDRESS] = ours
        return
    try:
        given = {
            "coordinator_address": os.environ[ADDRESS],
            "num_processes": int(os.environ["JAX_NUM_PROCESSES"]),
            "process_id": int(os.environ["JAX_PROCESS_ID"]),
        }
    except KeyError as error:
        raise RuntimeError(f"not started by mesh: there is no {error.args[0]} in the environment") from None
    jax.distributed.initialize(**{**given, **more})


def _uses_tpu(platforms: str) -> bool:
    """Return True if JAX will take TPU chips of this host. platforms: as JAX_PLATFORMS; "": whatever there is."""
    if platforms and "tpu" not in platforms.split(","):
        return False
    chips = glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*")
    return bool(chips) and bool(os.environ.get("TPU_LIBRARY_PATH") or importlib.util.find_spec("libtpu"))
