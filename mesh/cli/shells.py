"""Commands that prepare a project or a shell for mesh."""

from __future__ import annotations

from json import dumps

from msgspec.structs import asdict

from mesh import api
from mesh.cli import options as o
from mesh.cli.command import command
from mesh.cli.completion import script
from mesh.cli.options import Given
from mesh.cli.speech import columns, show
from mesh.core.escapes import plain

GROUP = "This machine"
VALUE_WIDTH = 60  # characters of a value; --json has the whole


@command(
    "init",
    GROUP,
    examples=(
        ("mesh init", "and then edit mesh.yaml"),
        ("mesh init --template torch-ddp", "a project that runs; also jax-tpu, maxtext, uv"),
    ),
)
def init(given: Given) -> None:
    """Write a commented mesh.yaml here, or a project that runs."""
    from mesh.config.templates import TEMPLATES

    path, template = api.init(given[o.TEMPLATE]), given[o.TEMPLATE]
    show(str(path.with_name(name)) for name in (TEMPLATES[template] if template else [path.name]))


@command(
    "config",
    GROUP,
    "[CLUSTER]",
    examples=(
        ("mesh config", "each value that a run here would have, and its place"),
        ("mesh config --grace 30 pod", "with an option, and with the values of a cluster"),
        ("mesh config --schema mesh.yaml", "the JSON Schema of a file"),
    ),
)
def config(given: Given) -> None:
    """Show each value of the configuration and where it comes from."""
    if name := given[o.SCHEMA]:
        show([api.schema_text(name).rstrip("\n")])
        return
    values = api.config(given[o.CLUSTER], given.options(), given[o.CLUSTERS])
    if given[o.JSON_LIST]:
        show([dumps([asdict(value) for value in values])])
    else:
        from mesh.core.width import Table

        rows = [[one.name, one.place, _short(plain(one.value))] for one in values]
        show(Table(["setting", "from", "value"], width=columns()).lines(rows))


def _short(value: str) -> str:
    if len(value) > VALUE_WIDTH:
        return f"{value[: VALUE_WIDTH - 3]}..."
    return value or "-"


@command("completion", GROUP, "bash|zsh|fish", examples=(('eval "$(mesh completion bash)"', "for your .bashrc"),))
def completion(given: Given) -> None:
    """Print the completion script of a shell."""
    show([script(given[o.SHELL]).rstrip("\n")])
