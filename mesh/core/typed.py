"""The command line that the user typed, and variants of it to paste."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from msgspec import Struct

EXCLUDE = "--exclude"


class Typed(Struct, frozen=True, kw_only=True):
    """A command line of ``mesh run`` or ``mesh exec``, split where the user's own command begins.

    >>> typed = Typed(before=("mesh", "run", "pod"), command=("python", "train.py", "--name", "a b"))
    >>> typed.without(["h3", "h4"])
    "mesh run --exclude h3,h4 pod python train.py --name 'a b'"
    >>> typed.with_program("python3")
    "mesh run pod python3 train.py --name 'a b'"
    """

    before: tuple[str, ...]  # the program, the name of the task, its options and the cluster
    command: tuple[str, ...]  # the words of the user's command
    task: int = 1  # the index in ``before`` of the task's name

    def without(self, hosts: Sequence[str]) -> str:
        """Return the same command line for all but these hosts, quoted for a shell.

        >>> Typed(before=("mesh", "exec", "--exclude=h1", "pod"), command=("true",)).without(["h3"])
        'mesh exec --exclude h1,h3 pod true'
        """
        options = list(self.before[self.task + 1 :])
        excluded: list[str] = []
        for index, word in enumerate(options):
            if word == EXCLUDE or word.startswith(f"{EXCLUDE}="):
                end = index + (2 if word == EXCLUDE else 1)
                excluded = [word.partition("=")[2] or options[end - 1]]
                del options[index:end]
                break
        words = [*self.before[: self.task + 1], EXCLUDE, ",".join([*excluded, *hosts]), *options, *self.command]
        return shlex.join(words)

    def with_program(self, program: str) -> str:
        """Return the same command line with another program as the first word of the command."""
        return shlex.join([*self.before, program, *self.command[1:]])
