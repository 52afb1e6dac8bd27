"""Words that people bring from other tools: commands that have another name here, and syntax of a shell."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence

from mesh.cli.options import CLUSTER, CLUSTERS, STARTS, Given
from mesh.config.clusters import LOCAL, is_cluster
from mesh.config.jobname import WORD as JOB
from mesh.config.yamlfile import did_you_mean
from mesh.core.errors import UsageError
from mesh.core.typed import SHELL_BUILTINS, SHELL_OPERATORS, Typed

# Names of commands elsewhere, and what they are here. A name of one of our own commands is never looked up.
ELSEWHERE = {
    "kill cancel scancel terminate abort end": ("stop last",),
    "sync rsync upload send put copy cp": ("push pod",),
    "scp": ("push pod", "pull pod PATH"),
    "download get fetch": ("pull pod PATH",),
    "status htop queue squeue jobs info who": ("ps",),
    "tail follow": ("logs -f",),
    "log output cat less print": ("logs",),
    "port-forward tunnel proxy": ("forward pod:0 6006",),
    "shell login connect sh slogin": ("ssh pod:0",),
    "doctor diagnose ping preflight health verify": ("check pod",),
    "list ls show": ("clusters", "ps", "runs"),
    "hosts nodes inventory sinfo cluster": ("clusters",),
    "history past sacct": ("runs",),
    "reattach resume reconnect": ("attach last",),
    "pdsh clush ansible all sh-all each foreach": ("exec pod COMMAND",),
    "srun start launch train do": ("run pod COMMAND",),
    "submit sbatch queue-run background bg": ("run -d pod COMMAND", "job submit FILE"),
    "disown leave": ("detach last",),
    "where trace backtrace bt dump py-spy pystack hang": ("stacks",),
    "rm remove prune gc delete cleanup": ("clean pod", "runs prune"),
    "install bootstrap provision prepare": ("setup pod",),
    "new create template": ("init",),
    "complete autocomplete completions": ("completion bash",),
    "watch": ("push pod --watch", "attach last"),
    "multihost_runner": ("multihost",),
    "madengine": ("mad",),
    "version": ("--version",),
}
# Options of srun, mpirun, torchrun, clush and others, and those of mesh that do the same.
OPTIONS_ELSEWHERE = {
    "-n -np --np --ntasks-per-node --nproc-per-node": "--nproc",
    "-N --nnodes": "--nodes",
    "-w -H --nodelist --host --limit": "--hosts",
    "-x": "--exclude",
    "-t --time": "--timeout",
    "-J --job-name": "--name",
    "-b --background --bg": "--detach",
}
_MEANT = {name: meant for names, meant in ELSEWHERE.items() for name in names.split()}

_OPTION_MEANT = {flag: meant for flags, meant in OPTIONS_ELSEWHERE.items() for flag in flags.split()}

SHELLS = ("bash", "sh", "zsh", "dash", "ksh", "fish", "ssh", "xargs", "parallel", "make")
# They have words of their own that look like a shell's.
TAKE_OPERATORS = (*SHELLS, "awk", "expr", "find", "grep", "perl", "sed", "test", "[")
# They draw on a terminal, which ranks do not have.
FULL_SCREEN = ("emacs", "htop", "less", "more", "nano", "nvitop", "nvtop", "screen", "tmux", "top", "vi", "vim")
BATCH = ("-b", "-es", "--batch", "-d", "-V", "--version", "--help")
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*|\{[A-Za-z_]\w*\})")


def _words(meant: str) -> list[str]:
    """Return the words of a command's name at the beginning of a command line."""
    words = meant.split()
    return words[: 2 if words[0] == JOB else 1]


def unknown_command(name: str, rest: Sequence[str], commands: Sequence[str], usage: str) -> UsageError:
    """Return the error for a command that mesh does not have, with the command to type instead.

    >>> unknown_command("kill", ["pod"], ["stop"], "").hint, unknown_command("tail", [], ["logs"], "").hint
    ('mesh stop pod', 'mesh logs -f')
    >>> unknown_command("-q", ["run", "pod", "true"], ["run"], "").hint
    'mesh run -q pod true'
    """
    if name.startswith("-"):
        place = next((place for place, word in enumerate(rest) if word in commands), None)
        if place is None:
            return UsageError(f"unknown option {name!r}", hint=usage)
        words = [rest[place], name, *rest[:place], *rest[place + 1 :]]
        return UsageError(f"{name}: options stand after {rest[place]}", hint=shlex.join(["mesh", *words]))
    if meant := _MEANT.get(name.lower().replace("_", "-")) or _MEANT.get(name.lower()):
        verbs = " or ".join(dict.fromkeys(" ".join(_words(one)) for one in meant))
        lines = [shlex.join(["mesh", *_words(one), *rest]) if rest else f"mesh {one}" for one in meant]
        return UsageError(f"unknown command {name!r}; it is called {verbs} here", hint="\n".join(lines))
    close = difflib.get_close_matches(name, [*commands, *_MEANT], n=1, cutoff=0.8)
    if close and close[0] in _MEANT and close[0] not in commands:
        return unknown_command(close[0], rest, commands, usage)
    near = did_you_mean(name, commands)
    return UsageError(f"unknown command {name!r}{near if near.startswith('; did you mean') else ''}", hint=usage)


def unknown_verb(word: str, verb: str, verbs: Sequence[str], rest: Sequence[str] = ()) -> UsageError:
    """Return the error for a command of a family that there is not.

    >>> unknown_verb("job", "sumbit", ["submit", "list"], ["train.yaml"]).hint
    'mesh job submit train.yaml'
    """
    near = did_you_mean(verb, verbs)
    is_near = near.startswith("; did you mean")
    hint = shlex.join(["mesh", word, near.split("'")[1], *rest]) if is_near else f"mesh {word} --help"
    return UsageError(f"unknown command {f'{word} {verb}'!r}{near if is_near else ''}", hint=hint)


def without_cluster(typed: Typed, cluster: str, *, is_program: bool, default: str = "") -> UsageError | None:
    """Return the error for a command line whose cluster seems to be the command; None if it does not.

    is_program: there is a program or a file of that name on this machine; default: the default cluster

    >>> typed = Typed(before=("mesh", "run", "-q", "python3"), command=("train.py",), cluster="python3")
    >>> without_cluster(typed, "python3", is_program=True).hint
    'mesh run -q local python3 train.py'
    >>> typed = Typed(before=("mesh", "run", "pod python3 train.py"), command=(), cluster="pod python3 train.py")
    >>> without_cluster(typed, "pod python3 train.py", is_program=False).hint
    "mesh run pod 'python3 train.py'"
    """
    *before, last = typed.before
    if last != cluster:
        return None
    name, _, text = cluster.partition(" ")
    if text and not typed.command:
        words = [*before, name, *([text] if " " in text else ["-c", text])]
        return UsageError("no command was given: cluster and command are two words", hint=shlex.join(words))
    if not is_program:
        return None
    started = ["python3", cluster] if cluster.endswith(".py") else [cluster]
    message = f"no cluster {last!r}: it is a program or file here"
    if default:
        line = shlex.join([*before, "--", *started, *typed.command])
        return UsageError(message, hint=f"the default cluster is {default}: {line}")
    return UsageError(message, hint=shlex.join([*before, LOCAL, *started, *typed.command]))


def option_elsewhere(flag: str, known: Sequence[str]) -> str:
    """Return the option of a command that does what an option of another tool does; "" without one.

    >>> option_elsewhere("-np", ["--nproc"]), option_elsewhere("--nproc_per_node", ["--nproc"])
    ('--nproc', '--nproc')
    >>> option_elsewhere("-np", ["--grace"])
    ''
    """
    meant = _OPTION_MEANT.get(flag) or _OPTION_MEANT.get(flag.replace("_", "-"), "")
    return meant if meant in known else ""


def cluster_left_out(given: Given) -> UsageError | None:
    """Return the error for a command line whose first word is the command and no cluster; None for others."""
    name = given[CLUSTER]
    if given.typed is None or given.command not in STARTS or not name:
        return None
    from mesh.api.choosing import cluster_file, project_here
    from mesh.config.settings import chosen_default

    if is_cluster(name, cluster_file(given[CLUSTERS])):
        return None
    default = chosen_default(project_here(), os.environ).text
    return without_cluster(given.typed, name, is_program=is_program(name), default=default)


def is_program(name: str) -> bool:
    """True if there is a program or a file of this name on this machine."""
    return os.path.isfile(name) or shutil.which(name) is not None


def notices(typed: Typed, cluster: str) -> Iterator[str]:
    """Return notices about words of a command that look like a shell's, and about programs that need a terminal.

    cluster: the selector that was typed
    """
    words = typed.command
    if words[:1] == ("--",):
        words = words[1:]
    program = words[0].rpartition("/")[2] if words else ""
    if program in FULL_SCREEN and not set(BATCH) & set(words) and "--pty" not in typed.before:
        is_here = cluster.partition(":")[0] == LOCAL
        line = shlex.join(words if is_here else ["mesh", "ssh", cluster, "--", *words])
        yield f"{program} needs a terminal, which ranks do not have: {line}"
    # The end of the run names a builtin of a shell; text after -c and -e is for an interpreter.
    if len(words) < 2 or program in (*SHELL_BUILTINS, *TAKE_OPERATORS) or {"-c", "-e", *SHELLS} & set(words):
        return
    found = [word for word in words[1:] if word in SHELL_OPERATORS]
    found += [match.group() for word in words for match in _VARIABLE.finditer(word)]
    if found:
        yield f"no shell reads {found[0]} here; for bash: {typed.as_shell_text()}"
