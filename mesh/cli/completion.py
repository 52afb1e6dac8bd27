"""Completion for bash, zsh and fish: each script asks ``mesh`` itself, which knows its commands and the clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from invoke.parser.context import ParserContext

from mesh import api
from mesh.cli.words import CLUSTER, REFUSED, SHORT, TAKES_WORDS, written
from mesh.core.errors import MeshError, UsageError

ASK = "__complete"  # `mesh __complete WORD ...`: what the last word may become, one a line

SHELLS: Mapping[str, str] = {
    # What the user's own command takes is for bash to know: -o bashdefault -o default.
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
    """The text that makes a shell complete ``mesh``. Raises UsageError."""
    if shell not in SHELLS:
        raise UsageError(f"expected one of {', '.join(SHELLS)}, found {shell!r}", hint="mesh completion bash|zsh|fish")
    return SHELLS[shell]


def candidates(words: Sequence[str], contexts: Mapping[str, ParserContext]) -> list[str]:
    """What the last word may become, given those before it; nothing where the user's own command begins."""
    *before, last = words or [""]
    if not before:
        return _starting(last, [*contexts, "--help", "--version"])
    name, *given = before
    if name not in contexts:
        return []
    task, is_named = contexts[name], False
    values = iter(given)
    for word in values:
        flag = SHORT.get(word, word)
        if flag in task.flags and task.flags[flag].takes_value:
            if next(values, None) is None:
                return _values(flag, last)
        elif not word.startswith("-"):
            if name in TAKES_WORDS:
                return []  # the cluster is named: the rest is the user's
            is_named = True
    if last.startswith("-"):
        flags = {written(flag) for flag in task.flags if flag.startswith("--")} - REFUSED.get(name, set())
        return _starting(last, [*sorted(flags), "--help"])
    if is_named:
        return []
    if name == "completion":
        return _starting(last, list(SHELLS))
    if name in ("logs", "stacks", "stop", "attach", "detach", "signal"):
        return _runs(last)
    if name == "runs":
        return _starting(last, ["prune"])
    return _clusters(last) if CLUSTER in task.flags and not task.positional_args else []


def _values(flag: str, last: str) -> list[str]:
    from mesh.api.attaching import FROM
    from mesh.api.wiring import FOLDS, LABELS, OUTPUTS

    known: dict[str, Sequence[str]] = {
        "--output": OUTPUTS,
        "--fold": FOLDS,
        "--from": FROM,
        "--label": LABELS,
        "--stdin": ("none", "rank0", "all"),
    }
    return _clusters(last) if flag == CLUSTER else _starting(last, known.get(flag, ()))


def _clusters(last: str) -> list[str]:
    try:
        return _starting(last, api.cluster_names())
    except MeshError:
        return []


def _runs(last: str) -> list[str]:
    try:
        return _starting(last, ["last", *(record.run for record in api.list_records())])
    except MeshError:
        return []


def _starting(beginning: str, words: Sequence[str]) -> list[str]:
    return [word for word in words if word.startswith(beginning)]
