"""Environments of conda, made from an environment.yml of the workspace or by the user."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Sequence

from mesh.core.cluster import Host
from mesh.core.module import Conda, ModuleError, Step
from mesh.modules.environments import (
    FORCED,
    HASHES,
    LOCK,
    MARK,
    MESSAGES,
    READ_MARK,
    RUN_TOOL,
    WRITE_MARK,
    variables,
)

NAME = re.compile(r"[^\s/:#-][^\s/:#]*")
CREATE_TIMEOUT_S = 3600.0

# Sets base, without a start of conda where its directory is as usual. A base that is half installed does not count.
FIND_BASE = r"""
find_base() {
    local program
    program=$(type -P conda) && {
        base=$(readlink -f "$program") base=${base%/*} base=${base%/*}
        [ -d "$base/conda-meta" ] || base=$("$program" info --base 2>/dev/null)
        [ -n "$base" ] && return
    }
    for base in ~/miniconda3 ~/miniconda ~/miniforge3 ~/anaconda3; do
        [ -x "$base/bin/conda" ] && [ ! -e "$base.mesh-making" ] && return
    done
    base=
    return 1
}
"""

# Sets prefix where the environment is. conda is asked only if it is at none of the usual places.
FIND_PREFIX = r"""
listed() { "$base/bin/conda" env list 2>/dev/null | grep -v '^#'; }
find_prefix() {
    local path
    [ "$name" != base ] || { prefix=$base; return 0; }
    for path in "$base/envs/$name" ~/".conda/envs/$name" ${CONDA_ENVS_PATH:+"${CONDA_ENVS_PATH%%:*}/$name"} \
        ${CONDA_ENVS_DIRS:+"${CONDA_ENVS_DIRS%%:*}/$name"}; do
        [ ! -d "$path/conda-meta" ] || { prefix=$path; return 0; }
    done
    path=$(listed | while read -r word rest; do
        rest=${rest#"* "}
        [ "$word" != "$name" ] || printf '%s\n' "/${rest#*/}"
    done | head -n 1)
    [ -n "$path" ] && [ -d "$path/conda-meta" ] && prefix=$path
}
"""

# An environment of conda need not have a Python; one that had it must have it still.
WHOLE = r"""
started() {
    if [ -e "$prefix/bin/python" ] || [ -L "$prefix/bin/python" ]; then
        "$prefix/bin/python" -I -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null
    else
        [ -d "$prefix/conda-meta" ] && printf 'none\n'
    fi
}
key_now() {
    { printf '%s\n' "$text" "$1" "$(readlink -f "$prefix/bin/python")" "$(uname -sm)"; described "$file" 0; } | digest
}
is_whole() {
    find_base && find_prefix && now=$(started) || return 1
    [ -n "$file" ] || return 0
    [ ! -e "$prefix.mesh-making" ] && [ ! -e "$prefix.mesh-old" ] && read_mark "$prefix" &&
        [ "$state" = whole ] && [ "$key" = "$(key_now "$now")" ]
}
report() {
    { printf 'Python %s, packages %s\n' "$now" \
        "$(cd "$prefix" && printf '%s\n' conda-meta/*.json lib/python*/site-packages/*.dist-info | digest)" >&3
    } 2>/dev/null
}
"""

CHECK = """
is_whole && { report; true; }
"""

TERMS = r"""
[ "$accept_tos" != yes ] || export CONDA_PLUGINS_AUTO_ACCEPT_TOS=yes
ask_for_terms() {
    fail "Anaconda wants its terms of service accepted for its channels (https://www.anaconda.com/legal)" \
        "to accept them: \`accept_tos: true\` below \`conda:\` in mesh.yaml; or name only conda-forge in $file"
}
"""

# The directory of a new environment: the first of conda's that can be written.
APPLY = r"""
unset VIRTUAL_ENV PYTHONHOME PYTHONPATH CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_SHLVL
export CONDA_ALWAYS_YES=true PYTHONNOUSERSITE=1
find_base || fail "there is no conda here: not on PATH, and none in ~/miniconda3 or ~/miniconda" \
    "install it there, or write \`installer:\` with the address of Miniconda's below \`conda:\` in mesh.yaml"
conda=$base/bin/conda
[ -x "$conda" ] || conda=$(type -P conda)
if [ -z "$file" ]; then
    is_whole && { report; exit 0; }
    find_prefix && fail "the Python of the environment $name does not start" "make it anew, or write \`file:\`"
    names=$(listed | while read -r word rest; do
        case $word in /* | '') ;; *) printf '%s ' "$word" ;; esac
    done)
    fail "there is no environment $name here; there are: ${names:-none}" \
        "make it, or write \`file: environment.yml\` below \`conda:\` in mesh.yaml"
fi
[ -f "$file" ] || fail "$file is not in the workspace" "see \`file:\` below \`conda:\` in mesh.yaml"
if ! find_prefix; then
    directory=$("$conda" info --json 2>/dev/null | "$base/bin/python" -I -c '
import json, os, sys
for path in json.load(sys.stdin)["envs_dirs"]:
    above = path
    while not os.path.exists(above):
        above = os.path.dirname(above)
    if os.access(above, os.W_OK):
        print(path)
        break') || directory=
    [ -n "$directory" ] || fail "\`conda info\` names no directory that can be written" "see \`conda info\` there"
    prefix=$directory/$name
fi
case $prefix in /?*/?*) ;; *) fail "\`conda info\` names the directory $prefix" "see \`conda info\` there" ;; esac
mkdir -p "${prefix%/*}" || fail "${prefix%/*} cannot be made" "$look_at_disk"
seen=$(mark_now "$prefix")
lock "$prefix.mesh-lock"
rm -rf "$prefix.mesh-old"
forced=no
if is_whole; then
    is_forced "$prefix" || { report; exit 0; }
    forced=yes
fi
make() {  # anew at its place, because it cannot be moved; the file beside marks it as half made
    "$conda" info --base >/dev/null 2>&1 || fail "$conda does not run" "see \`conda info\` there"
    run_tool "conda env create" "see if \`conda env create -f $file\` works by hand" \
        "$conda" env create -p "$prefix" -f "$file"
    made=mesh
}
if [ -e "$prefix.mesh-making" ]; then
    rm -rf "$prefix"
    make
elif [ ! -e "$prefix" ] || rmdir "$prefix" 2>/dev/null; then
    : >"$prefix.mesh-making" || fail "${prefix%/*} cannot be written" "$look_at_disk"
    make
elif [ ! -d "$prefix/conda-meta" ]; then
    fail "$prefix is no environment of conda" "move it away"
else
    read_mark "$prefix"
    now=$(started) && case $version,$now in none,* | ,* | [0-9]*,[0-9]*) ;; *) false ;; esac && starts=yes || starts=no
    if [ "$name" != base ] && [ "$made" = mesh ] && [ "$starts-$state-$forced" != yes-whole-no ] &&
        [ "$starts-$state" != yes-failed ]; then
        : >"$prefix.mesh-making" || fail "${prefix%/*} cannot be written" "$look_at_disk"
        mv -T "$prefix" "$prefix.mesh-old" || fail "$prefix cannot be moved away" "$look_at_disk"
        make
    elif [ $starts = no ]; then
        fail "the Python of $prefix does not start, and mesh has not made it" "\`conda env remove -n $name\` there"
    else
        prune=--prune
        [ "$made" = mesh ] || made=adopted prune=
        state=installing key=
        write_mark "$prefix"
        run_tool "conda env update" "see if \`conda env update -n $name -f $file\` works by hand" \
            "$conda" env update -p "$prefix" -f "$file" $prune
    fi
fi
now=$(started) || fail "the Python of $prefix does not start" "see \`conda list -n $name\` there"
state=whole version=$now key=$(key_now "$now")
write_mark "$prefix"
rm -f "$prefix.mesh-making"
rm -rf "$prefix.mesh-old"
report
true
"""

UNDO = rf"""
prefix=
find_base || exit 0
remove() {{
    lock "$prefix.mesh-lock"
    if [ -e "$prefix.mesh-making" ] || {{ read_mark "$prefix" && [ "$made" = mesh ]; }}; then
        : >"$prefix.mesh-making"
        rm -rf "$prefix"
    fi
    rm -f "$prefix/{MARK}" "$prefix/{MARK}.new" "$prefix.mesh-making"
    rm -rf "$prefix.mesh-old"
    rm -f "$prefix.mesh-lock"
}}
[ -n "$file" ] || exit 0
rm -f "$MESH_MODULES/$module-output-"*
if find_prefix; then remove; else
    for prefix in "$base/envs/$name" ~/".conda/envs/$name"; do
        [ ! -e "$prefix.mesh-making" ] && [ ! -e "$prefix.mesh-lock" ] || {{ remove; break; }}
    done
fi
true
"""

INSTALL = r"""
unset VIRTUAL_ENV PYTHONHOME PYTHONPATH
place=~/miniconda3
case $installer in
    *anaconda.com* | *anaconda.org*)
        [ "$accept_tos" = yes ] ||
            fail "the installer wants Anaconda's terms of service accepted (https://www.anaconda.com/legal)" \
                "to accept them: \`accept_tos: true\` below \`conda:\`; or \`installer:\` with that of Miniforge" ;;
esac
lock "$place.mesh-lock"
find_base && exit 0
if [ -e "$place.mesh-making" ]; then rm -rf "$place"; fi
rmdir "$place" 2>/dev/null
[ ! -e "$place" ] || fail "$place is there, but has no conda that runs" "move it away"
: >"$place.mesh-making" || fail "$place cannot be made" "$look_at_disk"
file=$place.mesh-installer
if type -P curl >/dev/null; then curl -fsSL -o "$file" -- "$installer"
elif type -P wget >/dev/null; then wget -q -O "$file" -- "$installer"
else python3 -I -c 'import shutil, sys, urllib.request
with urllib.request.urlopen(sys.argv[1]) as source, open(sys.argv[2], "wb") as file:
    shutil.copyfileobj(source, file)' "$installer" "$file"
fi || {
    rm -f "$file" "$place.mesh-making"
    fail "$installer cannot be downloaded" "see \`installer:\` below \`conda:\` in mesh.yaml"
}
found=$(digest <"$file")
if [ -n "$checksum" ] && [ "$found" != "$checksum" ]; then
    rm -f "$file" "$place.mesh-making"
    fail "$installer has the SHA-256 $found, not $checksum" "correct \`checksum:\`, or distrust the download"
fi
run_tool "bash $(basename "$installer")" "see the disk and the address of the installer" bash "$file" -b -p "$place"
rm -f "$file"
[ -x "$place/bin/conda" ] || fail "the installer has made no $place/bin/conda" "see \`installer:\` in mesh.yaml"
: >"$place/.mesh-installed"
rm -f "$place.mesh-making"
"""

# A base that mesh has installed stays as long as it holds an environment.
UNINSTALL = r"""
place=~/miniconda3
lock "$place.mesh-lock"
if [ -e "$place/.mesh-installed" ] && [ -n "$(ls -A "$place/envs" 2>/dev/null)" ]; then
    note "$place stays: it holds environments"
elif [ -e "$place/.mesh-installed" ] || [ -e "$place.mesh-making" ]; then
    : >"$place.mesh-making"
    rm -rf "$place"
fi
rm -f "$place.mesh-installer" "$place.mesh-making" "$place.mesh-lock"
"""

TEXT = hashlib.sha256("".join((WHOLE, APPLY)).encode()).hexdigest()


class CondaEnvironment:
    """An environment of conda on each host."""

    name = "conda"

    def __init__(self, description: Conda) -> None:
        """Take the description. Raises ModuleError if it cannot be."""
        if not NAME.fullmatch(description.name):
            raise ModuleError(f"conda: {description.name!r} is no name", hint="a name has no spaces, `/`, `:` and `#`")
        self._description = description
        self._set = variables(
            module=self.name,
            name=description.name,
            file=description.file,
            installer=description.installer,
            checksum=description.checksum.lower(),
            accept_tos="yes" if description.accept_tos else "no",
            text=TEXT,
        )

    def steps(self, hosts: Sequence[Host], node: int) -> Sequence[Step]:
        reading = FIND_BASE, FIND_PREFIX, HASHES, READ_MARK, WHOLE
        environment = Step(
            module=self.name,
            check=self._text(*reading, CHECK),
            apply=self._text(*reading, WRITE_MARK, LOCK, FORCED, RUN_TOOL, TERMS, APPLY),
            undo=self._text(FIND_BASE, FIND_PREFIX, READ_MARK, LOCK, UNDO),
            timeout=CREATE_TIMEOUT_S,
        )
        if not self._description.installer:
            return (environment,)
        base = Step(
            module=self.name,
            check=self._text(FIND_BASE, "find_base\n"),
            apply=self._text(FIND_BASE, HASHES, LOCK, RUN_TOOL, INSTALL),
            undo=self._text(LOCK, UNINSTALL),
            timeout=CREATE_TIMEOUT_S,
        )
        return (base, environment)

    def join(self, hosts: Sequence[Host], facts: Sequence[Sequence[str]]) -> Sequence[Sequence[Step]]:
        return ()

    @property
    def enter(self) -> str:
        """Activation of the environment. Its own scripts may print, and may not bear ``set -u``."""
        name = shlex.quote(self._description.name)
        return f"""__mesh_set=${{-//[!eu]/}}; set +eu
{{
__mesh_base=$({FIND_BASE}find_base && printf %s "$base") ||
    {{ echo "conda: there is no conda here" >&2; exit 125; }}
if [ -r "$__mesh_base/etc/profile.d/conda.sh" ]; then
    . "$__mesh_base/etc/profile.d/conda.sh" && conda activate {name}
else
    __mesh_text=$("$__mesh_base/bin/conda" shell.posix activate {name}) && eval "$__mesh_text"
fi || {{ echo "conda: the environment "{name}" cannot be activated" >&2; exit 125; }}
}} >&2
[ -z "$__mesh_set" ] || set -"$__mesh_set"
unset __mesh_base __mesh_text __mesh_set"""

    def wrap(self, words: Sequence[str], env: Sequence[str], run: str) -> Sequence[str]:
        return words

    def _text(self, *parts: str) -> str:
        """Return a text whose values are set first."""
        return f"{self._set}{MESSAGES}{''.join(parts)}"
