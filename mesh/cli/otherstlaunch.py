"""TLaunch's tlaunchrun."""

from __future__ import annotations

from mesh.cli import otheroptions as x
from mesh.cli.command import COMMANDS, Takes, command, family
from mesh.cli.options import Given
from mesh.cli.others import GROUP
from mesh.config.settings import given_command

family("tlaunchrun", GROUP, "Run a training script on every host, as TLaunch's tlaunchrun does.")


@command(
    "tlaunchrun basic",
    GROUP,
    "CLUSTER COMMAND [ARG ...]",
    takes=Takes.COMMAND,
    examples=(
        (
            "mesh tlaunchrun basic --num_trainer 4 pod python3 train.py",
            "4 processes, each with --rank and --world_size",
        ),
        ("mesh tlaunchrun basic --set_share_file /nfs/meet pod python3 train.py", "adds --share_file as well"),
    ),
)
def basic(given: Given) -> int:
    """Run a command on every host, with --rank and --world_size added."""
    return _start(given, "basic")


@command(
    "tlaunchrun torchrun",
    GROUP,
    "CLUSTER COMMAND [ARG ...]",
    takes=Takes.COMMAND,
    examples=(("mesh tlaunchrun torchrun --gpu 8 pod train.py", "torchrun on each host, with 8 processes"),),
)
def torchrun(given: Given) -> int:
    """Run a script under torchrun on each host."""
    return _start(given, "torchrun")


@command(
    "tlaunchrun deepspeed",
    GROUP,
    "CLUSTER COMMAND [ARG ...]",
    takes=Takes.COMMAND,
    examples=(("mesh tlaunchrun deepspeed --gpu 8 pod train.py", "deepspeed on each host, with 8 processes"),),
)
def deepspeed(given: Given) -> int:
    """Run a script under deepspeed on each host."""
    return _start(given, "deepspeed")


def _start(given: Given, method: str) -> int:
    from mesh.compat.tlaunchrun import TLaunchJob, refuse, tlaunchrun

    for option in x.TLAUNCH_REFUSED:
        if given[option]:
            refuse(option.name)
    is_basic = method == "basic"
    words = given_command(given.words, COMMANDS[given.command].usage, launcher="" if is_basic else method)
    job = TLaunchJob(
        method=method,
        cluster=given[x.TLAUNCH_CLUSTER],
        command=tuple(words),
        name=given[x.TLAUNCH_NAME],
        gpu=given[x.TLAUNCH_GPU] or 0,
        num_trainer=(given[x.TLAUNCH_TRAINERS] or 0) if is_basic else 0,
        share_file=given[x.TLAUNCH_SHARE] if is_basic else "",
        set_save_path=given[x.TLAUNCH_SAVE],
        set_checkpoint_path=given[x.TLAUNCH_CHECKPOINT],
    )
    return tlaunchrun(job).exit_code
