"""Commands that prepare a project or a shell for mesh."""

from __future__ import annotations

from mesh import api
from mesh.cli import options as o
from mesh.cli.command import command
from mesh.cli.completion import script
from mesh.cli.options import Given
from mesh.cli.speech import show

GROUP = "This machine"


@command("init", GROUP, examples=(("mesh init", "and then edit mesh.yaml"),))
def init(given: Given) -> None:
    """Write a commented mesh.yaml into this directory."""
    show([str(api.init())])


@command("completion", GROUP, "bash|zsh|fish", examples=(('eval "$(mesh completion bash)"', "for your .bashrc"),))
def completion(given: Given) -> None:
    """Print the completion script of a shell."""
    show([script(given[o.SHELL]).rstrip("\n")])
