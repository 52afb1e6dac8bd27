"""The Jupyter kernel of ``mesh repl --install-kernel``, as Jupyter starts it."""

from __future__ import annotations

from collections.abc import Sequence

from mesh.cli import repl  # noqa: F401  # its options are those of the kernel
from mesh.cli.speech import complain
from mesh.cli.wishes import read_asked
from mesh.core.errors import MeshError


def main(arguments: Sequence[str]) -> int:
    """Serve Jupyter until it ends this process. arguments: the connection file, and options of ``mesh repl``"""
    from mesh.program.prompt.kernel import serve

    connection, *words = arguments
    try:
        asked = read_asked(words)
    except MeshError as error:
        complain(error)
        return error.exit_code
    serve(connection, asked)
    return 0
