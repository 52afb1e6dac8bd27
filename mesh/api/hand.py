"""A child of the steward: ``python -m mesh.api.hand OPERATION``, shown as ``mesh-hand OPERATION``."""

from __future__ import annotations

import logging
import os
import sys


def main() -> None:
    """Carry out the orders that arrive on standard input."""
    from mesh.core.title import set_title
    from mesh.jobs.child import serve

    set_title(f"mesh-hand {sys.argv[-1]}")
    use_users_path()
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    from mesh.api.hands import JobHands
    from mesh.app.jobhosts import Makers

    serve(JobHands(), Makers())


def use_users_path() -> None:
    """Give what this process starts the user's own PYTHONPATH; the one that finds mesh is for the steward and hands."""
    if (path := os.environ.pop("MESH_PYTHONPATH", None)) is not None:
        os.environ.pop("PYTHONPATH", None)
        if path:
            os.environ["PYTHONPATH"] = path


if __name__ == "__main__":
    main()
