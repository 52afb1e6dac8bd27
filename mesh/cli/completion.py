"""Completion for bash, zsh and fish: each script runs ``mesh __complete``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mesh import api
from mesh.cli import joboptions
from mesh.cli.command import COMMANDS, FAMILIES, Takes, verbs_of
from mesh.cli.option import AnyOption
from mesh.cli.options import CLUSTER, EXCLUDE, NAMES_CLUSTER, NAMES_RUN, PICK_HOSTS, options_of
from mesh.core.errors import MeshError, UsageError

ASK = "__complete"  # `mesh __complete WORD ...`: what the last word may become, one a line
DESCRIBE = "__describe"  # the same, with a tab and a description after each word that has one
HELP = {"--help": "show this help"}
TWO_RUNS = ("diff", "bisect")
RECORDED_RUNS = ("report", "replay", *TWO_RUNS)  # commands that take runs of this machine alone
# Commands for runs that are not over; the others take any run.
NEEDS_A_RUN_THAT_IS_ON = ("debug", "detach", "restart", "signal", "stacks", "stop")

SHELLS: Mapping[str, str] = {
    # Bash completes the words of the user's own command: -o bashdefault -o default.
    "bash": f"""\
_mesh() {{
    local IFS=$'\\n' word words=() last=0
    # A selector such as pod:3 is several words to readline.
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD}}"; do
        if [[ $last -gt 0 && ( $word == :* || ${{words[last-1]}} == *: ) ]]; then
            words[last-1]+=$word
        else
            words[last++]=$word
        fi
    done
    COMPREPLY=($(mesh {ASK} "${{words[@]}}" 2>/dev/null))
    [[ ${{COMPREPLY[0]}} == --*= ]] && compopt -o nospace
    if [[ ${{words[last-1]}} == *:* && $COMP_WORDBREAKS == *:* ]]; then
        COMPREPLY=("${{COMPREPLY[@]#"${{words[last-1]%:*}}:"}}")
    fi
}}
complete -o bashdefault -o default -F _mesh mesh
""",
    "zsh": f"""\
#compdef mesh
_mesh() {{
    local -a found shown
    found=("${{(@f)$(mesh {DESCRIBE} "${{(@)words[2,CURRENT]}}" 2>/dev/null)}}")
    shown=("${{(@)found/$'\\t'/  -- }}")
    found=("${{(@)found%%$'\\t'*}}")
    if [[ "$shown" == *'  -- '* ]]; then
        compadd -l -d shown -- "${{found[@]}}"
    elif [[ -n ${{found[1]}} ]]; then
        compadd -- "${{found[@]}}"
    else
        _files
    fi
}}
(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}
compdef _mesh mesh
""",
    "fish": f"""\
function __mesh_complete
    set -l words (commandline -opc)
    set -l found (mesh {DESCRIBE} $words[2..-1] (commandline -ct) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c mesh -f -a '(__mesh_complete)'
""",
}


def script(shell: str) -> str:
    """Return the script that makes a shell complete ``mesh``. Raises UsageError."""
    if shell not in SHELLS:
        raise UsageError(f"expected one of {', '.join(SHELLS)}, found {shell!r}", hint="mesh completion bash|zsh|fish")
    return SHELLS[shell]


def candidates(words: Sequence[str]) -> list[str]:
    """Return what the last word may become, given those before it; nothing where the user's command begins."""
    return list(described(words))


def lines(words: Sequence[str]) -> list[str]:
    """Return what the last word may become, each with its description after a tab."""
    return [f"{word}\t{about}" if about else word for word, about in described(words).items()]


def described(words: Sequence[str]) -> dict[str, str]:
    """Return what the last word may become, with a description; "": it has none."""
    *before, last = words or [""]
    if not before:
        return _starting(last, {**_summaries(), "help": "Show the help of a command.", "--help": "", "--version": ""})
    name, *given = before
    if name in FAMILIES:
        if not given:
            return _starting(last, {verb: COMMANDS[f"{name} {verb}"].summary for verb in verbs_of(name)} | HELP)
        name, given = f"{name} {given[0]}", given[1:]
    if name not in COMMANDS:
        return _starting(last, _summaries()) if name == "help" and not given else {}
    options = options_of(name)
    flags = {flag: option for option in options for flag in (option.flag, option.short) if flag}
    is_named = False
    values = iter(given)
    for word in values:
        option = flags.get(word)
        if option and option.takes_value:
            if next(values, None) is None:
                return _values(option, last)
        elif not word.startswith("-"):
            if COMMANDS[name].takes is Takes.COMMAND:
                return {}  # the cluster is named: the rest is the user's
            is_named = name not in (*joboptions.NAMES_JOBS, *TWO_RUNS)
    if last.startswith("-"):
        return _starting(
            last, {option.flag: option.help for option in sorted(options, key=lambda one: one.flag)} | HELP
        )
    return {} if is_named else _places(name, last)


def _summaries() -> dict[str, str]:
    single = {name: command.summary for name, command in COMMANDS.items() if " " not in name}
    return single | {word: summary for word, (_, summary) in FAMILIES.items()}


def _values(option: AnyOption, last: str) -> dict[str, str]:
    """Return what the value of an option may become."""
    if option.flag == CLUSTER.flag:
        return _clusters(last)
    if option.flag in (PICK_HOSTS.flag, EXCLUDE.flag):
        before, comma, end = last.rpartition(",")
        named = before.split(",")
        return {f"{before}{comma}{host}": "" for host in _hosts() if host.startswith(end) and host not in named}
    return _starting(last, dict.fromkeys(option.choices, ""))


def _places(name: str, last: str) -> dict[str, str]:
    """Return what the first word of a command may become."""
    words = {"completion": list(SHELLS), "runs": ["prune"], "keep": ["stop"], "serve": list(joboptions.SERVE_ACTIONS)}
    if name in words:
        return _starting(last, dict.fromkeys(words[name], ""))
    if name in joboptions.NAMES_JOB:
        return _jobs(last)
    if name in NAMES_RUN:
        return _runs(last, is_on=name in NEEDS_A_RUN_THAT_IS_ON) | _clusters(last)
    if name in RECORDED_RUNS:
        return _runs(last, is_on=False)
    return _clusters(last) if name in (*CLUSTER.commands, *NAMES_CLUSTER) else {}


def _clusters(last: str) -> dict[str, str]:
    """Return clusters, or after a colon the hosts of one."""
    cluster, colon, host = last.rpartition(":")
    if colon:
        return {f"{cluster}:{one}": "" for one in _hosts(cluster.rpartition(",")[2]) if one.startswith(host)}
    try:
        return _starting(last, dict.fromkeys(api.cluster_names(), ""))
    except MeshError:
        return {}


def _hosts(cluster: str = "") -> list[str]:
    from mesh.api.clusters import host_names

    try:
        return host_names(cluster)
    except MeshError:
        return []


def _jobs(last: str) -> dict[str, str]:
    from mesh.api import jobs

    try:
        rows = jobs.list_jobs()
    except MeshError:
        return {}
    named = {row.name: row.state for row in rows}
    return _starting(
        last, {"last": "the newest job", **named, **{str(row.id): f"{row.name}, {row.state}" for row in rows}}
    )


def _runs(last: str, *, is_on: bool) -> dict[str, str]:
    """Return runs by name and id. is_on: only those that are not over"""
    try:
        records = [record for record in api.list_records() if not (is_on and record.named.is_over)]
    except MeshError:
        return {}
    known = [record.named for record in records]
    named = {one.name: f"{one.command}, {one.age}" for one in reversed(known) if one.name}
    ids = {one.run: f"{one.command}, {one.age}" for one in known}
    return _starting(last, {"last": "the newest run", **named, **ids})


def _starting(beginning: str, words: Mapping[str, str]) -> dict[str, str]:
    return {word: about for word, about in words.items() if word.startswith(beginning)}
