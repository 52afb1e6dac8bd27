"""The reference page of the documents, made from the option table: ``python -m mesh.cli.reference`` prints it."""

from __future__ import annotations

from collections.abc import Iterator

from mesh.cli import program
from mesh.cli.command import Command
from mesh.cli.options import options_of
from mesh.cli.speech import show

INTRODUCTION = """\
# Commands and options

Made from the option table by `python -m mesh.cli.reference`; a test fails where this page is not what it prints.

* For `run` and `exec`, options stand before CLUSTER, and every word after it belongs to your command. A command that
  begins with a dash stands after `--`. `-c TEXT [ARG ...]` is shell text, run as `bash -c TEXT`.
* `mesh run -- COMMAND` and `mesh run -c TEXT` run on the default cluster: `MESH_CLUSTER`, else `default:` of mesh.yaml.
* The other commands take options anywhere. `--name=value` and `--name value` mean the same. A value may begin with
  dashes.
* The value of an option wins over the environment variable in brackets, that over mesh.yaml, and that over the default.

| status | meaning |
| --- | --- |
| 0 | every rank exited 0 |
| 1-255 of the command | the rank that failed first; 128 + n: died by signal n; 127: not found; 126: not executable |
| 2 | wrong usage or configuration |
| 75 | the cluster is busy with another run of mesh |
| 76 | a host or its agent was lost while the command ran |
| 124 | `--timeout` ran out |
| 125 | mesh could not start the command |
| 129, 130, 143 | the terminal closed, Ctrl-C, SIGTERM or `mesh stop` |
| 141 | stdout was closed, as by `\\| head -1` |
"""


def page() -> str:
    """Return docs/reference.md."""
    return INTRODUCTION + "".join(f"{line}\n" for command in program.COMMANDS.values() for line in _section(command))


def _section(command: Command) -> Iterator[str]:
    yield ""
    yield f"## mesh {command.name}"
    yield ""
    yield f"    {command.usage}"
    yield ""
    yield command.summary
    options = [option for option in options_of(command.name) if not option.is_place]
    if options:
        yield ""
        yield "| option | meaning |"
        yield "| --- | --- |"
    for option in options:
        value = f" [{option.metavar}]" if option.bare is not None else f" {option.metavar}" if option.metavar else ""
        flags = f"`{option.short}`, `{option.flag}{value}`" if option.short else f"`{option.flag}{value}`"
        variable = f" [`{option.variable}`]" if option.variable else ""
        meaning = option.help.replace("|", "\\|")
        yield f"| {flags.replace('|', chr(92) + '|')} | {meaning}{variable} |"
    for line, purpose in command.examples:
        yield ""
        yield f"    {line}    # {purpose}"


if __name__ == "__main__":
    show(page().rstrip("\n").split("\n"))
