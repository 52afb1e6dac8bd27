"""The ``mesh`` command, and ``python -m mesh``."""

from __future__ import annotations

import signal


def main() -> None:
    """The console script."""
    # Importing takes a moment in which a Ctrl-C is no reason for a traceback.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from mesh.cli.program import MeshProgram

    program = MeshProgram()
    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    program.run()


if __name__ == "__main__":
    main()
