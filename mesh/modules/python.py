"""Virtual environments of Python, made by uv or by venv and pip."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Sequence

from mesh.core.cluster import DEFAULT_REMOTE_DIR, Host
from mesh.core.module import ModuleError, Python, Step
from mesh.modules.environments import (
    FORCED,
    HASHES,
    LOCK,
    MARK,
    MESSAGES,
    READ_MARK,
    RUN_TOOL,
    WRITE_MARK,
    place,
    variables,
)
from mesh.modules.uv import CHOOSE, FIND_UV, GET_UV, NO_UV, LocalUv, install_uv, send_uv

# The mark is believed only if the Python starts, and if all that the environment was made from is as it was.
WHOLE = r"""
started() { "$env/bin/python" -I -c 'import sys, site; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null; }
asked() {  # the Python that is wanted
    printf '%s ' "$request"
    [ "$tool" = venv ] || cat .python-version 2>/dev/null
    [ "$tool" = venv ] || grep '^requires-python' pyproject.toml 2>/dev/null
}
key_now() {
    {
        printf '%s\n' "$text" "$kind" "$(asked)" "$1" "$(readlink -f "$env/bin/python")" "$(uname -sm)"
        case $kind in
            lock) cat uv.lock pyproject.toml ;;
            requirements | project) described "$file" 0 ;;
        esac
    } 2>/dev/null | digest
}
is_whole() {
    choose
    [ ! -e "$env.mesh-old" ] && read_mark "$env" && [ "$state" = whole ] &&
        now=$(started) && [ "$key" = "$(key_now "$now")" ]
}
report() {
    { printf 'Python %s, packages %s\n' "$now" \
        "$(cd "$env" && printf '%s\n' lib/python*/site-packages/*.dist-info | digest)" >&3; } 2>/dev/null
}
"""

CHECK = """
is_whole && { report; true; }
"""

MAKE = r"""
find_python() {  # sets python: a program of the version or name that was asked for
    local names name number=
    names=${request:-python3}
    case $request in
        '') names="python3 python" ;;
        *[!0-9.]*) ;;
        *.*.*) number=$request names="python${request%.*} python3 python" ;;
        *) number=$request names="python$request python3 python" ;;
    esac
    IFS=' ' read -ra names <<<"$names"
    for name in "${names[@]}"; do
        python=$(type -P "$name") && now=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])') &&
            case $now. in "$number".* | "${number:-$now}".*) return 0 ;; esac
    done 2>/dev/null
    name=${names[0]}
    fail "there is no $name here" \
        "install it (Debian: apt-get install $name $name-venv), or write \`env: uv\`, which fetches Pythons"
}
make_by_venv() {
    find_python
    if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        run_tool "$python -m venv" "see the log" "$python" -m venv "$env"
    elif find_uv; then
        run_tool "uv venv" "see \`python:\` in mesh.yaml" \
            "$uv" venv --allow-existing --seed --no-project --python "$python" "$env"
    elif "$python" -c 'import virtualenv' 2>/dev/null; then
        run_tool "$python -m virtualenv" "see the log" "$python" -m virtualenv "$env"
    else
        fail "$python cannot make environments: it has no ensurepip" \
            "Debian: apt-get install python${now%.*}-venv, or python3-venv"
    fi
}
make() {  # an environment with the mark of one that is half made, at its final place, because it cannot be moved
    rmdir "$env" 2>/dev/null
    rm -rf "$env.mesh-new"
    state=making made=mesh key= version= wanted=$(asked | tr '\n' ' ')
    mkdir "$env.mesh-new" || fail "$env cannot be made" "$look_at_disk"
    write_mark "$env.mesh-new"
    mv -T "$env.mesh-new" "$env" || fail "$env cannot be made" "$look_at_disk"
    if [ "$tool" = uv ] && [ -n "$uv" ]; then
        run_tool "uv venv" "see \`python:\` in mesh.yaml" \
            "$uv" venv --allow-existing ${request:+--python "$request"} "$env"
    else
        make_by_venv
    fi
    now=$(started) || fail "the Python of $env does not start" "see \`$env/bin/python -V\` there"
}
"""

INSTALL = r"""
install_by_uv() {
    local python=$env/bin/python again=()
    case $kind in
        lock)
            [ "$cut" = no ] || again=(--reinstall)
            [ "$made" = mesh ] || again+=(--inexact)
            UV_PROJECT_ENVIRONMENT=$env run_tool "uv sync" "see if \`uv sync --frozen\` works in your project" \
                "$uv" sync --frozen --python "$python" "${again[@]}" ;;
        *)
            [ "$cut" = no ] || again=(--reinstall)
            run_tool "uv pip install -r $file" "correct $file, or the index that uv uses" \
                "$uv" pip install --python "$python" "${again[@]}" -r "$file" ;;
    esac
}
dependencies() {  # of pyproject.toml, one a line
    "$env/bin/python" -I - "$file" <<'EOF'
import sys
try:
    import tomllib
except ImportError:
    from pip._vendor import tomli as tomllib
with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file).get("project", {})
if "dependencies" in project.get("dynamic", []):
    sys.exit("its dependencies are dynamic")
print("\n".join(project.get("dependencies", [])))
EOF
}
install_by_pip() {
    local source=$file again=()
    if ! "$env/bin/python" -I -c 'import pip' 2>/dev/null; then
        find_uv && { install_by_uv; return; }
        "$env/bin/python" -I -m ensurepip >/dev/null 2>&1 ||
            fail "$env has no pip" "install it there: $env/bin/python must run \`-m pip\`"
    fi
    [ "$kind" != lock ] || fail "only uv can read uv.lock, and there is no uv here" "write \`env: uv\`"
    if [ "$kind" = project ]; then
        source=$env/mesh-requirements.txt
        dependencies >"$source" || fail "pip cannot read the dependencies of $file" "list them in requirements.txt"
    fi
    [ "$cut" = no ] || again=(--ignore-installed)
    run_tool "pip install -r $file" "correct $file, or the index that pip uses" \
        "$env/bin/python" -I -m pip --disable-pip-version-check --no-input install --no-user --progress-bar off \
        "${again[@]}" -r "$source"
}
"""

APPLY = r"""
unset VIRTUAL_ENV PYTHONHOME CONDA_PREFIX
parents=
directory=$(dirname "$env")
while [ ! -d "$directory" ]; do made_first=$directory directory=$(dirname "$directory"); done
mkdir -p "$(dirname "$env")" || fail "$(dirname "$env") cannot be made" "$look_at_disk"
seen=$(mark_now "$env")
lock "$env.mesh-lock"
rm -rf "$env.mesh-old"
forced=no
if is_whole; then
    is_forced "$env" || { report; exit 0; }
    forced=yes
fi
[ "$kind" = nothing ] || [ -f "$file" ] || fail "$file is not in the workspace" "see \`requirements:\` in mesh.yaml"
uv=
if [ "$tool" = uv ] && ! find_uv; then
    [ "$kind" != lock ] || fail "there is no uv here, and only uv can read uv.lock" "$get_uv"
    note "there is no uv here: venv and pip do the same"
fi
cut=no
keep_broken() {  # moves an environment away that mesh has not made
    local number=1
    while [ -e "$env.broken-$number" ]; do number=$((number + 1)); done
    mv "$env" "$env.broken-$number" || fail "$env cannot be moved away" "$look_at_disk"
    note "the Python of $env does not start: the directory is $env.broken-$number now"
}
has_mark=no
read_mark "$env" && has_mark=yes
if [ ! -e "$env" ] && [ ! -L "$env" ] || rmdir "$env" 2>/dev/null; then
    parents=${made_first-}
    make
elif [ "$made" = mesh ]; then
    if [ $forced = no ] && now=$(started) && { [ "$state" = whole ] || [ "$state" = failed ]; } &&
        [ "$wanted" = "$(asked | tr '\n' ' ')" ] && [ "${version%.*}" = "${now%.*}" ]; then
        state=installing key=
        write_mark "$env"
    else
        mv -T "$env" "$env.mesh-old" || fail "$env cannot be moved away" "$look_at_disk"
        make
    fi
elif now=$(started) && [ -f "$env/pyvenv.cfg" ]; then
    case $request,$now. in
        ,* | *[!0-9.]*,* | "${now%.*}",* | "$now",* | "${now%%.*}",*) ;;
        *) fail "$env was made by hand, with Python $now; mesh.yaml asks for $request" \
            "remove it, or write another \`path:\`" ;;
    esac
    [ "$state" != installing ] && [ $forced = no ] || cut=yes
    state=installing made=adopted key= wanted=
    write_mark "$env"
elif [ -f "$env/pyvenv.cfg" ] || { [ -L "$env" ] && [ ! -e "$env" ]; } || [ $has_mark = yes ]; then
    keep_broken
    make
else
    fail "$env is no virtual environment" "move it away, or write another \`path:\` in mesh.yaml"
fi
if [ "$kind" = nothing ]; then :; elif [ -n "$uv" ]; then install_by_uv; else install_by_pip; fi
now=$(started) || fail "the Python of $env does not start any more" "see \`$env/bin/python -V\` there"
state=whole version=$now key=$(key_now "$now")
write_mark "$env"
rm -rf "$env.mesh-old"
report
true
"""

UNDO = rf"""
[ -d "$(dirname "$env")" ] || exit 0
lock "$env.mesh-lock"
if read_mark "$env"; then
    if [ "$made" = mesh ]; then
        rm -rf "$env.mesh-old"
        mv -T "$env" "$env.mesh-old" || fail "$env cannot be removed" "$look_at_disk"
    else
        rm -f "$env/{MARK}" "$env/{MARK}.new"
    fi
fi
rm -rf "$env.mesh-old" "$env.mesh-new"
rm -f "$env.mesh-lock" "$MESH_MODULES/$module-output-"*
directory=$(dirname "$env")
if [ -n "$parents" ]; then
    while [ ${{#directory}} -ge ${{#parents}} ] && rmdir "$directory" 2>/dev/null; do
        directory=$(dirname "$directory")
    done
fi
true
"""

TEXT = hashlib.sha256("".join((CHOOSE, WHOLE, MAKE, INSTALL, APPLY)).encode()).hexdigest()


class PythonEnvironment:
    """An environment of uv or of venv, made on each host from files of the workspace."""

    def __init__(self, description: Python, uv: LocalUv = NO_UV, directory: str = DEFAULT_REMOTE_DIR) -> None:
        """Take the description.

        uv: the client's, which hosts without uv get if they are of its platform; otherwise they install it by pip
        directory: mesh's own on the hosts, absolute or with a leading ``~/``
        Raises ModuleError for an unknown tool or an impossible path.
        """
        if description.tool not in ("uv", "venv"):
            raise ModuleError(f"env: no tool {description.tool!r}", hint="uv and venv make environments")
        path = posixpath.normpath(description.path)
        if path in (".", "..", "~", "/") or path.startswith("../"):
            hint = "write one in the workspace as .venv, or with a leading `~/` or `/`"
            raise ModuleError(f"{description.tool}: {description.path!r} is no path for an environment", hint=hint)
        self._description = description
        self._uv = uv
        self._sent = f"{directory}/tools/uv"  # and then -MACHINE
        self._place = place(description.path)
        self._set = variables(
            module=description.tool,
            tool=description.tool,
            request=description.python,
            requirements=description.requirements,
            text=TEXT,
            get_uv=GET_UV,
        )

    @property
    def name(self) -> str:
        return self._description.tool

    def steps(self, hosts: Sequence[Host], node: int) -> Sequence[Step]:
        reading = FIND_UV, CHOOSE, HASHES, READ_MARK, WHOLE
        environment = Step(
            module=self.name,
            check=self._text(*reading, CHECK),
            apply=self._text(*reading, WRITE_MARK, LOCK, FORCED, RUN_TOOL, MAKE, INSTALL, APPLY),
            undo=self._text(READ_MARK, LOCK, UNDO),
        )
        if self.name != "uv":
            return (environment,)
        sending = send_uv(self._text, self._sent, self._uv) if self._uv.data else ()
        return (*sending, install_uv(self._text), environment)

    def join(self, hosts: Sequence[Host], facts: Sequence[Sequence[str]]) -> Sequence[Sequence[Step]]:
        return ()

    @property
    def enter(self) -> str:
        return (
            f"VIRTUAL_ENV={self._place}\n"
            'export VIRTUAL_ENV PATH="$VIRTUAL_ENV/bin${PATH:+:$PATH}"\n'
            "unset PYTHONHOME\n"
            f'[ -x "$VIRTUAL_ENV/bin/python" ] || {{ echo "{self.name}: no Python in $VIRTUAL_ENV" >&2; exit 125; }}'
        )

    def wrap(self, words: Sequence[str], env: Sequence[str], run: str) -> Sequence[str]:
        return words

    def _text(self, *parts: str) -> str:
        """Return a text whose values are set first."""
        return f"{self._set}env={self._place}\nsent={place(self._sent)}\n{MESSAGES}{''.join(parts)}"
