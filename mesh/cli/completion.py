"""Completion for bash, zsh and fish: each script runs ``mesh __complete``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mesh import api
from mesh.cli import joboptions
from mesh.cli.command import COMMANDS, FAMILIES, Takes, first_words, verbs_of
from mesh.cli.options import CLUSTER, NAMES_CLUSTER, NAMES_RUN, options_of
from mesh.core.errors import MeshError, UsageError

ASK = "__complete"  # `mesh __complete WORD ...`: what the last word may become, one a line

SHELLS: Mapping[str, str] = {
    # Bash completes the words of the user's own command: -o bashdefault -o default.
    "bash": f"""\
_mesh() {{
    local IFS=$'\\n'
    COMPREPLY=($(mesh {ASK} "${{COMP_WORDS[@]:1:COMP_CWORD}}" 2>/dev/null))
    # A cluster such as local:2 is several words to readline.
    [[ ${{COMPREPLY[0]}} == --*= ]] && compopt -o nospace
}}
complete -o bashdefault -o default -F _mesh mesh
""",
    "zsh": f"""\
#compdef mesh
_mesh() {{
    local -a found
    found=("${{(@f)$(mesh {ASK} "${{(@)words[2,CURRENT]}}" 2>/dev/null)}}")
    if [[ -n ${{found[1]}} ]]; then
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
    set -l found (mesh {ASK} $words[2..-1] (commandline -ct) 2>/dev/null)
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
    *before, last = words or [""]
    if not before:
        return _starting(last, [*first_words(), "help", "--help", "--version"])
    name, *given = before
    if name in FAMILIES:
        if not given:
            return _starting(last, [*verbs_of(name), "--help"])
        name, given = f"{name} {given[0]}", given[1:]
    if name not in COMMANDS:
        return _starting(last, first_words()) if name == "help" and not given else []
    options = options_of(name)
    flags = {flag: option for option in options for flag in (option.flag, option.short) if flag}
    is_named = False
    values = iter(given)
    for word in values:
        option = flags.get(word)
        if option and option.takes_value:
            if next(values, None) is None:
                return _clusters(last) if option.flag == CLUSTER.flag else _starting(last, option.choices)
        elif not word.startswith("-"):
            if COMMANDS[name].takes is Takes.COMMAND:
                return []  # the cluster is named: the rest is the user's
            is_named = name not in joboptions.NAMES_JOBS
    if last.startswith("-"):
        return _starting(last, [*sorted(option.flag for option in options), "--help"])
    return [] if is_named else _places(name, last)


def _places(name: str, last: str) -> list[str]:
    """Return what the first word of a command may become."""
    words = {"completion": list(SHELLS), "runs": ["prune"], "keep": ["stop"], "serve": list(joboptions.SERVE_ACTIONS)}
    if name in words:
        return _starting(last, words[name])
    if name in joboptions.NAMES_JOB:
        return _jobs(last)
    if name in NAMES_RUN:
        return [*_runs(last), *_clusters(last)]
    return _clusters(last) if name in (*CLUSTER.commands, *NAMES_CLUSTER) else []


def _clusters(last: str) -> list[str]:
    try:
        return _starting(last, api.cluster_names())
    except MeshError:
        return []


def _jobs(last: str) -> list[str]:
    from mesh.api import jobs

    try:
        rows = jobs.list_jobs()
        names = dict.fromkeys(row.name for row in rows)
        return _starting(last, ["last", *names, *(str(row.id) for row in rows)])
    except MeshError:
        return []


def _runs(last: str) -> list[str]:
    try:
        records = api.list_records()
        names = dict.fromkeys(record.named.name for record in records if record.named.name)
        return _starting(last, ["last", *names, *(record.run for record in records)])
    except MeshError:
        return []


def _starting(beginning: str, words: Sequence[str]) -> list[str]:
    return [word for word in words if word.startswith(beginning)]
