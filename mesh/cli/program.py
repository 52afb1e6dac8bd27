"""The ``mesh`` command: an Invoke program with a fixed set of tasks."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence

from invoke.config import Config
from invoke.exceptions import Exit
from invoke.parser.argument import Argument
from invoke.parser.context import ParserContext
from invoke.parser.parser import ParseResult
from invoke.program import Program

from mesh import __version__
from mesh.cli.completion import ASK, candidates
from mesh.cli.speech import complain, show
from mesh.cli.tasks import namespace
from mesh.cli.words import (
    CLUSTER,
    CONFIG_KEY,
    LINE_KEY,
    REFUSED,
    SHELL_TEXT,
    SHORT,
    STARTS_RANKS,
    TAKES_WORDS,
    fill_in,
    places,
    written,
)
from mesh.config.yamlfile import did_you_mean
from mesh.core.errors import MeshError, UsageError

USAGE = "mesh COMMAND [options] ...; `mesh --help` lists the commands"
EXAMPLES = {
    "exec": """\
  mesh exec pod nvidia-smi                    on every host, whatever runs there
  mesh exec pod 'df -h / | tail -1'           one word with spaces is for bash
""",
    "multihost": """\
  mesh multihost --TPU_PREFIX=pod --COMMAND="bash setup.sh"
  mesh multihost --TPU_PREFIX=pod --COMMAND="python3 train.py run_name=r1" --RUN_NAME=r1 --SCRIPT_DIR=maxtext
""",
    "push": """\
  mesh push pod                               the working directory on every host, and nothing started
  mesh push pod --watch                       again whenever a file changes, until Ctrl-C
  mesh push --list                            what that is, the biggest first
  mesh push --explain data/x.bin              why a path is sent or not
""",
    "pull": """\
  mesh pull pod 'checkpoints/*.pt' train.log  from every host, into pulled/rank-0000/ and so on
  mesh pull pod '~/profile' --into /data/run7 what is outside of the workspace comes under its whole path
""",
    "check": """\
  mesh check pod                              what would keep a run from starting, or let it hang
  mesh check --path /nfs/data --master-port 29500 pod
""",
    "stacks": """\
  mesh stacks                                 of the last run, one line for equal stacks
  mesh stacks --full 20261121-10              every call of every thread
""",
    "setup": """\
  mesh setup pod                              what mesh.yaml lists under `commands:`, on every host
  mesh setup --hosts tpu-3 --force pod
""",
    "logs": """\
  mesh logs                                   the last run, as `mesh run` showed it
  mesh logs -f --rank 3,5-7                   go on until it ends, some ranks only
  mesh logs last --since 10m --grep 'loss|nan' --stderr
""",
    "runs": """\
  mesh runs | head                            the newest runs
  mesh runs prune                             remove those older than 30 days, but not the last 50
  mesh runs prune --keep 10 --dry-run         what would be removed
""",
    "mad": """\
  mesh mad --model pyt_megatron_lm_train_llama2_7b --nodes 10.0.0.1,10.0.0.2 --ssh-user me --ssh-key ~/.ssh/id_rsa
  mesh mad --config mad.ini --timeout 2h      sections [cluster], [ssh], [training], [madengine]; keys as the flags
""",
    "ssh": """\
  mesh ssh pod:3                              a shell on the host of rank 3
  mesh ssh pod:3 -- nvidia-smi
""",
    "run": """\
  mesh run local python train.py              two ranks on this machine
  mesh run pod python train.py --lr 1e-3      every word after the cluster is the command's
  mesh run -d pod python train.py             leave once it runs; `mesh attach` comes back
  mesh run --hosts tpu-[0-3] pod 'make && ./train | tee log'   one word with spaces is for bash
""",
}
WORDS = {
    "run": "CLUSTER COMMAND [ARG ...]",
    "exec": "CLUSTER COMMAND [ARG ...]",
    "ssh": "CLUSTER[:RANK] [-- COMMAND ...]",
    "push": "CLUSTER [--watch] | --list | --explain PATH",
    "pull": "CLUSTER PATH ...",
    "multihost": "--TPU_PREFIX=NAME --COMMAND=TEXT",
    "setup": "CLUSTER",
    "check": "CLUSTER",
    "ps": "[CLUSTER]",
    "stacks": "[RUN]",
    "attach": "[RUN]",
    "detach": "[RUN]",
    "signal": "RUN SIGNAL",
    "stop": "RUN | --all --cluster CLUSTER",
    "logs": "[RUN]",
    "runs": "[prune]",
    "clean": "CLUSTER",
    "completion": "bash|zsh|fish",
}
KEYBOARD_INTERRUPT = 130  # 128 + SIGINT


class MeshConfig(Config):
    """Invoke's settings, from nowhere: INVOKE_* variables, ~/.invoke.yaml and the like are for other programs."""

    prefix = "mesh-invoke"

    def load_system(self, merge: bool = True) -> None: ...

    def load_user(self, merge: bool = True) -> None: ...

    def load_project(self, merge: bool = True) -> None: ...

    def load_runtime(self, merge: bool = True) -> None: ...

    def load_shell_env(self) -> None: ...


class MeshProgram(Program):
    """Reads ``mesh COMMAND [options] [CLUSTER WORD ...]`` and runs the task of that name."""

    def __init__(self) -> None:
        super().__init__(version=__version__, namespace=namespace, name="mesh", binary="mesh", config_class=MeshConfig)
        self.contexts: dict[str, ParserContext] = {str(context.name): context for context in namespace.to_contexts()}

    def run(self, argv: list[str] | None = None, exit: bool = True) -> None:  # noqa: A002  (Invoke's name)
        """Run argv (with the program's name first) and end with its status."""
        try:
            status = self.status(list(sys.argv if argv is None else argv)[1:])
        except MeshError as error:
            complain(error)
            status = error.exit_code
        except KeyboardInterrupt:
            status = KEYBOARD_INTERRUPT
        if exit:
            sys.exit(status)

    def status(self, arguments: Sequence[str]) -> int:
        """Run one command line and return its exit status. Raises MeshError."""
        if not arguments:
            raise UsageError("no command was given", hint=USAGE)
        name, *rest = arguments
        if name in ("-h", "--help", "help"):
            show(self._help())
            return 0
        if name in ("-V", "--version"):
            show([f"mesh {__version__}"])
            return 0
        if name == ASK:
            show(candidates(rest, self.contexts))
            return 0
        if name not in self.contexts:
            what = "option" if name.startswith("-") else "command"
            raise UsageError(f"unknown {what} {name!r}{did_you_mean(name, list(self.contexts))}", hint=USAGE)
        if any(word in ("-h", "--help") for word in self._options(name, rest)):
            show(self._help_for(name))
            return 0
        task = copy.deepcopy(self.contexts[name])
        words = fill_in(name, rest, task, _usage(name))
        self.create_config()
        self.config.load_overrides({CONFIG_KEY: words, LINE_KEY: list(arguments)})
        self.collection, self.tasks, self.core = namespace, ParseResult([task]), ParseResult()
        try:
            self.execute()
        except Exit as end:
            return end.code
        return 0

    def _options(self, name: str, rest: Sequence[str]) -> list[str]:
        """The words that are options: with a command of the user's, those before it."""
        options: list[str] = []
        task = self.contexts[name]
        words = iter(rest)
        is_cluster_named = False
        for word in words:
            if name in TAKES_WORDS and (word == "--" or not word.startswith("-")):
                # Options after the cluster are refused, and --help is worth more there than a complaint.
                is_cluster = word != "--" and not any(option.partition("=")[0] == CLUSTER for option in options)
                if name in STARTS_RANKS and is_cluster and not is_cluster_named:
                    is_cluster_named = True
                    continue
                break
            if is_cluster_named and word == SHELL_TEXT:
                break
            options.append(word)
            argument = task.flags.get(word)
            if argument is not None and argument.takes_value:
                next(words, None)
        return options

    def _help(self) -> list[str]:
        width = max(map(len, self.contexts))
        lines = [f"  {name:<{width}}  {_summary(name)}" for name in self.contexts]
        return [
            "Makes a cluster of hosts reached over SSH feel like one machine.",
            "",
            "Usage: mesh COMMAND [options] ...",
            "",
            *lines,
            "",
            "`mesh COMMAND --help` tells more. The clusters stand in ~/.config/mesh/cluster.yaml;",
            "`local` is always there: mesh run local python3 -c 'import os; print(os.environ[\"RANK\"])'",
        ]

    def _help_for(self, name: str) -> list[str]:
        task = self.contexts[name]
        rows = []
        for argument in sorted({id(a): a for a in task.flags.values()}.values(), key=lambda a: str(a.name)):
            flag = written(f"--{argument.name.rstrip('_').replace('_', '-')}")
            flags = ", ".join([*(short for short, long in SHORT.items() if long == flag), flag])
            if argument not in places(task) and flag not in REFUSED.get(name, ()):
                rows.append((f"{flags} {_value_of(argument)}".strip(), argument.help or ""))
        rows.append(("-h, --help", "tell this"))
        width = max(len(flags) for flags, _ in rows)
        table = [f"  {flags:<{width}}  {text}" for flags, text in rows]
        examples = ["", "Examples:", *EXAMPLES[name].rstrip("\n").split("\n")] if name in EXAMPLES else []
        return [f"Usage: {_usage(name)}", "", _summary(name), "", "Options:", *table, *examples]


def _value_of(argument: Argument) -> str:
    if not argument.takes_value:
        return ""
    return "[VALUE]" if argument.optional else "VALUE"


def _summary(name: str) -> str:
    return (namespace[name].__doc__ or "").strip().split("\n")[0]


def _usage(name: str) -> str:
    return f"mesh {name} [options] {WORDS.get(name, '')}".rstrip()
