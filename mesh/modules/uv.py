"""The program uv on hosts that have none: sent by the client, or installed by pip."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from msgspec import Struct

from mesh.core.module import HostFile, Step
from mesh.modules.environments import LOCK

SEND_TIMEOUT_S = 600.0

# Sets uv to a program that runs; fails where there is none. $sent-MACHINE: from the client
FIND_UV = r"""
find_uv() {
    for uv in "$(type -P uv)" ~/.local/bin/uv ~/.cargo/bin/uv "$sent-$(uname -m)" \
        "$MESH_MODULES/uv-$(uname -m)/bin/uv"; do
        [ -n "$uv" ] && [ -x "$uv" ] && "$uv" --version >/dev/null 2>&1 && return
    done
    uv=
    return 1
}
"""

# Sets kind and file: the source of the packages. The workspace is the working directory.
CHOOSE = r"""
choose() {
    file=$requirements
    case $tool,$file in
        *,uv.lock) kind=lock ;;
        *,pyproject.toml | *,*/pyproject.toml) kind=project ;;
        *,?*) kind=requirements ;;
        uv,)
            if [ -f uv.lock ] && [ -f pyproject.toml ]; then kind=lock file=uv.lock
            elif grep -q '^\[project\]' pyproject.toml 2>/dev/null; then kind=project file=pyproject.toml
            elif [ -f requirements.txt ]; then kind=requirements file=requirements.txt
            else kind=nothing; fi ;;
        *) if [ -f requirements.txt ]; then kind=requirements file=requirements.txt; else kind=nothing; fi ;;
    esac
}
"""

REMOVE_SENT = """
rm -f "$sent-$(uname -m)" "$MESH_MODULES/uv-does-not-run"
rmdir "${sent%/*}" 2>/dev/null
true
"""

# Only a lock file needs uv: without one, venv and pip do the same.
NEEDS_UV = "needs_uv() { choose; [ $kind = lock ] && ! find_uv; }\n"

KEEP_SENT = """
file=$sent-$(uname -m)
[ -x "$file" ] && "$file" --version >/dev/null 2>&1 && exit 0
rm -f "$file"
: >"$MESH_MODULES/uv-does-not-run"
"""

BY_PIP = r"""
unset VIRTUAL_ENV PYTHONHOME
place=$MESH_MODULES/uv-$(uname -m)
lock "$place.lock"
needs_uv || exit 0
python=$(type -P python3) || fail "there is no uv here, and no python3 to install it with" "$get_uv"
rm -rf "$place"
mkdir -p "$place/bin"
{
    "$python" -m venv "$place" && "$place/bin/python" -I -m pip --disable-pip-version-check --no-input \
        --retries 2 install --no-user --progress-bar off uv
} || {
    rm -rf "$place"
    "$python" -m pip --no-input --retries 2 install --no-user --progress-bar off --target "$place" uv
} || { rm -rf "$place"; fail "there is no uv here, and pip cannot install it" "$get_uv"; }
find_uv || { rm -rf "$place"; fail "the uv that pip has installed does not run here" "$get_uv"; }
"""

GET_UV = "install uv there: curl -LsSf https://astral.sh/uv/install.sh | sh"

Text = Callable[..., str]  # from parts of a text to a text whose variables are set


class LocalUv(Struct, frozen=True):
    """A program uv of the client."""

    data: bytes = b""  # b"": there is none
    platform: str = ""  # output of ``uname -sm`` where it runs


NO_UV = LocalUv()


def send_uv(text: Text, path: str, uv: LocalUv) -> Sequence[Step]:
    """Return the step that sends uv to hosts that need it and can run it. path: there, less -MACHINE"""
    machine = uv.platform.split()[-1]
    useless = f'[ "$(uname -sm)" != {shlex.quote(uv.platform)} ] || [ -e "$MESH_MODULES/uv-does-not-run" ]'
    step = Step(
        module="uv",
        check=text(FIND_UV, CHOOSE, NEEDS_UV, f"{useless} || ! needs_uv\n"),
        apply=text(KEEP_SENT),
        undo=text(REMOVE_SENT),
        files=(HostFile(path=f"{path}-{machine}", data=uv.data, mode=0o755),),
        timeout=SEND_TIMEOUT_S,
    )
    return (step,)


def install_uv(text: Text) -> Step:
    """Return the step that installs uv by pip where it is needed and was not sent."""
    return Step(
        module="uv",
        check=text(FIND_UV, CHOOSE, NEEDS_UV, "! needs_uv\n"),
        apply=text(FIND_UV, CHOOSE, NEEDS_UV, LOCK, BY_PIP),
        undo=text('rm -rf "$MESH_MODULES/uv-$(uname -m)" "$MESH_MODULES/uv-$(uname -m).lock"\n'),
    )
