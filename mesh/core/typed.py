"""The command line that the user typed, and variants of it to paste."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from msgspec import Struct

EXCLUDE = "--exclude"
PLACEHOLDER = "CLUSTER"  # in advice, for the cluster of the command that failed
# Words that only a shell understands.
SHELL_BUILTINS = ("alias", "cd", "eval", "exec", "export", "for", "if", "set", "source", "ulimit", "unset", "while")
SHELL_OPERATORS = ("|", "||", "&&", "&", ";", ">", ">>", "<", "2>&1", "2>", "&>")
_ESCAPED = re.compile(r'[\\"`]')  # what a shell reads in double quotes, but for $
_PLAIN = re.compile(r"[\w@%+=:,./${}-]+")


class Typed(Struct, frozen=True, kw_only=True):
    """A command line of ``mesh run`` or ``mesh exec``, split where the user's own command begins.

    >>> typed = Typed(before=("mesh", "run", "pod"), command=("python3", "train.py", "--name", "a b"))
    >>> typed.without(["h3", "h4"])
    "mesh run --exclude h3,h4 pod python3 train.py --name 'a b'"
    >>> typed.with_program("python3.12")
    "mesh run pod python3.12 train.py --name 'a b'"
    """

    before: tuple[str, ...]  # the program, the name of the task, its options and the cluster
    command: tuple[str, ...]  # the words of the user's command
    task: int = 1  # the index in ``before`` of the task's name
    cluster: str = ""  # as it was typed; "": it was not
    # Words of a command line of mesh that does the same, beginning with the command's name; (): there is none.
    again: tuple[str, ...] = ()
    env: tuple[str, ...] = ()  # the variables of --env, whose values ``again`` lacks

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

    def with_word(self, word: str, other: str) -> str:
        """Return the same command line with another word in the place of a word of mesh's; "" if that is not there.

        >>> Typed(before=("mesh", "logs", "-f", "lr"), command=()).with_word("lr", "20261121-101500-3f9c2a")
        'mesh logs -f 20261121-101500-3f9c2a'
        """
        places = [place for place, one in enumerate(self.before) if place > self.task and one == word]
        if not word or not places:
            return ""
        before = [*self.before[: places[-1]], other, *self.before[places[-1] + 1 :]]
        return shlex.join([*before, *self.command])

    def with_switch(self, flag: str) -> str:
        """Return the same command line with one more option.

        >>> Typed(before=("mesh", "run", "pod"), command=("true",)).with_switch("--wait")
        'mesh run --wait pod true'
        """
        begin = self.task + 1
        return shlex.join([*self.before[:begin], flag, *self.before[begin:], *self.command])

    def filled(self, advice: str) -> str:
        """Return advice with the cluster in the place of the word CLUSTER.

        >>> Typed(before=("mesh", "run", "a b"), command=("true",), cluster="a b").filled("mesh ps CLUSTER")
        "mesh ps 'a b'"
        """
        return advice.replace(PLACEHOLDER, shlex.quote(self.cluster)) if self.cluster else advice

    def with_program(self, program: str) -> str:
        """Return the same command line with another program as the first word of the command."""
        return shlex.join([*self.before, program, *self.command[1:]])

    def as_shell_text(self) -> str:
        r"""Return the same command line with the command as one word for bash, where its operators and variables count.

        >>> Typed(before=("mesh", "run", "pod"), command=("cd", "/tmp", "&&", "echo", "$RANK", "a b")).as_shell_text()
        'mesh run pod \'cd /tmp && echo $RANK "a b"\''
        """
        words = self.command[1:] if self.command[:1] == ("--",) else self.command
        text = " ".join(word if word in SHELL_OPERATORS else _in_shell_text(word) for word in words)
        return shlex.join([*self.before, text] if " " in text else [*self.before, "-c", text])


def _in_shell_text(word: str) -> str:
    """Return a word quoted for a shell that still expands its variables."""
    return word if _PLAIN.fullmatch(word) else '"' + _ESCAPED.sub(r"\\\g<0>", word) + '"'
