"""TLaunch's tlaunchrun."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mesh.cli import otheroptions as x
from mesh.cli.command import COMMANDS, Takes, command, family
from mesh.cli.options import Given, options_of
from mesh.cli.others import GROUP
from mesh.cli.speech import show
from mesh.config.settings import given_command

if TYPE_CHECKING:
    from mesh.compat.tlaunchpods import PodRequest

FAMILY = "tlaunchrun"
BASIC, TORCHRUN, DEEPSPEED = "basic", "torchrun", "deepspeed"
METHODS = (BASIC, TORCHRUN, DEEPSPEED)
NO_CLUSTER = "pods"  # in the place of the cluster's name, where pods are made

family(FAMILY, GROUP, "Run a training script on every host, as TLaunch's tlaunchrun does.")


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
        ("mesh tlaunchrun --image team/train:3 --gpu 1 basic --num_trainer 2 train.py", "in two new pods"),
    ),
)
def basic(given: Given) -> int:
    """Run a command on every host or in new pods, with --rank and --world_size added."""
    return _start(given, BASIC)


@command(
    "tlaunchrun torchrun",
    GROUP,
    "CLUSTER COMMAND [ARG ...]",
    takes=Takes.COMMAND,
    examples=(
        ("mesh tlaunchrun torchrun --gpu 8 pod train.py", "torchrun on each host, with 8 processes"),
        ("mesh tlaunchrun --image team/train:3 --gpu 4 torchrun --nnodes 2 train.py", "in two new pods"),
    ),
)
def torchrun(given: Given) -> int:
    """Run a script under torchrun on each host or in new pods."""
    return _start(given, TORCHRUN)


@command(
    "tlaunchrun deepspeed",
    GROUP,
    "CLUSTER COMMAND [ARG ...]",
    takes=Takes.COMMAND,
    examples=(
        ("mesh tlaunchrun deepspeed --gpu 8 pod train.py", "deepspeed on each host, with 8 processes"),
        ("mesh tlaunchrun --image team/train:3 --gpu 4 deepspeed --num_nodes 2 train.py", "in two new pods"),
    ),
)
def deepspeed(given: Given) -> int:
    """Run a script under deepspeed on each host or in new pods."""
    return _start(given, DEEPSPEED)


def ordered(words: Sequence[str]) -> list[str]:
    """Return the words after ``tlaunchrun`` with the method first, and without open places where pods are made.

    In TLaunch options stand before the method. With --image no cluster is named, and --set_share_file has no value.
    """
    before, rest = _options(words, BASIC, has_image=False)
    if rest and (rest[0] in METHODS or rest[0].isalpha()):  # a wrong method is named in the message
        words = [rest[0], *before, *rest[1:]]
    method = words[0] if words else ""
    if method not in METHODS:
        return list(words)
    options, _ = _options(words[1:], method, has_image=False)
    if not any(word.partition("=")[0] == x.TLAUNCH_IMAGE.flag for word in options):
        return list(words)
    options, rest = _options(words[1:], method, has_image=True)
    bare = x.TLAUNCH_SHARE.flag
    options = [f"{bare}=auto" if word == bare else word for word in options]
    return [method, *options, f"{x.TLAUNCH_CLUSTER.flag}={NO_CLUSTER}", *rest]


def _options(words: Sequence[str], method: str, *, has_image: bool) -> tuple[list[str], list[str]]:
    """Return the options at the beginning of words with their values, and the rest."""
    known = {option.flag.replace("-", "_"): option for option in options_of(f"{FAMILY} {method}")}
    found, rest = list[str](), list(words)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = rest.pop(0)
        found.append(word)
        option = known.get(word.replace("-", "_"))  # also --image=X is none: it has its value
        is_bare = option is x.TLAUNCH_SHARE and (has_image or rest[:1] == [] or rest[0].startswith("-"))
        if option is not None and option.takes_value and rest and not is_bare:
            found.append(rest.pop(0))
    return found, rest


def _start(given: Given, method: str) -> int:
    from mesh.compat.tlaunchrun import TLaunchJob, refuse, shown, tlaunchrun

    image = given[x.TLAUNCH_IMAGE]
    for option in x.TLAUNCH_PODS:
        if given[option] and not image:
            refuse(option.name)
    is_basic = method == BASIC
    words = given_command(given.words, COMMANDS[given.command].usage, launcher="" if is_basic else method)
    nodes = 0 if is_basic else given[x.TLAUNCH_NODES if method == TORCHRUN else x.TLAUNCH_NUM_NODES] or 0
    each = 0 if is_basic else given[x.TLAUNCH_NPROC if method == TORCHRUN else x.TLAUNCH_NUM_GPUS] or 0
    trainers = (given[x.TLAUNCH_TRAINERS] or 0) if is_basic else 0
    job = TLaunchJob(
        method=method,
        cluster="" if image else given[x.TLAUNCH_CLUSTER],
        command=tuple(words),
        name=given[x.TLAUNCH_NAME],
        gpu=each or given[x.TLAUNCH_GPU] or 0,
        num_trainer=trainers,
        share_file=given[x.TLAUNCH_SHARE] if is_basic else "",
        set_save_path=given[x.TLAUNCH_SAVE],
        set_checkpoint_path=given[x.TLAUNCH_CHECKPOINT],
        nodes=nodes,
    )
    if image:
        from msgspec.structs import replace

        job = replace(job, pods=_pods(given, image, trainers or nodes or 1))
    if given[x.TLAUNCH_DRY]:
        show(shown(job))
        return 0
    return tlaunchrun(job).exit_code


def _pods(given: Given, image: str, nodes: int) -> PodRequest:
    from mesh.compat.tlaunchpods import PodRequest

    namespace, policy, memory, cores = (given[option] for option in x.TLAUNCH_PODS)
    return PodRequest(
        image=image,
        nodes=nodes,
        namespace=namespace,
        pull_policy=policy,
        gpu=given[x.TLAUNCH_GPU] or 0,
        gpu_memory=memory,
        gpu_cores=cores,
    )
