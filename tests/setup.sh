# Sourced by the scripts that begin from nothing: a Python, a virtual environment in .venv, mesh in it.
# As root on Debian, what is missing is installed; otherwise it is named.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
updated=no

say() { printf '==> %s\n' "$*" >&2; }

# packages NAME...: install Debian packages, or say what is missing
packages() {
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        say "without root, these are not installed: $*"
        return 1
    fi
    say "installing $*"
    if [ "$updated" = no ]; then
        apt-get update -qq >/dev/null || say "apt-get update failed; trying with the lists that are there"
        updated=yes
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -oDPkg::Lock::Timeout=600 --no-install-recommends "$@" >/dev/null
}

# usable_python: print a Python of at least 3.10 that works and can make virtual environments
usable_python() {
    local candidate
    for candidate in python3 /usr/bin/python3 python3.13 python3.12 python3.11 python3.10; do
        if "$candidate" -c 'import sys, venv, ensurepip, ssl; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# environment EXTRAS: have .venv with mesh and the extras ("" or "dev" or "dev,jax") in it
environment() {
    local extras=$1 python stamp wanted
    cd "$repository"
    python=$(usable_python) || { packages python3 python3-venv && python=$(usable_python); } || {
        say "needs Python 3.10 or later with venv (Debian: apt-get install python3 python3-venv)"
        return 1
    }
    stamp=.venv/.made-for
    wanted="$repository $extras $(cksum <pyproject.toml)"
    if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && .venv/bin/python -c 'import mesh' 2>/dev/null; then
        return 0
    fi
    # It may be half made, from another place or of a Python that is gone.
    if ! { .venv/bin/python -c 'import pip' && head -1 .venv/bin/pip | grep -qF "$repository/.venv"; } 2>/dev/null; then
        say "making .venv with $("$python" --version)"
        rm -rf .venv
        "$python" -m venv .venv
    fi
    say "installing mesh${extras:+ [$extras]} into .venv"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat \
        -e ".${extras:+[$extras]}"
    printf '%s\n' "$wanted" >"$stamp"
}
