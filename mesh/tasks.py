"""mesh's commands for a tasks.py of your own: ``from mesh.tasks import namespace``, or single tasks of it.

Each task is made from the option table: ``inv run --cluster pod --nproc 2 -- python3 train.py``. Words that ``mesh``
takes without a flag are options here: ``inv signal --run last --name USR1``.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import Task, task

from mesh.cli import program
from mesh.cli.command import COMMANDS, FAMILIES, Command, verbs_of
from mesh.cli.option import AnyOption
from mesh.cli.options import options_of
from mesh.cli.parser import as_utf8, given_of
from mesh.cli.speech import complain
from mesh.core.errors import MeshError


def _task(command: Command) -> Task[Any]:
    """Return the Invoke task of a command, with the command's options as its parameters."""
    options = options_of(command.name)

    def body(context: Context, **values: Any) -> None:
        # Invoke joins the words after -- by spaces, so that they are taken from argv.
        words = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
        try:
            status = program.carry_out(command, given_of(command, values, [as_utf8(word) for word in words]))
        except MeshError as error:
            complain(error)
            raise Exit(code=error.exit_code) from error
        if status:  # a task that succeeded does not keep Invoke from those after it
            raise Exit(code=status)

    body.__doc__ = command.summary
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    vars(body)["__signature__"] = inspect.Signature([context, *map(_parameter, options)])
    made: Task[Any] = task(
        name=command.name.rpartition(" ")[2],
        auto_shortflags=False,
        iterable=[option.key for option in options if option.joined],
        optional=[option.key for option in options if option.bare is not None],
        positional=[],
        help={option.key.strip("_").replace("_", "-"): option.help for option in options},  # as Invoke writes them
    )(body)
    return made


def _parameter(option: AnyOption) -> inspect.Parameter:
    default = None if option.joined or option.bare is not None else "" if option.takes_value else False
    return inspect.Parameter(option.key, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)


namespace = Collection(*(_task(command) for command in COMMANDS.values() if " " not in command.name))
for _word in FAMILIES:  # `inv job.submit` is `mesh job submit`
    namespace.add_collection(Collection(_word, *(_task(COMMANDS[f"{_word} {verb}"]) for verb in verbs_of(_word))))

run, execute, setup, push, pull = (namespace[name] for name in ("run", "exec", "setup", "push", "pull"))
check, clusters, ssh = (namespace[name] for name in ("check", "clusters", "ssh"))
init, completion = (namespace[name] for name in ("init", "completion"))

__all__ = ["check", "clusters", "completion", "execute", "init", "namespace", "pull", "push", "run", "setup", "ssh"]
