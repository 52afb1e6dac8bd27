"""The interpreter on a host, as ``python:`` of cluster.yaml names it."""

from __future__ import annotations

HOME = "~/"  # a login shell sees it in quotes


def interpreter(python: str) -> list[str]:
    """Return the words that run an interpreter. python: a name, or a path, also below the home directory

    >>> interpreter("python3"), interpreter("~/bin/python3")
    (['python3'], ['sh', '-c', 'exec "$HOME/$0" "$@"', 'bin/python3'])
    """
    return ["sh", "-c", 'exec "$HOME/$0" "$@"', python[len(HOME) :]] if python.startswith(HOME) else [python]
