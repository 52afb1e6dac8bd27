"""A child of the steward: ``python -m mesh.api.hand OPERATION``, shown as ``mesh-hand OPERATION``."""

from __future__ import annotations

import logging
import sys


def main() -> None:
    """Carry out the orders that arrive on standard input."""
    from mesh.core.title import set_title
    from mesh.jobs.child import serve

    set_title(f"mesh-hand {sys.argv[-1]}")
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    from mesh.api.hands import JobHands

    serve(JobHands())


if __name__ == "__main__":
    main()
