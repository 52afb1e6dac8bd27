"""Shell text that environments of Python and of conda share: messages, locks, marks and hashes.

An environment that mesh has made or adopted holds a mark, a file of lines NAME=VALUE:

* state: "making" from its first moment, "installing" while packages change, "failed" where they could not be installed
  and nothing was cut, "whole"
* made: "mesh", or "adopted" for an environment of the user, which ``undo`` keeps
* key: the hash of what the environment was made from
* wanted: the Python that was asked for; version: the Python that it has; parents: the first directory made for it
"""

from __future__ import annotations

import posixpath
import shlex

MARK = ".mesh-environment"

# The last line that a step prints is its message.
MESSAGES = r"""
fail() {  # MESSAGE HINT
    printf '%s: %s\n' "$1" "$2" >&2
    exit 125
}
look_at_disk='see `df -h` and the owner of the directory'
note() { printf '%s\n' "$1" >&2; }
"""

# Sets state, made, key, wanted, version and parents; fails where there is no mark.
READ_MARK = rf"""
read_mark() {{  # DIRECTORY
    local name value
    state= made= key= wanted= version= parents=
    [ -f "$1/{MARK}" ] || return 1
    while IFS='=' read -r name value; do
        case $name in state | made | key | wanted | version | parents) printf -v "$name" %s "$value" ;; esac
    done <"$1/{MARK}" 2>/dev/null
}}
"""

WRITE_MARK = rf"""
write_mark() {{  # DIRECTORY
    marked=$1
    printf '%s\n' "state=$state" "made=$made" "key=$key" "wanted=$wanted" "version=$version" "parents=$parents" \
        >"$1/{MARK}.new" && mv -f "$1/{MARK}.new" "$1/{MARK}" || fail "$1 cannot be written" "$look_at_disk"
}}
"""

# The lock is the kernel's: it goes with the last process of the step, also a package manager that outlives its shell.
# A lock file that was removed by ``undo`` in the meantime is another file: the loop takes the new one.
LOCK = r"""
lock() {  # FILE
    while :; do
        exec 9>>"$1" || fail "$1 cannot be written" "$look_at_disk"
        flock -n 9 2>/dev/null || note "waiting until no other command changes ${1%.mesh-lock}"
        flock 9 2>/dev/null || python3 -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)' 2>/dev/null ||
            note "$1: no lock can be had here; two hosts may not share this directory"
        [ "$1" -ef /proc/self/fd/9 ] && return
    done
}
"""

# MESH_FORCE has an environment made anew although it is whole, but not if another host has just made it.
FORCED = rf"""
mark_now() {{ stat -c %i.%Y "$1/{MARK}" 2>/dev/null; }}
is_forced() {{ [ -n "${{MESH_FORCE-}}" ] && [ "$(mark_now "$1")" = "$seen" ]; }}  # DIRECTORY
"""

# A requirements file counts with those that it names; conda's files name them behind a dash.
HASHES = r"""
digest() { sha256sum | cut -c1-64; }
described() {  # FILE DEPTH
    local other
    printf '== %s\n' "$1"
    cat "$1" 2>/dev/null || printf 'is not there\n'
    [ "$2" -lt 8 ] || return 0
    sed -n -E 's/^[[:space:]-]*(-r|-c|--requirement|--constraint)[[:space:]=]*([^[:space:]#]+).*/\2/p' "$1" \
        2>/dev/null | while read -r other; do
        case $other in /*) ;; *) other=$(dirname "$1")/$other ;; esac
        described "$other" $(($2 + 1))
    done
}
"""

# Runs a package manager. Its output goes to the log; its last error and all that follows it, into the message.
RUN_TOOL = r"""
run_tool() {  # NAME HINT WORDS...
    local name=$1 hint=$2 status output line last= reason= terms
    shift 2
    output=$MESH_MODULES/$module-output-$$
    "$@" 2>&1 | tee "$output"
    status=${PIPESTATUS[0]}
    [ "$status" -ne 0 ] || { rm -f "$output"; return 0; }
    while read -r line; do
        case $line in
            [Ee]rror* | ERROR* | *Error:* | ×*) reason=$line ;;
            ?*) [ -z "$reason" ] || reason+=" $line"; last=$line ;;
        esac
    done <"$output"
    reason=${reason:-$last}
    terms=$(grep 'Terms of Service' "$output")
    rm -f "$output"
    [ "$state" != installing ] || { state=failed; write_mark "$marked"; }
    [ -z "$terms" ] || ! declare -F ask_for_terms >/dev/null || ask_for_terms
    fail "\`$name\` failed, exit $status: ${reason:0:400}" "$hint"
}
"""


def place(path: str) -> str:
    """Return shell text for a path that is absolute, in the home directory or in the workspace.

    >>> place("~/my envs/a"), place(".venv/"), place("/opt/env")
    ('"$HOME"/\\'my envs/a\\'', '"$PWD"/.venv', '/opt/env')
    """
    normal = posixpath.normpath(path)
    if normal.startswith("~/"):
        return f'"$HOME"/{shlex.quote(normal[2:])}'
    return shlex.quote(normal) if normal.startswith("/") else f'"$PWD"/{shlex.quote(normal)}'


def variables(**values: str) -> str:
    """Return assignments of values to shell variables.

    >>> variables(tool="uv", python="a b")
    "tool=uv\\npython='a b'\\n"
    """
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
